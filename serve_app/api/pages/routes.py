"""The routes of pages, the same for all protocols: health, metrics, and models below each protocol's base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from serve_app.api.dialects.family import ANTHROPIC_BASES
from serve_app.api.pages import operations
from serve_app.api.pages.health import Live, MetricsPage, Ready
from serve_app.api.pages.models import ModelList, ModelPage
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

# That clients of OpenAI's and of Anthropic's are given.
_BASES: Final = ("/v1", "/v3", "/v3/v1", "/serving-endpoints", "/ai-gateway/mlflow/v1", *ANTHROPIC_BASES[1:])


def routes(services: Services) -> Iterator[Entry]:
    """All of them."""
    ready = Ready(services)
    models, model = (page(services) for page in (ModelList, ModelPage))
    yield Entry("GET", "/livez", Live(), None, operation=operations.LIVE)
    yield Entry("GET", "/readyz", ready, None, operation=operations.READY)
    yield Entry("GET", "/health", ready, None, operation=operations.READY)
    yield Entry("GET", "/metrics", MetricsPage(services.metrics), Scope.METRICS, operation=operations.METRICS)
    for base in _BASES:
        yield Entry("GET", f"{base}/models", models, Scope.INFERENCE, operation=operations.MODELS)
        yield Entry("GET", f"{base}/models/{{name:path}}", model, Scope.INFERENCE, operation=operations.MODEL)
