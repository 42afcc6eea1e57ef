"""Who runs in the next step: one token budget, decodes first, then prompts in chunks.

Integers and lists only; no tensors, no clock, no requests. `schedule` works from
`num_computed` alone, so a step that failed is simply scheduled again.

Sequences run in the order (priority, arrival). One is admitted when blocks for
all its tokens are there, so only a decode can run out of them; then the last
sequence in order gives way and is computed again later, with the same result.
The first in order is never the victim of another, and fits the cache alone:
it always advances. All this is said of a gang (`sequence.Gang`) as of one sequence.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter

from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.sequence import Chunk, Gang, Sequence, Status

# Rows of logits a step may hold for prompt log-probabilities: 256 rows of a
# vocabulary of 150 000 are 150 MB in float32.
MAX_PROMPT_LOGIT_ROWS = 256
# Rows that a step verifies of drafts; the rest of a longer one follows in the next steps.
MAX_DRAFT_ROWS = 128
# Rows of one step that cost little more than one, because reading the weights takes the time: as far as
# that, proposals of our own are nearly for free.
FREE_ROWS = 16
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
        self._gangs: list[Gang] = []  # that run
        self._refused: tuple[Sequence, int] | None = None  # whom, and with how many blocks free

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that holds no blocks."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_order)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` go on from where the parent is, or queue it when the batch is full.

        A child in a gang joins it, in the place that was kept for it.
        """
        if child.gang is not None:
            insort(child.gang.members, child, key=_order)
        elif self.places_taken >= self.max_sequences:
            self.add(child)
            return
        self.tables.fork(parent, child)
        child.status = Status.RUNNING
        insort(self.running, child, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever state it is, and free its blocks."""
        gang = sequence.gang
        if gang is not None and sequence.status is not Status.FINISHED:
            gang.members.remove(sequence)
            if not gang.members and gang in self._gangs:
                self._gangs.remove(gang)
        self._withdraw(sequence)

    @property
    def places_taken(self) -> int:
        """Places of the batch that are held or kept."""
        return len(self.running) + sum(gang.places - len(gang.members) for gang in self._gangs)

    def _withdraw(self, sequence: Sequence) -> None:
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
        budget = self._schedule_prefills(plan, budget)
        self._add_drafts(plan, budget)
        return plan

    def _schedule_decodes(self, plan: Plan, budget: int) -> int:
        chunks = plan.chunks
        for sequence in tuple(self.running):
            if budget == 0:
                break
            if sequence.status is not Status.RUNNING or not sequence.decoding:
                continue
            if sequence.gang is not None:
                budget -= self._schedule_gang(sequence.gang, sequence, plan, budget)
                continue
            if not self._make_room(sequence, plan):
                break  # it was the last in order, and gave way itself
            start = sequence.num_computed
            length = min(budget, sequence.num_tokens - start)  # 1, and what a grammar forced
            chunks.append(Chunk(sequence, start, length, self._first_logit(sequence, start + length)))
            budget -= length
        return budget

    def _schedule_gang(self, gang: Gang, sequence: Sequence, plan: Plan, budget: int) -> int:
        """Schedule the next tokens of a gang when its first member's turn comes; returns how many."""
        members = gang.members
        ready = sequence is members[0] and len(members) <= budget and all(m.decoding for m in members)
        if not ready or not self._make_room(sequence, plan, members):
            return 0
        plan.chunks += [Chunk(member, member.num_computed, 1, member.num_computed) for member in members]
        return len(members)

    def _make_room(self, sequence: Sequence, plan: Plan, gang: list[Sequence] | None = None) -> bool:
        """Blocks for the next tokens of a sequence and its gang, at the cost of the last in order."""
        tables = self.tables
        # Asked again after each victim: it may have been the other holder of a shared block.
        while (
            needed := tables.blocks_to_grow(sequence) if gang is None else tables.blocks_to_grow_all(gang)
        ) > tables.pool.num_free:
            plan.preempted += self._preempt(self.running[-1])
            if sequence.status is not Status.RUNNING:
                return False
        if needed:
            for member in gang or (sequence,):
                if (copy := tables.grow(member)) is not None:
                    plan.copies.append(copy)
        return True

    def _preempt(self, victim: Sequence) -> list[Sequence]:
        """Let the last in order give way, with its gang; returns them."""
        victims = [victim]
        if victim.gang is not None:
            victims = list(victim.gang.members)
            self._gangs.remove(victim.gang)
        for sequence in victims:
            self._withdraw(sequence)
            self.add(sequence)
        return victims

    def _admit(self, plan: Plan, budget: int) -> None:
        """Move sequences from waiting to running while there is budget left for them."""
        pool = self.tables.pool
        unfinished = [(s.order, s.num_tokens - s.num_computed) for s in self.running if not s.decoding]
        while self.waiting:
            head = self.waiting[0]
            gang = head.gang
            members, places = ([head], 1) if gang is None else (gang.members, gang.places)
            if self.places_taken + places > self.max_sequences:
                break
            if sum(tokens for order, tokens in unfinished if order < head.order) >= budget:
                break
            if self.running and self._refused == (head, pool.num_free):
                break  # nothing has changed; do not walk its prefix again
            reserve = min(len(self.running), pool.num_blocks // RESERVE_DIVISOR)
            if not self._admit_all(members, reserve):
                self._refused = (head, pool.num_free)
                break
            if gang is not None:
                self._gangs.append(gang)
            del self.waiting[: len(members)]  # of a gang all wait, side by side
            for member in members:
                member.status = Status.RUNNING
                insort(self.running, member, key=_order)
                plan.admitted.append(member)
                unfinished.append((member.order, member.num_tokens - member.num_computed))

    def _admit_all(self, members: list[Sequence], reserve: int) -> bool:
        for i, member in enumerate(members):
            if not self.tables.admit(member, reserve):
                for admitted in members[:i]:
                    self.tables.free(admitted)
                return False
        return True

    def _add_drafts(self, plan: Plan, budget: int) -> None:
        """Let what is left of the step verify drafts, in blocks that nobody else needs in it."""
        budget = min(budget, MAX_DRAFT_ROWS)
        # Alike for all: a step serves a batch, and ends with its slowest.
        share = (FREE_ROWS - sum(chunk.length for chunk in plan.chunks)) // max(1, len(plan.chunks))
        for chunk in plan.chunks:
            line = chunk.sequence
            guessed = line.guess is not None and line.guess.holds(line)
            proposer = line.guess if guessed else line.proposer
            most = budget if guessed else min(budget, share)
            # Under a grammar each mask is computed aside of the step: one token at a time.
            if proposer is None or most <= 0 or line.constraint is not None or not chunk.samples:
                continue
            draft = proposer.propose(line, most)
            draft = draft[: self.tables.extend(line, len(draft))]
            chunk.draft, chunk.proposer = draft, proposer
            chunk.length += len(draft)
            budget -= len(draft)

    def _schedule_prefills(self, plan: Plan, budget: int) -> int:
        logit_rows = MAX_PROMPT_LOGIT_ROWS
        scheduled = {id(chunk.sequence) for chunk in plan.chunks}
        for sequence in self.running:
            if budget == 0:
                break
            if id(sequence) in scheduled:
                continue
            start = sequence.num_computed
            # Beams take their next tokens together: the last one of each is left to a step of all.
            apart = sequence.gang is not None and sequence.num_output > 0
            length = min(budget, sequence.num_tokens - start - apart)
            if length == 0:
                continue
            if sequence.wanted_from is not None:
                length = min(length, logit_rows)
                if length == 0:
                    continue
                logit_rows -= length
            plan.chunks.append(Chunk(sequence, start, length, self._first_logit(sequence, start + length)))
            budget -= length
        return budget

    @staticmethod
    def _first_logit(sequence: Sequence, end: int) -> int:
        wanted = sequence.wanted_from
        if wanted is not None:
            return min(max(sequence.num_computed, wanted), end)
        return end - 1 if end == sequence.num_tokens else end

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queues and gangs agree with their sequences."""
        for queue, status in ((self.running, Status.RUNNING), (self.waiting, Status.WAITING)):
            if any(s.status is not status for s in queue):
                raise IntegrityError(f"a sequence is queued as {status.name} without being so")
            if [s.order for s in queue] != sorted(s.order for s in queue):
                raise IntegrityError(f"the queue of {status.name} sequences is out of order")
        if any(s.block_table for s in self.waiting):
            raise IntegrityError("a waiting sequence holds blocks")
        if self.places_taken > self.max_sequences:
            raise IntegrityError(f"{self.places_taken} places are taken of {self.max_sequences}")
        running = {id(s.gang): s.gang for s in self.running if s.gang is not None}
        if running.keys() != set(map(id, self._gangs)) or len(running) != len(self._gangs):
            raise IntegrityError("the gangs that run are not those of the running sequences")
        for gang in {id(s.gang): s.gang for s in (*self.running, *self.waiting) if s.gang}.values():
            if len({m.status for m in gang.members}) != 1 or len(gang.members) > gang.places:
                raise IntegrityError("a gang is torn apart or too large")
            if [m.order for m in gang.members] != sorted(m.order for m in gang.members):
                raise IntegrityError("the members of a gang are out of order")

    @staticmethod
    def _place(queue: list[Sequence], sequence: Sequence) -> int:
        return bisect_left(queue, sequence.order, key=_order)
