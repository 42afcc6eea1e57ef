"""Clients that ask for streams at a steady pace, and what each of them saw and when."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx

from tests.control.server import MODEL
from tests.deploy.answers import bare, completion
from tests.deploy.deployment import COMPLETIONS, Deployed

CLIENTS: Final = 4
TOKENS: Final = (4, 24)  # of one answer
PAUSE_S: Final = (0.1, 0.5)  # of a client between two answers
DONE: Final = "done"


@dataclass(slots=True)
class Stream:
    """One request, as its client saw it. Times are seconds of the event loop's clock."""

    began: float
    tokens: int  # asked for
    id: str = ""
    first_token_s: float = 0.0
    total_s: float = 0.0
    end: str = ""  # DONE, or what else ended it


@dataclass(slots=True)
class Streams:
    """All that the clients asked for."""

    seen: list[Stream] = field(default_factory=list)

    def between(self, begin: float, end: float) -> list[Stream]:
        """Those that began in this time and have ended."""
        return [each for each in self.seen if begin <= each.began < end]

    def assert_nothing_was_lost(self) -> None:
        bad = [each for each in self.seen if each.end != DONE]
        assert not bad, (len(self.seen), bad[:20])


@asynccontextmanager
async def timed_streams(
    server: Deployed, seed: int, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Streams]:
    """A load that is the same for the same seed, until the block ends."""
    log, stop = Streams(), asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def client(chance: random.Random) -> None:
        while not stop.is_set():
            stream = Stream(clock(), chance.randint(*TOKENS))
            try:
                await _ask(server.client, stream, chance.randrange(2**31), dict(headers or {}))
            except httpx.HTTPError as error:
                stream.end = repr(error)
            log.seen.append(stream)
            await asyncio.sleep(chance.uniform(*PAUSE_S))

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(random.Random(f"{seed}-{number}")))
        try:
            yield log
        finally:
            stop.set()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _ask(client: httpx.AsyncClient, stream: Stream, seed: int, headers: dict[str, str]) -> None:
    body = completion(MODEL, max_tokens=stream.tokens, seed=seed, stream=True)
    body["stream_options"] = {"include_usage": True}
    clock = asyncio.get_running_loop().time
    usage = None
    last = ""
    async with client.stream("POST", COMPLETIONS, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            stream.end = f"{answer.status_code} {(await answer.aread()).decode(errors='replace')}"
            return
        async for line in answer.aiter_lines():
            if not line:
                continue
            stream.first_token_s = stream.first_token_s or clock() - stream.began
            last = line.removeprefix("data: ")
            if last.startswith("{"):
                event = json.loads(last)
                if "error" in event:
                    stream.end = last
                    return
                stream.id = bare(event["id"])
                usage = event.get("usage") or usage
    stream.total_s = clock() - stream.began
    is_whole = last == "[DONE]" and usage is not None and usage["completion_tokens"] == stream.tokens
    stream.end = DONE if is_whole else f"cut after {last}"
