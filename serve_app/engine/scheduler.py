"""Decides what runs in the next step: within one token budget, first decodes, then prompts in chunks.

Integers and lists only; no tensors, no clock, no requests. `schedule` depends only on `num_computed`, so a
step that failed is simply scheduled again.

Sequences run in the order (priority, arrival). `pace` decides how many prompt tokens a step takes beside its
decodes, and `shares` divides them among prompts. A prompt is admitted when it gets tokens and there are
blocks for all of it, so only a decode can run out of blocks. When that happens, the last sequence in order is
preempted: it is computed again later, with the same result. The first sequence in order always advances: it
is never preempted for another, and it fits into the cache alone. The beams of a request (`sequence.BeamSet`)
are admitted and preempted as one sequence.

A prefix is computed once. If a prompt's next block is computed in this step for an earlier prompt, the prompt
gets no tokens in this step. The prompt shares the block once it has been computed. If that other prompt ends
before the block is done, the first prompt that needs the block computes it in the next step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter

from serve_app.engine.cache.block_tables import BlockKey, BlockTables
from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.draft_gain import DraftGain
from serve_app.engine.pace import Pace
from serve_app.engine.sequence import BeamSet, Chunk, Forecast, Proposer, Sequence, Status
from serve_app.engine.shares import Share, Shares

# Rows of logits a step may hold for prompt log-probabilities: 256 rows of a
# vocabulary of 150 000 are 150 MB in float32.
MAX_PROMPT_LOGIT_ROWS = 256
# Draft tokens that one step verifies; the rest of a longer draft follows in the next steps.
MAX_DRAFT_ROWS = 128
# A step of this many rows costs little more than a step of one, because reading the weights takes the
# time. Up to this number, proposals of our own are nearly free.
FREE_ROWS = 16
# Of how many waiting prompts one step looks up the prefix that is known already.
MAX_LOOKUPS = 32
# Admission leaves this part (1 / divisor) of the pool to the sequences already running.
RESERVE_DIVISOR = 20

_order = attrgetter("order")


@dataclass(slots=True)
class Plan:
    """The work of one step."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source, target) blocks, to be made first
    admitted: list[Sequence] = field(default_factory=list)  # entered the batch with this step
    preempted: list[Sequence] = field(default_factory=list)
    computing: list[tuple[Sequence, BlockKey]] = field(default_factory=list)  # of prompts: their next blocks
    decode_tokens: int = 0  # of the chunks, without drafts
    prompt_tokens: int = 0  # of the chunks; the outputs of sequences computed again count here too


class Scheduler:
    """Two ordered queues, and the rule by which a plan is made from them."""

    def __init__(
        self, tables: BlockTables, pace: Pace, *, max_sequences: int, max_step_tokens: int, stages: int = 1
    ) -> None:
        """`stages`: how many steps run at the same time, each with its part of the sequences."""
        self.tables, self._stages = tables, stages
        self._pace = pace
        self._gain = DraftGain()
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._running_beams: list[BeamSet] = []
        self._refused: tuple[Sequence, int] | None = None  # refused admission, with this many blocks free
        self._most_chunks = 0  # of the next step

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that holds no blocks."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_order)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` continue from the parent's state, or queue it when the batch is full.

        A beam takes one of the places in the batch that are kept for its set.
        """
        if child.beam_set is not None:
            insort(child.beam_set.members, child, key=_order)
        elif self.places_taken >= self.max_sequences:
            self.add(child)
            return
        self.tables.fork(parent, child)
        child.status = Status.RUNNING
        insort(self.running, child, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, whatever its state, and free its blocks."""
        beam_set = sequence.beam_set
        if beam_set is not None and sequence.status is not Status.FINISHED:
            beam_set.members.remove(sequence)
            if not beam_set.members and beam_set in self._running_beams:
                self._running_beams.remove(beam_set)
        self._withdraw(sequence)

    @property
    def places_taken(self) -> int:
        """The number of places in the batch that sequences take, or that are kept for future beams."""
        return len(self.running) + sum(beams.places - len(beams.members) for beams in self._running_beams)

    def _withdraw(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            del self.running[self._place(self.running, sequence)]
            self.tables.free(sequence)
        elif sequence.status is Status.WAITING:
            del self.waiting[self._place(self.waiting, sequence)]
        sequence.status = Status.FINISHED

    @property
    def may_preempt(self) -> bool:
        """Whether the next step may have to preempt a sequence.

        Every running sequence may need a new block, a copy of a block, and blocks for tokens that its grammar
        forced. If fewer blocks are free than that, the blocks that decodes need are counted exactly. With a
        grammar or beams an exact count is impossible: a grammar may force more tokens after a pending one,
        and beams fork.
        """
        pool = self.tables.pool
        most = sum(2 + sequence.num_forced // pool.block_size for sequence in self.running)
        if pool.num_free >= most:
            return False
        decoding = [each for each in self.running if each.decoding and not each.ends_pending]
        if any(each.constraint is not None or each.beam_set is not None for each in decoding):
            return True
        return pool.num_free < sum(self.tables.blocks_to_grow(each) for each in decoding)

    def schedule(self, running: Iterable[Plan] = ()) -> Plan:
        """The next step's chunks. Changes queues and block tables, but computes nothing.

        `running`: the plans of launched steps that are not committed yet.
        """
        plan = Plan()
        sequences = min(self.max_sequences, len(self.running) + len(self.waiting))
        self._most_chunks = -(-sequences // self._stages)
        budget = self._schedule_decodes(plan, self.max_step_tokens)
        plan.decode_tokens = self.max_step_tokens - budget
        most = min(budget, self._pace.prompt_tokens(plan.decode_tokens, sequences))
        computing = [each for earlier in running for each in earlier.computing]
        plan.prompt_tokens = self._schedule_prompts(plan, most, computing)
        self._add_drafts(plan, budget - plan.prompt_tokens)
        if self.tables.states is not None:
            self.tables.states.assign(plan.chunks)
        return plan

    def learn(self, plan: Plan, seconds: float) -> None:
        """Record the time of a plan's step; the size of later steps depends on it."""
        drafted = sum(len(chunk.draft) for chunk in plan.chunks)
        if not drafted:
            self._pace.observe(plan.decode_tokens, plan.prompt_tokens, seconds)
        if not plan.prompt_tokens:
            self._gain.observe(plan.decode_tokens, drafted, seconds)
        elif (token_s := self._pace.token_s) is not None:
            self.tables.pool.weigh_waits(token_s * self.tables.pool.block_size)

    def _schedule_decodes(self, plan: Plan, budget: int) -> int:
        chunks = plan.chunks
        for sequence in tuple(self.running):
            if budget == 0 or len(chunks) >= self._most_chunks:
                break
            if sequence.status is not Status.RUNNING or not sequence.decoding or sequence.is_taken:
                continue
            if sequence.beam_set is not None:
                budget -= self._schedule_beams(sequence.beam_set, sequence, plan, budget)
                continue
            if not self._make_room(sequence, plan):
                break  # it was the last in order and has been preempted itself
            start = sequence.num_computed
            length = min(budget, sequence.num_tokens - start)  # 1, and the tokens that a grammar forced
            chunks.append(Chunk(sequence, start, length, self._first_logit(sequence, start + length)))
            budget -= length
        return budget

    def _schedule_beams(self, beams: BeamSet, sequence: Sequence, plan: Plan, budget: int) -> int:
        """Schedule one token of every beam if `sequence` is the first of them; returns how many tokens."""
        members = beams.members
        ready = sequence is members[0] and len(members) <= budget and all(m.decoding for m in members)
        if not ready or not self._make_room(sequence, plan, members):
            return 0
        plan.chunks += [Chunk(member, member.num_computed, 1, member.num_computed) for member in members]
        return len(members)

    def _make_room(self, sequence: Sequence, plan: Plan, beams: list[Sequence] | None = None) -> bool:
        """Add blocks for the next tokens of a sequence, or of all `beams`; may preempt the last in order.

        Returns False if `sequence` has been preempted itself.
        """
        tables = self.tables
        # Counted again after each preemption: the victim may have been the other holder of a shared block.
        while (
            needed := tables.blocks_to_grow(sequence) if beams is None else tables.blocks_to_grow_all(beams)
        ) > tables.pool.num_free:
            plan.preempted += self._preempt(self.running[-1])
            if sequence.status is not Status.RUNNING:
                return False
        if needed:
            for member in beams or (sequence,):
                if (copy := tables.grow(member)) is not None:
                    plan.copies.append(copy)
        return True

    def _preempt(self, victim: Sequence) -> list[Sequence]:
        """Move a sequence, and all beams of its set, back to the waiting queue; returns them."""
        victims = [victim]
        if victim.beam_set is not None:
            victims = list(victim.beam_set.members)
            self._running_beams.remove(victim.beam_set)
        for sequence in victims:
            self._withdraw(sequence)
            self.add(sequence)
        return victims

    def _schedule_prompts(self, plan: Plan, budget: int, running: list[tuple[Sequence, BlockKey]]) -> int:
        """Divide `budget` tokens among waiting and running prompts; returns how many it used.

        If the next block of a prompt is being computed by another prompt, in this step or the `running` one,
        the prompt waits and shares the block later.
        """
        shares = Shares(budget)
        logit_rows = MAX_PROMPT_LOGIT_ROWS
        admits = not plan.preempted
        lookups = MAX_LOOKUPS
        granted: list[tuple[Sequence, Share]] = []
        scheduled = {id(chunk.sequence) for chunk in plan.chunks}
        for sequence in merge(tuple(self.running), tuple(self.waiting), key=_order):
            priority = -sequence.order[0]
            if shares.closed(priority) or len(scheduled) + len(granted) >= self._most_chunks:
                break
            if id(sequence) in scheduled or sequence.is_taken:
                continue
            if sequence.status is Status.WAITING:
                if not admits or self._awaits(sequence, plan, running):
                    continue
                if self._is_refused(sequence) or not lookups:
                    admits = False
                    continue
                lookups -= 1
                hits = self.tables.known_prefix(sequence)
                if not shares.admits(sequence.num_tokens - len(hits) * self.tables.pool.block_size):
                    continue
                if not self._admit(sequence, hits, plan):
                    admits = False
                    continue
            else:
                self.tables.catch_up(sequence)
                if self._awaits(sequence, plan, running):
                    continue
            # All beams must sample in the same step, so the last token of each is not computed here.
            left_out = sequence.beam_set is not None and sequence.num_output > 0
            wanted = sequence.num_tokens - sequence.num_computed - left_out
            if sequence.wanted_from is not None:
                wanted = min(wanted, logit_rows)
            if wanted == 0 or not shares.admits(wanted):
                continue
            if sequence.wanted_from is not None:
                logit_rows -= wanted
            granted.append((sequence, shares.ask(priority, wanted)))
            if (key := self.tables.next_key(sequence)) is not None:
                plan.computing.append((sequence, key))
        shares.settle()
        for sequence, share in granted:
            start, end = sequence.num_computed, sequence.num_computed + share.tokens
            plan.chunks.append(Chunk(sequence, start, share.tokens, self._first_logit(sequence, end)))
        return budget - shares.left

    def _awaits(self, sequence: Sequence, plan: Plan, running: list[tuple[Sequence, BlockKey]]) -> bool:
        """Whether another prompt computes the next block of `sequence`, in this step or the `running` one."""

        def computing() -> Iterator[tuple[Sequence, BlockKey]]:
            # A piece may have ended inside a block that its own sequence continues.
            yield from (each for each in running if each[0] is not sequence)
            yield from plan.computing

        if not self.tables.awaits(sequence, (key for _, key in computing())):
            return False
        self.tables.meet(sequence, (owner for owner, _ in computing()))
        return True

    def _is_refused(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence certainly cannot be admitted, judged without looking up its prefix."""
        places = 1 if sequence.beam_set is None else sequence.beam_set.places
        if self.places_taken + places > self.max_sequences:
            return True
        return bool(self.running) and self._refused == (sequence, self.tables.pool.num_free)

    def _admit(self, sequence: Sequence, hits: list[int], plan: Plan) -> bool:
        """Move a sequence, and all beams of its set, from waiting to running, if there are blocks for them.

        `hits` are the cached blocks of its prefix.
        """
        pool, beams = self.tables.pool, sequence.beam_set
        members = [sequence] if beams is None else beams.members
        reserve = min(len(self.running), pool.num_blocks // RESERVE_DIVISOR)
        for i, member in enumerate(members):
            if not self.tables.admit(member, reserve, hits if member is sequence else None):
                for admitted in members[:i]:
                    self.tables.free(admitted)
                self._refused = (sequence, pool.num_free)
                return False
        if beams is not None:
            self._running_beams.append(beams)
        for member in members:
            del self.waiting[self._place(self.waiting, member)]
            member.status = Status.RUNNING
            insort(self.running, member, key=_order)
            plan.admitted.append(member)
        return True

    def _add_drafts(self, plan: Plan, budget: int) -> None:
        """Add drafts to the chunks, within the rest of the budget and the blocks that are still free."""
        budget = min(budget, MAX_DRAFT_ROWS)
        if self.tables.states is not None:  # a slot for each token
            budget = min(budget, self.tables.states.spare(plan.chunks))
        # Every sequence has an equal share: all wait for the end of the step.
        share = (FREE_ROWS - sum(chunk.length for chunk in plan.chunks)) // max(1, len(plan.chunks))
        forecasts: list[tuple[Chunk, Forecast]] = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            drafted = sequence.drafted_ids
            proposer = None if drafted else sequence.proposer
            if not drafted and proposer is None:
                continue
            # Under a grammar every mask is computed aside of the step, so a step takes one token.
            if budget <= 0 or sequence.constraint is not None or not chunk.samples:
                continue
            if proposer is None:
                budget -= self._draft(chunk, drafted[:budget])
            elif (forecast := proposer.forecast(sequence.token_ids)) is not None:
                forecasts.append((chunk, forecast))
            elif (most := min(budget, share)) > 0:
                budget -= self._draft(chunk, proposer.propose(sequence.token_ids, most), proposer)
        # If prompts are computed too, the time by which decodes may be delayed is theirs.
        if any(forecast.most for _, forecast in forecasts) and not plan.prompt_tokens and budget > 0:
            lengths = self._gain.lengths(plan.decode_tokens, [forecast for _, forecast in forecasts], budget)
            for (chunk, _), most in zip(forecasts, lengths, strict=True):
                if most and (proposer := chunk.sequence.proposer) is not None:
                    self._draft(chunk, proposer.propose(chunk.sequence.token_ids, most), proposer)

    def _draft(self, chunk: Chunk, draft: tuple[int, ...], proposer: Proposer | None = None) -> int:
        """Add to a chunk as much of a draft as there are blocks for; returns how many tokens that is."""
        draft = draft[: self.tables.extend(chunk.sequence, len(draft))]
        chunk.draft, chunk.proposer = draft, proposer
        chunk.length += len(draft)
        return len(draft)

    @staticmethod
    def _first_logit(sequence: Sequence, end: int) -> int:
        wanted = sequence.wanted_from
        if wanted is not None:
            return min(max(sequence.num_computed, wanted), end)
        return end - 1 if end == sequence.num_tokens else end

    def check_owned(self, sequences: list[Sequence], chunks: Iterable[Chunk] = ()) -> None:
        """Raise IntegrityError unless queues, beam sets and blocks are those of `sequences`.

        `chunks`: the chunks of a running step.
        """
        sequences = [each for each in sequences if each.status is not Status.HELD]
        queued = [*self.running, *self.waiting]
        if set(map(id, queued)) != set(map(id, sequences)) or len(queued) != len(sequences):
            raise IntegrityError(f"{len(queued)} sequences are queued, but requests own {len(sequences)}")
        self.check_integrity()
        self.tables.check_integrity(sequences, chunks)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the queues and beam sets agree with their sequences."""
        for queue, status in ((self.running, Status.RUNNING), (self.waiting, Status.WAITING)):
            if any(s.status is not status for s in queue):
                raise IntegrityError(f"a sequence is queued as {status.name} without being so")
            if [s.order for s in queue] != sorted(s.order for s in queue):
                raise IntegrityError(f"the queue of {status.name} sequences is out of order")
        if any(s.block_table or s.state is not None for s in self.waiting):
            raise IntegrityError("a waiting sequence holds blocks or states")
        if self.places_taken > self.max_sequences:
            raise IntegrityError(f"{self.places_taken} places are taken of {self.max_sequences}")
        running = {id(s.beam_set) for s in self.running if s.beam_set is not None}
        if running != set(map(id, self._running_beams)) or len(running) != len(self._running_beams):
            raise IntegrityError("the beam sets that run are not those of the running sequences")
        for beams in {
            id(s.beam_set): s.beam_set for s in (*self.running, *self.waiting) if s.beam_set
        }.values():
            if len({m.status for m in beams.members}) != 1 or len(beams.members) > beams.places:
                raise IntegrityError("a beam set is torn apart or too large")
            if [m.order for m in beams.members] != sorted(m.order for m in beams.members):
                raise IntegrityError("the beams of a set are out of order")

    @staticmethod
    def _place(queue: list[Sequence], sequence: Sequence) -> int:
        return bisect_left(queue, sequence.order, key=_order)
