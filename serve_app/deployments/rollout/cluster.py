"""The Serve of this driver, as a rollout needs it. Depends on nothing but Ray."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema

from serve_app.deployments.rollout.plan import File
from serve_app.deployments.serve_details import details

logger = logging.getLogger(__name__)

# The class name of our own error, whose message is enough.
_OURS: Final = re.compile(r"^serve_app[\w.]*\.\w+: ")
ASK_S: Final = 10.0  # for the answers of all gateways, which are then asked again


class ServeCluster:
    """Serve's controller. Its calls block, so it must not be used on an event loop."""

    def running(self) -> File:
        """The applications of the deploy file. Applications deployed with `serve.run` are not included."""
        configs = [app["deployed_app_config"] for app in details().values() if app["status"] != "DELETING"]
        return {"applications": [config for config in configs if config is not None]}

    def deploy(self, file: File) -> None:
        """Deploy a whole file: what it does not name is deleted. Returns before this has taken effect."""
        # What `serve run FILE` calls; there is no public function for a whole deploy file.
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(file), _blocking=False)

    def states(self) -> Mapping[str, tuple[str, str]]:
        """Application -> (its status in Serve, its problem or "")."""
        return {name: (app["status"], reason(app)) for name, app in details().items()}

    def gpus(self) -> list[float]:
        """The GPUs of each living machine of the cluster."""
        return [float(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]

    def routed(self, gateways: Iterable[str]) -> frozenset[str] | None:
        """The applications to which the gateways of these applications route; None: not known yet."""
        routed: set[str] = set()
        try:
            for name in gateways:
                answers = driver_handle(name).broadcast("routes").results(timeout_s=ASK_S)
                if not answers:
                    return None
                routed |= {app for apps in answers for app in apps}
        except (RayError, RayServeException, TimeoutError) as error:  # a gateway may just have ended
            logger.debug("the gateways do not tell where they route: %s", error)
            return None
        return frozenset(routed)


def driver_handle(app: str) -> DeploymentHandle:
    """The application's handle, for a driver whose event loop does not run all the time.

    With our settings a handle's router lives on the loop that made the first call. If a router's loop stops
    even for a moment, the router never gets another update. So this handle uses a loop of Serve's own.
    """
    handle = serve.get_app_handle(app)  # the same one each time
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    return handle


def as_ray_has_it(file: File) -> File:
    """The file as parsed by Ray's schema, so that it can be compared with `ServeCluster.running`."""
    dumped: File = ServeDeploySchema.model_validate(file).model_dump(exclude_unset=True)
    return dumped


def reason(app: Mapping[str, Any]) -> str:
    """Why an application's status is bad: the last line that has an error, since our errors say what to do.

    `app`: as returned by `serve_details.details`.
    """
    texts = [app["message"], *(deployment["message"] for deployment in app["deployments"].values())]
    lines = [line.strip() for text in texts for line in text.splitlines() if "Error" in line]
    if not lines:
        return "\n".join(text for text in texts if text)
    return _OURS.sub("", lines[-1])
