"""A step from its launch to its commit.

On a device the next step is prepared and launched while this one runs. Sequences then advance before their
new tokens are known. A token in this state is pending: it feeds the next step on the device. The tokens of
the next step are chosen while it runs, once this step's tokens are known, because penalties, masks and
grammars depend on all of the text. The next step may have computed a row in vain: for a sequence that has
ended meanwhile, or whose grammar forces the token. That row is not read. What the row wrote to the cache is
either right or overwritten: the device runs steps in order, so the next owner of the block writes later.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from serve_app.engine.batch import Fed
from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.finish import EndRule
from serve_app.engine.model.isolation import StepResult
from serve_app.engine.sampling.chunk_results import ChosenTokens, ChunkResult, LogitsReader
from serve_app.engine.scheduler import Plan

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LaunchedStep:
    """A step that may still run on the device."""

    plan: Plan
    outcome: StepResult
    began: float  # clock, seconds
    chosen: ChosenTokens | None = None  # None: the host reads the logits, before it prepares the next step
    spoilt: bool = False  # a sampler failed and had edited the logits
    whole: bool = field(init=False)  # all chunks ran, in one batch

    def __post_init__(self) -> None:
        self.whole = self.outcome.whole

    @property
    def fed(self) -> Fed | None:
        """The pending tokens of this step that the next step needs."""
        return None if self.chosen is None else self.chosen.fed()

    def run_ahead(self, reader: LogitsReader, tables: BlockTables, ends: EndRule, window: int) -> None:
        """Let the sequences advance by this step, if the next one can be prepared without their tokens.

        All earlier steps have been collected already. `window` is the most tokens that prompt and output have
        together.
        """
        if not self.whole:
            return
        try:
            self.chosen = reader.choose(self.outcome.results[0])
        except Exception:
            log.exception("choosing tokens failed; each chunk is tried alone")
            self.spoilt = True
        if self.chosen is None:
            return
        self.outcome.results = []  # the memory of the logits is free for the next step
        for result in self.chosen.results:
            sequence = result.chunk.sequence
            tables.advance(sequence, result.chunk, result.chunk.own_end)
            if result.tasks:
                sequence.num_pending += 1
                sequence.ends_pending = ends.ends_pending(sequence, window)
        advanced = {id(result.chunk) for result in self.chosen.results}
        tables.settle(chunk for chunk in self.plan.chunks if id(chunk) not in advanced)

    def collect(self, reader: LogitsReader) -> list[ChunkResult]:
        """The results of the step; waits for the device. If the device is broken, all chunks fail."""
        if self.chosen is None:
            return [
                result for forward in self.outcome.results for result in reader.read(forward, self.spoilt)
            ]
        for result in self.chosen.results:
            result.chunk.sequence.num_pending -= len(result.tasks)
        try:
            return self.chosen.read()
        except Exception:
            log.exception("the tokens of a step of %d chunks cannot be read", len(self.plan.chunks))
            self.outcome.failed, self.whole = list(self.plan.chunks), False
            return []
