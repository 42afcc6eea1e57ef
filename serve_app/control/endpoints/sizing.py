"""The number of replicas of a served entity, from units, tokens, requests or a size in words.

One unit is one replica. Tokens a second are divided by the throughput of one replica, requests at once by the
batch of one replica. `workload_size` is Databricks' word for requests at once: Small 4, Medium 16, Large 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.config import ControlConfig
from serve_app.config.model import replicas_for
from serve_app.control.endpoints.cluster import Offer
from serve_app.errors import InvalidField
from serve_app.types.control import EntityWanted

WORKLOADS: Final[Mapping[str, int]] = {"Small": 4, "Medium": 16, "Large": 64}  # requests at once
BURST: Final = 2  # times the purchased replicas, under load
UNLIMITED: Final = 10**9  # tokens per second, for sizes not purchased in tokens


@dataclass(frozen=True, slots=True)
class Size:
    """Replicas of an entity, and the tokens per second that it may serve."""

    min_replicas: int
    max_replicas: int
    min_throughput: int
    max_throughput: int


def size(wanted: EntityWanted, offer: Offer, config: ControlConfig, field: str) -> Size:
    """The size of `wanted`. `field`: the path of `wanted` in the request, for errors. Raises InvalidField."""
    ways = [name for name, is_used in _ways(wanted).items() if is_used]
    if len(ways) > 1:
        raise InvalidField(
            f"{field}.{ways[1]}", f"must be left out beside {ways[0]}: say the size in one way"
        )
    throughput = offer.replica_throughput or config.replica_throughput
    if wanted.provisioned_model_units is not None:
        low = _positive(wanted.provisioned_model_units, f"{field}.provisioned_model_units")
        high = low * BURST if wanted.burst_scaling_enabled else low
    elif ways == ["min_provisioned_throughput"]:
        low, high = _range(
            wanted.min_provisioned_throughput,
            wanted.max_provisioned_throughput,
            throughput,
            f"{field}.min_provisioned_throughput",
        )
    else:
        batch = offer.config.engine.max_sequences
        most = wanted.max_provisioned_concurrency
        if wanted.workload_size is not None:
            most = WORKLOADS.get(wanted.workload_size)
            if most is None:
                raise InvalidField(f"{field}.workload_size", f"must be one of {', '.join(WORKLOADS)}")
        least = wanted.min_provisioned_concurrency
        low, high = _range(least, most, batch, f"{field}.min_provisioned_concurrency") if ways else (1, 1)
    low = low if wanted.scale_to_zero_enabled and low == 0 else max(low, 1)
    low = 0 if wanted.scale_to_zero_enabled and ways == ["workload_size"] else low
    high = max(low, high, 1)
    if high > config.max_replicas:
        raise InvalidField(
            f"{field}.{ways[0]}",
            f"takes {high} replicas; at most {config.max_replicas} are allowed (`control.max_replicas`)",
        )
    return Size(low, high, *_throughput(wanted, offer, high))


def _throughput(wanted: EntityWanted, offer: Offer, replicas: int) -> tuple[int, int]:
    """The admission limit: the purchased tokens, or else the known throughput of the replicas."""
    bought = wanted.max_provisioned_throughput or wanted.min_provisioned_throughput
    if bought:
        return wanted.min_provisioned_throughput or 0, bought
    if offer.replica_throughput is not None:
        return 0, min(UNLIMITED, max(1, int(offer.replica_throughput * replicas)))
    return 0, UNLIMITED


def _ways(wanted: EntityWanted) -> dict[str, bool]:
    return {
        "provisioned_model_units": wanted.provisioned_model_units is not None,
        "min_provisioned_throughput": (wanted.min_provisioned_throughput, wanted.max_provisioned_throughput)
        != (None, None),
        "min_provisioned_concurrency": (
            wanted.min_provisioned_concurrency,
            wanted.max_provisioned_concurrency,
        )
        != (None, None),
        "workload_size": wanted.workload_size is not None,
    }


def _range(least: int | None, most: int | None, each: float, field: str) -> tuple[int, int]:
    """Replicas for an amount from `least` to `most`, if one replica provides `each`."""
    for value in (least, most):
        if value is not None and value < 0:
            raise InvalidField(field, "must be 0 or more")
    low = least or 0
    high = low if most is None else most
    if low > high:
        raise InvalidField(field, "must not exceed the maximum")
    return replicas_for(low, each), replicas_for(high, each)


def _positive(value: int, field: str) -> int:
    if value < 1:
        raise InvalidField(field, "must be 1 or more")
    return value
