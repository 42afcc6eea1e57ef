"""What must hold after every fault and abuse, checked by one context manager.

    async with unharmed(server) as watch:
        ... do something terrible ...

(i) a fresh request is answered; (ii) the engine holds no sequence and no block, and its
own books balance (it checks them when idle and dies if not); (iii) every request that was
admitted ended exactly once; (iv) memory, files and threads of gateway and replica are
back; (v) a neighbour that ran all the time got exactly the tokens it gets alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from serve_app.types import EngineStats

WAIT_S = 60.0
GROWTH_BYTES = 120 * 2**20  # buffers, caches and arenas; a leak of requests is larger or grows
GROWTH_FILES = 12
GROWTH_THREADS = 8

NEIGHBOUR = {
    "prompt": "The capital of France is",
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
    "user": "neighbour",  # where traffic is split, the same entity each time
}


@dataclass
class Served:
    """A server under test: where it answers and which model it fronts."""

    client: httpx.AsyncClient
    model: str
    processes: Callable[[], list[psutil.Process]]
    engine: Callable[[], Awaitable[EngineStats]]  # the engine's own numbers, now
    alone: str = field(default="")  # the neighbour's text, learnt once

    async def complete(self, **fields: Any) -> dict[str, Any]:
        answer = await self.client.post("/v1/completions", json={"model": self.model, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def metrics(self) -> dict[str, float]:
        """Samples of the gateway's metrics, by name with labels."""
        return samples_of((await self.client.get("/metrics")).text)

    async def until_idle(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while await self._busy():
                await asyncio.sleep(0.1)

    async def _busy(self) -> bool:
        engine = await self.engine()
        in_flight = (await self.metrics())["serve_app_requests_in_flight"]
        return bool(engine.running or engine.waiting or engine.blocks_used or in_flight)


def samples_of(page: str) -> dict[str, float]:
    """The samples of a page of metrics, by name with labels."""
    found = re.findall(r"^(serve_app_[^\s]+(?:\{.*\})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def children(*titles: str) -> list[psutil.Process]:
    """Processes below this one whose title contains one of `titles`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if any(title in line for title in titles):
            found.append(process)
    return found


def footprint(processes: list[psutil.Process]) -> dict[int, tuple[int, int, int]]:
    """By process id: resident bytes, open files, threads."""
    return {p.pid: (p.memory_info().rss, p.num_fds(), p.num_threads()) for p in processes}


def growth(before: dict[int, tuple[int, int, int]], after: dict[int, tuple[int, int, int]]) -> list[str]:
    """What of the processes that still live has grown beyond tolerance."""
    names = ("memory", "open files", "threads")
    bounds = (GROWTH_BYTES, GROWTH_FILES, GROWTH_THREADS)
    return [
        f"{name} of {pid}: {old} -> {new}"
        for pid in before.keys() & after.keys()
        for name, bound, old, new in zip(names, bounds, before[pid], after[pid], strict=True)
        if new > old + bound
    ]


def ended(samples: dict[str, float]) -> int:
    """Generation requests that came to an end, with whatever outcome."""
    return int(
        sum(
            value
            for name, value in samples.items()
            if name.startswith("serve_app_requests_total") and "/completions" in name
        )
    )


@dataclass
class Watch:
    """What the body of `unharmed` tells: generation requests that it sent and that reached a route."""

    sent: int = 0
    before: int = 0  # requests that had ended when the body began
    rounds: int = 0  # of the neighbour, with the one under way

    async def neighbour(self, server: Served, stop: asyncio.Event) -> None:
        """Ask the same again and again until told to stop; each answer must be the lone one."""
        while not stop.is_set() or self.rounds == 0:
            self.rounds += 1
            answer = await server.complete(**NEIGHBOUR)
            assert answer["choices"][0]["text"] == server.alone, "a neighbour was disturbed"

    async def until_arrived(self, server: Served, count: int) -> None:
        """Wait until so many requests of the body have reached the gateway. They may have ended since."""
        async with asyncio.timeout(WAIT_S):
            while True:
                samples = await server.metrics()
                arrived = ended(samples) + samples["serve_app_requests_in_flight"]
                if arrived - self.before - self.rounds >= count:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def unharmed(server: Served) -> AsyncIterator[Watch]:
    """Run the body beside a neighbour, then check all five invariants."""
    if not server.alone:
        server.alone = (await server.complete(**NEIGHBOUR))["choices"][0]["text"]
    await server.until_idle()
    before = footprint(server.processes())
    watch, stop = Watch(before=ended(await server.metrics())), asyncio.Event()
    task = asyncio.create_task(watch.neighbour(server, stop))
    try:
        yield watch
    finally:
        stop.set()
    await task
    answer = await server.complete(**NEIGHBOUR)
    assert answer["choices"][0]["text"] == server.alone
    await server.until_idle()
    assert ended(await server.metrics()) - watch.before == watch.sent + watch.rounds + 1, "requests ended"
    # Proxies keep idle connections for some seconds, so this one is waited for.
    async with asyncio.timeout(WAIT_S):
        while grown := growth(before, footprint(server.processes())):
            await asyncio.sleep(0.5)
    assert not grown
