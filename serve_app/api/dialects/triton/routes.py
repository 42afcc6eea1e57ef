"""Triton's routes below /v2: inference, and the pages of server, models and repository."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp

from serve_app.api.dialects.family import Family
from serve_app.api.dialects.triton import operations, pages
from serve_app.api.dialects.triton.inference_routes import InferRoute, ValuesRoute
from serve_app.api.dialects.triton.repository import IndexRoute, LoadRoute, UnloadRoute
from serve_app.api.kserve.paths import MODELS, PAGES
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope


def routes(services: Services) -> Iterator[Entry]:
    """All routes of Triton."""
    yield _entry("GET", "/v2", pages.ServerPage(services), operations.SERVER)
    yield _entry("GET", "/v2/health/live", pages.ServerLive(), operations.LIVE)
    yield _entry("GET", "/v2/health/ready", pages.ServerReady(services), operations.READY)
    yield _entry("GET", "/v2/models/stats", pages.AllStatsPage(services), operations.ALL_STATISTICS)
    yield _entry("POST", "/v2/repository/index", IndexRoute(services), operations.INDEX)
    yield _entry("POST", "/v2/repository/models/{model:path}/load", LoadRoute(services), operations.LOAD)
    yield _entry(
        "POST", "/v2/repository/models/{model:path}/unload", UnloadRoute(services), operations.UNLOAD
    )
    for model in MODELS:
        yield _entry(
            "POST",
            f"{model}/generate",
            ValuesRoute(services, stream=False),
            operations.generate(stream=False),
        )
        yield _entry(
            "POST",
            f"{model}/generate_stream",
            ValuesRoute(services, stream=True),
            operations.generate(stream=True),
        )
        yield _entry("POST", f"{model}/infer", InferRoute(services), operations.INFER)
        yield _entry("GET", f"{model}/ready", pages.ModelReadyPage(services), operations.MODEL_READY)
        yield _entry("GET", f"{model}/config", pages.ConfigPage(services), operations.CONFIG)
        yield _entry("GET", f"{model}/stats", pages.StatsPage(services), operations.STATISTICS)
    for model in PAGES:
        yield _entry("GET", model, pages.ModelPage(services), operations.MODEL)


def _entry(method: str, path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.TRITON, operation)
