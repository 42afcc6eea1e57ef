"""The engine: token ids in, token ids out, many requests in one batch.

    engine = Engine(runner, config, eos_token_ids=frozenset({2}), max_model_len=2048)
    engine.add(EngineRequest(id="a", token_ids=(1, 5, 7)))
    while engine.has_work():
        for output in engine.step():
            ...

A step is schedule -> run -> read -> commit, and changes sequences only in the
last. Not thread-safe, except `validate` and `stats`; `loop` gives it a thread.
It knows no text, no HTTP and no Ray, and nothing of what is inside the runner.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from serve_app.config import EngineConfig
from serve_app.engine import validation
from serve_app.engine.blocks import BlockPool, IntegrityError
from serve_app.engine.group import Group
from serve_app.engine.isolation import DeviceBroken, IsolatingRunner, Runner
from serve_app.engine.rows import Reading, RowReader, RowSampler, generation_failed
from serve_app.engine.sampler import Sampled, Sampler
from serve_app.engine.scheduler import Plan, Scheduler
from serve_app.engine.sequence import Chunk, Sequence, Status
from serve_app.engine.tables import BlockTables
from serve_app.errors import DeadlineExceeded, EngineRefused, Overloaded, ServeError, Unavailable
from serve_app.types import EngineOutput, EngineRequest, EngineStats, ErrorInfo, FinishReason

__all__ = ["Engine", "EngineDead", "IntegrityError", "Runner"]

RETRY_AFTER_S = 1.0  # a waiting place frees as soon as a request starts, so soon is right


class EngineDead(Exception):
    """The engine cannot run any more. `outputs` end every request it had."""

    def __init__(self, message: str, outputs: list[EngineOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs


class Engine:
    """Continuous batching over one runner."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        sampler: RowSampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_model_len` is lowered to what the runner's cache can hold."""
        self.vocab_size = runner.vocab_size
        self.max_model_len = min(max_model_len, runner.num_blocks * runner.block_size)
        self._config = config
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._pool = BlockPool(runner.num_blocks, runner.block_size)
        self._tables = BlockTables(self._pool, prefix_cache=config.prefix_cache)
        self._scheduler = Scheduler(
            self._tables, max_sequences=config.max_sequences, max_step_tokens=config.max_step_tokens
        )
        self._runner = IsolatingRunner(runner, self._pool)
        self._reader = RowReader(
            sampler or Sampler(runner.vocab_size, eos_token_ids),
            members=self._members,
            recompute=self._runner.recompute,
        )
        self._groups: dict[str, Group] = {}
        self._unstarted: set[str] = set()
        self._deadlines: list[tuple[float, int, str]] = []  # a heap; entries of ended requests stay till due
        self._outputs: list[EngineOutput] = []  # not yet returned by a step
        self._arrivals = 0
        self._steps = self._preemptions = 0
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0

    # --- requests ---------------------------------------------------------------------

    def validate(self, request: EngineRequest) -> None:
        """Raise InvalidField or PromptTooLong for what can never run. Thread-safe."""
        validation.validate(request, vocab_size=self.vocab_size, window=self.max_model_len)

    def check_capacity(self, arriving: int = 0) -> None:
        """Raise Overloaded if one more request, after `arriving` others, would wait too far back."""
        idle = max(0, self._config.max_sequences - len(self._scheduler.running))
        if len(self._unstarted) + arriving >= self._config.max_waiting + idle:
            raise Overloaded("The model's queue is full.", retry_after_s=RETRY_AFTER_S)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ServeError, and then has changed nothing."""
        self.validate(request)
        if request.id in self._groups:
            raise EngineRefused("A request with this id is already running.")
        self.check_capacity()
        group = Group.of(request, self._arrivals, self._clock())
        self._arrivals += 1
        self._groups[request.id] = group
        self._unstarted.add(request.id)
        if request.timeout_s is not None:
            heapq.heappush(self._deadlines, (group.arrived + request.timeout_s, group.arrival, request.id))
        self._scheduler.add(group.leader)

    def finish(self, request_id: str, index: int, num_tokens: int) -> bool:
        """End a sequence after its first `num_tokens` output tokens, as a stop string asks.

        What was generated after them is forgotten, in the prefix index too.
        No output follows; the caller knows. Returns False for a sequence that has
        ended already, or never was.
        """
        group = self._groups.get(request_id)
        sequence = group.sequences.get(index) if group else None
        if group is None or sequence is None:
            return False
        self._tables.forget(sequence, keep=sequence.prompt_len + num_tokens)
        self._close(group, sequence)
        return True

    def abort(self, request_id: str) -> None:
        """End all of a request with reason ABORT. Does nothing for an unknown or ended one."""
        group = self._groups.get(request_id)
        if group is not None:
            self._end_group(group, FinishReason.ABORT)

    def fail_all(self, error: ServeError) -> list[EngineOutput]:
        """End every request with `error`; returns all outputs not yet seen."""
        for group in list(self._groups.values()):
            self._end_group(group, FinishReason.ERROR, error.info())
        return self._take_outputs()

    # --- the step ---------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._groups or self._outputs)

    def step(self) -> list[EngineOutput]:
        """Compute one batch. Raises EngineDead when the device is broken, and nothing else."""
        self._expire()
        plan = self._scheduler.schedule()
        if plan.chunks:
            self._begin(plan)
            try:
                outcome = self._runner.run(plan)
            except DeviceBroken as cause:
                outputs = self.fail_all(Unavailable("The model is restarting.", retry_after_s=RETRY_AFTER_S))
                raise EngineDead("neither requests nor the probe run on the device", outputs) from cause
            readings = [reading for ran in outcome.ran for reading in self._reader.read(ran)]
            self._commit(readings, outcome.failed)
        return self._take_outputs()

    def _expire(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, arrival, request_id = heapq.heappop(self._deadlines)
            group = self._groups.get(request_id)
            if group is not None and group.arrival == arrival:
                error = DeadlineExceeded("The request did not finish within its deadline.")
                self._end_group(group, FinishReason.ERROR, error.info())

    def _begin(self, plan: Plan) -> None:
        """Note what happens to a request once, however often it is preempted and begins again."""
        self._steps += 1
        self._preemptions += len(plan.preempted)
        for sequence in plan.admitted:
            group = self._groups[sequence.request_id]
            if group.started is None:
                group.started = self._clock()
                group.cached_tokens = sequence.num_computed
                self._unstarted.discard(sequence.request_id)
                self._cached_tokens += sequence.num_computed
                self._prompt_tokens += sequence.prompt_len

    def _members(self, sequence: Sequence) -> list[Sequence]:
        group = self._groups[sequence.request_id]
        if group.forked or group.request.n == 1:
            return [sequence]
        return [sequence, *group.siblings()]

    def _commit(self, readings: list[Reading], failed: list[Chunk]) -> None:
        now = self._clock()
        for reading in readings:
            chunk, sequence = reading.chunk, reading.chunk.sequence
            if reading.error is not None:
                self._fail(sequence, reading.error)
                continue
            sequence.num_computed = chunk.end
            sequence.prompt_logprobs += reading.prompt_logprobs
            self._tables.index(sequence)
            if reading.sequences:
                group = self._groups[sequence.request_id]
                # All forks before any token: the leader may end, and free its blocks, with its first.
                for sibling in reading.sequences[1:]:
                    self._scheduler.fork(sequence, sibling)
                    group.sequences[sibling.index] = sibling
                group.forked = True
                for member, sampled in zip(reading.sequences, reading.sampled, strict=True):
                    self._append(group, member, sampled, sequence, now)
        for chunk in failed:
            self._fail(chunk.sequence, generation_failed())

    def _append(
        self, group: Group, sequence: Sequence, sampled: Sampled, leader: Sequence, now: float
    ) -> None:
        if sampled.error is not None:
            self._fail(sequence, sampled.error)
            return
        sequence.token_ids.append(sampled.token_id)
        self._generated_tokens += 1
        finish = self._finish_reason(sequence, sampled.token_id)
        first = sequence.num_output == 1
        wants_prompt = first and group.request.prompt_logprobs is not None
        self._outputs.append(
            EngineOutput(
                request_id=sequence.request_id,
                index=sequence.index,
                token_ids=(sampled.token_id,),
                logprobs=() if sampled.logprobs is None else (sampled.logprobs,),
                prompt_logprobs=tuple(leader.prompt_logprobs) if wants_prompt else None,
                finish=finish,
                cached_tokens=group.cached_tokens,
                timing=group.timing(now) if first else None,
            )
        )
        if finish is not None:
            self._close(group, sequence)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        sampling = sequence.sampling
        if token in self._eos_token_ids and not sampling.ignore_eos:
            return FinishReason.EOS
        if token in sampling.stop_token_ids:
            return FinishReason.STOP
        if sampling.max_tokens is not None and sequence.num_output >= sampling.max_tokens:
            return FinishReason.LENGTH
        if sequence.num_tokens >= self.max_model_len:
            return FinishReason.CONTEXT
        return None

    # --- ends -------------------------------------------------------------------------

    def _fail(self, sequence: Sequence, error: ErrorInfo) -> None:
        """End a sequence, or all of its request while that is still one sequence."""
        group = self._groups[sequence.request_id]
        # Its cache may hold what made it fail, such as NaN: no other request may find it.
        self._tables.forget(sequence)
        if not group.forked:
            self._end_group(group, FinishReason.ERROR, error)
            return
        self._emit_end(group, sequence.index, FinishReason.ERROR, error)
        self._close(group, sequence)

    def _end_group(self, group: Group, finish: FinishReason, error: ErrorInfo | None = None) -> None:
        for index in sorted(group.open):
            self._emit_end(group, index, finish, error)
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

    def _emit_end(self, group: Group, index: int, finish: FinishReason, error: ErrorInfo | None) -> None:
        self._outputs.append(
            EngineOutput(
                request_id=group.request.id,
                index=index,
                finish=finish,
                error=error,
                cached_tokens=group.cached_tokens,
            )
        )

    def _take_outputs(self) -> list[EngineOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    # --- inspection -------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """A snapshot. Callable from any thread; then it may straddle a step."""
        running, waiting = list(self._scheduler.running), list(self._scheduler.waiting)
        return EngineStats(
            running=len(running),
            waiting=len(waiting),
            waiting_tokens=sum(max(0, s.num_tokens - 1 - s.num_computed) for s in running)
            + sum(s.num_tokens for s in waiting),
            blocks_total=self._pool.num_blocks,
            blocks_used=self._pool.num_used,
            blocks_cached=self._pool.num_cached,
            max_sequences=self._config.max_sequences,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless blocks, queues and requests agree."""
        queued = [*self._scheduler.running, *self._scheduler.waiting]
        owned = [s for group in self._groups.values() for s in group.sequences.values()]
        if set(map(id, queued)) != set(map(id, owned)) or len(queued) != len(owned):
            raise IntegrityError(f"{len(queued)} sequences are queued, but requests own {len(owned)}")
        for queue, status in (
            (self._scheduler.running, Status.RUNNING),
            (self._scheduler.waiting, Status.WAITING),
        ):
            if any(s.status is not status for s in queue):
                raise IntegrityError(f"a sequence is queued as {status.name} without being so")
            if [s.order for s in queue] != sorted(s.order for s in queue):
                raise IntegrityError(f"the queue of {status.name} sequences is out of order")
        if any(s.block_table for s in self._scheduler.waiting):
            raise IntegrityError("a waiting sequence holds blocks")
        if any(not group.open or not group.sequences for group in self._groups.values()):
            raise IntegrityError("a request has nothing left to do, but is kept")
        if not self._unstarted <= self._groups.keys():
            raise IntegrityError("a request counts as waiting that is gone")
        self._tables.check_integrity(owned)
