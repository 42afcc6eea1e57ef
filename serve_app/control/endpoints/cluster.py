"""The control plane's interface to the cluster that runs the applications. Knows no Ray."""

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

    COMING = "coming"  # starts, changes, or recovers by itself
    UP = "up"  # as requested
    FAILED = "failed"  # for good
    GOING = "going"  # being deleted


@dataclass(frozen=True, slots=True)
class AppSeen:
    """An application on the cluster."""

    status: AppStatus
    message: str = ""  # what the cluster says of it
    size: tuple[int, int] | None = None  # least and most replicas, as last requested; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A model that an endpoint may be made of."""

    config: ModelConfig
    app: str | None = None  # the operator's application that runs it; None: none does
    is_shared: bool = False  # whether pay-per-token endpoints may use that application
    num_cpus: float = 0.5
    num_gpus: float = 0.0
    replica_throughput: float | None = None  # tokens a second; None: not given


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Memory of one node, in bytes."""

    memory: int  # that is free
    gpu_memory: tuple[int, ...] = ()  # of each GPU, used or not


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on the cluster, by Ray's names of resources: CPU, GPU."""

    free: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[NodeRoom, ...] = ()  # empty: unknown


class Cluster(Protocol):
    """All calls raise Unavailable while the cluster does not answer, and block no event loop."""

    async def apps(self) -> Mapping[str, AppSeen]:
        """All applications by name."""
        ...

    async def routed(self) -> frozenset[str] | None:
        """The applications that gateways route to; None: unknown at the moment."""
        ...

    async def deploy(self, spec: AppSpec) -> None:
        """Start an application, or give the one of this name another size in place. Does not wait for it."""
        ...

    async def delete(self, app: str) -> None:
        """Let an application finish what it has, and go. Does not wait for that."""
        ...

    async def info(self, app: str) -> ModelInfo:
        """The facts about the model of an application that is up."""
        ...

    async def offers(self) -> tuple[Offer, ...]:
        """The models of the operator's applications, and those that come with the server."""
        ...

    async def room(self) -> Room:
        """What is free for new replicas."""
        ...

    def least_memory(self, config: ModelConfig) -> int | None:
        """The fewest bytes of a replica of this model; None: unknown. Reads only small files."""
        ...

    async def logs(self, app: str) -> str:
        """The newest lines that the replicas of an application logged."""
        ...
