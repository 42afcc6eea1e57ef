"""The control plane's interface to the cluster that runs the applications. Independent of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from serve_app.config import ModelConfig
from serve_app.control.endpoints.state import AppSpec
from serve_app.types import ModelInfo


class AppStatus(Enum):
    """The state of an application."""

    COMING = "coming"  # is starting, changing, or recovering by itself
    UP = "up"  # as requested
    FAILED = "failed"  # for good
    GOING = "going"  # being deleted


@dataclass(frozen=True, slots=True)
class AppSeen:
    """An application on the cluster."""

    status: AppStatus
    message: str = ""  # the cluster's message about the application
    size: tuple[int, int] | None = None  # least and most replicas, as last requested; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A model that an endpoint may use."""

    config: ModelConfig
    app: str | None = None  # the operator's application that runs this model, if any
    is_shared: bool = False  # whether pay-per-token endpoints may use that application
    num_cpus: float = 0.5
    num_gpus: float = 0.0
    bundles: tuple[dict[str, float], ...] = ()  # of a replica's placement group
    strategy: str = ""  # of it: Ray's word
    replica_throughput: float | None = None  # tokens per second; None if not given


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """The memory of one node, in bytes."""

    memory: int  # that is free
    gpu_memory: tuple[int, ...] = ()  # total memory of each GPU


@dataclass(frozen=True, slots=True)
class Room:
    """The free resources of the cluster, by Ray's names: CPU, GPU."""

    free: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[NodeRoom, ...] = ()  # empty: unknown


class Cluster(Protocol):
    """All calls raise Unavailable if the cluster does not answer, and none blocks the event loop."""

    async def apps(self) -> Mapping[str, AppSeen]:
        """All applications by name."""
        ...

    async def routed(self) -> frozenset[str] | None:
        """The applications that gateways route to; None if unknown at the moment."""
        ...

    async def deploy(self, spec: AppSpec) -> None:
        """Start an application, or resize the one with this name in place. Does not wait until it is up."""
        ...

    async def delete(self, app: str) -> None:
        """Remove an application once it has finished its requests. Returns without waiting."""
        ...

    async def info(self, app: str) -> ModelInfo:
        """The facts about the model of an application that is up."""
        ...

    async def offers(self) -> tuple[Offer, ...]:
        """The models in the operator's applications, and the models that come with the server."""
        ...

    async def room(self) -> Room:
        """The resources that are free for new replicas."""
        ...

    def least_memory(self, config: ModelConfig) -> int | None:
        """The least memory that a replica of this model needs, in bytes; None if unknown. Reads only small
        files."""
        ...

    async def logs(self, app: str) -> str:
        """The newest log lines of an application's replicas."""
        ...
