"""What a token costs in a replica between the engine's output and the frame to its gateway: trees in turns.

    python benchmarks/make_model.py smol135 build/models
    python benchmarks/delta_text.py build/before . --model build/models/smol135 --turns 7

CPU microseconds of one thread for a token of `--streams` plain streams, in a loop without engine, sockets and
other threads: outputs made as the engine makes them, then text, usage, the ledger and the frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 400  # of one measurement
REPEATS = 7  # of which the least counts


def microseconds(work: Callable[[], object], tokens: int) -> float:
    """CPU time of this thread for each of the `tokens` of a call of `work`."""
    least = float("inf")
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(STEPS):
            work()
        least = min(least, time.thread_time() - began)
    return least / STEPS / tokens * 1e6


async def measure(model: Path, streams: int) -> dict[str, float]:
    from serve_app.channel.frames import delta_frames
    from serve_app.channel.ledger import Ledger
    from serve_app.replica.output.request_state import RequestState
    from serve_app.replica.server import ModelServer, _OpenRequest
    from serve_app.text.answer.output_text import OutputText
    from serve_app.text.tokens.tokenizer import Tokenizer
    from serve_app.types import EngineOutput, GenerateRequest, Prompt, SamplingParams, TokenDelta, UsageRecord

    class Sink:
        """An outlet without a connection."""

        def __init__(self) -> None:
            self.ledger = Ledger("gateway")

        def send(self, deltas: list[TokenDelta]) -> None:
            self.ledger.note(deltas)
            delta_frames(deltas)

    tokenizer, sink = Tokenizer.load(model), Sink()
    server: Any = ModelServer.__new__(ModelServer)  # what `_on_outputs` needs, and no engine
    server._open = {}
    ids = [f"{number:032d}" for number in range(streams)]
    for id in ids:
        request = GenerateRequest(
            id=id,
            model="m",
            prompt=Prompt(token_ids=(5, 6)),
            sampling=SamplingParams(temperature=0.0),
            stream=True,
            progress=True,
        )
        state = RequestState(
            request,
            [5] * 128,
            new_output=partial(OutputText, tokenizer),
            new_parser=lambda: None,
            prompt_text=None,
            describe=tokenizer.describe,
            first_prompt_token=None,
        )
        record = UsageRecord(
            id=id,
            key_id="",
            user="",
            groups=(),
            endpoint="e",
            entity="e",
            kind="k",
            route="r",
            started=0.0,
            outcome="lost",
        )
        sink.ledger.open(id, record)
        server._open[id] = _OpenRequest(state, sink, asyncio.get_running_loop().create_future())

    def outputs() -> list[EngineOutput]:
        return [
            EngineOutput(
                request_id=id,
                index=0,
                token_ids=(900,),
                logprobs=(),
                prompt_logprobs=None,
                tensors={},
                perf=None,
                finish=None,
                by_sequence=False,
                cached_tokens=0,
                timing=None,
                steps=(),
            )
            for id in ids
        ]

    made = outputs()
    return {
        "an engine's output": microseconds(outputs, streams),
        "text, usage and frame": microseconds(lambda: server._on_outputs(made), streams),
    }


def turn(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", "--model", str(args.model.resolve())]
    command += ["--streams", str(args.streams)]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, cwd=tree)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE")
    parser.add_argument("--model", type=Path, required=True, help="folder with a tokenizer.json")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asyncio.run(measure(args.model, args.streams))))
        return
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in args.trees}
    for number in range(args.turns):
        for tree in args.trees if number % 2 == 0 else args.trees[::-1]:
            found[tree].append(turn(tree, args))
    for row in found[args.trees[0]][0]:
        cells = [
            f"{statistics.median(v):.2f} ({min(v):.2f} to {max(v):.2f})"
            for v in ([each[row] for each in found[tree]] for tree in args.trees)
        ]
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
