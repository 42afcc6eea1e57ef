"""The demo model with a wide window and two replicas behind a gateway, for tests that take replicas away.

The gateway has the only route of the cluster: `tests.support.served` deploys its own again where a later file
needs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from serve_app.accounts.journal_reader import read
from serve_app.config import EngineConfig, GatewayConfig, ModelConfig
from serve_app.deployments.defaults import SURGE_PERCENT
from serve_app.endpoints.endpoint import Endpoint, ServedEntity, Task
from serve_app.endpoints.rules import app_name
from serve_app.types import UsageRecord
from tests.support.asks import DETOKENIZE, TEXT
from tests.support.divisible import demo_path, demo_settings
from tests.support.invariants import Served
from tests.support.ray_cluster import free_port

MODEL: Final = "pair-chat"
WINDOW: Final = 4096
START_S: Final = 300.0  # for replicas to start, on a machine with other work
RESTART_S: Final = 60.0  # that a request waits for a replica, on a machine with other work
POISON: Final = "poison"  # the name of the processor of `tests.support.poison`


def wide_demo(folder: Path, name: str = "demo-chat") -> Path:
    """The demo model called `name`, copied to `folder`, with a window of WINDOW tokens."""
    shutil.copytree(demo_path(name), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": WINDOW}))
    return folder


def model_config(source: Path, **engine: Any) -> ModelConfig:
    """The demo model without guesses: with them, time decides what an event of a stream holds."""
    sizes: dict[str, Any] = {"ngram_draft": 0}
    sizes |= {"max_sequences": 64, "max_waiting": 256, "block_size": 32, "num_blocks": 1024}
    settings: dict[str, Any] = {**demo_settings(), "source": str(source)}
    return ModelConfig(
        name=MODEL,
        dtype="float32",
        threads=1,
        engine=EngineConfig(**{**sizes, **engine}, logits_processors={POISON: "tests.support.poison:poison"}),
        **settings,
    )


@dataclass
class Pair:
    """Two replicas, and the gateway before them."""

    url: str
    client: httpx.AsyncClient
    usage: Path
    config: ModelConfig
    killed: set[int] = field(default_factory=set)
    app: str = app_name(MODEL)
    grpc_port: int = field(default_factory=free_port)  # picked late: others take ports, too

    @property
    def grpc(self) -> str:
        """Where the gateway listens for gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    async def deploy(self, *, replicas: int = 2, config: ModelConfig | None = None, **options: Any) -> None:
        """Deploy the model so. Returns before it has taken effect. `options`: of the deployment."""
        self.config = config or self.config
        await asyncio.to_thread(_deploy_model, self.app, self.config, replicas, **options)

    async def pids(self) -> set[int]:
        """Processes of the replicas that run, as Serve tells them."""
        return {pid for state, pid in await self.replicas() if state == "RUNNING"}

    async def replicas(self) -> list[tuple[str, int]]:
        """State and process of every replica."""
        return await asyncio.to_thread(_replicas, self.app)

    async def until(self, replicas: int, *, without: Set[int] = frozenset()) -> set[int]:
        """Wait until so many replicas run and no other has a process. Their processes.

        `without`: processes that must have gone.
        """
        async with asyncio.timeout(START_S):
            while len(pids := self._living(await self.pids()) - without) != replicas or any(
                map(is_alive, without)
            ):
                await asyncio.sleep(0.1)
        return pids

    async def until_running(self, sequences: int) -> None:
        """Wait until the engines compute at least so many sequences, as the gateway hears of them."""
        async with asyncio.timeout(RESTART_S):
            while await self.total("serve_app_running_sequences") < sequences:
                await asyncio.sleep(0.1)

    def kill(self, pid: int) -> None:
        """SIGKILL the process of a replica."""
        os.kill(pid, signal.SIGKILL)
        self.killed.add(pid)

    def _living(self, pids: set[int]) -> set[int]:
        return set(filter(is_alive, pids - self.killed))  # Serve may not have noticed yet

    async def metrics(self) -> dict[str, float]:
        """Samples of the gateway, by name with labels."""
        return await Served(self.client, MODEL, list, None).metrics()  # type: ignore[arg-type]

    async def total(self, *prefixes: str) -> float:
        """The sum of the samples whose names begin so."""
        return sum(value for name, value in (await self.metrics()).items() if name.startswith(prefixes))

    async def until_idle(self) -> None:
        """Wait until no request is in flight and the engines hold no sequence and no block."""
        async with asyncio.timeout(RESTART_S):
            while await self.total(
                "serve_app_requests_in_flight",
                "serve_app_running_sequences",
                "serve_app_waiting_sequences",
                "serve_app_kv_blocks_used",
            ):
                await asyncio.sleep(0.2)

    async def records(self, count: int, since: float) -> list[UsageRecord]:
        """Those of generation since then, once there are `count`: each was opened once and closed once.

        `since`: Unix seconds.
        """
        async with asyncio.timeout(RESTART_S):
            while len(records := self._generated(since)) < count:
                await asyncio.sleep(0.1)
        lines = [json.loads(line) for path in self.usage.glob("*.jsonl") for line in path.open()]
        # Of a stream there are lines of its progress too, any number of them.
        events = Counter((line["event"], line["id"]) for line in lines if line["event"] != "progress")
        if set(events.values()) != {1} or {event for event, _ in events} != {"open", "close"}:
            raise AssertionError(f"opened or closed twice: {events.most_common(3)}")
        if len(records) != count:
            raise AssertionError(f"{len(records)} records of {count} requests")
        return records

    def _generated(self, since: float) -> list[UsageRecord]:
        return [record for record in read(self.usage, since=since) if record.route != DETOKENIZE]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until_gone(pids: Set[int], limit_s: float) -> float:
    """Wait until these processes have ended; returns the seconds."""
    began = time.monotonic()
    async with asyncio.timeout(limit_s):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.05)
    return time.monotonic() - began


@asynccontextmanager
async def replica_pair(url: str, config: ModelConfig, usage: Path, **options: Any) -> AsyncIterator[Pair]:
    """Both applications on the running cluster, ready. `options`: of the two deployments, by their name, and
    the number of `replicas`."""
    replicas = options.get("replicas", 2)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=RESTART_S, limits=limits) as client:
        pair = Pair(url, client, usage, config)
        await asyncio.to_thread(_deploy_model, pair.app, config, replicas, **options.get("model", {}))
        await asyncio.to_thread(_deploy_gateway, usage, pair.grpc_port, **options.get("gateway", {}))
        try:
            await pair.until(replicas)
            await _until_ready(client)
            yield pair
        finally:
            await asyncio.to_thread(_delete, pair.app)


def _deploy_model(app: str, config: ModelConfig, replicas: int, **options: Any) -> None:
    from ray import serve

    from serve_app.deployments.model.deployment import model_deployment

    deployment = model_deployment(config).options(
        num_replicas=replicas,
        health_check_period_s=1,
        graceful_shutdown_timeout_s=300,
        max_surge_percent=SURGE_PERCENT,
        version=config.model_dump_json(),  # Serve draws one anew otherwise, and replaces all replicas
        _internal=True,
        **options,
    )
    target = serve.RunTarget(deployment.bind(config), name=app, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)


def _deploy_gateway(usage: Path, grpc_port: int, **options: Any) -> None:
    from ray import serve

    from serve_app.deployments.build import gateway_deployment
    from serve_app.deployments.limiter import limiter_deployment
    from serve_app.endpoints.catalogue import Catalogue

    config = GatewayConfig(grpc_port=grpc_port, usage_dir=usage, restart_wait_s=RESTART_S)
    entity = ServedEntity(model=MODEL)
    text = Endpoint(name=MODEL + TEXT, task=Task.COMPLETIONS, served_entities=(entity,))
    catalogue = Catalogue(endpoints=(Endpoint(name=MODEL), text))
    gateway = gateway_deployment(config).options(user_config=catalogue.dump(), **options)
    serve.run(gateway.bind(config, limiter_deployment().bind()), name="system", route_prefix="/")


def _replicas(app: str) -> list[tuple[str, int]]:
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()["applications"].get(app)
    if details is None:
        return []
    found = [each for made in details["deployments"].values() for each in made["replicas"]]
    return [(each["state"], each["pid"]) for each in found if each.get("pid")]


def _delete(app: str) -> None:
    from ray import serve

    serve.delete(app)


async def _until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_S):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
