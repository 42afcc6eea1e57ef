"""What a flood of pay-per-token requests does to bought throughput on the same machine.

    python benchmarks/flood.py --rounds 3 --out benchmarks/results/flood.md

Serves deploy/provisioned.yaml, with one more endpoint, `unlimited`, on the pay-per-token
replica: what keys may ask for a minute is not what is measured. Probes arrive at fixed
times, however slow the answers are. In turn, a round each, they go to the bought endpoint
alone, to the bought endpoint while the other replica is flooded, and to the flooded replica
itself: what a replica of their own spares the callers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from load import Seen, one, percentile
from whole_stack import wait_ready

FILE = Path(__file__).resolve().parent.parent / "deploy" / "provisioned.yaml"
BOUGHT, UNLIMITED = "support-bot", "unlimited"
PROBE_WORDS, PROBE_TOKENS = 60, 48
FLOOD_WORDS, FLOOD_TOKENS = 100, 128
PROBES_PER_S = 2.0
CLIENTS = 48  # of the flood
REFUSED_PAUSE_S = 0.25  # before a client that was refused asks again
WORDS = ("the", "sun", "sea", "old", "king", "small", "house", "tree", "ran", "over", "blue", "seven", "cats")


@dataclass(frozen=True)
class Condition:
    """Where the probes go, and where the flood does."""

    name: str
    probed: str
    flooded: str | None


CONDITIONS = [
    Condition("bought, alone", BOUGHT, None),
    Condition("bought, flood on the other", BOUGHT, UNLIMITED),
    Condition("pay-per-token, flooded", UNLIMITED, UNLIMITED),
]


@dataclass
class Results:
    """All rounds of a condition."""

    probes: list[Seen] = field(default_factory=list)
    flood: list[Seen] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The deploy file with another port and `unlimited`; yields its URL."""
    deploy: dict[str, Any] = yaml.safe_load(FILE.read_text())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    deploy["http_options"]["port"] = port
    with tempfile.TemporaryDirectory() as folder:
        system = next(app for app in deploy["applications"] if app["name"] == "system")
        system["args"] = {**system.get("args", {}), "usage_dir": f"{folder}/usage"}
        catalogue = system["deployments"][0]["user_config"]
        catalogue["endpoints"].append({"name": UNLIMITED, "served_entities": [{"model": "demo-chat"}]})
        file = Path(folder) / "provisioned.yaml"
        file.write_text(yaml.safe_dump(deploy))
        command = [sys.executable, "-m", "serve_app.cli", "serve", str(file)]
        process = subprocess.Popen(command, stdout=sys.stderr)
        try:
            wait_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(90)


class Round:
    """One condition for some seconds."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self._session = session
        self._url = f"{url}/v1/completions"
        self._random = random.Random(seed)

    async def run(self, condition: Condition, seconds: float, results: Results) -> None:
        """Probes begin when the flood has been running for two seconds."""
        clock = asyncio.get_running_loop().time
        began, flood = clock(), []
        if condition.flooded is not None:
            flood = [
                asyncio.ensure_future(self._flood(condition.flooded, results.flood)) for _ in range(CLIENTS)
            ]
            await asyncio.sleep(2.0)
        start, probes = clock(), []
        for number in range(int(seconds * PROBES_PER_S)):
            await asyncio.sleep(start + number / PROBES_PER_S - clock())
            probes.append(asyncio.ensure_future(self._ask(condition.probed, PROBE_WORDS, PROBE_TOKENS)))
        results.probes += await asyncio.gather(*probes)
        for client in flood:
            client.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        results.seconds += clock() - began

    async def _flood(self, model: str, seen: list[Seen]) -> None:
        while True:
            answer = await self._ask(model, FLOOD_WORDS, FLOOD_TOKENS)
            seen.append(answer)
            if answer.error:
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _ask(self, model: str, words: int, tokens: int) -> Seen:
        body: dict[str, object] = {
            "model": model,
            "prompt": " ".join(self._random.choices(WORDS, k=words)),
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await one(self._session, self._url, body)


async def measure(url: str, rounds: int, seconds: float) -> dict[str, Results]:
    results = {condition.name: Results() for condition in CONDITIONS}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        await Round(session, url, 0).run(CONDITIONS[0], 3.0, Results())  # warm-up
        for number in range(rounds):
            for index, condition in enumerate(CONDITIONS):
                seed = 1 + number * len(CONDITIONS) + index  # prompts that no prefix cache knows
                await Round(session, url, seed).run(condition, seconds, results[condition.name])
                await asyncio.sleep(2.0)  # what was cancelled ends
                print(f"round {number + 1}: {condition.name}: done", file=sys.stderr, flush=True)
    return results


def table(results: dict[str, Results]) -> str:
    lines = [
        "| probes go to | probes | failed | TTFT p50 / p99 ms | ITL p50 / p99 ms "
        "| flood: answered, tok/s, refused |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        good = [probe for probe in result.probes if not probe.error]
        first = [probe.first_token * 1e3 for probe in good]
        gaps = [gap * 1e3 for probe in good for gap in probe.gaps]
        answered = [seen for seen in result.flood if not seen.error]
        refused = Counter(seen.error.split(":")[1].strip() for seen in result.flood if seen.error)
        rate = sum(seen.output_tokens for seen in answered) / result.seconds
        words = ", ".join(f"{count} x {status}" for status, count in sorted(refused.items())) or "0"
        flood = f"{len(answered)}, {rate:.0f}, {words}" if result.flood else "none"
        lines.append(
            f"| {name} | {len(result.probes)} | {len(result.probes) - len(good)} "
            f"| {percentile(first, 0.5):.0f} / {percentile(first, 0.99):.0f} "
            f"| {percentile(gaps, 0.5):.1f} / {percentile(gaps, 0.99):.1f} | {flood} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each condition in a round")
    parser.add_argument("--out", type=Path, help="write the table, with date, machine and command")
    args = parser.parse_args()
    with served() as url:
        results = asyncio.run(measure(url, args.rounds, args.seconds))
    found = table(results)
    print(found)
    if args.out:
        head = (
            f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, load at the end "
            f"{os.getloadavg()[0]:.1f}; `python benchmarks/flood.py --rounds {args.rounds} "
            f"--seconds {args.seconds:g}`"
        )
        args.out.write_text(f"{head}\n\n{found}\n")


if __name__ == "__main__":
    main()
