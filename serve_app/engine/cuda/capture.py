"""Records steps as CUDA graphs, and measures for which steps a graph is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

Step = Callable[[], torch.Tensor]  # runs one step on fixed inputs; its result is overwritten by the next
Record = Callable[[Step], Step]  # what replays a step, with other numbers in its inputs

SLOWER: Final = 1.25  # times what launching takes; a step of a longer time is bound by the device
TRIES: Final = 3  # other work may use the device or the host meanwhile


class CudaGraphs:
    """Records steps as CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one: cuBLAS keeps memory for each

    def __call__(self, step: Step) -> Step:
        """As `Record`. The step runs twice: first to compile its kernels, then to be recorded."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may call CUDA meanwhile. The outer context is needed because torch
        # returns to the previous stream only if a recording ends well.
        with (
            torch.cuda.stream(current),
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        ):
            out = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def pays(step: Step) -> bool:
    """Whether a graph makes a step faster: the step's kernels take as long to launch as to run.

    The step runs once before it is timed, so that its kernels are compiled.
    """
    step()
    return any(_is_launching(step) for _ in range(TRIES))


def _is_launching(step: Step) -> bool:
    """Whether most of a step's time is spent on launching it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - began < SLOWER * (launched - began)
