"""The KV cache's size and the context window, from numbers alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.attention import LayerSpec
from serve_app.engine.model.memory import (
    CUDA_OWN_BYTES,
    CUDA_SHARE,
    CachePlan,
    CacheTooSmall,
    cgroup_free,
    free_memory,
    keep_to_share,
    plan_cache,
    plan_for_device,
)
from serve_app.engine.state import StateSpec

LAYERS = (LayerSpec(2, 64, 64),) * 4  # 2 heads x 128 numbers x 4 layers = 2048 bytes a token in bfloat16
BLOCK_BYTES = 32 * 2048


def plan(
    free: int = 2**30,
    window: int = 1024,
    dtype: torch.dtype = torch.bfloat16,
    states: tuple[StateSpec, ...] = (),
    layers: tuple[LayerSpec, ...] = LAYERS,
    **settings: Any,
) -> CachePlan:
    config = EngineConfig(**{"max_sequences": 8, "block_size": 32, **settings})
    return plan_cache(
        layers,
        states,
        dtype=dtype,
        config=config,
        context_window=window,
        free_bytes=free,
        share=0.5,
        cap=400 * 2**20,
    )


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert plan().block_bytes == BLOCK_BYTES


def test_a_block_of_codes_has_a_scale_for_each_key_and_each_value() -> None:
    made = plan(dtype=torch.int8)
    assert made.block_bytes == 32 * 4 * 2 * (128 + 2 * 4)
    assert made.num_blocks / plan(free=2**40, kv_cache_bytes=made.cache_bytes).num_blocks > 1.88


def test_no_more_is_taken_than_all_sequences_can_fill() -> None:
    made = plan(free=2**40)
    assert made.num_blocks == 8 * (1024 // 32 + 1)
    assert (made.max_model_len, made.lowered_from) == (1024, None)


def test_a_share_of_free_memory_bounds_the_cache() -> None:
    made = plan(free=200 * BLOCK_BYTES)
    assert made.num_blocks == 100
    assert made.cache_bytes == 100 * BLOCK_BYTES


def test_the_cap_bounds_a_large_machine() -> None:
    assert plan(free=2**40, window=2**20).cache_bytes == 400 * 2**20


def test_a_window_that_does_not_fit_is_lowered_and_reported() -> None:
    made = plan(free=40 * BLOCK_BYTES)
    assert (made.num_blocks, made.max_model_len, made.lowered_from) == (20, 640, 1024)


def test_a_window_asked_for_by_number_is_refused_instead() -> None:
    with pytest.raises(CacheTooSmall, match="max_model_len asks for 1024"):
        plan(free=40 * BLOCK_BYTES, max_model_len=1024)


def test_a_window_beyond_the_models_own_is_refused() -> None:
    with pytest.raises(CacheTooSmall, match="own context window of 1024"):
        plan(max_model_len=1025)


def test_settings_override_what_is_free() -> None:
    assert plan(free=0, num_blocks=7).num_blocks == 7
    assert plan(free=0, kv_cache_bytes=10 * BLOCK_BYTES + 1).num_blocks == 10
    assert plan(free=0, kv_cache_bytes=2000 * BLOCK_BYTES).num_blocks == 2000  # room for prefixes
    assert plan(max_model_len=100).max_model_len == 100


MIB = (StateSpec((16, 128, 128), torch.float32),)  # a mebibyte a slot


def test_states_get_slots_for_a_full_batch_and_as_many_for_known_prefixes() -> None:
    made = plan(states=MIB)
    assert (made.num_slots, made.max_sequences, made.slot_bytes) == (4 * 8, 8, 2**20)
    assert made.cache_bytes == made.num_blocks * BLOCK_BYTES + (32 + 2) * 2**20
    assert plan().num_slots == 0


def test_states_take_half_of_the_cache_at_most_and_then_fewer_sequences_run_at_once() -> None:
    made = plan(free=32 * 2**20, states=MIB)  # of which half is the cache's, and half of that is for states
    assert (made.num_slots, made.max_sequences) == (6, 3)
    assert made.cache_bytes <= 16 * 2**20
    with pytest.raises(CacheTooSmall, match="states of one sequence take 1,048,576 bytes"):
        plan(free=8 * 2**20, states=MIB)


def test_a_model_of_states_alone_has_blocks_without_bytes() -> None:
    made = plan(states=MIB, layers=())
    assert (made.block_bytes, made.num_blocks) == (0, 8 * 33)


def test_too_little_memory_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CacheTooSmall, match="kv_cache_bytes"):
        plan(free=2 * BLOCK_BYTES)


@pytest.mark.parametrize(
    ("limit", "usage", "left"), [("1000", "400", 600), ("max", "400", None), ("1000", "2000", 0)]
)
def test_a_containers_limit_is_read(tmp_path: Path, limit: str, usage: str, left: int | None) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(usage + "\n")
    assert cgroup_free(tmp_path) == left


def test_an_old_control_group_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("5")
    assert cgroup_free(tmp_path) is None
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("105")
    assert cgroup_free(tmp_path) == 100


def test_this_machine_has_some_memory() -> None:
    assert free_memory(torch.device("cpu")) > 2**20


GPU = 1_000_000 * BLOCK_BYTES  # bytes of a GPU that is not there
KEPT = round(1_000_000 * (1 - CUDA_SHARE))  # blocks of it that no cache takes
OWN = CUDA_OWN_BYTES // BLOCK_BYTES


def plan_on_gpu(
    monkeypatch: pytest.MonkeyPatch,
    *,
    held: int,
    others: int = 0,
    share: float | None = None,
    step: int = 0,
    **settings: Any,
) -> CachePlan:
    """On a GPU whose memory this process holds a part of, and other processes another; in blocks."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GPU - (held + others) * BLOCK_BYTES, GPU))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held * BLOCK_BYTES)
    return plan_for_device(
        LAYERS,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        config=EngineConfig(max_sequences=64, max_step_tokens=16, gpu_share=share, **settings),
        context_window=2**20,
        step_bytes=step * BLOCK_BYTES,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_replica_keeps_to_its_part_of_a_gpu_with_all_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(**numbers: Any) -> Any:
        return pytest.approx(plan_on_gpu(monkeypatch, held=100_000, **numbers).num_blocks, abs=1)

    assert blocks() == 900_000 - KEPT
    assert blocks(step=50_000) == 850_000 - KEPT
    assert blocks(share=1.0) == 900_000 - OWN - KEPT
    assert blocks(share=0.5) == 400_000 - OWN - KEPT // 2
    assert blocks(share=0.5, step=50_000) == 350_000 - OWN - KEPT // 2
    # Whether the other half is taken already or will be makes no difference.
    assert blocks(share=0.5, others=500_000) == 400_000 - OWN - KEPT // 2
    # Where others took more than theirs, what is free decides.
    assert blocks(share=0.5, others=700_000) == 200_000 - KEPT // 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_what_fills_a_gpu_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CacheTooSmall, match=r"fill the part 0\.25 of the GPU.*raise `num_gpus`"):
        plan_on_gpu(monkeypatch, held=250_000, share=0.25)
    with pytest.raises(CacheTooSmall, match=r"a step takes .*; lower max_step_tokens, max_sequences"):
        plan_on_gpu(monkeypatch, held=100_000, step=850_000)


@pytest.mark.parametrize("available", [True, False])
def test_torch_is_held_to_the_part(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    held: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=2**34))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", held.append)
    keep_to_share(None)
    assert not held
    keep_to_share(0.5)
    assert held == ([0.5 - CUDA_OWN_BYTES / 2**34] if available else [])
