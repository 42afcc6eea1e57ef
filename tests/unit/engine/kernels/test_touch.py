"""Touched memory: the system has given it, and what is in it stays, whoever writes meanwhile."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from serve_app.engine.attention import LayerSpec, cpu
from serve_app.engine.attention.cpu import CpuAttention, TouchedBlocks
from serve_app.engine.kernels import native
from serve_app.engine.kernels.arena import HUGE_PAGE, zeros
from serve_app.engine.kernels.native import Native

SIZE = 24 * HUGE_PAGE


@pytest.fixture
def kernels() -> Native:
    found = native()
    if found is None:
        pytest.skip("no native functions on this machine")
    return found


@contextmanager
def busy(kernels: Native) -> Iterator[None]:
    """Kernels run all the time."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            kernels.highest(torch.zeros(1, 100))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()


def own_bytes() -> int:
    """What the system has given to this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what memory a process was given")
def test_the_system_gives_touched_memory(kernels: Native) -> None:
    pieces = [zeros(SIZE, torch.uint8), zeros(HUGE_PAGE + 1, torch.uint8)]
    before = own_bytes()
    kernels.touch(pieces, at_once=SIZE // 2).finish()
    assert own_bytes() - before >= 0.9 * SIZE
    assert not any(piece.any() for piece in pieces)


def test_what_is_written_meanwhile_stays(kernels: Native) -> None:
    memory = zeros(SIZE // 8, torch.int64)
    touching = kernels.touch([memory, memory], at_once=SIZE)
    for start in range(0, len(memory), 4096):
        memory[start : start + 4096] = torch.arange(start, min(start + 4096, len(memory)))
    touching.finish()
    assert torch.equal(memory, torch.arange(len(memory)))


def test_the_thread_tells_how_far_it_is_and_what_the_system_takes(kernels: Native) -> None:
    pieces = [zeros(SIZE, torch.uint8), zeros(HUGE_PAGE, torch.uint8)]
    with busy(kernels):
        touching = kernels.touch(pieces, at_once=0)
        touching.finish()
    assert touching.touched_bytes == SIZE
    assert 0 < touching.seconds_per_byte < 1e-3
    given = kernels.touch(pieces, at_once=SIZE * 2)
    given.finish()
    assert given.touched_bytes == SIZE


def test_what_counts_as_touched_has_its_memory_while_the_thread_goes_on_beside_kernels(
    kernels: Native,
) -> None:
    pieces = [zeros(SIZE, torch.uint8) for _ in range(2)]
    before = own_bytes()
    with busy(kernels):
        touching = kernels.touch(pieces, at_once=0)
        deadline = time.monotonic() + 60
        while touching.touched_bytes < 4 * HUGE_PAGE and time.monotonic() < deadline:
            time.sleep(0.01)
        touched = touching.touched_bytes
        given = own_bytes() - before
        del touching
    assert touched >= 4 * HUGE_PAGE, "kernels run all the time, but the thread touches some all the same"
    assert sys.platform != "linux" or given >= 2 * touched - HUGE_PAGE


def test_touching_without_a_break_ends_when_it_took_its_time(kernels: Native) -> None:
    memory = zeros(4 * SIZE, torch.uint8)
    deadline = time.monotonic() + 60
    with busy(kernels):
        touching = kernels.touch([memory], at_once=len(memory), seconds=0.0)
        while touching.touched_bytes < HUGE_PAGE and time.monotonic() < deadline:
            time.sleep(0.001)
        touched = touching.touched_bytes
        del touching
    assert HUGE_PAGE <= touched < len(memory), "the rest waits for the kernels"


def test_blocks_are_ready_that_are_touched_in_every_piece(kernels: Native) -> None:
    pieces = [torch.zeros(100, size, dtype=torch.uint8) for size in (3, 8, 5)]
    touching = kernels.touch([piece[:25] for piece in pieces], at_once=1 << 20)
    touching.finish()
    memory = TouchedBlocks(touching, pieces, 100)
    assert touching.touched_bytes == 8 * 25
    assert memory.ready_blocks == 25
    assert memory.block_seconds == 16 * touching.seconds_per_byte
    assert memory.run_seconds == 1600 * touching.seconds_per_byte


def test_blocks_of_a_cache_become_ready_beside_kernels_and_all_of_them_in_the_end(
    kernels: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "TOKENS_AT_ONCE", 0)
    backend, blocks = CpuAttention(), 400
    deadline = time.monotonic() + 60
    with busy(kernels):
        layers = LayerSpec(2, 64, 64), LayerSpec(8, 64, 64)
        backend.allocate(layers, blocks, 64, torch.bfloat16, torch.device("cpu"))
        memory = backend.memory
        assert memory is not None
        while memory.ready_blocks < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert memory.ready_blocks >= 5
    while memory.ready_blocks < blocks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert memory.ready_blocks == blocks
    assert memory.block_seconds > 0


def test_whoever_waits_for_the_end_does_not_wait_for_a_rest_of_the_kernels(kernels: Native) -> None:
    memory = zeros(SIZE, torch.uint8)
    with busy(kernels):
        kernels.touch([memory], at_once=0).finish()
    assert not memory.any()


def test_touching_ends_with_its_object(kernels: Native) -> None:
    memory = zeros(SIZE, torch.uint8)
    touching = kernels.touch([memory], at_once=0)
    memory.fill_(3)
    del touching
    gc.collect()
    assert bool((memory == 3).all())
    kernels.touch([memory], at_once=0).finish()
    assert bool((memory == 3).all())


@pytest.mark.parametrize("at_once", [0, 1 << 40])
def test_a_cache_is_zeros_while_it_is_touched(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "AT_ONCE", at_once)
    backend = CpuAttention()
    for blocks in (300, 200):  # the second one ends the first one's thread
        backend.allocate((LayerSpec(2, 64, 64),) * 3, blocks, 32, torch.bfloat16, torch.device("cpu"))
        for cache in backend.native_caches or ():
            assert len(cache.keys) == blocks
            assert not cache.keys.any()
            assert not cache.values.any()
