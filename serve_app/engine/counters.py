"""Totals of an engine since its start, for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.engine.sampling.verification import SamplingTask
from serve_app.engine.scheduler import Plan, Scheduler
from serve_app.engine.sequence import Sequence
from serve_app.types import EngineStats


@dataclass(slots=True)
class Counters:
    """Totals since the engine started; only the engine's thread changes them."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0  # of prompts, and of answers computed again
    cached_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0  # verified
    accepted_tokens: int = 0  # of the verified draft tokens

    def count_step(self, plan: Plan) -> None:
        """Count a step that is about to run."""
        self.steps += 1
        self.preemptions += len(plan.preempted)
        self.computed_tokens += plan.prompt_tokens

    def count_start(self, sequence: Sequence) -> None:
        """Count a request whose first sequence, `sequence`, has just been admitted."""
        self.cached_tokens += sequence.num_computed
        self.prompt_tokens += sequence.prompt_len

    def count(self, task: SamplingTask, appended: int, used: int) -> None:
        """Count `appended` new tokens of a sequence: the first `used` samples of `task`, then forced ones."""
        # The last of all samples is the model's own token; the others are accepted draft tokens.
        accepted = used - (used == len(task.sampled))
        task.sequence.draft_tokens += len(task.draft)
        task.sequence.accepted_tokens += accepted
        self.generated_tokens += appended
        self.draft_tokens += len(task.draft)
        self.accepted_tokens += accepted

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        """The totals, and the numbers of sequences and blocks in the scheduler now.

        Callable from any thread; called during a step, it may mix figures from before and after.
        """
        running, waiting, pool = list(scheduler.running), list(scheduler.waiting), scheduler.tables.pool
        return EngineStats(
            running=len(running),
            waiting=len(waiting),
            waiting_tokens=sum(max(0, s.num_tokens - 1 - s.num_computed) for s in running)
            + sum(s.num_tokens for s in waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            blocks_ready=pool.num_ready,
            max_sequences=scheduler.max_sequences,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            computed_tokens=self.computed_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
        )
