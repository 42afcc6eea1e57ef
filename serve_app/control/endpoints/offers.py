"""The models that endpoints may use: from the deploy file, from `control.models`, and the demo models."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.config import ControlConfig
from serve_app.control.endpoints.cluster import Offer
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Kind
from serve_app.errors import InvalidField

SHOWN = 20  # models that an error names


class Offers:
    """Looks up a model by its name and version. Running models take precedence over listed ones."""

    def __init__(self, found: Iterable[Offer], config: ControlConfig, declared: Catalogue) -> None:
        """`found`: see `Cluster.offers`. `declared`: the endpoints of the deploy file."""
        offered = (
            Offer(
                config=each.config,
                num_cpus=each.num_cpus,
                num_gpus=each.num_gpus,
                bundles=each.placement_group_bundles,
                strategy=each.placement_group_strategy,
                replica_throughput=each.replica_throughput or throughput_of(each.config),
            )
            for each in config.models
        )
        found = tuple(found)
        self._all = (
            *(each for each in found if each.app is not None),
            *offered,
            *(each for each in found if each.app is None),
        )
        # Applications started from Python have no settings to read, but the gateway's endpoints name them.
        self._shared = {
            (entity.model, entity.version): entity.app
            for endpoint in declared.endpoints
            if endpoint.kind is Kind.PAY_PER_TOKEN
            for entity in endpoint.served_entities
        } | {
            (each.config.name, each.config.version): each.app
            for each in found
            if each.app is not None and each.is_shared
        }

    def to_run(self, model: str, version: str, field: str) -> Offer:
        """How to run replicas of a model. Raises InvalidField, which lists the available models."""
        known = {(each.config.name, each.config.version): each for each in reversed(self._all)}
        found = _match(model, version, known)
        if found is None:
            raise InvalidField(field, f"no such model; there is {_words(known)}")
        return known[found]

    def shared(self, model: str, version: str, field: str) -> tuple[str, str, str]:
        """The model, its version, and the operator's application that pay-per-token endpoints use.

        Raises InvalidField, which lists the available ones.
        """
        found = _match(model, version, self._shared)
        if found is None:
            raise InvalidField(
                field,
                "a pay-per-token endpoint uses replicas that run already, and there is "
                f"{_words(self._shared)}; for replicas of its own, say how many: provisioned_model_units",
            )
        return *found, self._shared[found]


def throughput_of(config: object) -> float | None:
    """Tokens per second of one replica, if the model's settings state it."""
    bought = getattr(config, "provisioned", None)
    return None if bought is None else float(bought.replica_throughput)


def _match(model: str, version: str, known: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The known model and version that match: "" finds a model's only version, "1" also an unnamed one."""
    versions = [each for name, each in known if name == model]
    if version in versions:
        return model, version
    if version == "1" and "" in versions:
        return model, ""
    if not version and len(versions) == 1:
        return model, versions[0]
    return None


def _words(known: Iterable[tuple[str, str]]) -> str:
    names = sorted(f"{name} version {version}" if version else name for name, version in known)
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join(names[:SHOWN] + more) or "none"
