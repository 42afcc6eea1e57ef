"""The metrics of a gateway, by their names in Prometheus. Independent of HTTP, the engine and models.

Labels are bounded: model names come from the catalogue, routes are templates. No string sent by a client
becomes a label. The series of an entity that left the catalogue end an hour after the first scrape without
that entity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serve_app.live.latencies import FINE_LONG, FINE_SHORT, LONG, SHORT, LatencyCounts
from serve_app.telemetry.absent import UNKNOWN, Absent, EntityName
from serve_app.telemetry.answer_counts import AnswerCounts
from serve_app.telemetry.collectors import (
    CountCollector,
    EndpointPart,
    EngineCollector,
    StreamHistogram,
)
from serve_app.types import EngineStats, Usage, UsageRecord

_SPLIT: Final = ("endpoint", "entity")  # of the catalogue

# Gauges and counters that other code keeps, read at each scrape. See `Metrics.watch`.
READ: Final = {
    "catalogue_refused": "1 while a wrong catalogue was refused and the old one serves.",
    "keys_refused": "1 while a wrong key file was refused and the old keys are in force.",
    "snapshot_age_seconds": "Since the control plane confirmed the snapshot in force.",
    "usage_unshipped_bytes": "Bytes of usage journals that are not in the ledger yet.",
    "endpoints_waiting": "Endpoints that stay as they were until their new models can answer.",
    "usage_backlog": "Usage records in memory that the disk did not take yet.",
    "inference_table_backlog": "Rows of inference tables in memory.",
}
COUNTED: Final = {
    "bad_keys": "Requests with an API key that does not exist.",
    "usage_records_dropped": "Usage records that are lost.",
    "inference_table_rows_dropped": "Rows of inference tables that are lost.",
}

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of a gateway, in a registry of its own."""

    def __init__(self, stats: Callable[[], dict[str, EngineStats]], absent: Absent | None = None) -> None:
        """`stats` returns the latest snapshot of every model's application; it is called at each scrape."""
        self.registry = CollectorRegistry()
        self._absent = absent or Absent()
        self._known: set[EntityName] = set()  # entities that label some series
        self._catalogue: Callable[[], Mapping[str, Collection[str]]] | None = None
        self.on_ended: Callable[[EntityName], None] = lambda who: None  # called when an entity's series ended

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"serve_app_{name}", help, _SPLIT, buckets=buckets, registry=self.registry)

        def counter(name: str, help: str, labels: Sequence[str]) -> Counter:
            return Counter(f"serve_app_{name}", help, labels, registry=self.registry)

        self._first_token = StreamHistogram(
            "serve_app_time_to_first_token_seconds", "From request to first token.", _SPLIT, LONG, FINE_LONG
        )
        self.registry.register(self._first_token)
        self._inter_token = StreamHistogram(
            "serve_app_inter_token_latency_seconds",
            "Between two steps of a stream.",
            _SPLIT,
            SHORT,
            FINE_SHORT,
        )
        self.registry.register(self._inter_token)
        self._end_to_end = histogram("request_seconds", "From request to last byte.", LONG)
        self._queue = histogram("queue_seconds", "From the engine's door to its first step.", LONG)
        self._requests = counter("requests", "HTTP requests.", [*_SPLIT, "route", "status"])
        self._prompt = counter("prompt_tokens", "Prompt tokens of requests.", _SPLIT)
        self._completion = counter("completion_tokens", "Tokens generated for requests.", _SPLIT)
        self._cached = counter("cached_tokens", "Prompt tokens that were not computed again.", _SPLIT)
        self._copies = counter("shadow_requests", "Copies for shadow entities.", [*_SPLIT, "outcome"])
        self._copy_tokens = counter("shadow_tokens", "Tokens of such copies.", [*_SPLIT, "direction"])
        self._copy_first_token = histogram(
            "shadow_time_to_first_token_seconds", "From a copy's start to its first token.", LONG
        )
        self._copy_time = histogram("shadow_request_seconds", "From a copy's start to its end.", LONG)
        self._guardrails = counter(
            "guardrails_triggered",
            "Prompts and answers that a guardrail stopped.",
            ["endpoint", "side", "check"],
        )
        self._split = (
            *(self._end_to_end, self._queue, self._requests, self._prompt, self._completion, self._cached),
            *(self._copies, self._copy_tokens, self._copy_first_token, self._copy_time),
        )
        self._in_flight = Gauge(
            "serve_app_requests_in_flight", "Prompts this gateway works on.", registry=self.registry
        )
        self.registry.register(EngineCollector(stats))
        self._timings: dict[tuple[str, str], Timings] = {}
        self.answered: dict[tuple[str, str], AnswerCounts] = {}  # by endpoint and entity
        self.on_answer: Callable[[], None] = lambda: None  # called when an entity of the catalogue answered

    def timings(self, endpoint: str, entity: str) -> Timings:
        """The latency recorders of a served entity of the catalogue."""
        found = self._timings.get((endpoint, entity))
        if found is None:
            self._known.add((endpoint, entity))
            found = self._timings[endpoint, entity] = Timings(
                self._first_token.labels(endpoint, entity),
                self._inter_token.labels(endpoint, entity),
                self._queue.labels(endpoint, entity),
            )
        return found

    def catalogue(self, entities: Callable[[], Mapping[str, Collection[str]]]) -> None:
        """Read the entities of each endpoint at each scrape: series of other entities end after a while."""
        self._catalogue = entities

    def watch(self, **values: Callable[[], float]) -> None:
        """Read each value at each scrape, by its name in `READ` or `COUNTED`."""
        for name, value in values.items():
            if name in COUNTED:
                counts = partial(_unlabelled, value)
                self.registry.register(CountCollector(name, COUNTED[name], (), counts))
            else:
                Gauge(f"serve_app_{name}", READ[name], registry=self.registry).set_function(value)

    def in_flight(self, count: Callable[[], int]) -> None:
        """Read the number of prompts under way from `count` at each scrape."""
        self._in_flight.set_function(lambda: float(count()))

    def migrations(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Read from `counts` at each scrape how many answers moved to another replica, and why."""
        help, labels = "Answers that went on in another replica.", ("application", "cause")
        self.registry.register(CountCollector("migrations", help, labels, counts))

    def request_done(self, endpoint: str, entity: str, route: str, status: str, seconds: float) -> None:
        self._known.add((endpoint, entity))
        self._requests.labels(endpoint, entity, route, status).inc()
        if entity != UNKNOWN:
            self._end_to_end.labels(endpoint, entity).observe(seconds)
            before = self.served(endpoint, entity)
            self.answered[endpoint, entity] = before.and_one(seconds, status)
            self.on_answer()

    def served(self, endpoint: str, entity: str) -> AnswerCounts:
        """The number and duration of a catalogue entity's answers."""
        return self.answered.get((endpoint, entity), AnswerCounts())

    @property
    def first_token(self) -> Mapping[tuple[str, ...], LatencyCounts]:
        """Times from request to first token, by endpoint and entity."""
        return self._first_token.counts

    @property
    def inter_token(self) -> Mapping[tuple[str, ...], LatencyCounts]:
        """Times between two steps of a stream, by endpoint and entity."""
        return self._inter_token.counts

    def tokens(self, endpoint: str, entity: str, usage: Usage) -> None:
        """Count the final usage of one body, whether it was answered completely or not."""
        self._known.add((endpoint, entity))
        self._prompt.labels(endpoint, entity).inc(usage.prompt_tokens)
        self._completion.labels(endpoint, entity).inc(usage.generated_tokens)
        self._cached.labels(endpoint, entity).inc(usage.cached_tokens)

    def copy_skipped(self, endpoint: str, entity: str) -> None:
        """No copy was made for a shadow entity, because too many copies were under way."""
        self._known.add((endpoint, entity))
        self._copies.labels(endpoint, entity, "skipped").inc()

    def copy_done(self, record: UsageRecord) -> None:
        """A copy for a shadow entity ended as `record` says."""
        labels = record.endpoint, record.entity
        self._known.add(labels)
        self._copies.labels(*labels, record.outcome).inc()
        self._copy_tokens.labels(*labels, "prompt").inc(record.prompt_tokens)
        self._copy_tokens.labels(*labels, "completion").inc(record.completion_tokens)
        self._copy_time.labels(*labels).observe(record.total_s)
        if record.first_token_s is not None:
            self._copy_first_token.labels(*labels).observe(record.first_token_s)

    def guardrail(self, endpoint: str, side: str, check: str) -> None:
        """A prompt (`input`) or an answer (`output`) did not pass a check."""
        self._known.add((endpoint, UNKNOWN))  # as long as the endpoint itself is there
        self._guardrails.labels(endpoint, side, check).inc()

    def render(self) -> bytes:
        """Prometheus' text format."""
        self._forget()
        return generate_latest(self.registry)

    def render_endpoint(self, endpoint: str, applications: Collection[str]) -> bytes:
        """The part of the output of `render` about one endpoint, or about the applications of its models."""
        self._forget()
        part = CollectorRegistry()
        part.register(EndpointPart(self.registry, endpoint, applications))
        return generate_latest(part)

    def _forget(self) -> None:
        """End the series of entities that left the catalogue a while ago."""
        if self._catalogue is None:
            return
        for endpoint, entity in self._absent.gone(self._known, self._catalogue()):
            labels = {"endpoint": endpoint, "entity": entity}
            for family in self._split:
                family.remove_by_labels(labels)
            for streams in (self._first_token, self._inter_token):
                streams.counts.pop((endpoint, entity), None)
            self._timings.pop((endpoint, entity), None)
            self.answered.pop((endpoint, entity), None)
            if entity == UNKNOWN:
                self._guardrails.remove_by_labels({"endpoint": endpoint})
            self._known.discard((endpoint, entity))
            self.on_ended((endpoint, entity))


class Timings:
    """Latency recorders of one served entity, looked up once per request instead of once per event."""

    def __init__(self, first: LatencyCounts, between: LatencyCounts, queue: Histogram) -> None:
        self.first = first.observe
        self.next = between.observe
        self.queue = queue.observe


def _unlabelled(read: Callable[[], float]) -> dict[tuple[str, ...], float]:
    return {(): read()}
