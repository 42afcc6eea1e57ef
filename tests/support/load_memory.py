"""How much memory the load of a model takes at most, measured in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from torch import nn

from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.engines import engine_over
from tests.support.quantised import load


@dataclass(frozen=True, slots=True)
class Taken:
    """In bytes."""

    peak: int  # more than before the load
    weights: int  # as they are served
    largest: int  # of the numbers of a tensor, or of linears that are packed as one, in float32


def measure(small: Path, source: Path) -> Taken:
    """Load `source` into an engine, after `small`, a model of the same kind, with which everything is
    allocated that each model needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # each process begins with the same modules
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(small, source, theirs))
    process.start()
    theirs.close()
    try:
        found: Taken = ours.recv()
    finally:
        process.join()
    return found


def _measure(small: Path, source: Path, answer: Connection) -> None:
    engine_over(load(small))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = memory("VmRSS")
    model = load(source)
    largest = max(each.numel() for each in model.parameters())
    engine = engine_over(model)
    peak = memory("VmHWM") - before
    gc.collect()
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    packed = [each for each in modules if isinstance(each, PackedLinear)]
    plain = {id(each): each.nbytes for part in modules for each in part.parameters(recurse=False)}
    taken = sum(each.num_bytes for each in packed) + sum(plain.values())
    largest = max(largest, *(each.in_features * each.out_features for each in packed))
    answer.send(Taken(peak, taken, 4 * largest))
    del engine


def memory(field: str) -> int:
    """Bytes that this process has (VmRSS), or had at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024
