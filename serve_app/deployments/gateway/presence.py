"""Whether a deployment has replicas that can answer, according to Serve's router and its controller.

The router learns every change at once, and asking it is free. But only the controller can distinguish a model
that sleeps from a model that restarts. Reads private fields of Ray 2.60.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, DeploymentStatus, ReplicaState

from serve_app.deployments.serve_details import details

_GONE: Final = {ReplicaState.STOPPING, ReplicaState.PENDING_MIGRATION}


class Presence(Enum):
    """The controller's view of an application."""

    ABSENT = "not deployed"
    LOADING = "loading"
    ASLEEP = "asleep"  # scaled to zero, or about to wake up: a request is answered in time
    UP = "up"  # a replica runs


def choices(handle: DeploymentHandle) -> int | None:
    """The number of replicas that a call through `handle` may go to; None: not known in this process yet."""
    if (chooser := chooser_of(handle)) is not None:
        return len(chooser.curr_replicas)
    running = getattr(_router_of(handle), "_running_replicas", None)
    return None if running is None else len(running)


def chooser_of(handle: DeploymentHandle) -> Any:
    """Serve's `RequestRouter` behind `handle`; None if the router does not know any replicas yet."""
    return getattr(_router_of(handle), "_request_router", None)


def _router_of(handle: DeploymentHandle) -> Any:
    return getattr(getattr(handle, "_router", None), "_asyncio_router", None)


def is_sent(handle: DeploymentHandle, response: Any) -> bool:
    """Whether Serve has chosen a replica for the call of a `DeploymentResponse`, and sent the call there."""
    chooser = chooser_of(handle)
    return chooser is not None and response._request_metadata.internal_request_id not in (
        chooser._pending_requests_by_id
    )


def is_taken(response: Any) -> bool:
    """Whether a replica has taken the call of a `DeploymentResponse`; until then it waits in this process."""
    future = getattr(response, "_replica_result_future", None)
    return future is None or bool(future.done())


def presence(app: str) -> Presence:
    """Queries the controller, and blocks until it answers."""
    found = details().get(app)
    if found is None or found["status"] == ApplicationStatus.DELETING:
        return Presence.ABSENT
    deployments = found["deployments"].values()
    states = {replica["state"] for each in deployments for replica in each["replicas"]}
    if ReplicaState.RUNNING in states:
        return Presence.UP
    if any(each["status"] == DeploymentStatus.UPSCALING for each in deployments):
        return Presence.ASLEEP
    # If it is not RUNNING and has no replica, it may be about to sleep, and a call would wake it.
    is_idle = found["status"] == ApplicationStatus.RUNNING and states <= _GONE
    return Presence.ASLEEP if is_idle else Presence.LOADING
