"""Who runs in the next step: one token budget, decodes first, then prompts in chunks.

Integers and lists only; no tensors, no clock, no requests. `schedule` works from
`num_computed` alone, so a step that failed is simply scheduled again.

Sequences run in the order (priority, arrival). One is admitted when blocks for
all its tokens are there, so only a decode can run out of them; then the last
sequence in order gives way and is computed again later, with the same result.
The first in order is never the victim of another, and fits the cache alone:
it always advances.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter

from serve_app.engine.sequence import Chunk, Sequence, Status
from serve_app.engine.tables import BlockTables

# Rows of logits a step may hold for prompt log-probabilities: 256 rows of a
# vocabulary of 150 000 are 150 MB in float32.
MAX_PROMPT_LOGIT_ROWS = 256
# Part of the pool (1 / this) that admission leaves to the sequences already running.
RESERVE_DIVISOR = 20

_order = attrgetter("order")


@dataclass(slots=True)
class Plan:
    """The work of one step."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source, target) blocks, before the run
    admitted: list[Sequence] = field(default_factory=list)  # entered the batch with this step
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Two ordered queues, and the rule that makes a plan of them."""

    def __init__(self, tables: BlockTables, *, max_sequences: int, max_step_tokens: int) -> None:
        self.tables = tables
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._refused: tuple[Sequence, int] | None = None  # whom, and with how many blocks free

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that holds no blocks."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_order)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on from where the parent is, or queue it when the batch is full."""
        if len(self.running) >= self.max_sequences:
            self.add(child)
            return
        self.tables.fork(parent, child)
        child.status = Status.RUNNING
        insort(self.running, child, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever state it is, and free its blocks."""
        if sequence.status is Status.RUNNING:
            del self.running[self._place(self.running, sequence)]
            self.tables.free(sequence)
        elif sequence.status is Status.WAITING:
            del self.waiting[self._place(self.waiting, sequence)]
        sequence.status = Status.FINISHED

    def schedule(self) -> Plan:
        """The next step's chunks. Changes queues and block tables, but computes nothing."""
        plan = Plan()
        budget = self._schedule_decodes(plan, self.max_step_tokens)
        if not plan.preempted:
            self._admit(plan, budget)
        self._schedule_prefills(plan, budget)
        return plan

    def _schedule_decodes(self, plan: Plan, budget: int) -> int:
        chunks = plan.chunks
        for sequence in tuple(self.running):
            if budget == 0:
                break
            if sequence.status is not Status.RUNNING or not sequence.decoding:
                continue
            if not self._make_room(sequence, plan):
                break  # it was the last in order, and gave way itself
            start = sequence.num_computed
            chunks.append(Chunk(sequence, start, 1, start))
            budget -= 1
        return budget

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Blocks for the next token of a running sequence, at the cost of the last in order."""
        tables = self.tables
        # Asked again after each victim: it may have been the other holder of a shared block.
        while (needed := tables.blocks_to_grow(sequence)) > tables.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is sequence:
                return False
        if needed and (copy := tables.grow(sequence)) is not None:
            plan.copies.append(copy)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.remove(sequence)
        self.add(sequence)

    def _admit(self, plan: Plan, budget: int) -> None:
        """Move sequences from waiting to running while there is budget left for them."""
        pool = self.tables.pool
        unfinished = [(s.order, s.num_tokens - s.num_computed) for s in self.running if not s.decoding]
        while self.waiting and len(self.running) < self.max_sequences:
            head = self.waiting[0]
            if sum(tokens for order, tokens in unfinished if order < head.order) >= budget:
                break
            if self.running and self._refused == (head, pool.num_free):
                break  # nothing has changed; do not walk its prefix again
            reserve = min(len(self.running), pool.num_blocks // RESERVE_DIVISOR)
            if not self.tables.admit(head, reserve):
                self._refused = (head, pool.num_free)
                break
            del self.waiting[0]
            head.status = Status.RUNNING
            insort(self.running, head, key=_order)
            plan.admitted.append(head)
            unfinished.append((head.order, head.num_tokens - head.num_computed))

    def _schedule_prefills(self, plan: Plan, budget: int) -> None:
        logit_rows = MAX_PROMPT_LOGIT_ROWS
        scheduled = {id(chunk.sequence) for chunk in plan.chunks}
        for sequence in self.running:
            if budget == 0:
                break
            if id(sequence) in scheduled:
                continue
            start = sequence.num_computed
            length = min(budget, sequence.num_tokens - start)
            if sequence.wants_prompt_logprobs:
                length = min(length, logit_rows)
                if length == 0:
                    continue
                logit_rows -= length
            plan.chunks.append(Chunk(sequence, start, length, self._first_logit(sequence, start + length)))
            budget -= length

    @staticmethod
    def _first_logit(sequence: Sequence, end: int) -> int:
        if sequence.wants_prompt_logprobs:
            return min(max(sequence.num_computed, len(sequence.prompt_logprobs)), end)
        return end - 1 if end == sequence.num_tokens else end

    @staticmethod
    def _place(queue: list[Sequence], sequence: Sequence) -> int:
        return bisect_left(queue, sequence.order, key=_order)
