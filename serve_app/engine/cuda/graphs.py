"""Decode steps as CUDA graphs: the kernels of all layers are launched by one call.

A graph is recorded for each of a few numbers of sequences and replayed on the same memory. A step of
fewer sequences is filled up with null ones, which read no cache and write none. Embedding and head stay
outside, so prompt tables and wanted rows need nothing of a graph.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.triton import plan
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.adapters.table import StackedTable, TiledAdapters
from serve_app.engine.cuda.adapters.tiles import FEW, Tiles
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.forward import Decode, FusedForward
from serve_app.engine.model.adapter_table import Adapters
from serve_app.engine.model.forward import active, current
from serve_app.engine.model.memory import CachePlan

log = logging.getLogger(__name__)

BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sequences of a graph
NO_SLOT: Final = -1

Step = Callable[[], torch.Tensor]  # runs one step on fixed inputs; its result is overwritten by the next
Record = Callable[[Step], Step]  # what replays a step, with other numbers in its inputs


def buckets(most: int) -> tuple[int, ...]:
    """The numbers of sequences that are recorded for steps of up to `most`, ascending."""
    most = min(most, BUCKETS[-1])
    return (*(each for each in BUCKETS if each < most), most)


class StepBuffers:
    """The inputs of a decode step of up to S sequences, always in the same memory."""

    def __init__(self, sequences: int, hidden_size: int, cache: CachePlan, device: torch.device) -> None:
        self._length, self._block_size = cache.max_model_len, cache.block_size
        width = -(-cache.max_model_len // cache.block_size)
        self.states = torch.zeros(sequences, hidden_size, device=device)
        self.positions = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._slots = torch.full((sequences,), NO_SLOT, dtype=torch.int64, device=device)
        self._lens = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._tables = torch.zeros(sequences, width, dtype=torch.int32, device=device)
        self._starts = torch.arange(sequences + 1, dtype=torch.int32, device=device)
        # Tiles of adapters: at most as many as rows.
        self._order = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._bounds = torch.zeros(sequences, 3, dtype=torch.int32, device=device)

    def context(self, bucket: int) -> ForwardContext:
        """The context of the first `bucket` sequences, whatever `fill` writes."""
        return ForwardContext(
            query_start=self._starts[: bucket + 1],
            context_lens=self._lens[:bucket],
            block_tables=self._tables[:bucket],
            slots=self._slots[:bucket],
            query_lens=(1,) * bucket,
            lens=(self._length,) * bucket,  # the most that they can be
            block_size=self._block_size,
        )

    def tiles(self, bucket: int) -> Tiles:
        """The tiles of the first `bucket` sequences, whatever `fill_tiles` writes."""
        return Tiles(self._order[:bucket], self._bounds[:bucket], FEW)

    def fits(self, context: ForwardContext) -> bool:
        """Whether the block tables of a step have room."""
        return context.block_tables.shape[1] <= self._tables.shape[1]

    def fill(
        self, states: torch.Tensor, positions: torch.Tensor, context: ForwardContext, bucket: int
    ) -> None:
        """The rows of a step, and null sequences up to `bucket`."""
        count, width = context.block_tables.shape
        self.states[:count].copy_(states)
        self.positions[:count].copy_(positions)
        self._slots[:count].copy_(context.slots)
        self._lens[:count].copy_(context.context_lens)
        self._tables[:count, :width].copy_(context.block_tables)
        if count < bucket:
            self.states[count:bucket].zero_()
            self._slots[count:bucket].fill_(NO_SLOT)
            self._lens[count:bucket].zero_()

    def fill_tiles(self, tiles: Tiles, bucket: int) -> None:
        """The tiles of a step, and empty ones up to `bucket`."""
        self._order[: len(tiles.order)].copy_(tiles.order)
        count = len(tiles.bounds)
        self._bounds[:count].copy_(tiles.bounds)
        self._bounds[count:bucket].zero_()


class GraphedDecode:
    """A `Decode` that replays a graph for steps of decodes alone, and passes all others on."""

    def __init__(
        self,
        decode: Decode,
        backend: TritonAttention,
        buffers: StepBuffers,
        sizes: Sequence[int],
        cache: CachePlan,
        adapters: StackedTable | None = None,
    ) -> None:
        """`sizes` are the numbers of sequences to record, ascending; nothing is recorded yet.

        With `adapters`, steps whose rows have any get graphs of their own.
        """
        self._decode, self._backend, self._buffers = decode, backend, buffers
        self._sizes = tuple(sizes)
        parts_of_one = -(-cache.max_model_len // plan.PART)
        # Sequences that share no block have no more parts than the cache. Others may run without.
        of_cache = cache.num_blocks * cache.block_size // plan.PART
        self._most_parts = {size: min(size * parts_of_one, size + of_cache) for size in sizes}
        self._adapters = adapters
        self._replays: dict[int, Step] = {}
        self._adapted: dict[int, Step] = {}  # with the products of adapters

    def record(self, record: Record, progress: Callable[[str], None]) -> None:
        """Record all sizes, the largest first: smaller ones use its memory again."""
        with torch.inference_mode():
            for done, size in enumerate(reversed(self._sizes), 1):
                self._replays[size] = record(self._step(size, None))
                if self._adapters is not None:
                    self._adapted[size] = record(self._step(size, self._adapters))
                progress(f"recorded the decode of {size} sequences ({done} of {len(self._sizes)})")

    def forget(self) -> None:
        """Let every step run without a graph."""
        self._replays.clear()
        self._adapted.clear()

    def __call__(
        self, states: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """As `Decode`."""
        size = self._size_for(len(states))
        if size is None:
            return self._decode(states, positions, rows)
        step = current()
        self._buffers.fill(states, positions, step.context, size)
        replay = self._replays[size]
        if isinstance(step.adapters, TiledAdapters):
            self._buffers.fill_tiles(step.adapters.tiles, size)
            replay = self._adapted[size]
        normed = replay()[: len(states)]
        return normed if rows is None else normed.index_select(0, rows)

    def _size_for(self, tokens: int) -> int | None:
        """The graph for the active step; None: it runs without."""
        step = current()
        context = step.context
        place = bisect_left(self._sizes, tokens)
        if (
            not self._replays
            or tokens != context.num_sequences  # prompts, or drafts
            or place == len(self._sizes)
            or (step.adapters is not None and self._adapters is None)
            or step.backend is not self._backend
            or not self._buffers.fits(context)
        ):
            return None
        size = self._sizes[place]
        parts = sum(-(-length // plan.PART) for length in context.lens)
        return size if parts <= self._most_parts[size] else None

    def _step(self, size: int, adapters: StackedTable | None) -> Step:
        buffers, context, most_parts = self._buffers, self._buffers.context(size), self._most_parts[size]
        rows = None if adapters is None else TiledAdapters(adapters.stacks, buffers.tiles(size))

        def run() -> torch.Tensor:
            self._backend.begin_lasting(context, most_parts)
            with active(self._backend, context, rows):
                return self._decode(buffers.states[:size], buffers.positions[:size], None)

        return run


class CudaGraphs:
    """Records steps as CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one: cuBLAS keeps memory for each

    def __call__(self, step: Step) -> Step:
        """As `Record`. The step runs twice: kernels are compiled before anything is recorded."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may call CUDA meanwhile. The outer context: torch goes back to the
        # stream before only where a recording ends well.
        with (
            torch.cuda.stream(current),
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        ):
            out = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def graph_decodes(
    module: PreTrainedModel,
    backend: AttentionBackend,
    cache: CachePlan,
    sequences: int,
    progress: Callable[[str], None],
    record: Record | None = None,
    adapters: Adapters | None = None,
) -> bool:
    """Have `module` replay graphs for decodes of up to `sequences`; False, with a log line: it does not.

    Call it when the cache is allocated. `record`: None for CUDA graphs. `adapters`: the model's table, if
    steps with adapters shall have graphs, too; those of a table of another kind have none.
    """
    forward: object = module.forward
    if not isinstance(forward, FusedForward) or not isinstance(backend, TritonAttention):
        log.info("no CUDA graphs: %s runs transformers' own forward", type(module).__name__)
        return False
    sizes = buckets(sequences)
    buffers = StepBuffers(sizes[-1], module.config.get_text_config().hidden_size, cache, module.device)
    stacked = adapters if isinstance(adapters, StackedTable) else None
    graphed = GraphedDecode(forward.decode, backend, buffers, sizes, cache, stacked)
    started = time.monotonic()
    try:
        graphed.record(record or CudaGraphs(), progress)
    except Exception:  # of the driver, of memory, or of an operation that cannot be recorded
        # torch 2.11 takes the recording for one that goes on: it gives no memory back to other processes.
        log.warning(
            "no CUDA graphs: recording failed; decodes are launched kernel by kernel, and memory of the GPU "
            "that torch has taken stays taken until this process ends",
            exc_info=True,
        )
        graphed.forget()
        return False
    forward.decode = graphed
    progress(f"recorded {len(sizes)} CUDA graphs in {time.monotonic() - started:.1f} s")
    return True
