"""Measures one replica in tokens per second: a closed loop of requests directly to a `ModelServer`.

`Mix.concurrency` requests are open at any time. The first requests of the clients differ in output length.
Therefore requests then end one by one, as they do in service, and every step has decodes beside some prompt.
Tokens are counted when they are delivered, in rounds of a fixed time, once all clients run. Prompts are
random and share no prefix; sampling is at temperature 1, the default for clients.

Does not depend on Ray or HTTP: the figures leave out the cost of the gateway and the channel.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serve_app.errors import from_info
from serve_app.replica.server import ModelServer
from serve_app.types import GenerateRequest, Prompt, SamplingParams, TokenDelta, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The requests of the clients; each number is at least 1."""

    input_tokens: int = 256
    output_tokens: int = 128
    concurrency: int

    def check(self, window: int) -> None:
        """Raises ValueError, naming the number, for a mix that exceeds `window` tokens of context."""
        for name in ("input_tokens", "output_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if self.input_tokens + self.output_tokens > window:
            raise ValueError(
                f"input_tokens and output_tokens: {self.input_tokens} + {self.output_tokens} do not fit the "
                f"context window of {window} tokens"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The tokens delivered in one stretch of time."""

    seconds: float
    input_tokens: int
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Input plus output tokens, which is how purchased throughput counts."""
        return (self.input_tokens + self.output_tokens) / self.seconds

    @property
    def output_per_s(self) -> float:
        return self.output_tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """All rounds of a measurement."""

    mix: Mix
    rounds: tuple[Round, ...]  # at least one
    preemptions: int  # in these rounds: sequences for which the KV cache had no room

    @property
    def tokens_per_s(self) -> float:
        """The median round's input and output tokens per second."""
        return statistics.median(each.tokens_per_s for each in self.rounds)

    @property
    def output_per_s(self) -> float:
        """The median round's output tokens per second."""
        return statistics.median(each.output_per_s for each in self.rounds)

    @property
    def spread(self) -> float:
        """The range from the slowest to the fastest round, as a share of the median; 0 if no tokens were
        generated."""
        rates = [each.tokens_per_s for each in self.rounds]
        return (max(rates) - min(rates)) / self.tokens_per_s if self.tokens_per_s else 0.0


async def measure(
    server: ModelServer,
    mix: Mix,
    *,
    rounds: int = 3,
    seconds: float = 10.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Throughput:
    """Send requests to an idle `server`, in `rounds` of `seconds` each, after a warm-up of one output.

    Raises ValueError for a mix that does not fit, and the ServeError of a request that failed.
    """
    mix.check(server.info.context_window)
    if rounds < 1 or not 0 < seconds < math.inf:
        raise ValueError("rounds: must be at least 1, of more than 0 seconds each")
    load = _Load(server, mix)
    clients = [asyncio.ensure_future(load.client(number)) for number in range(mix.concurrency)]
    rest = asyncio.ensure_future(_rounds(load, server, rounds, seconds, progress))
    try:
        await asyncio.wait([rest, *clients], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            if client.done():  # a client only ends by failing
                client.result()
        return rest.result()
    finally:
        for task in (rest, *clients):
            task.cancel()
        await asyncio.gather(rest, *clients, return_exceptions=True)


async def _rounds(
    load: _Load, server: ModelServer, count: int, seconds: float, progress: Callable[[str], None]
) -> Throughput:
    progress(
        f"warming up {load.mix.concurrency} sequences of {load.mix.input_tokens} tokens in, "
        f"{load.mix.output_tokens} out"
    )
    await load.warm.wait()
    done: list[Round] = []
    preempted = server.stats().preemptions
    for number in range(1, count + 1):
        before, started = (load.input_tokens, load.output_tokens), time.perf_counter()
        await asyncio.sleep(seconds)
        done.append(
            Round(
                seconds=time.perf_counter() - started,
                input_tokens=load.input_tokens - before[0],
                output_tokens=load.output_tokens - before[1],
            )
        )
        progress(
            f"round {number} of {count}: {done[-1].tokens_per_s:.1f} tokens/s, "
            f"{done[-1].output_per_s:.1f} of them output"
        )
    return Throughput(mix=load.mix, rounds=tuple(done), preemptions=server.stats().preemptions - preempted)


class _Load:
    """The clients, and the count of their delivered tokens."""

    def __init__(self, server: ModelServer, mix: Mix) -> None:
        self.mix = mix
        self.input_tokens = self.output_tokens = 0
        self.warm = asyncio.Event()  # every client has its first answer
        self._server = server
        self._cold = mix.concurrency
        self._random = random.Random()  # a second measurement must not find the first in the prefix cache
        self._vocabulary: Sequence[int] = range(server.info.vocab_size)

    async def client(self, number: int) -> None:
        """Send requests in a loop. The first answers differ in length, so that clients do not run in step."""
        mix = self.mix
        await self._ask(f"{number}-0", math.ceil(mix.output_tokens * (number + 1) / mix.concurrency))
        self._cold -= 1
        if not self._cold:
            self.warm.set()
        for turn in itertools.count(1):
            await self._ask(f"{number}-{turn}", mix.output_tokens)

    async def _ask(self, id: str, output_tokens: int) -> None:
        """Raises the ServeError that the request ended with, if any."""
        ids = tuple(self._random.choices(self._vocabulary, k=self.mix.input_tokens))
        await self._server.generate(
            GenerateRequest(
                id=id,
                model=self._server.info.name,
                prompt=Prompt(token_ids=ids),
                sampling=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
            ),
            listener := _Listener(self),
        )
        if listener.error is not None:
            raise listener.error


class _Listener:
    """Adds one request's tokens to the load's total."""

    def __init__(self, load: _Load) -> None:
        self.error: Exception | None = None
        self._load = load
        self._seen = Usage()

    def send(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            self._load.input_tokens += delta.usage.prompt_tokens - self._seen.prompt_tokens
            self._load.output_tokens += delta.usage.completion_tokens - self._seen.completion_tokens
            self._seen = delta.usage
            if delta.error is not None:
                self.error = from_info(delta.error)
