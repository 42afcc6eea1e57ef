"""What an engine has done since it started, for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.engine.sampling.speculative import Take
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.sequence import Sequence
from serve_app.types import EngineStats


@dataclass(slots=True)
class Counters:
    """Only ever grow; written by the engine's thread."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0  # verified
    accepted_tokens: int = 0  # of those

    def count(self, line: Sequence, tokens: int, take: Take, used: int) -> None:
        """`tokens` more of a line, `used` of them as `take` sampled them."""
        accepted = used - (used == len(take.sampled))  # the last one sampled is the model's own
        line.draft_tokens += len(take.draft)
        line.accepted_tokens += accepted
        self.generated_tokens += tokens
        self.draft_tokens += len(take.draft)
        self.accepted_tokens += accepted

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        """These and what the scheduler holds now. Callable from any thread; then it may straddle a step."""
        running, waiting, pool = list(scheduler.running), list(scheduler.waiting), scheduler.tables.pool
        return EngineStats(
            running=len(running),
            waiting=len(waiting),
            waiting_tokens=sum(max(0, s.num_tokens - 1 - s.num_computed) for s in running)
            + sum(s.num_tokens for s in waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            max_sequences=scheduler.max_sequences,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
        )
