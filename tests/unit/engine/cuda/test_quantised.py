"""Models with `quantization` on a GPU: in Triton's interpreter where there is no device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from serve_app.config import EngineConfig
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cuda.adapters.slots import StackedTable
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.graphs import graph_steps
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.formats import FORMATS, Packer
from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.low_rank import random_updates
from tests.support.tiny_models import BASE, BLOCK, TABLES, make_model, make_sequence, tiny_config
from tests.support.triton_interpreter import LONG

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = {**BASE, "num_hidden_layers": 1}
KINDS = pytest.mark.parametrize(
    "kind", ["int4", pytest.param("int8", marks=LONG), pytest.param("fp8", marks=LONG)]
)


def rounded(model: nn.Module, weights: WeightFormat) -> None:
    """Give the linears of `model` the numbers that their codes have."""
    pack = Packer(model, weights, "triton")  # type: ignore[arg-type]
    for linear in [each for each in model.modules() if isinstance(each, nn.Linear)]:
        numbers = pack(linear).weight_kept.codes.numbers()  # type: ignore[attr-defined]
        linear.weight = nn.Parameter(
            numbers.to(linear.weight.dtype)
        )  # a head has another one than an embedding


def runner(model: nn.Module, backend: object, *, adapters: bool) -> ModelRunner:
    config = EngineConfig(block_size=BLOCK, num_blocks=16, max_adapters=int(adapters), max_adapter_rank=4)
    made = ModelRunner(
        model,  # type: ignore[arg-type]
        backend=backend,  # type: ignore[arg-type]
        dtype=torch.float32,
        device=DEVICE,
        config=config,
        context_window=32,
        make_adapters=StackedTable if isinstance(backend, TritonAttention) else PackedTable,
    )
    if made.adapters is not None:
        made.adapters.put("one", made.adapters.compile(random_updates(made.adapters.shapes, 0, 4)))
    return made


def logits(runner: ModelRunner) -> list[torch.Tensor]:
    """Of two sequences, the first of which has an adapter, if the runner has one: a prompt and decodes."""
    first, second = (make_sequence(str(i), list(range(3 + i, 20 + i)), TABLES[i]) for i in range(2))
    first.adapter = "one" if runner.adapters is not None else None
    steps = (
        [Chunk(first, 0, 9, 0), Chunk(second, 0, 5, 4)],
        [Chunk(first, 9, 1, 9), Chunk(second, 5, 1, 5)],
        [Chunk(second, 6, 1, 6)],
    )
    return [runner.run(build_batch(list(chunks), BLOCK, DEVICE)) for chunks in steps]


@KINDS
def test_fused_layers_heads_adapters_and_graphs_have_the_numbers_of_the_codes(kind: str) -> None:
    weights, model = FORMATS[kind], make_model(tiny_config("qwen3", **SHAPE)).to(DEVICE)
    original = copy.deepcopy(model)
    rounded(original, weights)
    accelerate_cuda(model, torch.float32, weights)
    assert isinstance(model.forward, FusedForward)
    left = [name for name, each in model.named_parameters() if each.dim() > 1]
    assert left == ["model.embed_tokens.weight"]
    want = logits(runner(original, ReferenceAttention(), adapters=True))
    fused = runner(model, backend := TritonAttention(), adapters=True)
    found = [logits(fused)]
    said: list[str] = []
    record = None if DEVICE.type == "cuda" else lambda step: step
    assert graph_steps(fused.module, backend, fused.plan, 2, said.append, record, fused.adapters)
    found.append(logits(fused))
    for got in found:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("kind", ["int8", pytest.param("int4", marks=LONG), pytest.param("fp8", marks=LONG)])
def test_linears_of_layers_that_stay_transformers_have_the_numbers_of_the_codes(kind: str) -> None:
    weights, model = FORMATS[kind], make_model(tiny_config("gemma", **SHAPE)).to(DEVICE)
    original = copy.deepcopy(model)
    rounded(original, weights)
    accelerate_cuda(model, torch.float32, weights)
    assert not isinstance(model.forward, FusedForward)
    assert not [each for each in model.modules() if isinstance(each, nn.Linear)]
    assert sum(isinstance(each, PackedLinear) for each in model.modules()) == 8
    want = logits(runner(original, ReferenceAttention(), adapters=False))
    for one, other in zip(logits(runner(model, TritonAttention(), adapters=False)), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def test_a_model_whose_codes_give_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(tiny_config("gemma", **SHAPE)).to(DEVICE)
    monkeypatch.setattr(
        PackedLinear, "forward", lambda self, x: x.new_zeros(*x.shape[:-1], self.out_features)
    )
    with pytest.raises(
        UnsupportedModel, match="computes something else with weights as codes here: its logits"
    ):
        accelerate_cuda(model, torch.float32, FORMATS["int8"])
