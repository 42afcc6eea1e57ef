"""What is asked of every contender: prompts, decodes and a stream of arrivals. Pure, and the same for all."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

PREFILL, DECODE, LONG, MIXED = "prefill", "decode", "long", "mixed"
PARTS: Final = (PREFILL, DECODE, LONG, MIXED)
Prompt = list[int]

# Several prompts are computed beside decodes of those that came first: so many times more tokens are asked
# for, and the last ones come while all sequences decode.
MIXING: Final = 4
FEWEST: Final = 32  # requests of traffic: fewer tell too little of first tokens


@dataclass(frozen=True)
class Job:
    """One figure: prompts at once, and new tokens for each.

    A prefill asks for one token. The time of a decode is that of `new_tokens` less that of a single one; of
    several sequences it is that of the steps in which all of them decode, where the contender tells.
    """

    part: str
    batch: int
    prompt_len: int
    new_tokens: int

    @property
    def name(self) -> str:
        if self.part == DECODE:
            return f"decode, batch {self.batch}"
        if self.part == PREFILL:
            return f"prefill {self.prompt_len}"
        return f"{'prefill' if self.new_tokens == 1 else 'decode'} at {self.prompt_len}"


@dataclass(frozen=True)
class Traffic:
    """Requests that arrive at random, as a Poisson process. Lengths are uniform around their means."""

    requests: int
    rate: float  # a second
    prompt_len: int
    new_tokens: int
    name: str = MIXED

    def at(self, rate: float) -> Traffic:
        """The same at another rate, for as long, but of no fewer than FEWEST requests."""
        requests = max(FEWEST, round(self.requests * rate / self.rate))
        return replace(self, rate=rate, requests=requests, name=f"{self.name} at {rate:g} a second")


@dataclass(frozen=True)
class Plan:
    """The jobs and the traffic of one shape."""

    prefills: tuple[int, ...]  # tokens
    batches: tuple[int, ...]  # of decodes
    context: int  # tokens of a decoding sequence when it begins
    long: int  # tokens; 0: no long context
    steps: int  # decoding steps of a job
    traffic: Traffic

    def jobs(self, part: str) -> list[Job]:
        if part == PREFILL:
            return [Job(part, 1, length, 1) for length in self.prefills]
        if part == DECODE:
            steps = {batch: self.steps * (MIXING if batch > 1 else 1) for batch in self.batches}
            return [Job(part, batch, self.context, steps[batch] + 1) for batch in self.batches]
        if part == LONG and self.long:
            return [Job(part, 1, self.long, 1), Job(part, 1, self.long, self.steps + 1)]
        return []

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        lengths = [
            self.context + MIXING * self.steps + 1,
            self.long + self.steps + 1,
            *(n + 1 for n in self.prefills),
        ]
        return max(*lengths, 2 * (self.traffic.prompt_len + self.traffic.new_tokens))

    @property
    def widest(self) -> int:
        """Sequences of the largest batch; traffic may have as many at once."""
        return max(self.batches)


PREFILLS: Final = (512, 2048, 8192)
BATCHES: Final = (1, 8, 64, 256)
TINY: Final = Plan((16, 64), (1, 3), 24, 96, 6, Traffic(6, 40.0, 12, 6))
PLANS: Final = {
    **dict.fromkeys(("tiny", "tiny-mixture", "tiny-hybrid", "tiny-latents", "tiny-gpt-oss"), TINY),
    "qwen3-0.6b": Plan(PREFILLS, BATCHES, 512, 32_768, 64, Traffic(512, 128.0, 512, 128)),
    "llama-3.1-8b": Plan(PREFILLS, BATCHES, 512, 32_768, 64, Traffic(256, 64.0, 512, 128)),
    "qwen3-32b": Plan(PREFILLS, (1, 8), 512, 8192, 32, Traffic(32, 4.0, 512, 64)),
    **dict.fromkeys(
        ("qwen3-30b-a3b", "qwen3.5-9b", "deepseek-v2-lite", "gpt-oss-20b"),
        Plan(PREFILLS, (1, 8, 64), 512, 8192, 32, Traffic(64, 8.0, 512, 64)),
    ),
}


@dataclass(frozen=True)
class Arrival:
    """One request of traffic."""

    at: float  # seconds after the first one could come
    prompt: Prompt
    new_tokens: int


@dataclass
class Seen:
    """What one request saw, in seconds after the traffic began: when it came and when each token came."""

    arrived: float
    tokens: list[float]


class Prompts:
    """Random tokens, never the same ones again, so that no cached prefix helps."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random, self._vocabulary = random.Random(seed), vocabulary

    def make(self, length: int) -> Prompt:
        return [self._random.randrange(1, self._vocabulary) for _ in range(length)]

    def arrivals(self, traffic: Traffic) -> list[Arrival]:
        found, at = [], 0.0
        for _ in range(traffic.requests):
            at += self._random.expovariate(traffic.rate)
            sizes = (self._around(traffic.prompt_len), self._around(traffic.new_tokens))
            found.append(Arrival(at, self.make(sizes[0]), sizes[1]))
        return found

    def _around(self, mean: int) -> int:
        return self._random.randint(max(1, mean // 2), mean + mean // 2)


def percentile(values: list[float], share: float) -> float:
    """The value at a share of the sorted ones, the nearest one; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(arrivals: list[Arrival], seen: list[Seen]) -> dict[str, Any]:
    """Rates and times of traffic. Raises ValueError for a request that did not get all of its tokens."""
    short = [i for i, (a, s) in enumerate(zip(arrivals, seen, strict=True)) if len(s.tokens) != a.new_tokens]
    if short:
        raise ValueError(f"{len(short)} of {len(arrivals)} requests have another number of tokens")
    end = max(each.tokens[-1] for each in seen)
    gaps = [
        later - earlier for each in seen for earlier, later in zip(each.tokens, each.tokens[1:], strict=False)
    ]
    first = [each.tokens[0] - each.arrived for each in seen]
    return {
        "wall_s": end,
        "prompt_tokens": sum(len(arrival.prompt) for arrival in arrivals),
        "output_tokens": sum(arrival.new_tokens for arrival in arrivals),
        "output_tok_s": sum(arrival.new_tokens for arrival in arrivals) / end,
        "ttft_s": [percentile(first, 0.5), percentile(first, 0.99)],
        "itl_s": [percentile(gaps, 0.5), percentile(gaps, 0.99)],
    }


def steady(seen: list[Seen]) -> tuple[float, float]:
    """Seconds of a step while all sequences decode; and the tokens that each had got by then, on average.

    Raises ValueError if they never all do.
    """
    begin, end = max(each.tokens[0] for each in seen), min(each.tokens[-1] for each in seen)
    inside = sum(begin < at <= end for each in seen for at in each.tokens)
    if inside < 2 * len(seen):
        raise ValueError("some sequences ended before others had begun")
    before = sum(at <= begin for each in seen for at in each.tokens)
    return (end - begin) * len(seen) / inside, (before + inside / 2) / len(seen)


def fields(job: Job | Traffic) -> dict[str, Any]:
    """A job or a traffic as a part of a record."""
    return asdict(job) | {"name": job.name}
