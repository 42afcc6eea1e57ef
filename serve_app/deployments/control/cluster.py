"""Ray Serve as the control plane's cluster (`control.endpoints.cluster.Cluster`).

Serve's calls block, so each runs in a thread. One thread makes them all: the controller takes one at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from serve_app.channel.frames import info_decoder
from serve_app.config import ModelConfig
from serve_app.control.endpoints.cluster import AppSeen, AppStatus, NodeRoom, Offer, Room
from serve_app.control.endpoints.state import AppSpec
from serve_app.deployments.control import ray_calls
from serve_app.deployments.control.log_lines import newest_lines
from serve_app.deployments.memory import memory
from serve_app.deployments.model.deployment import model_deployment, replicas
from serve_app.deployments.rollout.cluster import ServeCluster, driver_handle, reason
from serve_app.deployments.serve_details import details
from serve_app.endpoints.rules import SYSTEM_APP
from serve_app.errors import Unavailable
from serve_app.models.catalogue import DEMO_PREFIX, demo_names
from serve_app.models.footprint import least_memory
from serve_app.types import ModelInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

MODEL: Final = "Model"  # the deployment of a model's application
BUILDER: Final = "serve_app.deployments.build:build_model_app"
INFO_S: Final = 30.0  # for the `ModelInfo` of a model that is up
RETRY_S: Final = 2.0
NODE_S: Final = 10.0  # for the rooms of all other nodes together
_SMI: Final = "nvidia-smi"
_SMI_S: Final = 5.0
_VERSION_MARK: Final = "-v"  # demo-chat-v2 is version 2 of demo-chat

_STATUS: Final[Mapping[ApplicationStatus, AppStatus]] = {
    ApplicationStatus.RUNNING: AppStatus.UP,
    ApplicationStatus.DEPLOY_FAILED: AppStatus.FAILED,
    ApplicationStatus.DELETING: AppStatus.GOING,
}


class RayCluster:
    """The Serve of the cluster in which this process is a replica."""

    def __init__(self, own_app: str = SYSTEM_APP) -> None:
        """`own_app`: the gateways' application, to which this process belongs."""
        self._own_app = own_app
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def apps(self) -> Mapping[str, AppSeen]:
        return await self._aside(
            lambda: {name: _seen(app) for name, app in details().items() if name != self._own_app}
        )

    async def routed(self) -> frozenset[str] | None:
        return await self._aside(lambda: ServeCluster().routed([self._own_app]))

    async def deploy(self, spec: AppSpec) -> None:
        await self._aside(lambda: ray_calls.run_aside(spec.name, _application(spec)))

    async def delete(self, app: str) -> None:
        await self._aside(lambda: ray_calls.delete_aside(app))

    async def info(self, app: str) -> ModelInfo:
        return await self._aside(
            lambda: info_decoder.decode(driver_handle(app).info.remote().result(timeout_s=INFO_S))
        )

    async def offers(self) -> tuple[Offer, ...]:
        return await self._aside(lambda: (*_declared(details()), *_demos()))

    async def room(self) -> Room:
        return await self._aside(lambda: Room(ray.available_resources(), rooms()))

    def least_memory(self, config: ModelConfig) -> int | None:
        return least_memory(config)

    async def logs(self, app: str) -> str:
        found = await self._aside(lambda: logged_replicas(app))
        return await asyncio.to_thread(newest_lines, found)  # a silent node delays no other call

    async def _aside(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread. Raises Unavailable if Ray does not answer."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (RayError, RayServeException, GetTimeoutError, TimeoutError) as error:
            logger.warning("Ray does not answer: %s: %s", type(error).__name__, error)
            raise Unavailable("the cluster does not answer; try again", retry_after_s=RETRY_S) from error


def _application(spec: AppSpec) -> Any:
    """The application of `spec`. The code version covers every setting that cannot change in place."""
    config = ModelConfig.model_validate(spec.model)
    version = hashlib.sha256(json.dumps(spec.fixed, sort_keys=True).encode()).hexdigest()
    options: dict[str, Any] = {"num_cpus": spec.num_cpus}
    if spec.num_gpus:
        options["num_gpus"] = spec.num_gpus
    group: dict[str, Any] = {"placement_group_bundles": list(spec.bundles)} if spec.bundles else {}
    group |= {"placement_group_strategy": spec.strategy} if spec.strategy else {}
    deployment = model_deployment(config).options(
        **replicas(spec.min_replicas, spec.max_replicas), ray_actor_options=options, **group
    )
    return ray_calls.pinned(deployment, version).bind(config)


def _seen(app: Mapping[str, Any]) -> AppSeen:
    status = _STATUS.get(ApplicationStatus(app["status"]), AppStatus.COMING)
    model = app["deployments"].get(MODEL)
    return AppSeen(status, reason(app), None if model is None else _size(model["deployment_config"]))


def _size(config: Mapping[str, Any]) -> tuple[int, int]:
    scaling = config.get("autoscaling_config")
    if scaling:
        return int(scaling["min_replicas"]), int(scaling["max_replicas"])
    return int(config["num_replicas"]), int(config["num_replicas"])


def _declared(applications: Mapping[str, Any]) -> Iterator[Offer]:
    """The models of the deploy file, each with its application and its settings."""
    for name, app in applications.items():
        file: Mapping[str, Any] = app.get("deployed_app_config") or {}
        if file.get("import_path") != BUILDER or app["status"] == ApplicationStatus.DELETING:
            continue
        config = ModelConfig.model_validate(file.get("args") or {})
        entry: Mapping[str, Any] = next(
            (each for each in file.get("deployments") or () if each.get("name") == MODEL), {}
        )
        options = entry.get("ray_actor_options") or {}
        bought = config.provisioned
        yield Offer(
            config=config,
            app=name,
            is_shared=bought is None,
            num_cpus=float(options.get("num_cpus", 0.5)),
            num_gpus=float(options.get("num_gpus", 0.0)),
            bundles=tuple(entry.get("placement_group_bundles") or ()),
            strategy=str(entry.get("placement_group_strategy") or ""),
            replica_throughput=None if bought is None else bought.replica_throughput,
        )


def _demos() -> Iterator[Offer]:
    for found in demo_names():
        name, mark, version = found.rpartition(_VERSION_MARK)
        config = (
            ModelConfig(name=name, version=version, source=DEMO_PREFIX + found)
            if mark and version.isdigit()
            else ModelConfig(name=found, source=DEMO_PREFIX + found)
        )
        yield Offer(config=config)


def logged_replicas(app: str) -> list[Mapping[str, Any]]:
    """The replicas of an application that have a log, including the ones that died last."""
    found = details().get(app)
    model = {} if found is None else found["deployments"].get(MODEL, {})
    replicas = [*model.get("replicas", ()), *model.get("recent_dead_replicas", ())]
    return [each for each in replicas if each.get("log_file_path")]


def rooms() -> tuple[NodeRoom, ...]:
    """The memory of each living node, measured on that node, because Ray only tracks reservations.

    Empty if a node does not answer.
    """
    here = ray_calls.own_node()
    others = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    found = ray_calls.on_nodes(dict.fromkeys(others, own_room), NODE_S)
    known = [each for each in found.values() if each is not None]
    return (own_room(), *known) if len(known) == len(others) else ()


def own_room() -> NodeRoom:
    """The entry of the node on which this code runs."""
    return NodeRoom(memory=memory().free, gpu_memory=_gpu_memory())


def _gpu_memory() -> tuple[int, ...]:
    """The memory of each NVIDIA GPU in bytes, whether or not the GPU is used."""
    if shutil.which(_SMI) is None:
        return ()
    query = [_SMI, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_SMI_S).stdout
        return tuple(int(line) * 2**20 for line in listed.splitlines() if line.strip())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning("the memory of GPUs is not known: %s", error)
        return ()
