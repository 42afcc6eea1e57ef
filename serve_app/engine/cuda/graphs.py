"""Steps as CUDA graphs: the kernels of all layers are launched by one call.

Graphs are recorded for a few numbers of decodes, and for a few numbers of rows in mixed steps. They are
replayed on the same memory. A smaller step is padded with null rows, which neither read nor write the cache.
Embedding and head stay outside, so prompt tables and wanted rows need no support in graphs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.attention.triton import plan
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.adapters.slots import StackedTable, TiledAdapters
from serve_app.engine.cuda.adapters.tiles import FEW, MANY
from serve_app.engine.cuda.capture import CudaGraphs, Record, Step, pays
from serve_app.engine.cuda.own_layers import OwnLayers
from serve_app.engine.cuda.step_buffers import StepBuffers
from serve_app.engine.cuda.watch import NotRecordable, watched
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.forward import Decode, FusedForward
from serve_app.engine.model.adapter_table import Adapters
from serve_app.engine.model.forward import active, current, takes_positions
from serve_app.engine.model.memory import CachePlan
from serve_app.engine.state.pools import WAVES, LastingStates, StatePools

log = logging.getLogger(__name__)

BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # decodes of a graph
ROWS: Final = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)  # of a graph with prompts
PROMPTS: Final = 16  # sequences of several rows in a graph at most
TRIED: Final = 2  # decodes that show whether a decoder can be called with embedded rows
# What a graph may differ from its step, relative to the largest number: cuBLAS may choose other products.
SAME: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}

Progress = Callable[[str], None]


def buckets(most: int) -> tuple[int, ...]:
    """The numbers of decodes for which graphs are recorded, ascending; steps have up to `most` decodes."""
    most = min(most, BUCKETS[-1])
    return (*(each for each in BUCKETS if each < most), most)


class GraphedSteps:
    """A `Decode` that replays a graph for steps that fit a graph, and passes all other steps on."""

    def __init__(
        self,
        decode: Decode,
        backend: AttentionBackend,
        buffers: StepBuffers,
        cache: CachePlan,
        adapters: StackedTable | None = None,
        states: LastingStates | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """Nothing is recorded yet. With `adapters`, steps that have rows with adapters get separate graphs.

        `backend`: the backend of the active steps; its kernels are Triton's. `checked`: recording raises
        NotRecordable unless `watched` finds the step recordable and its graph gives the step's result.
        """
        self._decode, self._backend, self._buffers = decode, backend, buffers
        self._adapters, self._states, self._checked = adapters, states, checked
        self._parts_of_one = -(-cache.max_model_len // plan.PART)
        # Sequences that share no block have no more parts than the cache. Others may run without.
        self._parts_of_cache = cache.num_blocks * cache.block_size // plan.PART
        # By whether sequences may have several rows and whether rows have adapters; then by rows.
        self._graphs: dict[tuple[bool, bool], dict[int, Step]] = {}

    def record_rows(
        self, sizes: Sequence[int], record: Record, gains: Callable[[Step], bool], progress: Progress
    ) -> None:
        """Record the mixed steps of those `sizes` for which a graph is faster."""
        with torch.inference_mode():
            chosen = self._gaining(sizes, gains)
            if len(chosen) < len(sizes):
                progress(
                    f"steps with prompts of more than {max(chosen, default=0)} tokens are launched kernel by "
                    "kernel: a graph gains no time there, or memory is short"
                )
            for done, size in enumerate(reversed(chosen), 1):
                self._record(size, PROMPTS, record)
                progress(f"recorded the step of {size} tokens ({done} of {len(chosen)})")

    def _gaining(self, sizes: Sequence[int], gains: Callable[[Step], bool]) -> list[int]:
        """The `sizes` for which a graph is faster and fits in memory."""
        chosen = []
        for size in sizes:
            self._buffers.pretend(size, PROMPTS)
            try:
                if not all(map(gains, self._steps(size, PROMPTS).values())):
                    break
            except torch.OutOfMemoryError:
                break
            chosen.append(size)
        self._buffers.clear()
        return chosen

    def record_decodes(self, sizes: Sequence[int], record: Record, progress: Progress) -> None:
        """Record graphs of decodes, the largest first, so that smaller graphs reuse its memory."""
        with torch.inference_mode():
            for done, size in enumerate(reversed(sizes), 1):
                self._record(size, 0, record)
                progress(f"recorded the decode of {size} sequences ({done} of {len(sizes)})")

    def _record(self, size: int, prompts: int, record: Record) -> None:
        for adapted, step in self._steps(size, prompts).items():
            if self._checked:
                step()  # what is computed once a start may wait
                watched(step)
            replay = record(step)
            if self._checked:
                self._check(step, replay, size, prompts)
            self._graphs.setdefault((prompts > 0, adapted), {})[size] = replay

    def _check(self, step: Step, replay: Step, size: int, prompts: int) -> None:
        """Raise NotRecordable unless a graph gives the step's result even for numbers other than those it was
        recorded with."""
        self._buffers.pretend(size, prompts)
        want, got = step().float().clone(), replay().float()
        self._buffers.clear()
        difference, largest = (float(each.abs().max()) for each in (got - want, want))
        if not difference <= SAME[self._buffers.states.dtype] * max(largest, 1e-6):  # NaN is not
            raise NotRecordable(f"a graph of {size} rows differs from the step by {difference:.3g}")

    @property
    def count(self) -> int:
        """All recorded graphs."""
        return sum(map(len, self._graphs.values()))

    def __call__(
        self, states: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """As `Decode`."""
        step, tokens = current(), len(states)
        graphs = self._graphs_of_step(tokens)
        size = _at_least(graphs, tokens)
        if size is None or self._parts(step.context) > self._most_parts(size):
            return self._decode(states, positions, rows)
        self._buffers.fill(states, positions, step.context, size)
        if self._states is not None:
            self._states.fill(step.states, tokens)
        if isinstance(step.adapters, TiledAdapters):
            self._buffers.fill_tiles(step.adapters.tiles)
        normed = graphs[size]()[:tokens]
        return normed if rows is None else normed.index_select(0, rows)

    def _graphs_of_step(self, tokens: int) -> dict[int, Step]:
        """The graphs that can compute the active step of `tokens` rows, by size."""
        step = current()
        context = step.context
        if step.backend is not self._backend or not self._buffers.fits(context):
            return {}
        has_prompts = tokens != context.num_sequences
        waves = WAVES if has_prompts else 1
        if self._states is not None and not self._states.fit(step.states, waves):
            return {}
        if has_prompts and sum(rows > 1 for rows in context.query_lens) > PROMPTS:
            return {}
        return self._graphs.get((has_prompts, step.adapters is not None), {})

    def _steps(self, size: int, prompts: int) -> dict[bool, Step]:
        """Steps of `size` rows, with several in up to `prompts` sequences, by whether rows have adapters."""
        context = self._buffers.any(size) if prompts else self._buffers.decodes(size)
        steps = {False: self._step(context, prompts, None)}
        if self._adapters is not None:
            tiles = self._buffers.tiles(size, MANY if prompts else FEW)
            steps[True] = self._step(context, prompts, TiledAdapters(self._adapters.stacks, tiles))
        return steps

    def _step(self, context: ForwardContext, prompts: int, adapters: TiledAdapters | None) -> Step:
        size = len(context.slots)
        buffers, most_parts = self._buffers, self._most_parts(size)
        positions, attention = buffers.positions[:size], triton_of(self._backend)
        sequences, waves = min(size, buffers.sequences), WAVES if prompts else 1

        def run() -> torch.Tensor:
            attention.begin_lasting(context, most_parts, prompts)
            states = None if self._states is None else self._states.of(size, sequences, waves)
            with active(self._backend, context, adapters, states, positions):
                return self._decode(buffers.states[:size], positions, None)

        return run

    def _most_parts(self, size: int) -> int:
        """The largest number of parts that all decodes of a graph of `size` rows may have together."""
        count = min(size, self._buffers.sequences)
        return min(count * self._parts_of_one, count + self._parts_of_cache)

    @staticmethod
    def _parts(context: ForwardContext) -> int:
        """The number of parts of all decodes in a step together."""
        both = zip(context.lens, context.query_lens, strict=True)
        return sum(-(-length // plan.PART) for length, rows in both if rows == 1)


def _at_least(sizes: Iterable[int], size: int) -> int | None:
    """The smallest of `sizes` that is at least `size`."""
    return min((each for each in sizes if each >= size), default=None)


def _logits_of(
    module: PreTrainedModel,
    backend: AttentionBackend,
    cache: CachePlan,
    states: LastingStates | None,
) -> Callable[[], torch.Tensor]:
    """A forward of `module` over a few decodes that write nothing."""
    device = module.device
    buffers = StepBuffers(TRIED, TRIED, 1, cache, device)
    buffers.pretend(TRIED, 0)
    attention, context = triton_of(backend), buffers.decodes(TRIED)
    inputs: dict[str, Any] = {"input_ids": torch.arange(TRIED, device=device)[None], "use_cache": False}
    if takes_positions(module):
        inputs["position_ids"] = buffers.positions[None]

    def run() -> torch.Tensor:
        attention.begin_lasting(context, TRIED)
        slots = None if states is None else states.of(TRIED, TRIED, 1)
        with torch.inference_mode(), active(backend, context, None, slots, buffers.positions):
            logits: torch.Tensor = module(**inputs).logits
        return logits

    return run


def _check_chunks(module: PreTrainedModel, cache: CachePlan) -> None:
    """Raise NotRecordable if layers attend within chunks and a sequence may have several chunks: the host
    divides such steps."""
    config: Any = module.config.get_text_config()
    length = getattr(config, "attention_chunk_size", None)
    if length and cache.max_model_len > length and "chunked_attention" in (config.layer_types or ()):
        raise NotRecordable(
            f"layers attend within chunks of {length} tokens, and sequences may have {cache.max_model_len}"
        )


def triton_of(backend: AttentionBackend) -> TritonAttention:
    """The kernels of Triton behind `backend`. Raises NotRecordable if there are none."""
    found = backend.backend if isinstance(backend, Numbered) else backend
    if not isinstance(found, TritonAttention):
        raise NotRecordable("attention is not computed by the kernels of Triton")
    return found


def largest_graph(tokens: int) -> int:
    """The number of rows in the largest step with prompts that `graph_steps` may record; 0 if none."""
    return max(rows_up_to(tokens), default=0)


def rows_up_to(tokens: int) -> tuple[int, ...]:
    """The numbers of rows for which graphs with prompts are recorded; steps have up to `tokens` rows."""
    return tuple(each for each in ROWS if each <= tokens)


def graph_steps(
    module: PreTrainedModel,
    backend: AttentionBackend,
    cache: CachePlan,
    sequences: int,
    progress: Progress,
    record: Record | None = None,
    adapters: Adapters | None = None,
    *,
    tokens: int = 0,
    states: StatePools | None = None,
    alone: bool = True,
) -> bool:
    """Make `module` replay graphs for its steps. If that is impossible, logs the reason and returns False.

    Graphs are for decodes of up to `sequences`, and for steps of up to `tokens` rows and as many sequences.
    They are recorded if the host needs as long to launch a step's kernels as the device needs to run them.
    To be called when the cache is allocated. `record`: None for CUDA graphs; if it is another function, all
    sizes are recorded.
    `adapters`: the model's table, if steps with adapters are to have graphs as well; a table of another kind
    allows none. `states`: those of a model with stateful layers. `alone`: False for a rank of several, which
    all record the same, so none measures what it gains.
    """
    started, sizes = time.monotonic(), buckets(sequences)
    rows = rows_up_to(tokens)
    stacked = adapters if isinstance(adapters, StackedTable) else None
    capacity = 0 if stacked is None else stacked.capacity
    most = max(TRIED, sizes[-1], *rows)
    slots = None if states is None else states.lasting(most, max(TRIED, sizes[-1]))

    own: OwnLayers | None = None
    forward: object = module.forward
    try:
        triton_of(backend)
        _check_chunks(module, cache)
        if states is not None and slots is None:
            raise NotRecordable("plain torch computes the states of layers")
        if isinstance(forward, FusedForward):
            layers: FusedForward | OwnLayers = forward
            width, dtype = module.config.get_text_config().hidden_size, torch.float32
        else:
            layers = own = OwnLayers(module)
            own.take_over(_logits_of(module, backend, cache, slots))
            width, dtype = own.width, own.dtype
        buffers = StepBuffers(most, sizes[-1], width, cache, module.device, capacity, dtype)
        graphed = GraphedSteps(
            layers.decode, backend, buffers, cache, stacked, slots, checked=own is not None
        )
        gains = pays if record is None and alone else lambda step: True
        record = record or CudaGraphs()
        graphed.record_rows(rows, record, gains, progress)
        graphed.record_decodes(sizes, record, progress)
    except Exception as error:
        if own is not None:
            own.give_back()
        if isinstance(error, NotRecordable):
            log.warning("no CUDA graphs, steps are launched kernel by kernel: %s", error)
            return False
        # Of the driver, of memory, or of an operation that cannot be recorded. torch 2.11 takes the recording
        # for one that goes on: it gives no memory back to other processes.
        log.warning(
            "no CUDA graphs: recording failed; steps are launched kernel by kernel, and memory of the GPU "
            "that torch has taken stays taken until this process ends",
            exc_info=True,
        )
        return False
    layers.decode = graphed
    progress(f"recorded {graphed.count} CUDA graphs in {time.monotonic() - started:.1f} s")
    return True
