"""A constant load, and a log of how each of its requests ended."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.deploy.answers import completion, settled
from tests.deploy.deployment import COMPLETIONS, DEMO, Deployed
from tests.support.invariants import WAIT_S

logger = logging.getLogger(__name__)

CLIENTS: Final = 8  # half of them ask for streams
TOKENS: Final = 24
DONE: Final = "done"


@dataclass
class Request:
    """One request of the load, as its client saw it."""

    is_stream: bool
    user: str  # the name that chooses the entity, or ""
    started: float  # seconds since the load began
    ended: float = 0.0
    status: int = 0
    bytes: int = 0
    entity: str = ""
    retry_after: str | None = None
    end: str = ""  # DONE, or what else ended it


@dataclass
class Log:
    """Everything that the load asked for."""

    clock: Callable[[], float]  # seconds since the load began
    requests: list[Request] = field(default_factory=list)

    @property
    def counts(self) -> Counter[tuple[int, str]]:
        """By status and end."""
        return Counter((request.status, request.end) for request in self.requests)

    @property
    def longest_s(self) -> float:
        return max(request.ended - request.started for request in self.requests)

    def by_user(self) -> dict[str, list[str]]:
        """User -> the entities that answered, in order."""
        entities: dict[str, list[str]] = {}
        for request in self.requests:
            entities.setdefault(request.user, []).append(request.entity)
        return entities

    def since(self, number: int) -> set[str]:
        """The entities that answered, from the request of that number on."""
        return {request.entity for request in self.requests[number:]}

    def assert_nothing_was_lost(self) -> None:
        bad = [request for request in self.requests if (request.status, request.end) != (200, DONE)]
        assert not bad, (self.counts, bad[:20])


@asynccontextmanager
async def constant_load(server: Deployed, model: str = DEMO, users: int = 0) -> AsyncIterator[Log]:
    """CLIENTS that ask `model` all the time, each at once after its last answer, until the block ends.

    `users`: of each client, which asks for them in turn; without any, every request is drawn anew.
    """
    time = asyncio.get_running_loop().time
    began = time()
    log, stop = Log(lambda: time() - began), asyncio.Event()

    async def ask(number: int, user: str) -> None:
        request = Request(is_stream=bool(number % 2), user=user, started=log.clock())
        try:
            await _ask(server.client, model, request)
        except httpx.HTTPError as error:
            request.end = type(error).__name__
        request.ended = log.clock()
        log.requests.append(request)

    async def client(number: int) -> None:
        names = [f"user-{number}-{each}" for each in range(users)] or [""]
        while not stop.is_set():
            for user in names:
                await ask(number, user)

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(number))
        try:
            yield log
        finally:
            stop.set()


@asynccontextmanager
async def nothing_is_lost(server: Deployed, users: int = 0) -> AsyncIterator[Log]:
    """A constant load around the block: every answer is whole, and each left one record."""
    before = len(await settled(server))
    async with constant_load(server, users=users) as log:
        await more(log)
        yield log
        await more(log)
    logger.info("%d requests, the longest %.1f s: %s", len(log.requests), log.longest_s, dict(log.counts))
    log.assert_nothing_was_lost()
    records = (await settled(server))[before:]
    assert [record.outcome for record in records] == ["finished"] * len(log.requests)


async def more(log: Log, count: int = 4 * CLIENTS) -> None:
    """Wait until `count` more requests have ended."""
    wanted = len(log.requests) + count
    async with asyncio.timeout(WAIT_S):
        while len(log.requests) < wanted:
            await asyncio.sleep(0.05)


async def a_round(log: Log, users: int) -> None:
    """Wait until each of the clients' users was answered twice from now on: the second question is new."""
    wanted = {user: len(answers) + 2 for user, answers in log.by_user().items()}
    async with asyncio.timeout(WAIT_S):
        while len(seen := log.by_user()) < CLIENTS * users or any(
            len(seen[u]) < n for u, n in wanted.items()
        ):
            await asyncio.sleep(0.05)


async def _ask(client: httpx.AsyncClient, model: str, request: Request) -> None:
    body = completion(model, max_tokens=TOKENS, stream=request.is_stream)
    headers = {"X-Routing-Key": request.user} if request.user else {}
    async with client.stream("POST", COMPLETIONS, json=body, headers=headers) as response:
        request.status = response.status_code
        request.entity = response.headers.get("served-model-name", "")
        request.retry_after = response.headers.get("retry-after")
        raw = b""
        async for chunk in response.aiter_bytes():
            raw += chunk
            request.bytes = len(raw)
    request.end = _end(raw, request)


def _end(raw: bytes, request: Request) -> str:
    if request.status != 200:
        return raw.decode(errors="replace")
    if not request.is_stream:
        answer = json.loads(raw)
        if answer["model"] != request.entity:
            return "of another entity"
        return DONE if answer["usage"]["completion_tokens"] == TOKENS else "short"
    lines = [line.removeprefix("data: ") for line in raw.decode().splitlines() if line]
    if not lines or lines[-1] != "[DONE]":
        return "cut"
    events: list[dict[str, Any]] = [json.loads(line) for line in lines[:-1]]
    if any("error" in event for event in events):
        return "error event"
    if {event["model"] for event in events} != {request.entity}:
        return "of another entity"
    finishes = [choice["finish_reason"] for event in events for choice in event["choices"]]
    return DONE if [each for each in finishes if each] == ["length"] else "unfinished"
