"""Live figures of all gateways: `GET /api/2.0/live`.

Databricks has no such route. Without a control plane the figures are only those of the gateway that answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope
from typing_extensions import TypedDict

from serve_app.api.context import context_of
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.edge.connection import reply_json
from serve_app.api.edge.query import checked_query
from serve_app.api.management.operation import BASE, check_query, management, query_parameter
from serve_app.api.openapi.operation import Answer, Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import InvalidField, ModelNotFound
from serve_app.live.figures import Figures, History, Load
from serve_app.live.ring import newest_settled
from serve_app.types import Scope
from serve_app.types.control.live import NUM_SLOTS, SLOT_S

PATH: Final = f"{BASE}/live"
WINDOW_S: Final = 60.0
KEPT_S: Final = NUM_SLOTS * SLOT_S
_RATES: Final = (
    *("requests_per_s", "errors_per_s", "refused_per_s"),
    *("prompt_tokens_per_s", "tokens_per_s", "in_flight"),
)
_LATENCIES: Final = ("first_token_s", "inter_token_s")
_QUANTILES: Final = ("p50", "p95", "p99")


class LatencyJson(TypedDict):
    """Latency quantiles of streams, in seconds; null if nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


class FiguresJson(TypedDict):
    """Figures of the window: average rates, latencies, and the number of requests in flight at its end."""

    requests_per_s: float
    errors_per_s: float
    refused_per_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    in_flight: int
    first_token_s: LatencyJson
    inter_token_s: LatencyJson


class LatencySeriesJson(TypedDict):
    """Quantiles in seconds, with one value for each of `times`."""

    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class SeriesJson(TypedDict):
    """The same figures as time series: each has one value for each of `times`."""

    requests_per_s: list[float]
    errors_per_s: list[float]
    refused_per_s: list[float]
    prompt_tokens_per_s: list[float]
    tokens_per_s: list[float]
    in_flight: list[int]
    first_token_s: LatencySeriesJson
    inter_token_s: LatencySeriesJson


class LiveEntityJson(TypedDict):
    """A served entity."""

    entity: str
    application: str | None
    window: FiguresJson
    series: SeriesJson


class LiveEndpointJson(TypedDict):
    """An endpoint, and each of its served entities."""

    endpoint: str
    window: FiguresJson
    series: SeriesJson
    entities: list[LiveEntityJson]


class LoadSeriesJson(TypedDict):
    """A value for each of `times`."""

    running: list[int]
    waiting: list[int]
    kv_use: list[float]


class LiveApplicationJson(TypedDict):
    """The replicas of one application. `kv_use` is the fraction of their KV caches in use."""

    application: str
    replicas: int
    running: int
    waiting: int
    kv_use: float | None
    series: LoadSeriesJson


class LiveJson(TypedDict):
    """`gateways` says whose figures these are: those of all gateways, or only of the gateway that answers."""

    gateways: Literal["all", "one"]
    slot_s: float
    window_s: float
    times: list[float]
    endpoints: list[LiveEndpointJson]
    applications: list[LiveApplicationJson]


OPERATION: Final[Operation] = replace(
    management(
        "What happens now",
        Answer(what="The figures.", type=LiveJson),
        what="Rates and latencies of each endpoint and served entity over a window, and as a series of five "
        "minutes with a point for every two seconds. `times` are the ends of the points, in Unix seconds. "
        "`errors` are answers with 5xx and streams that broke, `refused` those with 4xx.",
        conditions=(InvalidField, ModelNotFound),
    ),
    parameters=(
        query_parameter("endpoint", "Of this endpoint alone."),
        query_parameter(
            "window",
            f"Seconds of the window, {SLOT_S:.0f} to {KEPT_S:.0f}; {WINDOW_S:.0f} unless given.",
            float,
            example=60,
        ),
        query_parameter(
            "since",
            "Points later than this alone, in Unix seconds: the last of `times` that is known.",
            float,
        ),
    ),
)


def routes(services: Services) -> Iterator[Entry]:
    yield Entry(
        "GET", PATH, LiveRoute(services), Scope.METRICS, operation=OPERATION, other_scopes=(Scope.MANAGE,)
    )


class LiveRoute:
    """An ASGI app for the route."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._services = services
        self._clock = clock

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises InvalidField or ModelNotFound."""
        context = context_of(scope)
        context.render_error = render_error
        asked = _asked(checked_query(scope["query_string"]), self._clock())
        directory = self._services.directory
        view = directory.seen_by(context.caller)
        endpoints = [each for each in directory if view.shows(each.name)]
        if asked.endpoint is not None:
            endpoints = [each for each in endpoints if each.name == asked.endpoint]
            if not endpoints:
                raise ModelNotFound("endpoint", f"there is no endpoint {asked.endpoint!r}")
        seen = await self._services.live.after(asked.before)
        page = _Page(self._services, asked, History(seen.slots, asked.newest))
        body: LiveJson = {
            "gateways": "all" if seen.is_whole else "one",
            "slot_s": SLOT_S,
            "window_s": asked.window_s,
            "times": [(number + 1) * SLOT_S for number in asked.points],
            "endpoints": [page.endpoint(each) for each in endpoints],
            "applications": [page.application(app) for app in _apps(endpoints)],
        }
        await reply_json(send, body, headers={"cache-control": "no-store"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A checked query, with its slots at one moment."""

    endpoint: str | None
    window_s: float
    newest: int  # number of the newest slot
    points: range  # numbers of the slots of the series

    @property
    def before(self) -> int:
        """The number of the slot before the first required slot."""
        window = self.newest - round(self.window_s / SLOT_S)
        return min(window, self.points.start - 1)


class _Page:
    """The parts of one answer."""

    def __init__(self, services: Services, asked: _Asked, history: History) -> None:
        self._services = services
        self._asked = asked
        self._history = history

    def endpoint(self, endpoint: Endpoint) -> LiveEndpointJson:
        apps = {each.name: each.app for each in endpoint.served_entities}
        # An entity that was just removed still has figures.
        gone = [entity for name, entity in self._history.entities if name == endpoint.name]
        names = dict.fromkeys((*apps, *gone))
        keys = [(endpoint.name, name) for name in names]
        return {
            "endpoint": endpoint.name,
            "window": self._window(keys),
            "series": self._series(keys),
            "entities": [self._entity(key, apps.get(key[1])) for key in keys],
        }

    def _entity(self, key: tuple[str, str], app: str | None) -> LiveEntityJson:
        return {
            "entity": key[1],
            "application": app,
            "window": self._window([key]),
            "series": self._series([key]),
        }

    def application(self, app: str) -> LiveApplicationJson:
        backend = self._services.backend
        load = self._history.load(app)
        if load is None:  # it has nothing to do
            known = backend.stats().get(app)
            load = Load(blocks_total=known.blocks_total if known else 0)
        loads = self._history.loads(app, self._asked.points)
        return {
            "application": app,
            "replicas": backend.num_replicas(app),
            "running": load.running,
            "waiting": load.waiting,
            "kv_use": _rounded(load.kv_use),
            "series": {
                "running": [each.running for each in loads],
                "waiting": [each.waiting for each in loads],
                "kv_use": [round(each.kv_use or 0.0, 6) for each in loads],
            },
        }

    def _window(self, keys: Sequence[tuple[str, str]]) -> FiguresJson:
        return cast("FiguresJson", _figures(self._history.window(keys, self._asked.window_s)))

    def _series(self, keys: Sequence[tuple[str, str]]) -> SeriesJson:
        """One list for each figure."""
        points = [_figures(each) for each in self._history.series(keys, self._asked.points)]
        found: dict[str, Any] = {name: [point[name] for point in points] for name in _RATES}
        for name in _LATENCIES:
            found[name] = {each: [point[name][each] for point in points] for each in _QUANTILES}
        return cast("SeriesJson", found)


def _figures(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {name: _rounded(getattr(figures, name)) for name in _RATES}
    for name in _LATENCIES:
        latency = getattr(figures, name)
        found[name] = {quantile: _rounded(getattr(latency, quantile)) for quantile in _QUANTILES}
    return found


def _apps(endpoints: Sequence[Endpoint]) -> list[str]:
    return list(dict.fromkeys(entity.app for endpoint in endpoints for entity in endpoint.served_entities))


def _asked(query: Mapping[str, str], now: float) -> _Asked:
    """Raises InvalidField."""
    check_query(query, OPERATION)
    window_s = _number(query, "window", SLOT_S, KEPT_S)
    since = _number(query, "since", 0.0, math.inf)
    newest = newest_settled(now)
    first = newest - NUM_SLOTS + 1
    if since is not None:
        first = min(max(first, int(min(since, now) // SLOT_S)), newest + 1)
    return _Asked(
        endpoint=query.get("endpoint"),
        window_s=WINDOW_S if window_s is None else window_s,
        newest=newest,
        points=range(first, newest + 1),
    )


def _number(query: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high or math.isinf(value):
        most = "" if math.isinf(high) else f", at most {high:.0f}"
        raise InvalidField(name, f"must be a number of seconds, at least {low:.0f}{most}")
    return value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
