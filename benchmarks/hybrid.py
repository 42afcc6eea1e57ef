"""Steps of one model in this tree's engine, and of transformers from its cache: wall time and processor time.

    python benchmarks/make_model.py hybrid08 build/models
    python benchmarks/hybrid.py build/models/hybrid08 [--decodes 1 16] [--prompts 2000] [--transformers]

For another tree, run it there with PYTHONPATH set to that tree, in turns. On a machine with other work, the
processor time of a step says more than its wall time: it does not count waiting for a core. Prints a line of
JSON for each step; times are the least of the repeats, in milliseconds. `weights_ms` is the time of reading
the packed weights once, at the bandwidth that was measured before the engine was made.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deployment import model_config
from limits import read_bandwidth
from transformers import AutoModelForCausalLM, DynamicCache

from serve_app.engine.engine import Engine
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.replica.build import load_engine
from serve_app.types import EngineRequest, SamplingParams

CONTEXT = 16  # tokens that a decoding sequence begins with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--decodes", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--prompts", type=int, nargs="*", default=[2000])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--quantization")
    parser.add_argument("--transformers", action="store_true", help="transformers in place of the engine")
    args = parser.parse_args()
    settings = {"quantization": args.quantization} if args.quantization else {}
    bandwidth = read_bandwidth(torch.get_num_threads())
    if args.transformers:
        measure_transformers(args)
        return
    config = model_config(args.model, "bfloat16", "cpu", **settings)
    engine, _ = load_engine(config, lambda text: print(text, file=sys.stderr))
    runner: Any = engine._runner
    modules = runner._runner.module.modules()
    size = sum(each.num_bytes for each in modules if isinstance(each, PackedLinear))
    shown = {"packed_gb": round(size / 1e9, 2), "weights_ms": round(size / bandwidth * 1e3, 1)}
    print(json.dumps(shown), flush=True)
    for count in args.decodes:
        names = [add(engine, CONTEXT, 400) for _ in range(count)]
        for _ in range(count + 3):
            engine.step()
        show(f"decode {count}", args.repeats, engine.step)
        finish(engine, names)
    for length in args.prompts:
        show(f"prompt {length}", max(2, args.repeats // 5), lambda length=length: answer(engine, length))


def add(engine: Engine, length: int, tokens: int) -> str:
    """A request that no cached prefix helps; returns its id."""
    ids = tuple(random.randrange(3, engine.vocab_size) for _ in range(length))
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    request = EngineRequest(id=str(time.monotonic_ns()), token_ids=ids, sampling=sampling)
    engine.add(request)
    return request.id


def answer(engine: Engine, length: int) -> None:
    add(engine, length, 1)
    while engine.has_work():
        engine.step()


def finish(engine: Engine, names: list[str]) -> None:
    for name in names:
        engine.abort(name)
    while engine.has_work():
        engine.step()


@torch.inference_mode()
def measure_transformers(args: argparse.Namespace) -> None:
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval()

    def run(rows: int, length: int, cache: DynamicCache) -> None:
        ids = torch.randint(3, model.config.vocab_size, (rows, length))
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    for count in args.decodes:
        cache = DynamicCache(config=model.config)
        run(count, CONTEXT, cache)
        show(f"decode {count}", args.repeats, lambda count=count, cache=cache: run(count, 1, cache))
    for length in args.prompts:
        repeats = max(2, args.repeats // 5)
        show(f"prompt {length}", repeats, lambda n=length: run(1, n, DynamicCache(config=model.config)))


def show(name: str, repeats: int, work: Callable[[], object]) -> None:
    wall, processor = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        work()
        wall.append((time.perf_counter() - began) * 1e3)
        processor.append((time.process_time() - used) * 1e3)
    shown = {"step": name, "wall_ms": round(min(wall), 1), "processor_ms": round(min(processor), 1)}
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
