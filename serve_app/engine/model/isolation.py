"""A step that contains its failures: what breaks alone, fails alone.

Runs a plan as one batch. If that raises, each chunk is run again alone; chunks
that still raise are reported, the others keep their logits. If all raise, a
probe of our own, one token in a block of its own, tells poisonous requests from
a broken device. It does not know requests, outputs or sampling.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch

from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.scheduler import Plan
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

# Steps in a row in which neither a chunk nor the probe ran, until the device counts as broken.
MAX_STRIKES = 3

log = logging.getLogger(__name__)


class Runner(Protocol):
    """The model on its device."""

    vocab_size: int
    table_width: int  # numbers in a row of a prompt table; 0: it takes none
    block_size: int
    num_blocks: int
    device: torch.device

    def run(self, batch: Batch) -> torch.Tensor:
        """[R, V] float32 logits of `batch.logit_rows`."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole cache blocks (source, target)."""
        ...


class DeviceBroken(Exception):
    """Nothing runs any more, not even our own probe."""


@dataclass(slots=True)
class Ran:
    """Chunks that were computed together, and their logits [R, V]."""

    chunks: Seq[Chunk]
    logits: torch.Tensor


@dataclass(slots=True)
class Outcome:
    """What became of a plan's chunks. In neither list: to be scheduled again."""

    ran: list[Ran]
    failed: list[Chunk]


class IsolatingRunner:
    """A runner that never raises for what a single chunk did."""

    def __init__(self, runner: Runner, pool: BlockPool) -> None:
        self._runner = runner
        self._pool = pool
        self._strikes = 0

    def run(self, plan: Plan) -> Outcome:
        """Compute the plan. Raises DeviceBroken after MAX_STRIKES steps without any success."""
        spoilt = self._copy(plan)
        chunks = [chunk for chunk in plan.chunks if chunk not in spoilt] if spoilt else plan.chunks
        ran, failed = self._attempt(chunks) if chunks else ([], [])
        if ran:
            self._strikes = 0
            return Outcome(ran, spoilt + failed)
        if not self._pool.num_free:
            # No block to probe with. The last request gives way, so that there is one in the next step.
            return Outcome([], spoilt or failed[-1:])
        if self._device_works():
            self._strikes = 0
            return Outcome([], spoilt + failed)
        self._strikes += 1
        if self._strikes >= MAX_STRIKES:
            raise DeviceBroken
        return Outcome([], spoilt)

    def recompute(self, chunk: Chunk) -> torch.Tensor:
        """The logits of a chunk that has run already, computed once more and alone."""
        return self._forward([chunk])

    def _attempt(self, chunks: list[Chunk]) -> tuple[list[Ran], list[Chunk]]:
        try:
            return [Ran(chunks, self._forward(chunks))], []
        except Exception:
            log.exception("a step of %d chunks failed", len(chunks))
        if len(chunks) == 1:
            return [], chunks
        ran: list[Ran] = []
        failed: list[Chunk] = []
        for chunk in chunks:
            try:
                ran.append(Ran([chunk], self._forward([chunk])))
            except Exception as error:
                log.error("request %s failed alone: %s", chunk.sequence.request_id, type(error).__name__)
                failed.append(chunk)
        return ran, failed

    def _forward(self, chunks: list[Chunk]) -> torch.Tensor:
        return self._runner.run(build_batch(chunks, self._runner.block_size, self._runner.device))

    def _copy(self, plan: Plan) -> list[Chunk]:
        """Make the plan's copies; returns the chunks that lack theirs.

        Not tried again: after a partial copy a source may already be overwritten.
        """
        if not plan.copies:
            return []
        try:
            self._runner.copy_blocks(plan.copies)
        except Exception:
            log.exception("copying %d blocks failed", len(plan.copies))
            targets = {target for _, target in plan.copies}
            return [chunk for chunk in plan.chunks if targets.intersection(chunk.sequence.block_table)]
        return []

    def _device_works(self) -> bool:
        block = self._pool.allocate()
        try:
            probe = Sequence("", 0, 1, [0], SamplingParams(), 0, block_table=[block])
            self._forward([Chunk(probe, 0, 1, 0)])
        except Exception:
            log.exception("the probe failed: strike %d of %d", self._strikes + 1, MAX_STRIKES)
            return False
        finally:
            self._pool.release(block)
        return True
