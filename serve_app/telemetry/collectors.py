"""Metrics that are read at each scrape: engine metrics, other counters, and those of one endpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from serve_app.live.latencies import LatencyCounts
from serve_app.types import EngineStats

# (name, help, attribute of EngineStats, is a counter)
ENGINE: Final = (
    ("running_sequences", "Sequences in the engine's batch.", "running", False),
    ("waiting_sequences", "Sequences waiting for a step.", "waiting", False),
    ("waiting_tokens", "Prompt tokens not yet computed.", "waiting_tokens", False),
    ("kv_blocks", "Blocks of the KV cache.", "blocks_total", False),
    ("kv_blocks_used", "Blocks referenced by live sequences.", "blocks_used", False),
    ("kv_blocks_cached", "Free blocks that hold a prefix.", "blocks_cached", False),
    ("kv_blocks_ready", "Blocks to which the system has given memory.", "blocks_ready", False),
    ("heartbeat_age_seconds", "Time since the engine last stepped or idled.", "heartbeat_age_s", False),
    ("engine_steps", "Steps of the engine.", "steps", True),
    ("engine_prompt_tokens", "Prompt tokens the engine took.", "prompt_tokens", True),
    ("prefix_hit_tokens", "Prompt tokens found in the prefix cache.", "cached_tokens", True),
    ("engine_generated_tokens", "Tokens the engine generated.", "generated_tokens", True),
    ("draft_tokens", "Draft tokens verified.", "draft_tokens", True),
    ("accepted_draft_tokens", "Draft tokens that were right.", "accepted_tokens", True),
    ("preemptions", "Sequences put back to wait for lack of blocks.", "preemptions", True),
)


class EndpointPart(Collector):
    """The samples of a registry that are labelled with one endpoint or with one of some applications."""

    def __init__(self, registry: CollectorRegistry, endpoint: str, applications: Collection[str]) -> None:
        self._registry = registry
        self._endpoint = endpoint
        self._applications = applications

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            samples = [each for each in family.samples if self._is_meant(each.labels)]
            if samples:
                part = Metric(family.name, family.documentation, family.type, family.unit)
                part.samples = samples
                yield part

    def _is_meant(self, labels: Mapping[str, str]) -> bool:
        if "endpoint" in labels:
            return labels["endpoint"] == self._endpoint
        return labels.get("application") in self._applications


class EngineCollector(Collector):
    """Engine snapshots as metrics, made anew at each scrape."""

    def __init__(self, stats: Callable[[], dict[str, EngineStats]]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # asked at registration, when there may be no snapshot yet

    def collect(self) -> Iterator[Metric]:
        snapshots = self._stats()
        for name, help, attribute, counts in ENGINE:
            family: GaugeMetricFamily | CounterMetricFamily
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            family = kind(f"serve_app_{name}", help, labels=["application"])
            for app, stats in snapshots.items():
                family.add_metric([app], float(getattr(stats, attribute)))
            yield family


class CountCollector(Collector):
    """A counter kept by other code, and read at each scrape."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], read: Callable[[], Mapping[Any, float]]
    ) -> None:
        """`read` returns the counts by the values of `labels`."""
        self._family = partial(CounterMetricFamily, f"serve_app_{name}", help, labels=labels)
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for values, count in self._read().items():
            family.add_metric(values, float(count))
        yield family


class StreamHistogram(Collector):
    """A histogram that is cheap enough for every event of every stream. Only for use on one event loop.

    `Histogram` takes six times as long: it takes a lock twice per observation and walks over its buckets.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float], fine: Sequence[float]
    ) -> None:
        """`bounds` of the buckets that are shown; `fine` bounds of those counted, see `live.latencies`."""
        self._family = partial(HistogramMetricFamily, name, help, labels=labels)
        self._bounds = bounds
        self._fine = fine
        self.counts: dict[tuple[str, ...], LatencyCounts] = {}

    def labels(self, *values: str) -> LatencyCounts:
        return self.counts.setdefault(values, LatencyCounts(self._fine))

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family, names = self._family(), [*map(floatToGoString, self._bounds), "+Inf"]
        for values, each in self.counts.items():
            buckets = list(zip(names, each.coarse(), strict=True))
            family.add_metric(values, buckets, each.seconds)
        yield family
