"""A closed-loop load generator for OpenAI-compatible servers, and its standard mixes.

C requests are in flight at any time; every prompt has exactly `input_len` tokens and
every answer exactly `output_len` (`ignore_eos`). Tokens are counted from the server's
own `usage`, never from the number of chunks; another length is an error.

    python benchmarks/load.py --url http://127.0.0.1:8000 --model smol135 \\
        --tokenizer build/models/smol135 --mix c1 --mix c16 --out results.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Mix:
    """Lengths in tokens; `prefix_len` leading tokens of every prompt are the same."""

    input_len: int
    output_len: int
    concurrency: int
    requests: int
    prefix_len: int = 0
    warmup: int = 0


MIXES = {
    "c1": Mix(128, 128, 1, 8, warmup=1),
    "c4": Mix(128, 128, 4, 16, warmup=4),
    "c16": Mix(128, 128, 16, 64, warmup=16),
    "c32": Mix(128, 128, 32, 96),
    "prefix": Mix(1032, 32, 8, 64, prefix_len=1000),
    "long": Mix(2000, 16, 2, 12, warmup=1),
}


@dataclass
class Seen:
    """What one request saw; times in seconds since it was sent."""

    error: str = ""
    first_token: float = 0.0
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    gaps: list[float] = field(default_factory=list)


Body = dict[str, object]


def as_it_is(body: Body) -> Body:
    """A body for servers that understand every field of `drive`."""
    return body


class Prompts:
    """Random token ids of words that stand alone, so that text and ids have equal length."""

    def __init__(self, tokenizer: Path, mix: Mix, seed: int) -> None:
        self._bpe = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self._random = random.Random(seed)
        self._mix = mix
        self._words = sorted(
            i
            for token, i in self._bpe.get_vocab().items()
            if len(token) > 3 and token[0] == "Ġ" and token[1:].isascii() and token[1:].isalpha()
        )
        self._prefix = self._draw(mix.prefix_len)

    def _draw(self, n: int) -> list[int]:
        return self._random.choices(self._words, k=n)

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield self._prefix + self._draw(self._mix.input_len - self._mix.prefix_len)


async def one(session: aiohttp.ClientSession, url: str, body: Body) -> Seen:
    seen = Seen()
    start = last = time.perf_counter()
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(str(chunk["error"])[:200])
                if usage := chunk.get("usage"):
                    seen.prompt_tokens = usage["prompt_tokens"]
                    seen.output_tokens = usage["completion_tokens"]
                if not any(choice.get("text") for choice in chunk["choices"]):
                    continue
                now = time.perf_counter()
                if seen.first_token:
                    seen.gaps.append(now - last)
                else:
                    seen.first_token = now - start
                last = now
        if not seen.output_tokens:
            raise RuntimeError("no usage in the stream")
    except (TimeoutError, aiohttp.ClientError, RuntimeError, ValueError, KeyError) as error:
        seen.error = f"{type(error).__name__}: {error}"
    seen.end = time.perf_counter() - start
    return seen


async def drive(
    url: str,
    model: str,
    prompts: Iterator[list[int]],
    mix: Mix,
    count: int,
    *,
    limit_s: float = math.inf,
    adapt: Callable[[Body], Body] = as_it_is,
) -> tuple[list[Seen], float]:
    """Send `count` requests, `mix.concurrency` at a time; what they saw, and the wall time.

    After `limit_s` seconds no request is sent but those of the wave that has begun. `adapt` changes a body
    into what the server understands.
    """
    bodies = [
        adapt(
            {
                "model": model,
                "prompt": next(prompts),
                "max_tokens": mix.output_len,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for _ in range(count)
    ]

    def in_waves() -> Iterator[Body]:
        for number, body in enumerate(bodies):
            if number and not number % mix.concurrency and time.perf_counter() - start > limit_s:
                return
            yield body

    waiting = in_waves()
    results: list[Seen] = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=900)

    async def worker(session: aiohttp.ClientSession) -> None:
        for body in waiting:
            seen = await one(session, f"{url}/v1/completions", body)
            lengths = (seen.prompt_tokens, seen.output_tokens)
            if not seen.error and lengths != (mix.input_len, mix.output_len):
                seen.error = f"{lengths} tokens read and answered, not {(mix.input_len, mix.output_len)}"
            results.append(seen)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        start = time.perf_counter()
        await asyncio.gather(*(worker(session) for _ in range(mix.concurrency)))
        return results, time.perf_counter() - start


def percentile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def summary(label: str, name: str, mix: Mix, results: list[Seen], wall: float) -> dict[str, object]:
    good = [r for r in results if not r.error]
    gaps = [gap for r in good for gap in r.gaps]
    first = [r.first_token for r in good]
    return {
        "label": label,
        "mix": name,
        **asdict(mix),
        "errors": len(results) - len(good),
        "first_error": next((r.error for r in results if r.error), None),
        "wall_s": round(wall, 3),
        "output_tok_s": round(sum(r.output_tokens for r in good) / wall, 1),
        "ttft_ms_p50": round(percentile(first, 0.5) * 1e3, 1),
        "ttft_ms_p99": round(percentile(first, 0.99) * 1e3, 1),
        "itl_ms_p50": round(percentile(gaps, 0.5) * 1e3, 2),
        "itl_ms_p99": round(percentile(gaps, 0.99) * 1e3, 2),
        "prompt_tokens_mean": statistics.fmean(r.prompt_tokens for r in good) if good else None,
    }


async def run(args: argparse.Namespace) -> int:
    failed = 0
    for offset, name in enumerate(args.mix or list(MIXES)):
        mix = MIXES[name]
        prompts = iter(Prompts(args.tokenizer, mix, args.seed * 1000 + offset))
        if mix.warmup:
            await drive(args.url, args.model, prompts, mix, mix.warmup)
        results, wall = await drive(args.url, args.model, prompts, mix, mix.requests)
        row = summary(args.label, name, mix, results, wall)
        failed += int(str(row["errors"]))
        print(
            f"{name:8} {row['output_tok_s']:8} tok/s   TTFT {row['ttft_ms_p50']} / {row['ttft_ms_p99']} ms"
            f"   ITL {row['itl_ms_p50']} / {row['itl_ms_p99']} ms   errors {row['errors']}",
            flush=True,
        )
        if args.out:
            with args.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="model name in the requests")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--mix", action="append", choices=sorted(MIXES), help="default: all")
    parser.add_argument("--label", default="serve-app")
    parser.add_argument("--seed", type=int, default=1, help="change it, or a prefix cache knows the prompts")
    parser.add_argument("--out", type=Path, help="append one JSON line a mix")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
