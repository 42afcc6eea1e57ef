"""MindIE's routes: chat, the end of a text by request, and the pages below /v2.

Its texts, generate and generate_stream, share their paths with Triton: see `dialects/v2`. Its chat below /v1
shares the path with OpenAI's: see `dialects/v1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat.paths import CHAT, OVMS_BASES
from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie import operations, pages
from serve_app.api.dialects.mindie.chat import ChatDialect
from serve_app.api.dialects.mindie.continue_route import ContinueRoute, ContinueTarget
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.kserve.paths import MODELS, PAGES
from serve_app.api.openapi.operation import Operation
from serve_app.api.pages.health import Live, Ready
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

CONTINUED: Final = {
    "/infer": ContinueTarget("infer"),
    "/generate": ContinueTarget("tgi", stream=False),
    "/generate_stream": ContinueTarget("tgi", stream=True),
    "/": ContinueTarget("list"),
}


def routes(services: Services) -> Iterator[Entry]:
    """All but those two: texts, and chat below /v1."""
    chat = GenerateRoute(ChatDialect(services.config.mindie), services)
    for base in OVMS_BASES:
        yield _entry("POST", f"{base}{CHAT}", chat, operations.chat(services.config.mindie))
    for path, target in CONTINUED.items():
        yield _entry("POST", path, ContinueRoute(services, target), operations.continued(target))
    yield _entry("GET", "/v2", pages.ServerPage(services.config.v1_dialect), operations.SERVER)
    yield _entry("GET", "/v2/health/live", Live(), operations.LIVE)
    yield _entry("GET", "/v2/health/ready", Ready(services), operations.READY)
    for model in MODELS:
        yield _entry("POST", f"{model}/stopInfer", pages.StopRoute(services), operations.STOP)
        yield _entry("GET", f"{model}/ready", pages.ReadyPage(services), operations.MODEL_READY)
        yield _entry("GET", f"{model}/config", pages.ConfigPage(services), operations.CONFIG)
    for model in PAGES:
        yield _entry("GET", model, pages.ModelPage(services), operations.MODEL)


def _entry(method: str, path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.MINDIE, operation)
