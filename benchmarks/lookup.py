"""What prompt lookup gains, and costs, in one process: an engine with and without `ngram_draft`.

    python benchmarks/lookup.py MODEL [--draft auto|8] [--threads 2] [--requests 1 4] [--tokens 128]
        [--rounds 3] [--loads repeats sampled random]

MODEL is a local folder or `demo:<name>`. Three loads: *repeats*, greedy answers to prompts that repeat a
passage, which the answers tend to go on with; *sampled*, the same at temperature 0.7; and *random*, prompts
of random tokens at temperature 1, where few guesses are right: its ratio is what lookup costs. The engines
answer the same requests in turns, step by step, so that other work on the machine slows both alike. Prints a
Markdown table: tokens a second of wall time, and the time without drafts as a multiple of that with them, of
wall and CPU, medians of all rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.engine import Engine
from serve_app.replica.build import load_engine
from serve_app.types import EngineRequest, SamplingParams

TEMPERATURES = {"repeats": 0.0, "sampled": 0.7, "random": 1.0}


@dataclass(slots=True)
class Run:
    """The requests of one round on one engine, and what they took."""

    engine: Engine
    wall_s: float = 0.0
    cpu_s: float = 0.0
    tokens: dict[str, list[int]] = field(default_factory=dict)

    def begin(self, requests: list[EngineRequest]) -> None:
        for request in requests:
            self.tokens[request.id] = []
            self.engine.add(request)

    def step(self) -> None:
        if not self.engine.has_work():
            return
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = self.engine.step()
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids


def load_of(kind: str, count: int, tokens: int, vocab_size: int, round_: int) -> list[EngineRequest]:
    rng = random.Random(round_)
    made = []
    for number in range(count):
        passage = [rng.randrange(vocab_size) for _ in range(24)]
        prompt = passage * 4 if kind != "random" else [rng.randrange(vocab_size) for _ in range(96)]
        sampling = SamplingParams(
            temperature=TEMPERATURES[kind], seed=number, max_tokens=tokens, ignore_eos=True
        )
        made.append(EngineRequest(id=f"{kind}{number}", token_ids=tuple(prompt), sampling=sampling))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", nargs="+", choices=TEMPERATURES, default=list(TEMPERATURES))
    args = parser.parse_args()
    engines = []
    for draft in (0, args.draft):
        config = ModelConfig(
            name="bench",
            source=args.model,
            threads=args.threads,
            engine=EngineConfig(ngram_draft=draft, prefix_cache=False, max_model_len=512, num_blocks=512),
        )
        engines.append(load_engine(config, lambda _: None)[0])
    print("| load | requests | tokens/s without | with | ratio | ratio of CPU times | drafts right |")
    print("|---|---|---|---|---|---|---|")
    for kind in args.loads:
        for count in args.requests:
            compare(engines, kind, count, args.tokens, args.rounds)


def compare(engines: list[Engine], kind: str, count: int, tokens: int, rounds: int) -> None:
    """Print the row of one load."""
    before = engines[1].stats()
    speeds, walls, cpus = [], [], []
    for number in range(rounds):
        requests = load_of(kind, count, tokens, engines[0].vocab_size, number)
        runs = [Run(engine) for engine in engines]
        for run in runs:
            run.begin(requests)
        turns = runs if number % 2 else runs[::-1]
        while any(run.engine.has_work() for run in runs):
            for run in turns:
                run.step()
        plain, quick = runs
        if plain.tokens != quick.tokens:
            print(f"| {kind} | {count} | answers differ: this device rounds by the shape of a step |")
        speeds.append(count * tokens / plain.wall_s)
        walls.append(plain.wall_s / quick.wall_s)
        cpus.append(plain.cpu_s / quick.cpu_s)
    after = engines[1].stats()
    verified = after.draft_tokens - before.draft_tokens
    right = f"{(after.accepted_tokens - before.accepted_tokens) / verified:.0%}" if verified else "none made"
    speed, wall, cpu = (statistics.median(figures) for figures in (speeds, walls, cpus))
    print(
        f"| {kind} | {count} | {speed:.0f} | {speed * wall:.0f} | {wall:.3f} | {cpu:.3f} "
        f"| {right} of {verified} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
