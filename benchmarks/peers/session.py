"""One run: every server started in its turn, loaded with every mix and stopped, and all of it noted."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import platform
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import limits
from benchmarks.peers import process, traffic
from benchmarks.peers.journal import BATCH, FAILURE, LIMITS, MACHINE, START, Journal
from benchmarks.peers.peer import Place
from benchmarks.peers.process import Running, StartError
from benchmarks.peers.registry import Server
from benchmarks.peers.schedule import Turn, turns
from benchmarks.roofline import Shape

SEEDS: Final = 2**24


@dataclass(frozen=True)
class Plan:
    """What is run. `waves` and `limit_s` bound each batch; `waves` of None: all of the mix.

    `kept`: names of servers that are started once a model, and frozen while others have their turn.
    """

    models: dict[str, Path]
    servers: list[Server]
    mixes: list[str]
    rounds: int
    waves: int | None
    limit_s: float
    threads: int
    port: int
    logs: Path
    kept: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()  # "SERVER:MIX"


class Session:
    """A plan on its way, as far as its journal says."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._servers = {server.label: server for server in plan.servers}
        self._out: set[str] = set()  # labels of servers that could not be started this time
        self._kept: dict[tuple[str, str], tuple[Running, str]] = {}  # (label, model) -> frozen, its address
        self._stack = contextlib.ExitStack()

    def run(self) -> None:
        """All turns that are left. A server that does not start is left out until the next run."""
        with self:
            self._run()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers that were kept."""
        self._stack.close()

    def _run(self) -> None:
        self._journal.append(MACHINE, **machine(self._plan.threads), kept=sorted(self._plan.kept))
        for name, model in self._plan.models.items():
            self._journal.append("shape", model=name, **asdict(Shape.of(model)))
        for server in self._plan.servers:
            if reason := server.peer.missing():
                self._fail(server.label, reason)
        plan = self._plan
        labels, done = list(self._servers), self._journal.done()
        measured = -1
        for planned in turns(plan.rounds, list(plan.models), labels, plan.mixes, done):
            name = self._servers[planned.server].peer.name
            mixes = tuple(mix for mix in planned.mixes if f"{name}:{mix}" not in plan.skipped)
            turn = planned._replace(mixes=mixes)
            if turn.server in self._out or not turn.mixes:
                continue
            if turn.round != measured:
                self._measure_limits(turn.round)
                measured = turn.round
            try:
                self._take(turn)
            except (StartError, OSError, RuntimeError) as error:
                self._fail(turn.server, f"{type(error).__name__}: {error}")

    def _fail(self, label: str, reason: str) -> None:
        print(f"{label}: left out: {reason}", flush=True)
        self._out.add(label)
        self._journal.append(FAILURE, server=label, reason=reason)

    def _measure_limits(self, number: int) -> None:
        rate = limits.matrix_rate(self._plan.threads)
        bandwidth = limits.read_bandwidth(self._plan.threads)
        self._journal.append(LIMITS, round=number, flops=rate, bandwidth=bandwidth)
        print(f"round {number}: {rate / 1e12:.2f} TFLOP/s, {bandwidth / 1e9:.1f} GB/s", flush=True)

    def _take(self, turn: Turn) -> None:
        server = self._servers[turn.server]
        peer, model = server.peer, self._plan.models[turn.model]
        served = peer.prepare(model, server.precision)
        where = {"round": turn.round, "model": turn.model, "server": turn.server}
        with self.running(turn, served) as (running, url):
            adapt = functools.partial(peer.adapt, tokenizer=model)
            target = traffic.Target(url, peer.model_name(served), model, adapt)
            for mix in turn.mixes:
                before = stolen_s()
                row = asyncio.run(
                    traffic.batch(
                        target, mix, seed(turn, mix), waves=self._plan.waves, limit_s=self._plan.limit_s
                    )
                )
                row |= {"stolen_s": round(stolen_s() - before, 2), "load": os.getloadavg()[0]}
                self._journal.append(BATCH, **row | where | {"precision": server.precision, "mix": mix})
                print(line(turn, row), flush=True)
            self._journal.append(
                START, **where, ready_s=round(running.ready_s, 1), memory_mib=round(running.memory_mib())
            )

    @contextlib.contextmanager
    def running(self, turn: Turn, served: Path) -> Iterator[tuple[Running, str]]:
        """The server of a turn and its address: started for this turn, or thawed for it."""
        key = turn.server, turn.model
        if key not in self._kept:
            starting = self._start(turn, served, self._plan.port + len(self._kept))
            if self._servers[turn.server].peer.name not in self._plan.kept:
                with starting as started:
                    yield started
                return
            self._kept[key] = self._stack.enter_context(starting)
        kept, url = self._kept[key]
        kept.thaw()
        try:
            yield kept, url
        finally:
            kept.freeze()

    @contextlib.contextmanager
    def _start(self, turn: Turn, served: Path, port: int) -> Iterator[tuple[Running, str]]:
        plan, server = self._plan, self._servers[turn.server]
        place = Place(port, plan.threads)
        log = plan.logs / f"{turn.server.replace(' ', '-')}-{turn.model}-{turn.round}.log"
        command = server.peer.command(served, server.precision, place)
        ready = place.url + server.peer.ready_path
        with process.running(command, ready, server.peer.ready_timeout_s, log) as started:
            print(f"{turn.server} {turn.model}: ready after {started.ready_s:.1f} s", flush=True)
            yield started, place.url


def seed(turn: Turn, mix: str) -> int:
    """The same prompts for all servers of a round; other ones in every round, model and mix."""
    return zlib.crc32(f"{turn.round} {turn.model} {mix}".encode()) % SEEDS


def stolen_s() -> float:
    """Seconds that the host took from this virtual machine's processors since it started."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def machine(threads: int) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "uptime_s": round(time.monotonic()),
    }


def processor() -> str:
    for line_ in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line_.startswith("model name"):
            return line_.split(":", 1)[1].strip()
    return platform.machine()


def line(turn: Turn, row: dict[str, Any]) -> str:
    error = f"  {row['first_error']}" if row["first_error"] else ""
    return (
        f"  {turn.server:20} {turn.model} {row['mix']:8} {row['output_tok_s']:8} tok/s"
        f"  TTFT {row['ttft_ms_p50']} ms  ITL {row['itl_ms_p50']} / {row['itl_ms_p99']} ms"
        f"  errors {row['errors']}{error}"
    )
