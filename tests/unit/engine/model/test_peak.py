"""The largest steps: what they are, that a runner runs them, and what becomes of their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from serve_app.engine.batch import Batch
from serve_app.engine.model import memory, peak, runner
from serve_app.engine.model.memory import CachePlan, CacheTooSmall
from serve_app.engine.model.runner import ModelRunner
from tests.support.tiny_models import tiny_model

CPU = torch.device("cpu")
WINDOW = 64  # tokens that the positions of a tiny model allow
GRAPHED = 70  # tokens of the largest graph


class Allocator:
    """Stands for torch's allocator of a GPU: a step takes what `peaks` says, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peaks: list[int]) -> None:
        self.emptied = 0
        self._peaks = peaks
        answers: dict[str, Any] = {
            "synchronize": lambda device: None,
            "reset_peak_memory_stats": lambda device: None,
            "memory_allocated": lambda device: 1000,
            "max_memory_allocated": lambda device: 1000 + self._peaks.pop(0),
            "empty_cache": self._empty,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def _empty(self) -> None:
        self.emptied += 1


class Caches(TorchGpuAttention):
    """Notes the sizes of the caches that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[int] = []

    def allocate(self, layers: tuple[LayerSpec, ...], num_blocks: int, *others: Any, **more: Any) -> None:
        super().allocate(layers, num_blocks, *others, **more)
        self.blocks.append(num_blocks)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too."""
    monkeypatch.setattr(peak, "is_measured", lambda device, config: True)


def make(backend: Caches, **settings: Any) -> ModelRunner:
    config = EngineConfig(**{"block_size": 4, "max_step_tokens": 100, "max_sequences": 3, **settings})
    return ModelRunner(
        tiny_model("mixtral"),
        backend=backend,
        dtype=torch.float32,
        device=CPU,
        config=config,
        graphed=GRAPHED,
    )


@pytest.mark.usefixtures("measured")
def test_the_cache_is_planned_around_the_sum_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch, [700, 200, 40])
    ran: list[tuple[tuple[int, ...], tuple[int, ...], torch.Size]] = []
    planned: list[int] = []
    run = ModelRunner.run

    def noted(self: ModelRunner, batch: Batch) -> torch.Tensor:
        logits = run(self, batch)
        ran.append((batch.context.query_lens, batch.context.lens, logits.shape))
        assert logits.isfinite().all()
        return logits

    def plan(*layers: Any, step_bytes: int, **numbers: Any) -> CachePlan:
        planned.append(step_bytes)
        return memory.plan_for_device(*layers, step_bytes=step_bytes, **numbers)

    monkeypatch.setattr(ModelRunner, "run", noted)
    monkeypatch.setattr(runner, "plan_for_device", plan)
    backend = Caches()
    made = make(backend)
    # Prompts of 100 tokens in all, each within the window; those of the largest graph; then decodes at the
    # end of the longest.
    assert ran == [
        ((WINDOW, 36), (WINDOW, 36), (100, 96)),
        ((WINDOW, 6), (WINDOW, 6), (2, 96)),
        ((1, 1, 1), (WINDOW,) * 3, (3, 96)),
    ]
    assert planned == [940]
    # The cache of the steps is gone before the real one is made.
    assert backend.blocks == [WINDOW // 4, 0, made.num_blocks]
    assert allocator.emptied == 1


@pytest.mark.usefixtures("measured")
def test_a_step_that_does_not_fit_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch, [])

    def full(self: ModelRunner, batch: Batch) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "run", full)
    backend = Caches()
    with pytest.raises(CacheTooSmall, match=r"a step of 100 tokens does not fit.*lower max_step_tokens"):
        make(backend)
    assert backend.blocks == [WINDOW // 4, 0]
    assert allocator.emptied == 1


def test_steps_are_run_only_where_their_memory_decides() -> None:
    cuda = torch.device("cuda")
    assert peak.is_measured(cuda, EngineConfig())
    assert not peak.is_measured(CPU, EngineConfig())
    assert not peak.is_measured(cuda, EngineConfig(num_blocks=10))
    assert not peak.is_measured(cuda, EngineConfig(kv_cache_bytes=2**20))


@pytest.mark.parametrize("tokens", [16, 64, 65, 2048])
def test_a_step_has_as_many_tokens_as_the_settings_allow(tokens: int) -> None:
    config = EngineConfig(max_step_tokens=tokens, max_sequences=8, block_size=4)
    prompts, graphed, decodes = peak.largest_steps(config, WINDOW, 96, CPU, min(tokens, GRAPHED))
    assert len(prompts.input_ids) == len(prompts.logit_rows) == tokens
    assert max(prompts.context.lens) == min(tokens, WINDOW)
    assert int(prompts.input_ids.max()) < 96
    blocks = peak.blocks_of_steps(config, WINDOW)
    assert len(graphed.input_ids) == min(tokens, GRAPHED)
    assert len(graphed.logit_rows) == graphed.context.num_sequences
    for step in (prompts, graphed, decodes):
        assert int(step.context.block_tables.max()) < blocks
        assert int(step.context.slots.max()) < blocks * 4
    assert decodes.context.query_lens == (1,) * 8


def test_without_graphs_nothing_is_kept_for_them() -> None:
    assert len(peak.largest_steps(EngineConfig(), WINDOW, 96, CPU)) == 2
