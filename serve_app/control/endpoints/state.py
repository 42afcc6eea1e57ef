"""The stored form of an endpoint's configurations: served entities, each with its application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from serve_app.types.control import EntityWanted

RUN_TIME: Final = "rt-"  # prefix of the names of the control plane's applications, and of no others


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSpec:
    """A wanted Serve application. `size` may change in place; any other change needs a new application."""

    name: str
    model: dict[str, Any]  # a `ModelConfig` without its `provisioned`, as plain values
    num_cpus: float
    num_gpus: float
    min_replicas: int
    max_replicas: int
    bundles: tuple[dict[str, float], ...] = ()  # of a replica's placement group
    strategy: str = ""  # of it: Ray's word

    @property
    def size(self) -> tuple[int, int]:
        return self.min_replicas, self.max_replicas

    def runs_like(self, other: AppSpec) -> bool:
        """Whether both are the same except for name and size."""
        return self.fixed == other.fixed

    @property
    def fixed(self) -> dict[str, Any]:
        """All that cannot change in place."""
        one_machine = {"model": self.model, "num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        return one_machine | ({"bundles": self.bundles, "strategy": self.strategy} if self.bundles else {})

    @property
    def all_gpus(self) -> float:
        """The GPUs of a replica, on all of its machines."""
        return sum(each.get("GPU", 0.0) for each in self.bundles) if self.bundles else self.num_gpus

    @property
    def all_cpus(self) -> float:
        """The CPUs of a replica, on all of its machines."""
        return sum(each.get("CPU", 0.0) for each in self.bundles) if self.bundles else self.num_cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A served entity and its application."""

    wanted: EntityWanted  # with its name filled in
    model: str
    version: str
    app: str
    spec: AppSpec | None  # None: the application is the operator's
    min_throughput: int | None = None  # tokens per second; for provisioned entities
    max_throughput: int | None = None
    creator: str = ""
    created: float = 0.0  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration of an endpoint."""

    version: int
    entities: tuple[Entity, ...]
    traffic: dict[str, int]
    stored: dict[str, Any] = field(default_factory=dict)
    kind: str = ""  # see endpoints.endpoint.Kind; "": as the endpoint's, from an earlier version

    @property
    def specs(self) -> tuple[AppSpec, ...]:
        """The applications that the control plane runs for this configuration."""
        return tuple(entity.spec for entity in self.entities if entity.spec is not None)


def dumped(config: Config) -> dict[str, Any]:
    """The configuration as plain values, for a JSON column."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return plain


def loaded(raw: dict[str, Any]) -> Config:
    return msgspec.convert(raw, Config)
