"""A server with a control plane on the shared cluster, and its commands from the tests' own process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from serve_app.channel.calls import decode_reply, encode_command
from serve_app.errors import Unavailable
from serve_app.types import Caller, Scope
from serve_app.types.control import (
    Command,
    DeleteEndpoint,
    EndpointShown,
    GetEndpoint,
    ListEndpoints,
    ReplyT,
    UpdateState,
)
from tests.deploy.deployment import (
    START_S,
    Deployed,
    Raw,
    _delete_all,
    alone,
    app_of,
    deploy_file,
    deployed,
    edited,
    endpoints_of,
)
from tests.support.invariants import children
from tests.support.ray_cluster import Cluster

MODEL: Final = "demo-chat"
READY_S: Final = 90.0
OPERATOR: Final = Caller(key_id="ops", scopes=frozenset(Scope), salt="ops", user="ops")


@dataclass
class Controlled:
    """`server` answers HTTP; `do` sends commands to its control plane."""

    server: Deployed

    async def do(self, command: Command[ReplyT], caller: Caller = OPERATOR) -> ReplyT:
        """The reply of the control plane. Waits while the control plane itself restarts."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        async with asyncio.timeout(READY_S):
            while True:
                try:
                    answer = await asyncio.to_thread(_call, encode_command(command, caller))
                    return decode_reply(command, answer)
                except (RayError, RayServeException, Unavailable):
                    await asyncio.sleep(0.2)

    async def until_settled(self, name: str) -> EndpointShown:
        """The endpoint, once its update is over."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while (shown := await self.do(GetEndpoint(name=name))).update is UpdateState.IN_PROGRESS:
            assert asyncio.get_running_loop().time() < deadline, shown
            await asyncio.sleep(0.1)
        return shown

    async def delete_all(self) -> None:
        """Delete all endpoints that were made at run time, and wait until nothing runs that they had."""
        for shown in (await self.do(ListEndpoints())).endpoints:
            if not shown.declared:
                await self.do(DeleteEndpoint(name=shown.name))
        async with asyncio.timeout(READY_S):
            while await asyncio.to_thread(run_time_apps):
                await asyncio.sleep(0.1)

    async def restart(self, status: str = "ready") -> None:
        """Everything on the cluster ends, and the deploy file is deployed anew over the same database.

        Returns once the gateway is ready; `status` is what it says then.
        """
        await asyncio.to_thread(_delete_all)
        await self.server.deploy(self.server.raw)
        async with asyncio.timeout(START_S):
            while await self._status() != status:
                await asyncio.sleep(0.1)

    async def _status(self) -> str:
        answer = await self.server.client.get("/readyz")
        return str(answer.json()["status"]) if answer.status_code == 200 else ""

    def processes(self) -> list[psutil.Process]:
        """Those of the control plane: one, or none for a moment."""
        return children("ServeReplica:system:ControlPlane")


def small_file() -> Raw:
    """deploy/local.yaml with its chat model alone, and with nothing that a test here does not use."""

    def edit(raw: Raw) -> None:
        endpoints_of(raw)[0].pop("price", None)
        own = app_of(raw, f"model-{MODEL}")["args"]
        own.pop("adapters", None)
        second = {**own, "version": "2", "source": "demo:demo-chat-v2"}
        args = {"control": {"models": [{"config": second, "num_cpus": 0.25}]}}
        app_of(raw, "system")["args"] = app_of(raw, "system").get("args", {}) | args

    return edited(alone(deploy_file("local"), MODEL), edit)


@asynccontextmanager
async def controlled(cluster: Cluster, raw: Raw, folder: Path) -> AsyncIterator[Controlled]:
    """`raw` deployed with a control plane; its database and its journal are in `folder`."""
    async with deployed(cluster, raw, folder, MODEL) as server:
        made = Controlled(server)
        try:
            yield made
        finally:
            if await asyncio.to_thread(_has_control_plane):  # another file may have put its own server there
                await made.delete_all()


def admitted(folder: Path) -> set[str]:
    """The requests that gateways wrote down, by the files themselves."""
    lines = [line for path in folder.glob("usage-*.jsonl") for line in path.read_bytes().splitlines(True)]
    return {json.loads(line)["id"] for line in lines if line.endswith(b"\n")}


def run_time_apps() -> dict[str, str]:
    """The applications of run-time endpoints, each with Serve's status."""
    from ray import serve

    return {
        name: app.status.value for name, app in serve.status().applications.items() if name.startswith("rt-")
    }


def _has_control_plane() -> bool:
    from ray import serve

    system = serve.status().applications.get("system")
    return system is not None and "ControlPlane" in system.deployments


def _call(payload: bytes) -> bytes:
    from ray import serve

    handle = serve.get_deployment_handle("ControlPlane", "system")
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    answer: bytes = handle.do.remote(payload).result(timeout_s=READY_S)
    return answer
