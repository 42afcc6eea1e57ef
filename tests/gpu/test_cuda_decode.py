"""On a GPU: fused layers of real sizes equal transformers', and graphs of steps equal steps without."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.select import make_backend
from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from tests.support.low_rank import random_updates
from tests.support.tiny_models import make_sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
BLOCK, BLOCKS_EACH, SEQUENCES = 32, 40, 20
STEP = 1900  # tokens of prompts
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": BLOCK * BLOCKS_EACH,
}
RANKS = {"first": 64, "second": 8}  # of adapters
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
}


def runner(
    model: PreTrainedModel, attention: str, dtype: torch.dtype
) -> tuple[ModelRunner, AttentionBackend]:
    backend = make_backend(attention, CUDA)
    if attention == "triton":
        from serve_app.engine.cuda.fused import accelerate_cuda

        accelerate_cuda(model, dtype)
    config = EngineConfig(
        block_size=BLOCK,
        num_blocks=BLOCKS_EACH * SEQUENCES,
        max_adapters=len(RANKS),
        max_adapter_rank=max(RANKS.values()),
    )
    made = ModelRunner(
        model,
        backend=backend,
        dtype=dtype,
        device=CUDA,
        config=config,
        make_adapters=stacked_table() if attention == "triton" else PackedTable,
    )
    assert made.adapters is not None
    for seed, (key, rank) in enumerate(RANKS.items()):
        made.adapters.put(key, made.adapters.compile(random_updates(made.adapters.shapes, seed, rank, 0.3)))
    return made, backend


def stacked_table() -> MakeAdapters:
    from serve_app.engine.cuda.adapters.slots import StackedTable

    return StackedTable


def batches(decodes: int, adapted: bool = False) -> Iterator[Batch]:
    """Prompts in pieces, then decodes, of ever fewer sequences; most with adapters, if `adapted`."""
    order = torch.randperm(BLOCKS_EACH * SEQUENCES, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(4096, (SEQUENCES, 1280), generator=torch.Generator().manual_seed(4)).tolist()
    tables = order.view(SEQUENCES, BLOCKS_EACH).tolist()
    lengths = [1 + 61 * i for i in range(SEQUENCES)]
    running = [make_sequence(str(i), ids[i], tables[i]) for i in range(SEQUENCES)]
    if adapted:
        for sequence, key in zip(running, cycle((*RANKS, None, *RANKS)), strict=False):
            sequence.adapter = key
    done = [0] * SEQUENCES
    while sum(done) < sum(lengths):
        chunks, room = [], STEP
        for index, length in enumerate(lengths):
            count = min(length - done[index], room)
            if count:
                chunks.append(Chunk(running[index], done[index], count, done[index] + count - 1))
                done[index] += count
                room -= count
        yield build_batch(chunks, BLOCK, CUDA)
    for step in range(decodes):
        alive = list(zip(running, lengths, strict=True))[step * SEQUENCES // decodes :]
        yield build_batch([Chunk(s, n + step, 1, n + step) for s, n in alive], BLOCK, CUDA)


@pytest.mark.parametrize("adapted", [False, True], ids=["alone", "with adapters"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_fused_layers_and_graphs_give_the_logits_of_transformers_layers(
    name: str, dtype: torch.dtype, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve_app.engine.cuda.capture import CudaGraphs
    from serve_app.engine.cuda.graphs import GraphedSteps, graph_steps

    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    model = MODELS[name]().eval().to(CUDA, dtype)
    plain, _ = runner(copy.deepcopy(model), "reference", dtype)
    want = [plain.run(batch) for batch in batches(6, adapted)]
    fused, backend = runner(model, "triton", dtype)
    eager = [fused.run(batch) for batch in batches(6, adapted)]
    assert graph_steps(
        *(fused.module, backend, fused.plan, SEQUENCES, lambda _: None, CudaGraphs(), fused.adapters),
        tokens=2048,
    )
    assert isinstance(fused.module.forward.decode, GraphedSteps)
    graphed = [fused.run(batch) for batch in batches(6, adapted)]
    tolerance = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    for one, two, three in zip(want, eager, graphed, strict=True):
        limit = tolerance * float(one.abs().max())
        torch.testing.assert_close(two, one, rtol=0, atol=limit)
        torch.testing.assert_close(three, one, rtol=0, atol=limit)


@pytest.mark.parametrize("adapted", [False, True], ids=["alone", "with adapters"])
def test_a_step_by_graph_waits_for_nothing(adapted: bool) -> None:
    from serve_app.engine.cuda.capture import CudaGraphs
    from serve_app.engine.cuda.graphs import graph_steps

    torch.manual_seed(0)
    fused, backend = runner(MODELS["llama"]().eval().to(CUDA, torch.bfloat16), "triton", torch.bfloat16)
    assert graph_steps(
        *(fused.module, backend, fused.plan, SEQUENCES, lambda _: None, CudaGraphs(), fused.adapters),
        tokens=2048,
    )
    steps = list(batches(2, adapted))
    for batch in steps:
        fused.run(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits = [fused.run(batch) for batch in steps]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(each.isfinite().all() for each in logits)
