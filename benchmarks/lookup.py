"""What prompt lookup gains, and costs, in one process: an engine with and without `ngram_draft`.

    python benchmarks/lookup.py MODEL [--draft 8] [--threads 2] [--requests 1 4 16] [--rounds 3]

MODEL is a local folder or `demo:<name>`. Two loads: *copies*, whose prompts repeat a passage so that
answers tend to repeat it too, and *random*, prompts of random tokens under sampling at temperature 1, where
few guesses are right: its ratio is what lookup costs. Prints a Markdown table of the best of all rounds, in
tokens a second of CPU time; on a shared machine even that is noisy.
"""

from __future__ import annotations

import argparse
import random
import time

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.engine import Engine
from serve_app.replica.build import load_engine
from serve_app.types import EngineRequest, SamplingParams

TOKENS = 128  # of each answer


def load_of(kind: str, count: int, vocab_size: int) -> list[EngineRequest]:
    rng = random.Random(0)
    made = []
    for number in range(count):
        passage = [rng.randrange(vocab_size) for _ in range(24)]
        prompt = passage * 4 if kind == "copies" else [rng.randrange(vocab_size) for _ in range(96)]
        sampling = SamplingParams(
            temperature=0.0 if kind == "copies" else 1.0, seed=number, max_tokens=TOKENS, ignore_eos=True
        )
        made.append(EngineRequest(id=f"{kind}{number}", token_ids=tuple(prompt), sampling=sampling))
    return made


def run(engine: Engine, requests: list[EngineRequest]) -> tuple[float, list[tuple[int, ...]]]:
    """Seconds, and every token in the order of the requests."""
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    started = time.process_time()
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
    return time.process_time() - started, [tuple(tokens[request.id]) for request in requests]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--draft", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    engines = {}
    for draft in (0, args.draft):
        config = ModelConfig(
            name="bench",
            source=args.model,
            threads=args.threads,
            engine=EngineConfig(ngram_draft=draft, prefix_cache=False, max_model_len=512, num_blocks=512),
        )
        engines[draft] = load_engine(config, lambda _: None)[0]
    print("| load | requests | tokens/CPU s without | with | ratio | drafts right |")
    print("|---|---|---|---|---|---|")
    for kind in ("copies", "random"):
        for count in args.requests:
            requests = load_of(kind, count, engines[0].vocab_size)
            best = dict.fromkeys(engines, float("inf"))
            before = engines[args.draft].stats()
            for _ in range(args.rounds):
                answers = []
                for draft, engine in engines.items():
                    seconds, tokens = run(engine, requests)
                    best[draft] = min(best[draft], seconds)
                    answers.append(tokens)
                if answers[0] != answers[1]:
                    print(f"| {kind} | {count} | answers differ: this device rounds by the shape of a step |")
            after = engines[args.draft].stats()
            verified = after.draft_tokens - before.draft_tokens
            right = (after.accepted_tokens - before.accepted_tokens) / max(1, verified)
            plain, quick = (count * TOKENS / best[draft] for draft in engines)
            print(f"| {kind} | {count} | {plain:.0f} | {quick:.0f} | {quick / plain:.2f} | {right:.0%} |")


if __name__ == "__main__":
    main()
