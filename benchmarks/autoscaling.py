"""Autoscaling, proven: a model from zero to two replicas on two nodes and back, every request recorded.

    python benchmarks/autoscaling.py --out benchmarks/results/autoscaling.json --plot docs/autoscaling.svg

Starts a Ray cluster of two nodes on this machine, each with one logical GPU and an address
of its own, and serves demo-chat as a deploy file would: each replica asks for one GPU, so
the second has to go to the second node. Load comes through HAProxy and the gateway. Exits
with 1 unless every request was answered and the replicas followed the load without flapping.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import platform
import random
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
from load import Seen, one, percentile
from timeline import svg

from serve_app.api.protocol.family import Family
from serve_app.config.secret_file import secret_file
from serve_app.deployments import environment
from serve_app.deployments.environment import free_port
from serve_app.loopback import LOOPBACK

MODEL = "demo-chat"
APP = "model-demo-chat"
SECOND_NODE = "127.0.0.2"  # an address that is not the first node's, on this machine
BATCH = 16
START_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 120.0  # for replicas to arrive or leave
SAMPLE_S = 0.25
WORDS = ("the", "sun", "sea", "old", "king", "small", "house", "tree", "ran", "over", "blue", "seven", "cats")

# Shortened: docs/autoscaling.md has the delays to serve with.
AUTOSCALING: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 2,
    "upscale_delay_s": 3,
    "downscale_delay_s": 6,
    "downscale_to_zero_delay_s": 8,
    "look_back_period_s": 2,
    "metrics_interval_s": 0.5,
    "policy": {"policy_function": "serve_app.deployments.model.scaling:ByLoad"},
}


@dataclass(frozen=True)
class Phase:
    """A stretch of load. It ends when its time is over, its requests are answered and `until` holds."""

    name: str
    seconds: float = 0.0
    at_once: int = 0  # requests sent together at its start
    clients: int = 0  # each sends its next request when the last is answered, for `seconds`
    output_tokens: int = 32
    until: int | None = None  # running replicas


PHASES = [
    Phase("idle", seconds=3, until=0),
    Phase("50 at once", seconds=4, at_once=50, output_tokens=16, until=1),
    Phase("heavy", seconds=20, clients=24, output_tokens=64, until=2),
    Phase("heavy on two", seconds=15, clients=24, output_tokens=64),
    Phase("light", seconds=5, clients=2, until=1),
    Phase("idle", until=0),
    Phase("50 at once", at_once=50, output_tokens=16, until=1),
    Phase("idle", until=0),
]
TARGETS = [0, 1, 2, 1, 0, 1, 0]  # the replicas that these phases should want, one after the other


@dataclass
class Request:
    """What a client saw; times in seconds since the first phase began."""

    phase: str
    start: float
    first_token: float | None
    end: float
    output_tokens: int
    error: str  # empty: answered in full


@dataclass
class Sample:
    """The replicas at a moment."""

    at: float
    target: int
    states: dict[str, int]  # RUNNING, STARTING, STOPPING
    nodes: list[str]  # with a running replica: "first", "second"

    @property
    def running(self) -> int:
        return self.states.get("RUNNING", 0)


@dataclass
class Record:
    """All that happened."""

    requests: list[Request] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)  # name, beginning
    tokens_by_replica: list[int] = field(default_factory=list)  # while two ran

    @property
    def targets(self) -> list[int]:
        """The numbers of replicas that were aimed at, one after the other."""
        return [target for target, _ in itertools.groupby(sample.target for sample in self.samples)]


class Sampler:
    """Notes the replicas until it is stopped."""

    def __init__(self, record: Record, started: float) -> None:
        self._record = record
        self._started = started
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, running: int) -> None:
        """Wait until this many replicas run and no other is on its way."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                last = self._record.samples[-1:]
                if last and last[0].running == running == last[0].target:
                    return
                self._raise_if_failed()
                await asyncio.sleep(SAMPLE_S)

    def _raise_if_failed(self) -> None:
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        while True:
            details = await asyncio.to_thread(deployment_details)
            replicas = details["replicas"]
            states = [replica["state"] for replica in replicas]
            self._record.samples.append(
                Sample(
                    at=time.monotonic() - self._started,
                    target=details["target_num_replicas"],
                    states={state: states.count(state) for state in sorted(set(states))},
                    nodes=[_node(each["node_ip"]) for each in replicas if each["state"] == "RUNNING"],
                )
            )
            await asyncio.sleep(SAMPLE_S)


def _node(address: str) -> str:
    return "second" if address == SECOND_NODE else "first"


def deployment_details() -> dict[str, Any]:
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()
    found: dict[str, Any] = details["applications"][APP]["deployments"]["Model"]
    return found


@contextlib.asynccontextmanager
async def cluster(key: str) -> AsyncIterator[str]:
    """Two nodes with Serve and the model asleep; yields the URL of the gateway, which wants `key`."""
    folder = environment.private_folder()
    environment.apply(
        environment.COMMON
        | environment.haproxy(
            folder, stats_port=free_port(), metrics_port=free_port(), fallback_port=free_port()
        )
        | {
            "SERVE_APP_API_KEYS": f"bench:inference:{hashlib.sha256(key.encode()).hexdigest()}",
            "RAY_AUTH_TOKEN_PATH": str(secret_file(folder / "token")),
            "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(free_port()),
        }
    )
    environment.listen(folder, LOOPBACK, Family.OPENAI)
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster
    from ray.serve.schema import ServeDeploySchema

    from serve_app.deployments.launcher.deploy import roll_out

    port = free_port()
    node = {"num_cpus": 8, "num_gpus": 1, "object_store_memory": 100 * 2**20}
    config = deploy_file(port, folder)
    schema = ServeDeploySchema.model_validate(config)
    nodes = Cluster()

    def start() -> None:
        serve.start(proxy_location=schema.proxy_location, http_options=schema.http_options.model_dump())
        roll_out(config, print)

    def stop() -> None:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        nodes.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    try:
        nodes.add_node(**node, include_dashboard=False)  # sets signal handlers: on this thread
        nodes.add_node(**node, node_ip_address=SECOND_NODE)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="warning")
        await asyncio.to_thread(start)
        yield f"http://127.0.0.1:{port}"
    finally:
        await asyncio.to_thread(stop)


def deploy_file(port: int, folder: Path) -> dict[str, Any]:
    gateway = {"name": "Gateway", "user_config": {"endpoints": [{"name": MODEL}]}}
    model = {
        "name": "Model",
        "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 1},
        "autoscaling_config": AUTOSCALING,
    }
    args = {
        "name": MODEL,
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "engine": {"max_sequences": BATCH, "max_waiting": 64, "kv_cache_bytes": 64 * 2**20},
    }
    build = "serve_app.deployments.build:build_"
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "0.0.0.0", "port": port},  # the proxy reaches gateways of other nodes
        "applications": [
            {
                "name": "system",
                "route_prefix": "/",
                "import_path": f"{build}system_app",
                "args": {"usage_dir": str(folder / "usage")},
                "deployments": [gateway],
            },
            {
                "name": APP,
                "route_prefix": None,
                "import_path": f"{build}model_app",
                "args": args,
                "deployments": [model],
            },
        ],
    }


class Load:
    """Sends the requests of phases and records them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, record: Record, started: float) -> None:
        self._session = session
        self._url = f"{url}/v1/completions"
        self._record = record
        self._started = started
        self._random = random.Random(0)

    async def run(self, phase: Phase) -> None:
        """Returns when all of its requests are answered."""
        end = time.monotonic() + phase.seconds
        self._record.phases.append((phase.name, time.monotonic() - self._started))
        await asyncio.gather(*(self._ask(phase) for _ in range(phase.at_once)))
        await asyncio.gather(*(self._client(phase, end) for _ in range(phase.clients)))
        await asyncio.sleep(end - time.monotonic())

    async def _client(self, phase: Phase, end: float) -> None:
        while time.monotonic() < end:
            await self._ask(phase)

    async def _ask(self, phase: Phase) -> None:
        body: dict[str, object] = {
            "model": MODEL,
            "prompt": " ".join(self._random.choices(WORDS, k=12)),
            "max_tokens": phase.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = time.monotonic() - self._started
        seen: Seen = await one(self._session, self._url, body)
        if not seen.error and seen.output_tokens != phase.output_tokens:
            seen.error = f"{seen.output_tokens} tokens instead of {phase.output_tokens}"
        self._record.requests.append(
            Request(
                phase=phase.name,
                start=start,
                first_token=start + seen.first_token if seen.first_token else None,
                end=start + seen.end,
                output_tokens=seen.output_tokens,
                error=seen.error,
            )
        )


async def measure(url: str, key: str) -> Record:
    record, started = Record(), time.monotonic()
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=2**20, headers=headers
    ) as session:
        sampler = Sampler(record, started)
        load = Load(session, url, record, started)
        try:
            for phase in PHASES:
                await load.run(phase)
                if phase.until is not None:
                    await sampler.until(phase.until)
                if phase.clients > BATCH and phase.until is None:
                    record.tokens_by_replica = await tokens_by_replica()
                print(f"{time.monotonic() - started:6.1f} s  {phase.name}: done", file=sys.stderr, flush=True)
        finally:
            await sampler.stop()
    return record


async def tokens_by_replica() -> list[int]:
    """Tokens that each running replica generated."""
    import msgspec
    from ray import serve

    from serve_app.types import EngineStats

    handle = await asyncio.to_thread(serve.get_app_handle, APP)
    answers = await handle.broadcast("stats").results_async()
    return [msgspec.msgpack.decode(answer, type=EngineStats).generated_tokens for answer in answers]


def faults(record: Record) -> list[str]:
    """What was not as it should be; empty: nothing."""
    requests, samples = record.requests, record.samples
    found = [f"{r.phase}: request at {r.start:.1f} s: {r.error}" for r in requests if r.error]
    if record.targets != TARGETS:
        found.append(f"the replicas aimed at were {record.targets}, not {TARGETS}")
    most = max(samples, key=lambda sample: sample.running)
    if most.running != 2 or len(set(most.nodes)) != 2:
        found.append(f"at most {most.running} replicas ran, on {sorted(set(most.nodes))}, not 2 on two nodes")
    if len(record.tokens_by_replica) != 2 or not all(record.tokens_by_replica):
        found.append(f"not both replicas generated: {record.tokens_by_replica} tokens")
    if samples[-1].target or samples[-1].running:
        found.append("replicas are left at the end")
    return found


def summary(record: Record) -> list[dict[str, Any]]:
    """A row for each stretch of load: requests, failures, seconds to the first token."""
    rows = []
    for name, of_phase in itertools.groupby(
        sorted(record.requests, key=lambda r: r.start), lambda r: r.phase
    ):
        requests = list(of_phase)
        first = [r.first_token - r.start for r in requests if r.first_token is not None]
        rows.append(
            {
                "phase": name,
                "requests": len(requests),
                "failed": sum(bool(r.error) for r in requests),
                "ttft_s_p50": round(percentile(first, 0.5), 3),
                "ttft_s_max": round(max(first, default=float("nan")), 3),
            }
        )
    return rows


def changes(record: Record) -> list[dict[str, Any]]:
    """The samples at which anything was different from the one before."""
    state = [(s.target, s.states, s.nodes) for s in record.samples]
    kept = [s for i, s in enumerate(record.samples) if i == 0 or state[i] != state[i - 1]]
    return [asdict(s) | {"at": round(s.at, 2)} for s in kept]


async def prove(key: str) -> Record:
    async with cluster(key) as url:
        return await measure(url, key)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write what happened as JSON")
    parser.add_argument("--plot", type=Path, help="draw it as SVG")
    args = parser.parse_args()
    record = asyncio.run(prove(secrets.token_urlsafe()))
    rows, found = summary(record), faults(record)
    for row in rows:
        print(row)
    print("replicas aimed at:", record.targets, "tokens by replica:", record.tokens_by_replica)
    if args.out:
        result = {
            "date": str(date.today()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "autoscaling_config": AUTOSCALING,
            "max_sequences": BATCH,
            "faults": found,
            "targets": record.targets,
            "tokens_by_replica": record.tokens_by_replica,
            "summary": rows,
            "phases": [{"name": name, "at": round(at, 2)} for name, at in record.phases],
            "replicas": changes(record),
            "request_columns": ["start", "first_token", "end", "output_tokens", "error"],
            "requests": [
                {"phase": name, "rows": [_row(r) for r in of_phase]}
                for name, of_phase in itertools.groupby(record.requests, lambda r: r.phase)
            ],
        }
        args.out.write_text(_lines(result))
    if args.plot:
        args.plot.write_text(drawn(record))
    for fault in found:
        print("FAULT:", fault, file=sys.stderr)
    return 1 if found else 0


def drawn(record: Record) -> str:
    last = record.samples[-1].at
    return svg(
        phases=record.phases,
        steps={
            "wanted": [(s.at, s.target) for s in record.samples],
            "running": [(s.at, s.running) for s in record.samples],
        },
        dots=[(r.start, r.first_token - r.start) for r in record.requests if r.first_token is not None],
        crosses=[r.start for r in record.requests if r.error],
        end=last,
    )


def _row(request: Request) -> list[float | int | str | None]:
    first = None if request.first_token is None else round(request.first_token, 3)
    return [round(request.start, 3), first, round(request.end, 3), request.output_tokens, request.error]


def _lines(result: dict[str, Any]) -> str:
    """JSON with an entry of a list on a line: small, and readable in a diff."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"    {json.dumps(each)}" for each in value) + "\n  ]"
        else:
            text = json.dumps(value)
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    raise SystemExit(main())
