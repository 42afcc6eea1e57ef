"""Layers fused by Triton kernels equal transformers': on a device, else in Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.fused.layer import DecoderStack
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.types import EngineRequest, SamplingParams
from tests.support.tiny_models import (
    ARCHITECTURES,
    BASE,
    BLOCK,
    TABLES,
    check_parity,
    make_model,
    make_sequence,
    tiny_config,
    tiny_model,
)
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FUSED = {
    *("llama", "mistral", "qwen2", "qwen3"),
    *("cohere", "gemma2", "gemma3_text", "glm4", "granite", "olmo2", "phi3"),
    *("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"),
}
SHAPE = {**BASE, "num_hidden_layers": 2}


def is_fused(model: PreTrainedModel) -> bool:
    return isinstance(model.forward, FusedForward)


def check_fused(architecture: str) -> None:
    model = tiny_model(architecture).to(DEVICE)
    check_parity(
        model, TritonAttention(), tolerance=1e-4, prepare=lambda m: accelerate_cuda(m, torch.float32)
    )
    assert is_fused(model) == (architecture in FUSED)  # others stay as they are


# Norms of heads, a window, other norms and scales. What the others declare is compared on the CPU.
@pytest.mark.parametrize(
    "architecture",
    [
        "gemma3_text",
        *(pytest.param(each, marks=LONG) for each in sorted(FUSED - {"gemma3_text", "gemma2", "qwen2"})),
    ],
)
def test_models_give_the_logits_and_greedy_tokens_of_transformers(architecture: str) -> None:
    check_fused(architecture)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_model_on_a_device_gives_them_too(architecture: str) -> None:
    check_fused(architecture)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=LONG)], ids=str)
def test_models_of_narrow_types_stay_near_transformers(dtype: torch.dtype) -> None:
    """With biases, and other sizes of hidden states than powers of two."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE | {"hidden_size": 48}, attention_bias=True, mlp_bias=True, head_dim=16)
    original = LlamaForCausalLM(config).eval().to(DEVICE)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    original = original.to(dtype)
    fused = accelerate_cuda(copy.deepcopy(original), dtype)
    assert is_fused(fused)
    sequence = make_sequence("0", list(range(3, 17)), TABLES[0])
    backends: tuple[AttentionBackend, ...] = ReferenceAttention(), TritonAttention()
    outputs = []
    for model, backend in zip((original, fused), backends, strict=True):
        runner = ModelRunner(
            model,
            backend=backend,
            dtype=dtype,
            device=DEVICE,
            config=EngineConfig(block_size=BLOCK, num_blocks=16),
        )
        outputs.append(
            [
                runner.run(build_batch([Chunk(sequence, start, length, start)], BLOCK, DEVICE))
                for start, length in ((0, 11), (11, 2), (13, 1))
            ]
        )
    for want, got in zip(*outputs, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0.05 * float(want.abs().max()))


@pytest.mark.parametrize("make_backend", [pytest.param(TritonAttention, marks=LONG), ReferenceAttention])
def test_the_last_layer_gives_the_rows_that_are_wanted_as_among_all(
    make_backend: Callable[[], AttentionBackend],
) -> None:
    """The last rows of each sequence, some or none; the cache has all of them."""
    model = accelerate_cuda(make_model(tiny_config("qwen3", **SHAPE)).to(DEVICE), torch.float32)
    config, sequences = (
        EngineConfig(block_size=BLOCK, num_blocks=16),
        [make_sequence(str(i), list(range(3 + i, 17 + i)), TABLES[i]) for i in range(2)],
    )
    all_rows, some_rows = (
        ModelRunner(model, backend=make_backend(), dtype=torch.float32, device=DEVICE, config=config)
        for _ in range(2)
    )
    # Of each sequence: the first token, their number, and how many rows are wanted.
    for step in (((0, 9, 1), (0, 7, 0)), ((9, 4, 0), (7, 3, 0)), ((13, 1, 1), (10, 4, 3))):
        chunks = [
            [Chunk(each, start, length, start + length - wanted) for each, (start, length, wanted) in made]
            for made in (
                list(zip(sequences, [(start, length, length) for start, length, _ in step], strict=True)),
                list(zip(sequences, step, strict=True)),
            )
        ]
        want, got = (
            runner.run(build_batch(each, BLOCK, DEVICE))
            for runner, each in zip((all_rows, some_rows), chunks, strict=True)
        )
        parts = torch.split(want, [length for _, length, _ in step])
        expected = [part[len(part) - wanted :] for part, (_, _, wanted) in zip(parts, step, strict=True)]
        torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-4)


def test_a_model_whose_rotary_factors_depend_on_more_than_the_position_runs_its_own_forward() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=dynamic)).eval().to(DEVICE)
    accelerate_cuda(model, torch.float32)
    assert not isinstance(model.get_decoder().layers[0], DecoderStack)
    assert not is_fused(model)


def test_an_unknown_structure_is_not_fused() -> None:
    torch.manual_seed(0)
    model = accelerate_cuda(GemmaForCausalLM(GemmaConfig(**SHAPE)).eval().to(DEVICE), torch.float32)
    assert not any(isinstance(layer, DecoderStack) for layer in model.get_decoder().layers)


def test_a_fused_layer_with_other_results_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = TritonKernels.gated

    def wrong(self: TritonKernels, *arguments: Any) -> torch.Tensor:
        return right(self, *arguments) * 1.1

    monkeypatch.setattr(TritonKernels, "gated", wrong)
    model = accelerate_cuda(tiny_model("llama").to(DEVICE), torch.float32)
    assert not is_fused(model)
    assert "LlamaForCausalLM is not fused: its logits are off by" in caplog.text


@long
def test_the_setting_triton_fuses_the_layers_and_changes_no_greedy_token() -> None:
    def answers(attention: str, overlap: bool = False) -> list[int]:
        model = make_model(tiny_config("qwen3", num_hidden_layers=1)).to(DEVICE)
        settings = EngineConfig(block_size=BLOCK, num_blocks=32, max_sequences=4, overlap=overlap)
        engine = assemble(
            model,
            dtype=torch.float32,
            device=DEVICE,
            context_window=64,
            eos_token_ids=(),
            config=ModelConfig(name="tiny", attention=attention).model_copy(update={"engine": settings}),
            progress=lambda _: None,
        )
        assert is_fused(model) == (attention == "triton")
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        engine.add(EngineRequest(id="a", token_ids=tuple(range(3, 12)), sampling=sampling))
        tokens = []
        while engine.has_work():
            tokens += [token for output in engine.step() for token in output.token_ids]
        return tokens

    assert len(tokens := answers("triton")) == 4
    assert tokens == answers("triton", overlap=True) == answers("reference")
