"""Held decodes while prompts ask for a cache that the system has not given memory yet.

    python benchmarks/fresh_memory.py build/models/qwen06 --tokens 1500 --seconds 30 --at-once 1024

An engine in process, without HTTP. A few sequences decode all the time; prompts of their own tokens come
one after the other. The first part of the cache is small (`--at-once`), so that a short run meets what a busy
server meets later. Memory that was in use a moment ago is given quickly: let the machine stand for some
seconds between runs.
`--tree` runs another tree of this project in the same way. The machine should be quiet.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from load import percentile

WARM_UP_S = 2.0
PROMPT, OUTPUT = 32, 200  # tokens of a sequence that decodes


def given_mib() -> float:
    """What the system has given to this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


class Traffic:
    """An engine with its requests: `d...` decode, `p...` are the prompts."""

    def __init__(self, engine: Any, tokens: int) -> None:
        self._engine, self._tokens = engine, tokens
        self._random = random.Random(1)
        self.sent: dict[str, float] = {}
        self.times: dict[str, list[float]] = {}
        self.growth: list[float] = []  # MiB of each step

    def send(self, kind: str) -> None:
        from serve_app.types import EngineRequest, SamplingParams

        length, output = (PROMPT, OUTPUT) if kind == "d" else (self._tokens, 1)
        name = f"{kind}{len(self.sent)}"
        prompt = tuple(self._random.randrange(100, self._engine.vocab_size) for _ in range(length))
        sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        self.sent[name], self.times[name] = time.perf_counter(), []
        self._engine.add(EngineRequest(id=name, token_ids=prompt, sampling=sampling))

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            before = given_mib()
            outputs = self._engine.step()
            self.growth.append(given_mib() - before)
            for output in outputs:
                self.times[output.request_id] += [time.perf_counter()] * len(output.token_ids)
                if output.finish is not None:
                    self.send(output.request_id[0])

    def forget(self) -> None:
        """What was seen so far does not count."""
        self.growth.clear()
        for times in self.times.values():
            times.clear()

    def figures(self) -> str:
        decodes = (times for name, times in self.times.items() if name[0] == "d")
        gaps = [1e3 * (b - a) for times in decodes for a, b in pairwise(times)]
        prompts = (name for name, times in self.times.items() if name[0] == "p" and times)
        first = [1e3 * (self.times[name][0] - self.sent[name]) for name in prompts]
        between = "/".join(f"{percentile(gaps, q):.0f}" for q in (0.5, 0.99, 1.0))
        to_first = "/".join(f"{percentile(first, q):.0f}" for q in (0.5, 1.0))
        stats = self._engine.stats()
        ready = getattr(stats, "blocks_ready", "?")
        return (
            f"between tokens p50/p99/max {between} ms; "
            f"{len(first)} prompts, first token p50/max {to_first} ms; "
            f"memory {sum(self.growth):.0f} MiB, at most {max(self.growth):.0f} in a step; "
            f"blocks {ready} ready, {stats.blocks_cached} cached, {stats.blocks_total} in all"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1500, help="of a prompt")
    parser.add_argument("--decodes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, default=1024, help="tokens with memory at the start")
    parser.add_argument("--cache-mib", type=int, default=3000)
    parser.add_argument(
        "--wait-share", type=float, help="of computing, from which the wait for memory counts"
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args()
    sys.path.insert(0, str(options.tree.resolve()))
    from serve_app.config import EngineConfig, ModelConfig
    from serve_app.engine.attention import cpu
    from serve_app.engine.cache import blocks
    from serve_app.replica.build import load_engine

    vars(cpu)["TOKENS_AT_ONCE"] = options.at_once
    if options.wait_share is not None:
        vars(blocks)["WAIT_SHARE"] = options.wait_share
    config = ModelConfig(
        name="bench",
        source=str(options.model),
        engine=EngineConfig(
            ngram_draft=0, max_model_len=4096, max_sequences=16, kv_cache_bytes=options.cache_mib << 20
        ),
    )
    traffic = Traffic(load_engine(config, lambda _: None)[0], options.tokens)
    for _ in range(options.decodes):
        traffic.send("d")
    traffic.run(WARM_UP_S)
    traffic.forget()
    traffic.send("p")
    traffic.run(options.seconds)
    print(traffic.figures())


if __name__ == "__main__":
    main()
