"""The engine: token ids in, token ids out, many requests in one batch.

    engine = Engine(runner, config, eos_token_ids=frozenset({2}), max_model_len=2048)
    engine.add(EngineRequest(id="a", token_ids=(1, 5, 7)))
    while engine.has_work():
        for output in engine.step():
            ...

A step is schedule -> run -> read -> commit; only the commit changes the contents of sequences. With overlap,
the next step is scheduled and launched before this one is read; its tokens are chosen after this one's tokens
are known (`launched`). Not thread-safe, except `validate` and `stats`; `loop` runs an engine in a thread of
its own. Does not depend on text, HTTP, Ray or the internals of the runner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

from serve_app.config import EngineConfig
from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.cache.blocks import BlockPool, IntegrityError
from serve_app.engine.cache.slots import STEP_SLOTS, SlotPool
from serve_app.engine.counters import Counters
from serve_app.engine.finish import Deadlines, EndRule, EngineDead, Finish
from serve_app.engine.flights import Flights, InStages, OnOneDevice
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.group import NO_HYPOTHESIS, Group, StepStart, members_of
from serve_app.engine.launched import LaunchedStep
from serve_app.engine.model.adapter_table import Adapters
from serve_app.engine.model.isolation import DeviceBroken, IsolatingRunner, Runner
from serve_app.engine.pace import Pace
from serve_app.engine.request.rules import RequestRules
from serve_app.engine.sampling.chunk_results import ChunkResult, LogitsReader, RowSampler, failure
from serve_app.engine.sampling.prompt_lookup import PromptLookupFactory
from serve_app.engine.sampling.sampled import Scored
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sampling.verification import SamplingTask
from serve_app.engine.scheduler import Plan, Scheduler
from serve_app.engine.sequence import Chunk, Sequence, Status
from serve_app.errors import DeadlineExceeded, EngineRefused, Overloaded, ServeError, Unavailable
from serve_app.types import EngineOutput, EngineRequest, EngineStats, ErrorInfo, FinishReason

COMPILE_WAIT_S = 0.01  # how long a step waits for a grammar when there is nothing else to do
RETRY_AFTER_S = 1.0  # a place in the queue is free again as soon as a request starts
AHEAD = 2**62  # a continued answer goes first: its client is already reading it

log = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one runner."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        grammars: GrammarQueue | None = None,
        adapters: Adapters | None = None,
        sampler: RowSampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_model_len` is lowered to what the runner's cache can hold.

        Without `grammars` the engine refuses requests with a grammar. `adapters` is the runner's table, into
        which loaders put adapters. Raises ValueError for a logits processor of the settings that cannot be
        loaded.
        """
        most = min(config.max_sequences, runner.num_slots // STEP_SLOTS or config.max_sequences)
        config = config.model_copy(update={"max_sequences": most})
        self.vocab_size = runner.vocab_size
        self.max_model_len = min(max_model_len, runner.num_blocks * runner.block_size)
        self._config = config
        self._ends = EndRule(eos_token_ids)
        self._clock = clock
        self.adapters, self._grammars = adapters, grammars
        self._pool = BlockPool(runner.num_blocks, runner.block_size, memory=runner.memory)
        self._tables = BlockTables(self._pool, SlotPool(runner.num_slots), prefix_cache=config.prefix_cache)
        pace = Pace.on(runner.device.type, config.max_step_tokens)
        self._scheduler = Scheduler(
            *(self._tables, pace),
            max_sequences=config.max_sequences,
            max_step_tokens=config.max_step_tokens,
            stages=runner.stages,
        )
        self._runner = IsolatingRunner(runner, self._pool)
        self.rules = RequestRules(
            config, runner, self.max_model_len, len(eos_token_ids), grammars=grammars is not None
        )
        self._sampler = sampler or Sampler(
            runner.vocab_size, eos_token_ids, watermark_key=config.watermark_key
        )
        self._groups: dict[str, Group] = {}
        self._reader = LogitsReader(self._sampler, partial(members_of, self._groups), self._runner.recompute)
        self._unstarted: set[str] = set()
        self._deadlines = Deadlines()
        self._outputs: list[EngineOutput] = []  # not yet returned by a step
        self._step = StepStart(0.0, 0)  # the last one
        overlaps = runner.device.type == "cuda" if config.overlap is None else config.overlap
        overlaps = overlaps and runner.stages == 1
        self._flights = self._flights_of(runner.stages, overlaps)
        self._collected = 0.0  # when the last step was committed, in seconds of the clock
        self._arrivals = 0
        self._counters = Counters()
        self._lookups = PromptLookupFactory.of_engine(
            config.ngram_draft, overlaps, runner.vocab_size, self.max_model_len
        )

    def validate(self, request: EngineRequest) -> None:
        """Raise InvalidField or PromptTooLong for a request that can never run. Thread-safe."""
        self.rules.check(request)

    def check_capacity(self, arriving: int = 0) -> None:
        """Raise Overloaded if the queue is too long for one more request after `arriving` others."""
        idle = max(0, self._config.max_sequences - len(self._scheduler.running))
        if len(self._unstarted) + arriving >= self._config.max_waiting + idle:
            raise Overloaded("The model's queue is full.", retry_after_s=RETRY_AFTER_S)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Changes nothing if it raises a ServeError."""
        self.validate(request)
        if request.id in self._groups:
            raise EngineRefused("A request with this id is already running.")
        if not request.begun:
            self.check_capacity()  # not for a continued answer, which another engine has admitted
        processors = self.rules.processors.make(request.sampling.processors)
        now, arrival = self._clock(), self._arrivals - (AHEAD if request.begun else 0)
        group = Group.of(request, arrival, now, processors, self._lookups.of(request))
        self._arrivals += 1
        self._groups[request.id] = group
        if not request.begun:
            self._unstarted.add(request.id)
        if request.timeout_s is not None:
            self._deadlines.add(now + request.timeout_s, arrival, request.id)
        if request.grammar is not None and self._grammars is not None:
            self._grammars.hold(list(group.sequences.values()), request.grammar)
        else:
            for sequence in group.sequences.values():
                self._scheduler.add(sequence)

    def finish(self, request_id: str, index: int, num_tokens: int) -> bool:
        """End a sequence after its first `num_tokens` output tokens, because a stop string was found there.

        Later tokens are dropped, also from the prefix index. No output follows. Returns False and does
        nothing if the sequence is unknown, has ended, or cannot be cut (`Group.can_cut`).
        """
        group = self._groups.get(request_id)
        sequence = group.sequences.get(index) if group else None
        if group is None or sequence is None or not group.can_cut:
            return False
        self._tables.forget(sequence, keep=sequence.prompt_len + num_tokens)
        self._close(group, sequence)
        return True

    def abort(self, request_id: str) -> None:
        """End a request with reason ABORT. Does nothing if the request is unknown or has ended."""
        group = self._groups.get(request_id)
        if group is not None:
            self._end_group(group, FinishReason.ABORT)

    def fail_all(self, error: ServeError) -> list[EngineOutput]:
        """End every request with `error`; returns all outputs that have not been returned yet."""
        for group in list(self._groups.values()):
            self._end_group(group, FinishReason.ERROR, error.info())
        self._flights.clear()
        return self._take_outputs()

    def has_work(self) -> bool:
        return bool(self._groups or self._outputs or self._flights.chunks)

    def step(self) -> list[EngineOutput]:
        """Compute one batch. Raises only EngineDead, when the device is broken.

        With overlap, the outputs may be those of the previous batch; with several stages, of an earlier one.
        """
        try:
            self._expire()
            self._release()
            for launched in self._flights.step(self._begin):
                self._collect(launched)
            return self._take_outputs()
        except DeviceBroken as cause:
            outputs = self.fail_all(Unavailable("The model is restarting.", retry_after_s=RETRY_AFTER_S))
            raise EngineDead(str(cause), outputs) from cause

    def _collect(self, launched: LaunchedStep) -> None:
        """Wait for a step and commit it."""
        # A step that was launched early began to run when the one before it was done.
        self._step = StepStart(max(launched.began, self._collected), len(launched.plan.chunks))
        self._commit(launched.collect(self._reader), launched)
        self._collected = self._clock()
        if launched.whole:
            self._scheduler.learn(launched.plan, self._collected - self._step.began)

    def _release(self) -> None:
        """Queue the sequences whose grammars are compiled; waits a little if there is nothing else to do."""
        if self._grammars is not None:
            idle = not self._scheduler.running and not self._scheduler.waiting and not self._outputs
            for sequence in self._grammars.release(COMPILE_WAIT_S if idle else 0.0):
                self._scheduler.add(sequence)
                self._append_owed(sequence)

    def _expire(self) -> None:
        for arrival, request_id in self._deadlines.take_due(self._clock()):
            group = self._groups.get(request_id)
            if group is not None and group.arrival == arrival:
                error = DeadlineExceeded("The request did not finish within its deadline.")
                self._end_group(group, FinishReason.ERROR, error.info())

    def _flights_of(self, stages: int, overlaps: bool) -> Flights:
        if stages > 1:
            return InStages(self._scheduler, self._runner, stages)

        def run_ahead(launched: LaunchedStep) -> None:
            launched.run_ahead(self._reader, self._tables, self._ends, self.max_model_len)

        return OnOneDevice(self._scheduler, self._runner, run_ahead if overlaps else None, self._prepare)

    def _prepare(self, chunks: list[Chunk]) -> None:
        if self._grammars is not None:
            self._grammars.prepare(chunks)

    def _begin(self, plan: Plan) -> float:
        """Count the step, and record the start time of requests whose first step it is; returns the time."""
        began = self._clock()
        self._counters.count_step(plan)
        for sequence in plan.admitted:
            group = self._groups[sequence.request_id]
            if group.started is None:
                group.start(sequence, self._clock())
                self._unstarted.discard(sequence.request_id)
                self._counters.count_start(sequence)
        self._prepare(plan.chunks)
        return began

    def _commit(self, results: list[ChunkResult], launched: LaunchedStep) -> None:
        self._runner.check()  # what a lost device has computed must not be committed
        now, outcome = self._clock(), launched.outcome
        beams: dict[str, dict[Sequence, Scored]] = {}  # by request, the scores of each beam
        for result in results:
            chunk, sequence, scored = result.chunk, result.chunk.sequence, result.scored
            error = result.error or (scored.error if scored is not None else None)
            if error is not None:
                self._fail(sequence, error)
            if sequence.status is Status.FINISHED:
                continue  # failed now, or with another beam of its search
            if launched.chosen is None:
                self._tables.advance(sequence, chunk, chunk.own_end)
            sequence.prompt_logprobs += result.prompt_logprobs
            if sequence.context_logits is not None:
                sequence.context_logits += result.context_logits
            self._tables.keep(sequence, chunk)
            if scored is not None:
                beams.setdefault(sequence.request_id, {})[sequence] = scored
            if result.tasks:
                self._take_tokens(result, now)
            elif scored is None and not sequence.num_output:
                self._outputs += self._groups[sequence.request_id].tell_progress(chunk.own_end)
        for chunk in outcome.failed:
            self._fail(chunk.sequence, failure(starved=chunk in outcome.starved))
        for request_id, rows in beams.items():
            if request_id in self._groups:
                self._advance(self._groups[request_id], rows, now)
        self._tables.settle(launched.plan.chunks)

    def _take_tokens(self, result: ChunkResult, now: float) -> None:
        """Fork the sequences that begin with this chunk, then append the sampled tokens to all sequences."""
        chunk, leader = result.chunk, result.chunk.sequence
        group = self._groups[leader.request_id]
        # All forks come before any token: the leader may end, and free its blocks, with its first token.
        for task in result.tasks[1:]:
            self._scheduler.fork(leader, task.sequence)
            group.sequences[task.sequence.index] = task.sequence
        group.forked = True
        for task in result.tasks:
            self._append(group, task, chunk, now)
        if chunk.proposer is not None and chunk.draft:
            chunk.proposer.learn(len(chunk.draft), len(result.tasks[0].sampled) - 1)

    def _advance(self, group: Group, rows: dict[Sequence, Scored], now: float) -> None:
        """Give the beams of a request their next tokens; `rows` has the scores of every beam."""
        try:
            search = group.search or group.begin_search(self._ends, self.rules.window(group.request.beam))
            for dropped in search.advance(rows, fork=partial(self._fork_beam, group)):
                self._scheduler.remove(dropped)
                del group.sequences[dropped.index]
            if group.beam_set is not None:
                # Fewer places than before when one of the groups of beams is over.
                group.beam_set.places = len(group.beam_set.members)
        except Exception:
            log.exception("the beam search of request %s failed", group.request.id)
            self._end_group(group, FinishReason.ERROR, failure())
            return
        self._counters.generated_tokens += len(rows)
        group.note_search(len(rows), now, self._step)
        if search.over:
            self._outputs += group.tell_hypotheses(now)
            self._end_group(group, FinishReason.ERROR, NO_HYPOTHESIS)  # ends the indices without hypothesis
        else:
            self._outputs += group.tell_progress(len(group.request.token_ids))

    def _fork_beam(self, group: Group, parent: Sequence) -> Sequence:
        beam = group.new_beam(parent)
        self._scheduler.fork(parent, beam)
        group.sequences[beam.index] = beam
        self._sampler.fork(parent, beam)
        return beam

    def _append(self, group: Group, task: SamplingTask, chunk: Chunk, now: float) -> None:
        """Append the tokens of a task of `chunk`, then those that a grammar forces; stops at an end."""
        sequence, sampled = task.sequence, task.sampled
        if sampled[0].error is not None:
            self._fail(sequence, sampled[0].error)
            return
        tokens = chain((one.token_id for one in sampled), sequence.forced_tokens())
        count, finish = self._ends.append(sequence, tokens, self.max_model_len)
        used = min(count, len(sampled))
        sequence.num_forced = count - used
        if sequence.status is Status.RUNNING:
            if used > 1:  # the step computed the accepted draft tokens
                self._tables.advance(sequence, chunk, sequence.num_computed + used - 1)
                self._tables.keep(sequence, chunk)
            self._tables.trim(sequence)
        self._counters.count(task, count, used)
        self._tell(group, task, chunk.sequence, count, finish, now)

    def _append_owed(self, sequence: Sequence) -> None:
        """Append the rest of a run of forced tokens whose first tokens the client already has."""
        owed = () if sequence.constraint is None else sequence.constraint.owed
        count, finish = self._ends.append(sequence, owed, self.max_model_len)
        if count:
            self._step = StepStart(self._clock(), 1)
            group, now = self._groups[sequence.request_id], self._step.began
            self._tell(group, SamplingTask(sequence, 0), sequence, count, finish, now)

    def _tell(
        self, group: Group, task: SamplingTask, leader: Sequence, count: int, finish: Finish, now: float
    ) -> None:
        sequence = task.sequence
        steps = (group.time_token(sequence, now, self._step),) if group.request.timings else ()
        self._outputs.append(group.tell_tokens(task, count, leader, finish, now, steps))
        if finish is not None:
            self._close(group, sequence)

    def _fail(self, sequence: Sequence, error: ErrorInfo) -> None:
        """End a sequence with `error`; in a search, or before siblings are forked, end its whole request."""
        group = self._groups.get(sequence.request_id)
        if group is None or sequence.status is Status.FINISHED:
            return  # it has ended already, with another beam of its search
        # The cache of the sequence may hold what made it fail, such as NaN: no other request may find it.
        self._tables.forget(sequence)
        if not group.forked or group.search is not None:
            self._end_group(group, FinishReason.ERROR, error)
            return
        self._outputs.append(group.tell_end(sequence.index, FinishReason.ERROR, error))
        self._close(group, sequence)

    def _end_group(self, group: Group, finish: FinishReason, error: ErrorInfo | None = None) -> None:
        for index in sorted(group.open):
            self._outputs.append(group.tell_end(index, finish, error))
        group.open.clear()
        for sequence in group.sequences.values():
            self._scheduler.remove(sequence)
        self._forget_group(group)

    def _close(self, group: Group, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        del group.sequences[sequence.index]
        group.open.discard(sequence.index)
        if not group.open:
            self._forget_group(group)

    def _forget_group(self, group: Group) -> None:
        del self._groups[group.request.id]
        self._unstarted.discard(group.request.id)

    def _take_outputs(self) -> list[EngineOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def stats(self) -> EngineStats:
        """A snapshot of the counters. Callable from any thread, also during a step."""
        return self._counters.snapshot(self._scheduler)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless blocks, queues and requests agree."""
        every = (s for group in self._groups.values() for s in group.sequences.values())
        self._scheduler.check_owned(list(every), self._flights.chunks)
        if any(not group.open or not group.sequences for group in self._groups.values()):
            raise IntegrityError("a request has nothing left to do, but is kept")
        if not self._unstarted <= self._groups.keys():
            raise IntegrityError("a request counts as waiting that is gone")
