"""The Serve of this driver, as `rollout` needs it. Nothing but Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final

from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from serve_app.deployments.rollout import File

logger = logging.getLogger(__name__)

ASK_S: Final = 10.0  # all gateways answer at once, or are asked again


class ServeCluster:
    """A `rollout.Cluster` over Serve's controller. Used as a context, in one thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()  # handles belong to an event loop
        self._handles: dict[str, DeploymentHandle] = {}

    def __enter__(self) -> ServeCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    def running(self) -> File:
        """The applications that a deploy file brought; those of `serve.run` are left alone by all files."""
        found = _get_global_client().get_serve_details()["applications"].values()
        configs = [app["deployed_app_config"] for app in found if app["status"] != "DELETING"]
        return {"applications": [config for config in configs if config is not None]}

    def deploy(self, file: File) -> None:
        # What `serve run FILE` calls; there is no public function for a whole deploy file.
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(file), _blocking=False)

    def states(self) -> Mapping[str, tuple[str, str]]:
        return {name: (app.status.value, reason(app)) for name, app in serve.status().applications.items()}

    def routed(self, gateways: Iterable[str]) -> frozenset[str] | None:
        try:
            return self._runner.run(self._routed(list(gateways)))
        except Exception as error:  # a gateway that just went, or one of a release that cannot tell
            logger.debug("the gateways do not tell where they route: %s", error)
            return None

    async def _routed(self, gateways: list[str]) -> frozenset[str] | None:
        routed: set[str] = set()
        for name in gateways:
            if name not in self._handles:
                self._handles[name] = await asyncio.to_thread(serve.get_app_handle, name)
            told = await self._handles[name].broadcast("routes").results_async(timeout_s=ASK_S)
            if not told:
                return None
            for apps in told:
                routed |= set(apps)
        return frozenset(routed)


def as_ray_has_it(file: File) -> File:
    """The file after Ray's schema: comparable to what `running` tells."""
    dumped: File = ServeDeploySchema.model_validate(file).model_dump(exclude_unset=True)
    return dumped


def reason(app: Any) -> str:
    """The last line of what went wrong with an application's status: ours says what to do."""
    texts = [app.message, *(d.message for d in app.deployments.values())]
    lines = [line.strip() for text in texts for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else "\n".join(text for text in texts if text)
