"""One request and its replicas: the client gets the deltas of whichever replica has the request."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from serve_app.channel.inbox import KILLED, ReplicaLost
from serve_app.deployments.gateway.calls import GONE, Call, Calls, ReplicaLeaving
from serve_app.deployments.gateway.handover import Handover
from serve_app.deployments.gateway.kept import Kept
from serve_app.deployments.gateway.migrations import ENGINE, LEAVING, Migrations
from serve_app.deployments.gateway.next_step import Situation, Step, next_step
from serve_app.deployments.gateway.poison_requests import UNLUCKY_DEATHS
from serve_app.errors import (
    DeadlineExceeded,
    EngineRefused,
    Overloaded,
    ServeError,
    Unavailable,
    from_info,
)
from serve_app.types import GenerateRequest, TokenDelta

logger = logging.getLogger(__name__)

MOVES: Final = 4  # replicas that an answer may lose after they had delivered some of it
FIRST_PAUSE_S: Final = 0.05  # between two attempts to find a replica for the rest
LAST_PAUSE_S: Final = 1.0
PATIENCE_S: Final = 10.0
TRIAL_S: Final = 5.0  # for which a suspect has a replica to itself, at most

_REFUSALS: Final = (Unavailable, Overloaded)  # another replica, or the same one later, may take the request


class Trial:
    """The suspect that a replica is trying out, as long as it has no token. One at a time."""

    def __init__(self) -> None:
        self._suspect: object = None
        self._until = 0.0  # in the event loop's time

    def is_on(self) -> bool:
        """Whether other suspects must wait."""
        return self._suspect is not None and asyncio.get_running_loop().time() < self._until

    def begin(self, suspect: object) -> None:
        self._suspect = suspect
        self._until = asyncio.get_running_loop().time() + TRIAL_S

    def end(self, suspect: object) -> None:
        if self._suspect is suspect:  # unless its time ended, and another one's has begun
            self._suspect = None


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of one model, as its streams see them."""

    calls: Calls
    is_there: Callable[[], bool]  # whether a replica can be called
    may_return: Callable[[], bool]  # whether one may start soon if there is none
    has_another: Callable[[], bool]  # whether there is a replica besides the leaving one
    patience_s: float = PATIENCE_S  # for a replica that takes what another one has lost
    migrations: Migrations = field(default_factory=Migrations)
    waiting: set[RoutedStream] = field(default_factory=set)  # those that have lost their replica
    trial: Trial = field(default_factory=Trial)


class RoutedStream:
    """A `DeltaStream` of one request, which moves to another replica when its own one is lost or leaves.

    The other replica gets the delivered tokens (see `types/resume.py`). A request without delivered tokens
    starts over there. The client notices neither.
    """

    __slots__ = (
        "_attempts",
        "_began",
        "_call",
        "_candidate",
        "_deaths",
        "_handover",
        "_is_closed",
        "_kept",
        "_losses",
        "_pausing",
        "_replicas",
        "_request",
        "_seed",
        "_sent",
        "migrations",
    )

    def __init__(self, replicas: Replicas, request: GenerateRequest) -> None:
        """Sends `request`. Raises EngineRefused."""
        self.migrations = 0  # moves of the answer to another replica
        self._replicas = replicas
        self._request = request
        # The client may have left the seed open. With this one, every replica draws the same tokens.
        self._seed = secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed
        self._kept = Kept(request)
        self._began = asyncio.get_running_loop().time()
        self._sent = 0  # calls so far
        self._attempts = 1  # to find a replica; those of a handover do not count
        self._losses = 0  # lost replicas that had delivered something
        self._is_closed = False
        self._pausing: asyncio.Future[None] | None = None
        self._candidate: Call | None = None  # asked to go on where `_call` was lost
        self._handover: Handover | None = None
        replicas.calls.poison_requests.check(request)
        self._deaths = replicas.calls.poison_requests.barren_deaths(request)
        if self._deaths:  # it has to wait for its trial, as in `_go_on`
            self._call = Call(replicas.calls, request, None, on_leaving=self._leave)
        else:
            self._call = self._send()

    async def get(self) -> list[TokenDelta]:
        while True:
            call = self._call
            inbox = call.inbox
            try:
                while (wake := inbox.coming()) is not None:
                    await wake
                deltas = inbox.take()
            except (ReplicaLost, Unavailable) as error:
                if self._is_closed or self._kept.is_complete:
                    return []
                await self._recover(error)
                continue
            if deltas:
                if (engines_end := self._kept.note(deltas)) is not None:
                    deltas = self._without(engines_end, deltas, call)
                if self._sent > 1:
                    deltas = [structs.replace(delta, request_id=self._request.id) for delta in deltas]
                if deltas:
                    return deltas
            elif call is self._call:  # else it was handed over meanwhile
                if call.inbox.ended:
                    self._replicas.calls.poison_requests.clear(self._request)
                return []

    def close(self) -> None:
        self._is_closed = True
        self._stop_handover()
        self._call.close()
        if self._candidate is not None:
            self._candidate.close()
        self._end_pause()

    def _without(self, engines_end: TokenDelta, deltas: list[TokenDelta], call: Call) -> list[TokenDelta]:
        """The deltas up to `engines_end`, which ends `call` too early."""
        if engines_end.error is not None:
            call.cause = ENGINE
            call.inbox.lose(from_info(engines_end.error))
        return deltas[: deltas.index(engines_end)]

    def _send(self) -> Call:
        """Send the rest of the request."""
        kept, age_s = self._kept, self._age_s()
        if not (kept.is_empty or kept.weights):
            kept.weights = self._call.inbox.weights  # all tokens so far are of that call
        # A fresh id: an abandoned replica may still send under the old one.
        id = f"{self._request.id}~{self._sent}" if self._sent else self._request.id
        timeout_s = self._request.timeout_s
        rest = replace(
            self._request,
            id=id,
            sampling=replace(self._request.sampling, seed=self._seed),
            timeout_s=None if timeout_s is None else max(0.0, timeout_s - age_s),
            resume=kept.resume(age_s),
        )
        self._sent += 1
        return Call(self._replicas.calls, self._request, rest, on_leaving=self._leave)

    def _adopt(self, call: Call, cause: str | None) -> None:
        """Continue with `call`. `cause`: why the former replica was lost; None if none had taken it."""
        self._call = call
        if cause is not None:
            self.migrations += 1
            app, id, num_tokens = self._request.model, self._request.id, self._kept.num_tokens
            self._replicas.migrations.add(app, cause, id, num_tokens, self._age_s())
        self._leave()

    # --- a replica was lost ----------------------------------------------------------------

    async def _recover(self, error: ServeError) -> None:
        """Continue in another replica; returns once it has begun. Raises ServeError if no replica begins."""
        self._replicas.waiting.add(self)
        try:
            await self._go_on(error)
        except ServeError:
            self.close()
            raise
        finally:
            self._replicas.waiting.discard(self)

    async def _go_on(self, error: ServeError) -> None:
        """Send the rest of the request until a replica takes it; see `next_step`."""
        replicas, kept = self._replicas, self._kept
        is_fresh = kept.is_empty
        cause = self._drop_lost(error)
        causes = {cause}
        if not is_fresh and (self._losses > MOVES or not kept.can_go_on):
            raise error
        # Of several prompts in one body, one may have begun: then no other entity can answer the rest.
        is_patient = not is_fresh or self._request.parent_id is not None
        clock = asyncio.get_running_loop().time
        until = clock() + replicas.patience_s
        pause, refusal = FIRST_PAUSE_S, error
        while not self._is_closed:
            replicas.calls.poison_requests.check(self._request)
            deaths = replicas.calls.poison_requests.barren_deaths(self._request)
            step = next_step(
                Situation(
                    is_fresh=is_fresh,
                    is_patient=is_patient,
                    is_late=clock() > until,
                    attempts=self._attempts,
                    was_refused_for_now=isinstance(refusal, (ReplicaLeaving, Overloaded)),
                    was_killed=not causes.isdisjoint((ENGINE, KILLED)),
                    is_suspect=deaths > 0,
                    is_unlucky=deaths - self._deaths >= UNLUCKY_DEATHS,
                    is_trial_on=replicas.trial.is_on(),
                    has_replica=replicas.is_there(),
                    may_return=replicas.may_return(),
                )
            )
            if step is Step.REFUSE:
                raise refusal
            if step is Step.GIVE_UP:
                if isinstance(refusal, ReplicaLeaving):  # no other replica came up meanwhile
                    refusal = Unavailable(GONE, retry_after_s=2.0)
                raise refusal if is_fresh else error
            if step is Step.AWAIT_TRIAL:
                await self._pause(FIRST_PAUSE_S)
                until = max(until, clock() + FIRST_PAUSE_S)  # its turn comes
                continue
            if step is not Step.WAIT:
                call = self._candidate = self._send()
                self._attempts += 1
                try:
                    await self._begun(call, alone=deaths > 0)
                except _REFUSALS as refused:
                    lost_by = call.drop(refused)
                    causes.add(lost_by)
                    cause = cause or lost_by
                    if isinstance(refused, Overloaded) and not (is_patient or cause):
                        raise  # it was admitted nowhere yet
                    refusal = refused
                except (EngineRefused, DeadlineExceeded):
                    raise
                except ServeError as unfit:
                    raise unfit if is_fresh else error from unfit
                else:
                    self._candidate = None
                    self._adopt(call, cause)
                    return
            if step is not Step.CALL:
                await self._pause(pause)
                pause = min(2 * pause, LAST_PAUSE_S)

    async def _begun(self, call: Call, *, alone: bool) -> None:
        """Wait until a replica computes `call`; `alone`: no other suspect is tried out at the same time."""
        trial = self._replicas.trial
        if alone:
            trial.begin(self)
        try:
            await call.inbox.begun(by_progress=not alone)
        finally:
            trial.end(self)

    def _drop_lost(self, error: ServeError) -> str | None:
        """Leave the call that ended with `error`. Returns why its replica was lost, if a replica had it."""
        self._stop_handover()
        self._losses += self._call.inbox.started
        return self._call.drop(error)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not after the stream is closed."""
        loop = asyncio.get_running_loop()
        self._pausing = loop.create_future()
        timer = loop.call_later(seconds, self._end_pause)
        try:
            await self._pausing
        finally:
            timer.cancel()
            self._pausing = None

    def _end_pause(self) -> None:
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    # --- a replica leaves ------------------------------------------------------------------

    def _leave(self) -> None:
        """Hand the request over if its replica is stopping."""
        if self._candidate is not None or self._handover is not None or self._is_closed:
            return
        if self._call.inbox.is_leaving:
            self._handover = Handover(self._call, self._send, self._take_over, self._is_worth_moving)

    def _take_over(self, call: Call) -> None:
        self._handover = None
        self._adopt(call, LEAVING)

    def _is_worth_moving(self) -> bool:
        if not self._replicas.has_another() or not self._kept.can_go_on or self._kept.is_complete:
            return False
        timeout_s = self._request.timeout_s
        # Starting over takes about as long again, which must not exceed the deadline.
        return not self._kept.is_empty or timeout_s is None or 2 * self._age_s() <= timeout_s

    def _stop_handover(self) -> None:
        if self._handover is not None:
            self._handover.stop()
            self._handover = None

    def _age_s(self) -> float:
        """Seconds since the request was first sent."""
        return asyncio.get_running_loop().time() - self._began
