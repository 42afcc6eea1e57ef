"""Metric names and JSON logs. Knows no HTTP, no engine and no model.

Labels are bounded: model names come from the catalogue, routes are templates. No
string of a client becomes a label; no prompt and no key is ever logged.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from serve_app.types import EngineStats, Usage, UsageRecord

_SPLIT: Final = ("endpoint", "entity")  # who answered, by the catalogue

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LONG: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)

# (name, help, attribute of EngineStats, is a counter)
_ENGINE: Final = (
    ("running_sequences", "Sequences in the engine's batch.", "running", False),
    ("waiting_sequences", "Sequences waiting for a step.", "waiting", False),
    ("waiting_tokens", "Prompt tokens not yet computed.", "waiting_tokens", False),
    ("kv_blocks", "Blocks of the KV cache.", "blocks_total", False),
    ("kv_blocks_used", "Blocks referenced by live sequences.", "blocks_used", False),
    ("kv_blocks_cached", "Free blocks that hold a prefix.", "blocks_cached", False),
    ("heartbeat_age_seconds", "Time since the engine last stepped or idled.", "heartbeat_age_s", False),
    ("engine_steps", "Steps of the engine.", "steps", True),
    ("engine_prompt_tokens", "Prompt tokens the engine took.", "prompt_tokens", True),
    ("prefix_hit_tokens", "Prompt tokens found in the prefix cache.", "cached_tokens", True),
    ("engine_generated_tokens", "Tokens the engine generated.", "generated_tokens", True),
    ("draft_tokens", "Draft tokens verified.", "draft_tokens", True),
    ("accepted_draft_tokens", "Draft tokens that were right.", "accepted_tokens", True),
    ("preemptions", "Sequences put back to wait for lack of blocks.", "preemptions", True),
)


class Metrics:
    """What a gateway measures, in a registry of its own."""

    def __init__(self, stats: Callable[[], dict[str, EngineStats]]) -> None:
        """`stats` gives the latest snapshot of every model's application; it is asked at each scrape."""
        self.registry = CollectorRegistry()

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"serve_app_{name}", help, _SPLIT, buckets=buckets, registry=self.registry)

        def counter(name: str, help: str, labels: Sequence[str]) -> Counter:
            return Counter(f"serve_app_{name}", help, labels, registry=self.registry)

        self._first_token = histogram("time_to_first_token_seconds", "From request to first token.", _LONG)
        self._inter_token = StreamHistogram(
            "serve_app_inter_token_latency_seconds", "Between two steps of a stream.", _SPLIT, _SHORT
        )
        self.registry.register(self._inter_token)
        self._end_to_end = histogram("request_seconds", "From request to last byte.", _LONG)
        self._queue = histogram("queue_seconds", "From the engine's door to its first step.", _LONG)
        self._requests = counter("requests", "HTTP requests.", [*_SPLIT, "route", "status"])
        self._prompt = counter("prompt_tokens", "Prompt tokens of requests.", _SPLIT)
        self._completion = counter("completion_tokens", "Tokens generated for requests.", _SPLIT)
        self._cached = counter("cached_tokens", "Prompt tokens that were not computed again.", _SPLIT)
        self._copies = counter("shadow_requests", "Copies for shadow entities.", [*_SPLIT, "outcome"])
        self._copy_tokens = counter("shadow_tokens", "Tokens of such copies.", [*_SPLIT, "direction"])
        self._copy_first_token = histogram(
            "shadow_time_to_first_token_seconds", "From a copy's start to its first token.", _LONG
        )
        self._copy_time = histogram("shadow_request_seconds", "From a copy's start to its end.", _LONG)
        self._guardrails = counter(
            "guardrails_triggered",
            "Prompts and answers that a guardrail stopped.",
            ["endpoint", "side", "check"],
        )
        self._in_flight = Gauge(
            "serve_app_requests_in_flight", "Prompts this gateway works on.", registry=self.registry
        )
        self.registry.register(_EngineCollector(stats))
        self._timings: dict[tuple[str, str], Timings] = {}
        self._served: dict[tuple[str, str], AnswerCounts] = {}

    def timings(self, endpoint: str, entity: str) -> Timings:
        """The latency recorders of a served entity of the catalogue."""
        found = self._timings.get((endpoint, entity))
        if found is None:
            found = self._timings[endpoint, entity] = Timings(
                self._first_token.labels(endpoint, entity),
                self._inter_token.labels(endpoint, entity),
                self._queue.labels(endpoint, entity),
            )
        return found

    def catalogue_refused(self, is_refused: Callable[[], bool]) -> None:
        """Ask `is_refused` at each scrape whether the newest catalogue was wrong."""
        self._read(
            "catalogue_refused", "1 while a wrong catalogue was refused and the old one serves.", is_refused
        )

    def keys(self, is_refused: Callable[[], bool], bad: Callable[[], int]) -> None:
        """Ask at each scrape whether the newest list of keys was wrong, and how many bad keys came."""
        self._read(
            "keys_refused", "1 while a wrong key file was refused and the old keys are in force.", is_refused
        )
        self._count("bad_keys", "Requests with an API key that does not exist.", bad)

    def snapshot_age(self, seconds: Callable[[], float]) -> None:
        """Ask at each scrape how long ago the control plane confirmed the snapshot in force."""
        self._read(
            "snapshot_age_seconds", "Since the control plane confirmed the snapshot in force.", seconds
        )

    def unshipped(self, size: Callable[[], int]) -> None:
        """Ask at each scrape how many bytes of journals the ledger does not have yet."""
        self._read("usage_unshipped_bytes", "Bytes of usage journals that are not in the ledger yet.", size)

    def endpoints_waiting(self, count: Callable[[], int]) -> None:
        """Ask `count` at each scrape how many endpoints are not yet what the newest catalogue says."""
        self._read(
            "endpoints_waiting", "Endpoints that stay as they were until their new models can answer.", count
        )

    def in_flight(self, count: Callable[[], int]) -> None:
        """Read the number of prompts under way from `count` at each scrape."""
        self._in_flight.set_function(lambda: float(count()))

    def journal(self, waiting: Callable[[], int], dropped: Callable[[], int]) -> None:
        """Read from both at each scrape how the usage journal stands."""
        self._read("usage_backlog", "Usage records in memory that the disk did not take yet.", waiting)
        self._count("usage_records_dropped", "Usage records that are lost.", dropped)

    def payloads(self, waiting: Callable[[], int], dropped: Callable[[], int]) -> None:
        """Read from both at each scrape how the inference tables stand."""
        self._read("inference_table_backlog", "Rows of inference tables in memory.", waiting)
        self._count("inference_table_rows_dropped", "Rows of inference tables that are lost.", dropped)

    def _read(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A gauge whose value is asked for at each scrape."""
        Gauge(f"serve_app_{name}", help, registry=self.registry).set_function(lambda: float(value()))

    def _count(self, name: str, help: str, value: Callable[[], int]) -> None:
        """The same of a counter."""
        self.registry.register(_CountCollector(name, help, value))

    def migrations(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Read from `counts` at each scrape how often answers went on elsewhere, by application and cause."""
        self.registry.register(_MigrationCollector(counts))

    def request_done(self, endpoint: str, entity: str, route: str, status: str, seconds: float) -> None:
        self._requests.labels(endpoint, entity, route, status).inc()
        if entity != "unknown":
            self._end_to_end.labels(endpoint, entity).observe(seconds)
            before = self.served(endpoint, entity)
            self._served[endpoint, entity] = before.and_one(seconds, is_success=status == "200")

    def served(self, endpoint: str, entity: str) -> AnswerCounts:
        """How often and how long a served entity of the catalogue answered."""
        return self._served.get((endpoint, entity), AnswerCounts())

    def tokens(self, endpoint: str, entity: str, usage: Usage) -> None:
        """What one body used in the end, complete or not."""
        self._prompt.labels(endpoint, entity).inc(usage.prompt_tokens)
        self._completion.labels(endpoint, entity).inc(usage.generated_tokens)
        self._cached.labels(endpoint, entity).inc(usage.cached_tokens)

    def copy_skipped(self, endpoint: str, entity: str) -> None:
        """No copy was made for a shadow entity, because too many were under way."""
        self._copies.labels(endpoint, entity, "skipped").inc()

    def copy_done(self, record: UsageRecord) -> None:
        """A copy for a shadow entity ended as `record` says."""
        labels = record.endpoint, record.entity
        self._copies.labels(*labels, record.outcome).inc()
        self._copy_tokens.labels(*labels, "prompt").inc(record.prompt_tokens)
        self._copy_tokens.labels(*labels, "completion").inc(record.completion_tokens)
        self._copy_time.labels(*labels).observe(record.total_s)
        if record.first_token_s is not None:
            self._copy_first_token.labels(*labels).observe(record.first_token_s)

    def guardrail(self, endpoint: str, side: str, check: str) -> None:
        """A prompt (`input`) or an answer (`output`) did not pass a check."""
        self._guardrails.labels(endpoint, side, check).inc()

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def render_endpoint(self, endpoint: str, applications: Collection[str]) -> bytes:
        """The part of `render` that is about one endpoint, or about the applications of its models."""
        part = CollectorRegistry()
        part.register(_Part(self.registry, endpoint, applications))
        return generate_latest(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """How many answers of one served entity went through this gateway, and how long they took."""

    successes: int = 0
    success_s: float = 0.0
    failures: int = 0
    failure_s: float = 0.0
    last: float = 0.0  # Unix seconds of the last; 0: none yet

    def and_one(self, seconds: float, *, is_success: bool) -> AnswerCounts:
        """These counts and one more answer, which has just ended."""
        last = time.time()
        if is_success:
            return replace(self, successes=self.successes + 1, success_s=self.success_s + seconds, last=last)
        return replace(self, failures=self.failures + 1, failure_s=self.failure_s + seconds, last=last)


class Timings:
    """Latency recorders of one served entity, looked up once a request instead of once an event."""

    def __init__(self, first: Histogram, between: LatencyCounts, queue: Histogram) -> None:
        self.first = first.observe
        self.next = between.observe
        self.queue = queue.observe


class LatencyCounts:
    """How many latencies fell into each bucket of a `StreamHistogram`, for one set of labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: ascending, in seconds; each is the last value of its bucket."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0  # of all together

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds


class StreamHistogram(Collector):
    """A histogram that is cheap enough for every event of every stream. For one event loop alone.

    `Histogram` locks twice an observation and walks over its buckets, which takes six times as long.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = partial(HistogramMetricFamily, name, help, labels=labels)
        self._bounds = bounds
        self._counts: dict[tuple[str, ...], LatencyCounts] = {}

    def labels(self, *values: str) -> LatencyCounts:
        return self._counts.setdefault(values, LatencyCounts(self._bounds))

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family, names = self._family(), [*map(floatToGoString, self._bounds), "+Inf"]
        for values, each in self._counts.items():
            buckets = list(zip(names, accumulate(each.counts), strict=True))
            family.add_metric(values, buckets, each.seconds)
        yield family


class _Part(Collector):
    """The samples of a registry that one endpoint, or one of some applications, labels."""

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


class _EngineCollector(Collector):
    """Engine snapshots as metrics, made anew at each scrape."""

    def __init__(self, stats: Callable[[], dict[str, EngineStats]]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()  # asked at registration, when there may be no snapshot yet

    def collect(self) -> Iterator[Metric]:
        snapshots = self._stats()
        for name, help, attribute, counts in _ENGINE:
            family: GaugeMetricFamily | CounterMetricFamily
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            family = kind(f"serve_app_{name}", help, labels=["application"])
            for app, stats in snapshots.items():
                family.add_metric([app], float(getattr(stats, attribute)))
            yield family


class _MigrationCollector(Collector):
    """How often answers went on in another replica, read at each scrape."""

    def __init__(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "serve_app_migrations",
            "Answers that went on in another replica.",
            labels=["application", "cause"],
        )
        for labels, count in self._counts().items():
            family.add_metric(labels, float(count))
        yield family


class _CountCollector(Collector):
    """A counter that somebody else keeps, read at each scrape."""

    def __init__(self, name: str, help: str, read: Callable[[], int]) -> None:
        self._name = name
        self._help = help
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(f"serve_app_{self._name}", self._help)
        family.add_metric([], float(self._read()))
        yield family


class JsonFormatter(logging.Formatter):
    """One JSON object a line. Line breaks and terminal escapes in values stay escaped."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_request(logger: logging.Logger, **fields: str | int | float | None) -> None:
    """One line for one HTTP request; `fields` must hold no prompt and no key."""
    logger.info("request", extra={"fields": fields})
