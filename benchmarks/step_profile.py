"""Where the time of a step goes on a CPU: a prompt's, and that of sequences that decode.

    make profile MODEL=build/models/smol135
    python benchmarks/step_profile.py MODEL [--prompts 128 512 2000] [--decodes 1 4 16 32] [--out FILE.json]

The engine runs as a replica runs it, in this process, with its text made as well. Every part gets its own
time, without that of the parts inside it; a figure is the median over the repeats. All layers are one native
call, which says itself how long its parts take (see laps.h). Then come operations or
bytes a second, and their share of what the machine reached in the same run (see limits.py): prompts are held
against its rate of products, with the causal half of attention counted; decoding against its bandwidth, with
weights as they are packed.
On a machine with other work, `best` says more than the median.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from deployment import model_config
from limits import matrix_rate, read_bandwidth
from roofline import CACHE_BYTES, Machine, Shape
from stopwatch import Stopwatch

from serve_app.engine.engine import Engine
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import Part
from serve_app.engine.model import isolation
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sampling.chunk_results import LogitsReader
from serve_app.engine.scheduler import Scheduler
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.replica.build import load_engine, load_tokenizer
from serve_app.text.answer.output_text import OutputText
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import EngineRequest, SamplingParams

PROMPTS: Final = (128, 512, 2000)
DECODES: Final = (1, 4, 16, 32)
CONTEXT: Final = 160  # tokens that a decoding sequence begins with
SETTLING: Final = 4  # decoding steps that are not counted
PIECES: Final = 32  # at most, of a prompt: beside decodes it is cut

LAYERS, HEAD, AROUND = "layers", "head", "around the layers"
SAMPLING, SCHEDULING, TENSORS, REST, TEXT = "sampling", "scheduling", "batch tensors", "rest", "text"
NAMES: Final = {
    Part.NORMS: "norms",
    Part.QKV_PRODUCT: "q, k, v",
    Part.ROTARY: "rotary, cache",
    Part.ATTENTION: "attention",
    Part.OUT_PRODUCT: "output",
    Part.GATE_UP_PRODUCT: "gate, up",
    Part.DOWN_PRODUCT: "down",
    Part.EXPERTS: "experts",
}
IN_LAYERS: Final = tuple(NAMES.values())
IN_STEP: Final = (LAYERS, HEAD, AROUND, SAMPLING, SCHEDULING, TENSORS, REST, TEXT)
PLACES: Final = (
    (Scheduler, "schedule", SCHEDULING),
    (isolation, "build_batch", TENSORS),
    (ModelRunner, "run", AROUND),
    (Native, "run_layers", LAYERS),
    (PackedLinear, "forward", HEAD),
    (LogitsReader, "read", SAMPLING),
    (OutputText, "push", TEXT),
)


@dataclass
class Work:
    """One kind of step, and what it costs at least."""

    name: str
    flops: dict[str, float]  # by part, and of LAYERS and the whole ("")
    bytes: dict[str, float]
    run: Callable[[Bench], Iterator[None]]  # yields after each repeat
    times: list[dict[str, float]] = field(default_factory=list)  # seconds by part; "": the whole


class Bench:
    """An engine and its text."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, watch: Stopwatch) -> None:
        self.engine, self.watch = engine, watch
        self._tokenizer = tokenizer
        self._texts: dict[str, OutputText] = {}
        self._random = random.Random(0)
        self._count = 0
        self.inside = (ctypes.c_double * len(Part))()  # seconds of parts of the layers

    def reset(self) -> None:
        self.watch.reset()
        ctypes.memset(self.inside, 0, ctypes.sizeof(self.inside))

    def add(self, prompt_len: int, max_tokens: int) -> None:
        """A request that no cached prefix helps."""
        self._count += 1
        ids = tuple(self._random.randrange(3, self.engine.vocab_size) for _ in range(prompt_len))
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        name = str(self._count)
        self._texts[name] = OutputText(self._tokenizer)
        self.engine.add(EngineRequest(id=name, token_ids=ids, sampling=sampling))

    def step(self) -> int:
        """One step and its text; returns its new tokens."""
        count = 0
        with self.watch.part(REST):
            for output in self.engine.step():
                if output.request_id in self._texts:
                    self._texts[output.request_id].push(output.token_ids)
                count += len(output.token_ids)
        return count

    def finish(self) -> None:
        for name in self._texts:
            self.engine.abort(name)
        while self.engine.has_work():
            self.engine.step()
        self._texts.clear()


def prompt(length: int, repeats: int) -> Callable[[Bench], Iterator[None]]:
    """A prompt up to its first token, again and again."""

    def run(bench: Bench) -> Iterator[None]:
        for number in range(repeats + 1):
            bench.add(length, 1)
            bench.reset()
            while not bench.step():
                pass
            if number:  # the first one warms up
                yield
            bench.finish()

    return run


def decode(batch: int, repeats: int) -> Callable[[Bench], Iterator[None]]:
    """Steps in which `batch` sequences get a token each."""

    def run(bench: Bench) -> Iterator[None]:
        for _ in range(batch):
            bench.add(CONTEXT, repeats + SETTLING + PIECES * batch)
        while bench.step() < batch:
            if not bench.engine.has_work():
                raise RuntimeError(f"the first of {batch} sequences ended before the last one began")
        for number in range(repeats + SETTLING):
            bench.reset()
            bench.step()
            if number >= SETTLING:
                yield
        bench.finish()

    return run


def prompt_work(shape: Shape, length: int, repeats: int) -> Work:
    flops = {part: 2.0 * shape.layers * weights * length for part, weights in products(shape).items()}
    flops[NAMES[Part.ATTENTION]] = float(shape.attention_flops(length))
    flops[LAYERS] = sum(flops.values())
    flops[HEAD] = 2.0 * shape.head_weights
    flops[""] = float(shape.prefill_flops(length))
    return Work(f"prompt of {length}", flops, {}, prompt(length, repeats))


def decode_work(shape: Shape, batch: int, repeats: int, weight_bytes: float) -> Work:
    context = CONTEXT + SETTLING + repeats // 2
    sizes = {part: shape.layers * weights * weight_bytes for part, weights in products(shape).items()}
    cached = shape.layers * 2 * shape.kv_heads * shape.head_dim * CACHE_BYTES
    sizes[NAMES[Part.ATTENTION]] = float(batch * context * cached)
    sizes[LAYERS] = sum(sizes.values())
    sizes[HEAD] = shape.head_weights * weight_bytes
    sizes[""] = shape.decode_bytes(batch, context, weight_bytes)
    return Work(f"decoding {batch}", {}, sizes, decode(batch, repeats))


def products(shape: Shape) -> dict[str, int]:
    """Weights of one layer by part."""
    mlp = shape.mlp_weights
    sizes = {
        Part.QKV_PRODUCT: shape.qkv_weights,
        Part.OUT_PRODUCT: shape.output_weights,
        Part.GATE_UP_PRODUCT: 2 * mlp,
        Part.DOWN_PRODUCT: mlp,
    }
    return {NAMES[part]: size for part, size in sizes.items()}


def measure(bench: Bench, works: list[Work], report: Report) -> None:
    kernels = native()
    if kernels is None:
        raise SystemExit("there are no native kernels on this machine")
    with bench.watch.wrapped(*PLACES), kernels.timed_parts() as inside:
        for work in works:
            bench.inside = inside
            for _ in work.run(bench):
                seconds = dict(bench.watch.seconds)
                parts = {NAMES[part]: inside[part] for part in Part}
                work.times.append(seconds | parts | {"": sum(seconds.values())})
            print(report.table(work), flush=True)


def middle_ms(times: list[dict[str, float]], part: str) -> float:
    return statistics.median(seconds.get(part, 0.0) for seconds in times) * 1e3


def whole_ms(work: Work) -> float:
    return middle_ms(work.times, "")


def best_ms(work: Work) -> float:
    return min(seconds[""] for seconds in work.times) * 1e3


def figures(work: Work) -> dict[str, float]:
    """Milliseconds by part; the parts of the layers lie inside of them."""
    return {part: middle_ms(work.times, part) for part in (*IN_STEP, *IN_LAYERS)}


@dataclass(frozen=True)
class Report:
    """Figures as Markdown and as JSON, beside the limits of a machine."""

    machine: Machine

    def rate(self, work: Work, part: str, ms: float) -> tuple[str, float | None]:
        """What a part does in a second, and its share of what the machine could do."""
        amounts, limit = (
            (work.flops, self.machine.flops) if work.flops else (work.bytes, self.machine.bandwidth)
        )
        if not ms or part not in amounts:
            return "", None
        rate = amounts[part] / ms * 1e3
        text = f"{rate / 1e12:.2f} TFLOP/s" if work.flops else f"{rate / 1e9:.1f} GB/s"
        return text, rate / limit

    def table(self, work: Work) -> str:
        parts, total, best = figures(work), whole_ms(work), best_ms(work)
        rows = [("**all**", "", total), ("**all, best**", "", best)]
        for part in IN_STEP:
            rows.append((part, part, parts[part]))
            if part == LAYERS:
                rows += [(f"- {inner}", inner, parts[inner]) for inner in IN_LAYERS]
        lines = [
            f"\n### {work.name}\n",
            "| part | ms | of all | rate | of the limit |",
            "|---|---|---|---|---|",
        ]
        for name, part, ms in rows:
            rate, share = self.rate(work, part, ms)
            limit = "" if share is None else f"{share:.0%}"
            lines.append(f"| {name} | {ms:.2f} | {ms / total:.0%} | {rate} | {limit} |")
        return "\n".join(lines)

    def record(self, work: Work) -> dict[str, Any]:
        total = whole_ms(work)
        return {
            "step": work.name,
            "ms": total,
            "best_ms": best_ms(work),
            "parts_ms": figures(work),
            "share_of_limit": self.rate(work, "", total)[1],
            "best_share_of_limit": self.rate(work, "", best_ms(work))[1],
            "flops": work.flops.get(""),
            "bytes": work.bytes.get(""),
        }


def bytes_of_a_weight(engine: Engine) -> float:
    """In linear layers, as they are packed."""
    runner: Any = engine._runner
    packed = [module for module in runner._runner.module.modules() if isinstance(module, PackedLinear)]
    weights = sum(linear.in_features * linear.out_features for linear in packed)
    return sum(linear.num_bytes for linear in packed) / weights


def wait_for_memory(engine: Engine) -> None:
    """Wait until the cache has all its memory: steps would share a core with the thread that asks for it."""
    while (stats := engine.stats()).blocks_ready < stats.blocks_total:
        print(f"{stats.blocks_ready} of {stats.blocks_total} blocks of the cache are ready", file=sys.stderr)
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--prompts", type=int, nargs="*", default=list(PROMPTS), metavar="TOKENS")
    parser.add_argument("--decodes", type=int, nargs="*", default=list(DECODES), metavar="SEQUENCES")
    parser.add_argument("--repeats", type=int, default=20, help="decoding steps; a quarter as many prompts")
    parser.add_argument("--quantization", help="as in a deploy file")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    settings = {"quantization": args.quantization} if args.quantization else {}
    config = model_config(args.model, "bfloat16", "cpu", **settings)
    shape, threads = Shape.of(args.model), torch.get_num_threads()
    # Before there is an engine: a cache gets its memory while the engine rests.
    machine = Machine(matrix_rate(threads), read_bandwidth(threads))
    engine, _ = load_engine(config, lambda text: print(text, file=sys.stderr))
    wait_for_memory(engine)
    print(f"`python {' '.join(sys.argv)}`\n\n{datetime.date.today()}, {threads} threads.")
    limits = {"flops": machine.flops, "bandwidth": machine.bandwidth}
    print(f"Limits: {machine.flops / 1e12:.2f} TFLOP/s of products, {machine.bandwidth / 1e9:.1f} GB/s.")
    works = [prompt_work(shape, length, max(2, args.repeats // 4)) for length in args.prompts]
    weight_bytes = bytes_of_a_weight(engine)
    print(f"The weights of linear layers take {weight_bytes:.2f} bytes each.")
    works += [decode_work(shape, batch, args.repeats, weight_bytes) for batch in args.decodes]
    report = Report(machine)
    measure(Bench(engine, load_tokenizer(config, args.model), Stopwatch()), works, report)
    if args.out:
        steps = [report.record(work) for work in works]
        args.out.write_text(json.dumps({"limits": limits, "steps": steps}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
