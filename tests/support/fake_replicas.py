"""Replicas without a model behind a real channel, and a Serve handle whose calls go to them.

What a replica answers follows from seed, choice and position alone, as with the real engine. So the rest
of an answer is the same whichever replica makes it, and a test can tell a wrong token from a right one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final

from msgspec import structs
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from serve_app.channel.frames import Refused, Ticket, encoder, request_decoder, ticket_decoder
from serve_app.channel.ledger import Ledger
from serve_app.channel.sender import Outlet, Sender
from serve_app.errors import ServeError, Unavailable
from serve_app.types import (
    ChoiceSoFar,
    EngineStats,
    FinishReason,
    GenerateRequest,
    Timing,
    TokenDelta,
    Usage,
)

PROMPT_TOKENS: Final = 5
LENGTH: Final = 12  # tokens of each choice
TIMING: Final = Timing(queue_s=0.5, first_token_s=1.0)
STOPPING: Final = "the replica is stopping"


def token_of(seed: int, index: int, position: int) -> int:
    """Token number `position` of choice `index`, 0 .. 65535."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}/{position}".encode(), digest_size=2).digest())


class Answer:
    """The steps of one request, from what its client has."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        choices = (ChoiceSoFar(),) * request.n if request.resume is None else request.resume.choices
        self._made = [list(choice.token_ids) for choice in choices]
        self._open = [not choice.finished for choice in choices]
        seed = request.sampling.seed
        if seed is None:
            raise AssertionError("a gateway fixes the seed")
        self._seed = seed
        self._is_ranked = (request.best_of or 0) > request.n
        for index, made in enumerate(self._made):
            if made != [self._token(index, position) for position in range(len(made))]:
                raise AssertionError("the tokens so far are not those of this answer")

    @property
    def is_done(self) -> bool:
        return not any(self._open)

    def step(self) -> list[TokenDelta]:
        """One delta for each open choice, or whole ones: as they end, or ranked ones together."""
        deltas = [self._next(index) for index, is_open in enumerate(self._open) if is_open]
        if not self._is_ranked:
            return [delta for delta in deltas if delta is not None]
        if not self.is_done:
            return []
        return [self._whole(index) for index in range(len(self._made))]

    def _token(self, index: int, position: int) -> int:
        return token_of(self._seed, index, position)

    def _next(self, index: int) -> TokenDelta | None:
        request, made = self._request, self._made[index]
        size = 1 + self._token(index, len(made)) % 3  # tokens of a step, as drafts make them
        length = LENGTH + index  # choices end one after the other
        ids = [self._token(index, p) for p in range(len(made), min(length, len(made) + size))]
        is_first = not made
        made += ids
        is_last = len(made) == length
        self._open[index] = not is_last
        if not request.stream:
            return self._whole(index) if is_last else None
        return self._delta(index, ids, is_first=is_first, is_last=is_last)

    def _whole(self, index: int) -> TokenDelta:
        return self._delta(index, self._made[index], is_first=True, is_last=True)

    def _delta(self, index: int, ids: list[int], *, is_first: bool, is_last: bool) -> TokenDelta:
        return TokenDelta(
            request_id=self._request.id,
            index=index,
            text="".join(f" {id}" for id in ids),
            token_ids=tuple(ids),
            finish=FinishReason.LENGTH if is_last else None,
            usage=Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=sum(map(len, self._made))),
            timing=TIMING if is_first else None,
        )


def undisturbed(request: GenerateRequest) -> list[TokenDelta]:
    """All deltas of `request`, which has a seed, from one replica."""
    answer = Answer(request)
    deltas = []
    while not answer.is_done:
        deltas += answer.step()
    return deltas


class Response(asyncio.Future[bytes | None]):
    """As Serve's: awaited, and cancelled."""

    def __init__(self, request: GenerateRequest) -> None:
        super().__init__()
        self.request = request


class FakeReplica:
    """Answers as `ModelReplica.generate` does. Requests make steps freely, or as `go` allows."""

    def __init__(self, name: str = "a", weights: str = "w", *, runs: bool = True) -> None:
        self.name = name
        self.weights = weights
        self.runs = runs
        self.pace: Callable[[], float] = lambda: 0.0  # seconds to its next step, where it runs
        self.refuses: ServeError | None = None  # new requests
        self.is_dead = self.is_leaving = self.is_full = False
        self.asked: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.running: dict[str, tuple[Answer, asyncio.Semaphore, Outlet]] = {}
        self._sender = Sender(replica=name, app="m", weights=weights, stats=EngineStats)
        self._calls: dict[Response, asyncio.Task[None]] = {}

    def take(self, response: Response, ticket: bytes) -> None:
        """Serve brings a call here."""
        if self.is_dead:
            self._fail(response)
            return
        if self.is_full:
            response.set_exception(BackPressureError(num_queued_requests=1, max_queued_requests=1))
            return
        task = asyncio.ensure_future(self._answer(response, ticket))
        self._calls[response] = task
        response.add_done_callback(lambda _: task.cancel())
        task.add_done_callback(lambda _: self._calls.pop(response, None))

    async def _answer(self, response: Response, ticket: bytes) -> None:
        request = response.request
        self.asked.append(request)
        try:
            outlet = await self._sender.to(ticket_decoder.decode(ticket))
            if self.is_leaving:
                self._reply(response, encoder.encode(Refused(Unavailable(STOPPING).info(), is_leaving=True)))
                return
            if self.refuses is not None:
                raise self.refuses
            if request.resume is not None and request.resume.weights != self.weights:
                raise Unavailable("other weights")
            await outlet.run(request.id, self._work(request, outlet), request.record)
        except ServeError as error:
            self._reply(response, encoder.encode(Refused(error.info())))
        else:
            self._reply(response, None)

    async def _work(self, request: GenerateRequest, outlet: Outlet) -> None:
        answer, turns = Answer(request), asyncio.Semaphore(0)
        self.running[request.id] = answer, turns, outlet
        try:
            while not answer.is_done:
                if self.runs:
                    await asyncio.sleep(self.pace())
                else:
                    await turns.acquire()
                if deltas := answer.step():
                    outlet.send(deltas)
        except asyncio.CancelledError:
            self.aborted.append(request.id)
            raise
        finally:
            self.running.pop(request.id, None)

    def go(self, steps: int = 1, request_id: str | None = None) -> None:
        """Every request that runs, or one of them, makes so many more steps."""
        for id, (_, turns, _) in self.running.items():
            for _ in range(steps if request_id in (None, id) else 0):
                turns.release()

    def progress(self) -> None:
        """Every request tells of its work, and delivers nothing."""
        for id, (_, _, outlet) in self.running.items():
            usage = Usage(prompt_tokens=PROMPT_TOKENS)
            outlet.send([TokenDelta(request_id=id, index=0, usage=usage, is_progress=True)])

    def leave(self) -> None:
        """Serve tells the replica to stop."""
        self.is_leaving = True
        self._sender.leave()

    def ledger(self, ticket: Ticket) -> Ledger:
        """What it keeps for the gateway of `ticket`, to be settled if that dies."""
        return self._sender._outlets[ticket.gateway].result()._ledger

    def cut(self) -> None:
        """Its connections break, and it lives."""
        for _, _, outlet in tuple(self.running.values()):
            outlet.link.drop("test")

    def kill(self) -> None:
        """The process ends."""
        self.is_dead = True
        self.cut()
        for response, task in tuple(self._calls.items()):
            task.cancel()
            self._fail(response)

    def stop_engine(self) -> None:
        """Its engine ends all requests, and the process lives."""
        self.refuses = Unavailable("the engine is dead")
        for id, (answer, turns, outlet) in tuple(self.running.items()):
            error = Unavailable("the engine died").info()
            outlet.send([TokenDelta(request_id=id, index=0, finish=FinishReason.ERROR, error=error)])
            answer._open = [False] * len(answer._open)
            turns.release()

    async def close(self) -> None:
        for task in tuple(self._calls.values()):
            task.cancel()
        await self._sender.close()

    def _fail(self, response: Response) -> None:
        error = ActorDiedError()
        error.actor_id = self.name
        if not response.done():
            response.set_exception(error)

    def _reply(self, response: Response, answer: bytes | None) -> None:
        if not response.done():
            response.set_result(answer)


class FakeHandle:
    """A Serve handle to some replicas. `choose` picks; calls wait while there is none."""

    def __init__(self, choose: Callable[[list[FakeReplica]], FakeReplica]) -> None:
        self.replicas: list[FakeReplica] = []
        self.calls: list[Response] = []
        self.generate = self
        self._choose = choose
        self._waiting: list[tuple[Response, bytes]] = []

    def remote(self, payload: bytes, ticket: bytes) -> Response:
        response = Response(request_decoder.decode(payload))
        self.calls.append(response)
        self._waiting.append((response, ticket))
        self._assign()
        return response

    def add(self, replica: FakeReplica) -> None:
        """A replica is there; calls that waited for one go to it."""
        self.replicas.append(replica)
        self._assign()

    def _assign(self) -> None:
        while self.replicas and self._waiting:
            response, ticket = self._waiting.pop()
            if not response.done():
                self._choose(self.replicas).take(response, ticket)

    @property
    def is_there(self) -> bool:
        return bool(self.replicas)


def nameless(deltas: list[TokenDelta]) -> list[TokenDelta]:
    """Deltas without the id of their request."""
    return [structs.replace(delta, request_id="") for delta in deltas]
