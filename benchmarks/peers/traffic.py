"""The load of one batch: a standard mix, or decoding while long prompts arrive."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.load import MIXES, Body, Mix, Prompts, Seen, drive, percentile, summary

ARRIVALS: Final = "arrivals"
# Sixteen sequences decode; a prompt of 2,000 tokens arrives a second after the last one was answered.
DECODING: Final = Mix(128, 256, 16, 32, warmup=16)
ARRIVING: Final = Mix(2000, 16, 1, 1)
PAUSE_S: Final = 1.0
ALL: Final = (*MIXES, ARRIVALS)


@dataclass(frozen=True)
class Target:
    """A server that answers: where, under which name, and what it wants of a body."""

    url: str
    model: str
    tokenizer: Path
    adapt: Callable[[Body], Body]

    def prompts(self, mix: Mix, seed: int) -> Iterator[list[int]]:
        return iter(Prompts(self.tokenizer, mix, seed))

    async def drive(
        self, mix: Mix, prompts: Iterator[list[int]], count: int, limit_s: float = math.inf
    ) -> tuple[list[Seen], float]:
        return await drive(self.url, self.model, prompts, mix, count, limit_s=limit_s, adapt=self.adapt)


def mix_of(name: str, waves: int | None) -> Mix:
    """A mix with at most `waves` waves of requests; None: all that it has."""
    mix = DECODING if name == ARRIVALS else MIXES[name]
    if waves is None:
        return mix
    return replace(mix, requests=min(mix.requests, waves * mix.concurrency))


async def batch(target: Target, name: str, seed: int, *, waves: int | None, limit_s: float) -> dict[str, Any]:
    """One row of figures. No prompt is ever sent twice under different seeds.

    Warming up has its own shared prefix, so that a mix with one begins with a cold cache.
    """
    mix = mix_of(name, waves)
    if mix.warmup:
        await target.drive(mix, target.prompts(mix, 2 * seed + 1), mix.warmup)
    prompts = target.prompts(mix, 2 * seed)
    if name != ARRIVALS:
        results, wall = await target.drive(mix, prompts, mix.requests, limit_s)
        return row(name, mix, results, wall)
    results, wall, arrived = await with_arrivals(target, mix, prompts, seed, limit_s)
    first = percentile([seen.first_token for seen in arrived if not seen.error], 0.5)
    errors = sum(bool(seen.error) for seen in arrived)
    found = row(name, mix, results, wall)
    return found | {
        "errors": found["errors"] + errors,
        "arrived": len(arrived),
        "arrived_ttft_ms_p50": round(first * 1e3, 1),
    }


def row(name: str, mix: Mix, results: list[Seen], wall: float) -> dict[str, Any]:
    """`load.summary`, with how many requests were really sent."""
    return summary("", name, mix, results, wall) | {"requests": len(results)}


async def with_arrivals(
    target: Target, mix: Mix, prompts: Iterator[list[int]], seed: int, limit_s: float
) -> tuple[list[Seen], float, list[Seen]]:
    """What the decoding requests saw, their wall time, and what the long prompts saw."""
    arrived: list[Seen] = []
    long_prompts = target.prompts(ARRIVING, 2 * seed + 1)
    over = asyncio.Event()

    async def arrive() -> None:
        while not over.is_set():
            seen, _ = await target.drive(ARRIVING, long_prompts, 1)
            arrived.extend(seen)
            try:
                await asyncio.wait_for(over.wait(), PAUSE_S)
            except TimeoutError:
                continue

    arrivals = asyncio.create_task(arrive())
    try:
        results, wall = await target.drive(mix, prompts, mix.requests, limit_s)
    finally:
        over.set()
        await arrivals
    return results, wall, arrived
