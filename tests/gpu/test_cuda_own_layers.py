"""On a GPU: experts, states and graphs of transformers' own layers, at the sizes of models in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention.select import make_backend
from serve_app.engine.batch import build_batch
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.cache.state_tables import StateTables
from serve_app.engine.experts.gate import Gate, interleaved
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from tests.support.tiny_models import make_sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
DTYPES = torch.bfloat16, torch.float32
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
# Experts, those of a row, width, width between the products; the form of gpt-oss or of Qwen3.
SHAPES = {"qwen3-30b-a3b": (128, 8, 2048, 768, False), "gpt-oss-20b": (32, 4, 2880, 2880, True)}
BLOCK, BLOCKS_EACH, SEQUENCES = 32, 20, 6
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": BLOCK * BLOCKS_EACH,
}
MODELS: Final[Mapping[str, Mapping[str, object]]] = {
    "gpt_oss": {"num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 128},
    "qwen3_moe": {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
    "qwen3_5_text": {
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "mamba2": {"num_heads": 32, "head_dim": 64, "state_size": 128, "n_groups": 2},
}


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 64, 2048])
@pytest.mark.parametrize("name", SHAPES)
def test_experts_of_a_layer_equal_the_exact_products(name: str, rows: int, dtype: torch.dtype) -> None:
    from serve_app.engine.cuda.experts.grouped import Pairs

    experts, share, width, inner, clamped = SHAPES[name]
    torch.manual_seed(0)
    gate = Gate(limit=7.0, alpha=1.702, added=1.0) if clamped else Gate()
    up = torch.randn(experts, 2 * inner, width, device=CUDA).mul_(width**-0.5).to(dtype)
    bias = torch.randn(experts, 2 * inner, device=CUDA).to(dtype) if clamped else None
    x = torch.randn(rows, width, device=CUDA).to(dtype)
    chosen = torch.rand(rows, experts, device=CUDA).argsort(1)[:, :share].reshape(-1).contiguous()
    given = up.mT.contiguous() if clamped else up
    options = {"share": share, "gate": gate, "in_turn": clamped, "transposed": clamped}
    got = Pairs(chosen, experts).multiply(x, given, bias, **options)
    want = torch.empty(rows * share, inner, device=CUDA)
    for expert in range(experts):
        pairs = (chosen == expert).nonzero()[:, 0]
        own = None if bias is None else bias[expert].float()
        made = functional.linear(x[pairs // share].float(), up[expert].float(), own)
        want[pairs] = gate(made[:, interleaved(2 * inner).to(CUDA)] if clamped else made)
    torch.testing.assert_close(got.float(), want, rtol=0, atol=TOLERANCE[dtype] * float(want.abs().max()))
    # The pairs of a row alone, by tiles of the same size.
    if rows == 64:
        for row in (0, 17, 63):
            own_pairs = slice(row * share, (row + 1) * share)
            alone = Pairs(chosen[own_pairs].contiguous(), experts).multiply(
                x[row : row + 1], given, bias, **options
            )
            assert torch.equal(alone, got[own_pairs])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_states_equal_those_of_plain_torch(dtype: torch.dtype) -> None:
    from serve_app.engine.cuda.trial.states import states_fault

    assert states_fault(dtype, CUDA) is None


def runner_of(kind: str, dtype: torch.dtype, attention: str) -> ModelRunner:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **{**SIZES, **MODELS[kind]}), dtype=dtype
    )
    model = model.eval().to(CUDA)
    kernels = None
    if attention == "triton":
        from serve_app.engine.cuda.fused import accelerate_cuda
        from serve_app.engine.cuda.states.launch import TritonStates

        accelerate_cuda(model, dtype)
        kernels = TritonStates()
    return ModelRunner(
        model,
        backend=make_backend(attention, CUDA),
        dtype=dtype,
        device=CUDA,
        config=EngineConfig(block_size=BLOCK, num_blocks=BLOCKS_EACH * SEQUENCES, max_sequences=SEQUENCES),
        context_window=BLOCK * BLOCKS_EACH,
        state_kernels=kernels,
    )


def steps(runner: ModelRunner) -> Iterator[torch.Tensor]:
    """Logits of a prompt each, then of six decodes of ever fewer sequences."""
    ids = torch.randint(4096, (SEQUENCES, 600), generator=torch.Generator().manual_seed(4)).tolist()
    order = torch.randperm(BLOCKS_EACH * SEQUENCES, generator=torch.Generator().manual_seed(3))
    tables = order.view(SEQUENCES, -1).tolist()
    running = [make_sequence(str(i), ids[i], tables[i]) for i in range(SEQUENCES)]
    lengths = [1 + 97 * i for i in range(SEQUENCES)]
    states = StateTables(SlotPool(runner.num_slots or 3 * SEQUENCES), BLOCK, prefix_cache=False)
    work = [[Chunk(s, 0, n, n - 1)] for s, n in zip(running, lengths, strict=True)]
    for step in range(6):
        alive = list(zip(running, lengths, strict=True))[step:]
        work.append([Chunk(s, n + step, 1, n + step) for s, n in alive])
    for chunks in work:
        if runner.num_slots:
            states.assign(chunks)
        yield runner.run(build_batch(chunks, BLOCK, CUDA)).clone()
        if runner.num_slots:
            for chunk in chunks:
                states.advance(chunk.sequence, chunk, chunk.end)
                states.settle(chunk)


@pytest.mark.parametrize("kind", MODELS)
def test_graphs_of_own_layers_give_the_logits_of_plain_torch(kind: str) -> None:
    """In float32: in narrower types another rounding may choose other experts."""
    from serve_app.engine.cuda.capture import CudaGraphs
    from serve_app.engine.cuda.graphs import graph_steps
    from serve_app.engine.cuda.own_layers import OwnLayers

    want = list(steps(runner_of(kind, torch.float32, "reference")))
    graphed = runner_of(kind, torch.float32, "triton")
    eager = list(steps(graphed))
    assert graph_steps(
        *(graphed.module, graphed.backend, graphed.plan, SEQUENCES, lambda _: None, CudaGraphs()),
        tokens=512,
        states=graphed.states,
    )
    assert isinstance(graphed.module.get_decoder().forward, OwnLayers)
    for one, two, three in zip(want, eager, steps(graphed), strict=True):
        limit = 1e-3 * float(one.abs().max())
        torch.testing.assert_close(two, one, rtol=0, atol=limit)
        torch.testing.assert_close(three, one, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", MODELS)
def test_a_decode_of_own_layers_waits_for_nothing(kind: str) -> None:
    from serve_app.engine.cuda.capture import CudaGraphs
    from serve_app.engine.cuda.graphs import graph_steps

    graphed = runner_of(kind, torch.bfloat16, "triton")
    assert graph_steps(
        *(graphed.module, graphed.backend, graphed.plan, SEQUENCES, lambda _: None, CudaGraphs()),
        states=graphed.states,
    )
    done = list(steps(graphed))  # once, so that everything is compiled
    assert all(each.isfinite().all() for each in done)
    torch.cuda.synchronize()
    running = steps(graphed)
    for _ in range(SEQUENCES):
        next(running)  # prompts are launched kernel by kernel
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits = list(running)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(each.isfinite().all() for each in logits)
