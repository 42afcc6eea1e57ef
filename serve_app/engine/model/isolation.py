"""Runs a step so that failures are contained: a chunk fails only if it also fails when it runs alone.

Runs the chunks of a step as one batch. If the batch raises an exception, each chunk runs again alone; chunks
that fail again are reported, and the others keep their logits. If all of them fail, a probe of our own (one
token in a separate block) shows whether the requests are bad or the device is broken. Does not depend on
requests, outputs or sampling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from serve_app.engine.batch import Batch, Fed, ForwardResult, build_batch
from serve_app.engine.block_memory import BlockMemory
from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.torch_cpu import is_out_of_memory
from serve_app.types import SamplingParams

# After this many steps in a row in which neither a chunk nor the probe ran, the device counts as broken.
MAX_STRIKES = 3

log = logging.getLogger(__name__)


class Runner(Protocol):
    """The model on its device."""

    vocab_size: int
    table_width: int  # numbers in a row of a prompt table; 0: it takes none
    block_size: int
    num_blocks: int
    num_slots: int  # for states; 0: the model has none
    memory: BlockMemory | None  # of the blocks, where the system may not have given it yet
    device: torch.device

    @property
    def stages(self) -> int:
        """How many steps run at the same time, each in another stage of the model."""
        ...

    def run(self, batch: Batch) -> torch.Tensor:
        """[R, V] float32 logits of `batch.logit_rows`."""
        ...

    def launch(self, batch: Batch) -> Callable[[], torch.Tensor]:
        """Begin to run a batch; what is returned waits for the logits. Batches run in the order of their
        launches."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole cache blocks (source, target)."""
        ...

    def check(self) -> None:
        """Raise DeviceBroken if one of several devices is lost, so that results may be wrong."""
        ...


class DeviceBroken(Exception):
    """Nothing runs any more: not even our own probe, or one of several devices is lost."""


@dataclass(slots=True)
class StepResult:
    """The results and failures of a step's chunks. A chunk that is in neither `results` nor `failed` must be
    scheduled again."""

    results: list[ForwardResult]
    failed: list[Chunk]
    starved: list[Chunk] = field(default_factory=list)  # those of `failed` that lacked memory

    @property
    def whole(self) -> bool:
        """Whether all chunks ran, in one batch."""
        return len(self.results) == 1 and not self.failed


class IsolatingRunner:
    """A runner that never raises an exception because of a single chunk."""

    def __init__(self, runner: Runner, pool: BlockPool) -> None:
        self._runner = runner
        self._pool = pool
        self._strikes = 0
        self._fed: Fed | None = None

    def run(self, chunks: list[Chunk], copies: list[tuple[int, int]], fed: Fed | None = None) -> StepResult:
        """Copy the cache blocks `copies` (source, target), then compute the chunks.

        `fed` has the pending tokens of the chunks' sequences. Raises DeviceBroken after MAX_STRIKES steps in
        a row that had no success at all, or as the runner does.
        """
        self._fed = fed
        spoilt, whole = self._copied(chunks, copies)
        return self._finish(spoilt, whole, partial(self._forward, whole))

    def launch(self, chunks: list[Chunk], copies: list[tuple[int, int]]) -> Callable[[], StepResult]:
        """As `run`: begin, and return what waits for the result. Other steps may begin until then, with
        chunks of other sequences."""
        spoilt, whole = self._copied(chunks, copies)
        return partial(self._finish, spoilt, whole, self._begun(whole))

    def _begun(self, chunks: list[Chunk]) -> Callable[[], ForwardResult]:
        try:
            if chunks:
                logits = self._runner.launch(self._batch(chunks))
                return lambda: ForwardResult(chunks, logits())
        except DeviceBroken:
            raise
        except Exception:
            log.exception("a step of %d chunks could not begin", len(chunks))
        return partial(self._forward, chunks)

    def _finish(
        self, spoilt: list[Chunk], chunks: list[Chunk], begun: Callable[[], ForwardResult]
    ) -> StepResult:
        """The result of a step whose `chunks` have begun, but not the `spoilt` ones."""
        tried = self._attempt(chunks, begun) if chunks else StepResult([], [])
        tried.failed = spoilt + tried.failed
        if tried.results:
            self._strikes = 0
            return tried
        if not self._pool.num_free:
            # No block is free for the probe. The last request is given up, so that the next step has one.
            return StepResult([], spoilt or tried.failed[-1:], tried.starved)
        if self._device_works():
            self._strikes = 0
            return tried
        self._strikes += 1
        if self._strikes >= MAX_STRIKES:
            raise DeviceBroken("neither requests nor the probe run on the device")
        return StepResult([], spoilt)

    def check(self) -> None:
        """As of the runner."""
        self._runner.check()

    def recompute(self, chunk: Chunk) -> torch.Tensor:
        """Compute the logits of a chunk again, and alone, after it has already run."""
        return self._forward([chunk]).logits

    def _attempt(self, chunks: list[Chunk], begun: Callable[[], ForwardResult]) -> StepResult:
        """The results of the chunks, and the chunks that failed even alone."""
        try:
            return StepResult([begun()], [])
        except DeviceBroken:
            raise
        except Exception as error:
            log.exception("a step of %d chunks failed", len(chunks))
            if len(chunks) == 1:
                return StepResult([], chunks, chunks if is_out_of_memory(error) else [])
        tried = StepResult([], [])
        for chunk in chunks:
            try:
                tried.results.append(self._forward([chunk]))
            except DeviceBroken:
                raise
            except Exception as error:
                log.error("request %s failed alone: %s", chunk.sequence.request_id, type(error).__name__)
                tried.failed.append(chunk)
                if is_out_of_memory(error):
                    tried.starved.append(chunk)
        return tried

    def _forward(self, chunks: list[Chunk]) -> ForwardResult:
        return ForwardResult(chunks, self._runner.run(self._batch(chunks)))

    def _batch(self, chunks: list[Chunk]) -> Batch:
        return build_batch(chunks, self._runner.block_size, self._runner.device, self._fed)

    def _copied(self, chunks: list[Chunk], copies: list[tuple[int, int]]) -> tuple[list[Chunk], list[Chunk]]:
        """Make the copies; returns the chunks whose blocks could not be copied, and all others.

        A failed copy is not tried again: a partial one may already have overwritten a source.
        """
        if not copies:
            return [], chunks
        try:
            self._runner.copy_blocks(copies)
        except DeviceBroken:
            raise
        except Exception:
            log.exception("copying %d blocks failed", len(copies))
            targets = {target for _, target in copies}
            spoilt = [chunk for chunk in chunks if targets.intersection(chunk.sequence.block_table)]
            return spoilt, [chunk for chunk in chunks if chunk not in spoilt]
        return [], chunks

    def _device_works(self) -> bool:
        block = self._pool.allocate()
        try:
            probe = Sequence("", 0, 1, [0], SamplingParams(), 0, block_table=[block])
            self._forward([Chunk(probe, 0, 1, 0)])
        except DeviceBroken:
            raise
        except Exception:
            log.exception("the probe failed: strike %d of %d", self._strikes + 1, MAX_STRIKES)
            return False
        finally:
            self._pool.release(block)
        return True
