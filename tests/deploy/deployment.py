"""Deploy files on the shared cluster: read, made small, deployed as `make serve` does, and taken down.

Small means: one thread and a small cache a replica, and the usage journal in a folder of
the test. Nothing else of a file changes, but a demo model that is not there is replaced
by one that is. A test that wants another file edits the values it gets.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import yaml

from serve_app.accounts.journal_reader import read
from serve_app.config import ModelConfig
from serve_app.deployments.rollout.rollout import rollout
from serve_app.models.catalogue import DEMO_PREFIX, demo_names
from serve_app.types import EngineStats, UsageRecord
from tests.support.invariants import WAIT_S, Served, children, samples_of
from tests.support.ray_cluster import ROOT, Cluster, engine_stats, free_port

logger = logging.getLogger(__name__)

FOLDER: Final = ROOT / "deploy"
CACHE_BYTES: Final = 32 * 2**20
START_S: Final = 240.0  # models load beside whatever else the machine does
GRPC_PORT: Final = free_port()  # the same in all files: another one would restart gateways
DEMO: Final = "demo-chat"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"

Raw = dict[str, Any]  # a deploy file, as YAML has it


def deploy_file(name: str) -> Raw:
    """`deploy/NAME.yaml`, made small."""
    raw: Raw = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    for app in raw["applications"]:
        if app["name"] != "system":
            app["args"] = _small(app["args"])
    return raw


def _small(args: Raw) -> Raw:
    engine = {"kv_cache_bytes": CACHE_BYTES, **args.get("engine", {})}
    source = ModelConfig.model_validate(args).source
    if source.startswith(DEMO_PREFIX) and source.removeprefix(DEMO_PREFIX) not in demo_names():
        source = DEMO_PREFIX + DEMO
    return {**args, "source": source, "threads": 1, "engine": engine}


def app_of(raw: Raw, name: str) -> Raw:
    """The application called `name`, to be edited."""
    app: Raw = next(app for app in raw["applications"] if app["name"] == name)
    return app


def gateway_of(raw: Raw) -> Raw:
    """The entry of the Gateway, to be edited."""
    gateway: Raw = app_of(raw, "system")["deployments"][0]
    return gateway


def endpoints_of(raw: Raw) -> list[Raw]:
    """The endpoints, to be edited."""
    endpoints: list[Raw] = gateway_of(raw)["user_config"]["endpoints"]
    return endpoints


def alone(raw: Raw, model: str) -> Raw:
    """`raw` with one of its models, and the endpoint of that name."""

    def edit(made: Raw) -> None:
        made["applications"] = [app_of(made, "system"), app_of(made, f"model-{model}")]
        endpoints_of(made)[:] = [each for each in endpoints_of(made) if each["name"] == model]

    return edited(raw, edit)


def edited(raw: Raw, edit: Callable[[Raw], object]) -> Raw:
    """A copy of `raw` after `edit`."""
    made = copy.deepcopy(raw)
    edit(made)
    return made


@dataclass
class Deployed(Served):
    """A deploy file that answers; `model` is an endpoint without limits. Metrics are sums over gateways."""

    port: int = 0
    raw: Raw = field(default_factory=dict)
    usage: Path = Path()

    async def deploy(self, raw: Raw) -> None:
        """Deploy another version of the file. Returns before it has taken effect."""
        self.raw = raw
        await asyncio.to_thread(_deploy, raw, self.usage)

    async def roll_out(self, raw: Raw) -> None:
        """Deploy another version of the file step by step. Returns when all of it has taken effect."""
        self.raw = raw
        await asyncio.to_thread(rollout, _own(raw, self.usage), say=logger.info)

    async def gateways(self) -> dict[int, str]:
        """Process id -> address of its own, once all live and HAProxy may send requests to each of them.

        For an instant it may not: Serve takes a replica out while it takes a new catalogue.
        """
        async with asyncio.timeout(START_S):
            while not (found := await asyncio.to_thread(_gateways)):
                await asyncio.sleep(0.05)
        return found

    async def samples(self) -> dict[int, dict[str, float]]:
        """The metrics of each gateway, by process id."""
        gateways = await self.gateways()
        return {
            pid: samples_of((await self.client.get(f"{url}/metrics")).text) for pid, url in gateways.items()
        }

    async def metrics(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for page in (await self.samples()).values():
            for name, value in page.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def records(self) -> list[UsageRecord]:
        """The journal: what was admitted and has ended."""
        return list(read(self.usage))

    def balanced(self) -> list[UsageRecord]:
        """`records`, once it is certain that every request was opened once and closed at most once."""
        lines = [json.loads(line) for path in self.usage.glob("*.jsonl") for line in path.open()]
        counts = Counter((line["event"], line["id"]) for line in lines if line["event"] != "progress")
        assert set(counts.values()) <= {1}, "a request was opened or closed twice"
        records = self.records()
        assert sorted(record.id for record in records) == sorted(i for event, i in counts if event == "open")
        return records

    async def running(self) -> float:
        """Sequences in all replicas of all models, as the gateways hear of them."""
        return _sequences(await self.metrics())

    async def is_idle(self) -> bool:
        """Whether nothing runs, neither in a replica nor in a gateway."""
        samples = await self.metrics()
        return not _sequences(samples) and not samples["serve_app_requests_in_flight"]

    async def engine_of(self, app: str) -> EngineStats:
        """The numbers of one replica of `app`, by its own account."""
        return await engine_stats(app)

    async def chat(self, model: str, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = {"model": model, "messages": [{"role": "user", "content": "Hi!"}], **fields}
        return await self.client.post(CHAT, json=body, headers=headers)

    async def until_running(self) -> None:
        """Wait until what was deployed runs, and each gateway is ready and lacks nothing."""
        apps = [app["name"] for app in self.raw["applications"]]
        await asyncio.to_thread(_wait, self.port, apps)
        async with asyncio.timeout(START_S):
            while not await self._are_ready():
                await asyncio.sleep(0.05)

    async def _are_ready(self) -> bool:
        """Asks each gateway itself: one may not have heard yet of a model that others reach.

        Without a gateway HAProxy answers, in a shape of its own.
        """
        for url in ("", *(await self.gateways()).values()):
            try:
                answer = await self.client.get(f"{url}/readyz")
            except httpx.TransportError:  # Serve put another one in its place
                return False
            if answer.status_code != 200 or answer.json()["status"] != "ready":
                return False
        return True

    async def until_balanced(self) -> None:
        """Wait until HAProxy sends requests to every gateway."""
        async with asyncio.timeout(WAIT_S):
            while True:
                before = await self._probes()
                await asyncio.gather(*(self.client.get("/livez") for _ in range(8 * len(before))))
                after = await self._probes()
                if before.keys() == after.keys() and all(after[pid] > before[pid] for pid in after):
                    return

    async def _probes(self) -> dict[int, float]:
        return {
            pid: sum(v for name, v in page.items() if "_total{" in name and 'route="/livez"' in name)
            for pid, page in (await self.samples()).items()
        }

    async def until_traffic(self, endpoint: str, traffic: Mapping[str, int]) -> None:
        """Wait until the gateway (there must be one) splits as `traffic` says."""
        async with asyncio.timeout(WAIT_S):
            while await self._traffic(endpoint) != dict(traffic):
                await asyncio.sleep(0.05)

    async def _traffic(self, endpoint: str) -> dict[str, int]:
        page = (await self.client.get(f"/v1/models/{endpoint}")).json()
        return {entity["name"]: entity["traffic"] for entity in page["served_entities"]}


def _sequences(samples: Mapping[str, float]) -> float:
    names = ("serve_app_running_sequences", "serve_app_waiting_sequences")
    return sum(value for name, value in samples.items() if name.startswith(names))


@asynccontextmanager
async def deployed(cluster: Cluster, raw: Raw, usage: Path, model: str = DEMO) -> AsyncIterator[Deployed]:
    """`raw` on `cluster`, alone and ready. `model`: an endpoint for the invariants, one without limits."""
    await asyncio.to_thread(_delete_all)
    apps = [app["name"] for app in raw["applications"] if app["name"] != "system"]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=WAIT_S, limits=limits) as client:
        made = Deployed(
            client, model, lambda: _processes(apps), lambda: _stats(apps), port=cluster.port, usage=usage
        )
        try:
            await made.deploy(raw)
            await made.until_running()
            yield made
        finally:
            await asyncio.to_thread(_delete_all)


def _deploy(raw: Raw, usage: Path) -> None:
    """As `serve deploy` does it: all at once."""
    from serve_app.deployments.rollout.cluster import ServeCluster

    ServeCluster().deploy(_own(raw, usage))


def _own(raw: Raw, usage: Path) -> Raw:
    """A copy of `raw` for a cluster of tests."""
    raw = copy.deepcopy(raw)
    args = app_of(raw, "system").setdefault("args", {})
    args["usage_dir"] = str(usage)
    if "grpc_port" in args:  # another cluster of this machine may have the usual one, and would answer for us
        args["grpc_port"] = GRPC_PORT
    return raw


def _wait(port: int, apps: list[str]) -> None:
    from serve_app.deployments.launcher.deploy import until_ready
    from serve_app.deployments.rollout.cluster import ServeCluster

    cluster, deadline = ServeCluster(), time.monotonic() + START_S
    while any(cluster.states().get(app, ("", ""))[0] != "RUNNING" for app in apps):
        assert time.monotonic() < deadline, cluster.states()
        time.sleep(0.1)
    until_ready("127.0.0.1", port)


def _delete_all() -> None:
    from ray import serve

    for name in list(serve.status().applications):
        serve.delete(name, _blocking=False)
    for name in list(serve.status().applications):
        serve.delete(name)


def _gateways() -> dict[int, str]:
    """None unless all are there."""
    import ray
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    replicas = client.get_serve_details()["applications"]["system"]["deployments"]["Gateway"]["replicas"]
    pids = {replica["actor_name"]: replica["pid"] for replica in replicas if "pid" in replica}
    groups = ray.get(client._controller.get_target_groups.remote("system", True))
    ports = {target.name: target.port for group in groups for target in group.targets}
    if (
        len(pids) < len(replicas)
        or not pids.keys() <= ports.keys()
        or not all(map(psutil.pid_exists, pids.values()))
    ):
        return {}
    return {pid: f"http://127.0.0.1:{ports[name]}" for name, pid in pids.items()}


def _processes(apps: list[str]) -> list[psutil.Process]:
    return children("ServeReplica:system:Gateway", *(f"ServeReplica:{app}:Model" for app in apps))


async def _stats(apps: list[str]) -> EngineStats:
    """The engines' own numbers, summed; a model with several replicas counts as one of them."""
    from serve_app.deployments.gateway.backend import total

    return total([await engine_stats(app) for app in apps])
