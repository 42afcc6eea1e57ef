"""The routes of pages, which are the same for all protocols: health, metrics, and each protocol's models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from serve_app.api.dialects.anthropic.answers import AnthropicErrorBody, AnthropicModel, AnthropicModels
from serve_app.api.edge.connection import JsonPage
from serve_app.api.openapi.operation import NAMES_MODEL, TEXT, Answer, Operation
from serve_app.api.pages import answers
from serve_app.api.pages.health import Live, MetricsPage, Ready
from serve_app.api.pages.models import Models
from serve_app.api.protocol.family import ANTHROPIC_BASES, ANTHROPIC_VERSION
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import Unavailable
from serve_app.types import Scope

TAG: Final = "Pages"
_ANTHROPICS: Final = (
    f"In Anthropic's shape where the path or the header `{ANTHROPIC_VERSION}` says that the client is one of "
    "Anthropic's; its list has pages, by `limit`, `after_id` and `before_id`."
)

LIVE: Final = Operation(
    summary="Whether the process lives",
    tag=TAG,
    answers=(Answer(what="It does.", type=answers.Live),),
)
READY: Final = Operation(
    summary="Whether the gateway is ready",
    tag=TAG,
    what="The reasons of a state that is not `ready` are shown to those who may list the models.",
    answers=(
        Answer(what="Every endpoint is answered.", type=answers.Ready),
        Answer(what="An endpoint has no entity that can answer.", type=answers.NotReady, status=503),
    ),
)
METRICS: Final = Operation(
    summary="Metrics in Prometheus' text format",
    tag=TAG,
    answers=(Answer(what="The metrics.", type=str, media=TEXT),),
)
MODELS: Final = Operation(
    summary="The models that can answer",
    tag=TAG,
    what=f"Every endpoint, and beside it the adapters of its model as ENDPOINT:ADAPTER. {_ANTHROPICS}",
    answers=(
        Answer(what="The list.", type=answers.ModelList),
        Answer(what="Anthropic's list.", type=AnthropicModels),
        Answer(what="A page that cannot be.", type=AnthropicErrorBody, status=400),
    ),
)
MODEL: Final = Operation(
    summary="One model",
    tag=TAG,
    what=_ANTHROPICS,
    answers=(
        Answer(what="The model.", type=answers.ModelEntry),
        Answer(what="Anthropic's.", type=AnthropicModel),
        *(Answer(what="", type=AnthropicErrorBody, status=status) for status in (404, 503)),
    ),
    conditions=(*NAMES_MODEL, Unavailable),
)


# That clients of OpenAI's and of Anthropic's are given.
_BASES: Final = ("/v1", "/v3", "/v3/v1", "/serving-endpoints", "/ai-gateway/mlflow/v1", *ANTHROPIC_BASES[1:])


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    ready = Ready(services)
    models = Models(services)
    listed, named = JsonPage(models.listed), JsonPage(models.named)
    yield Entry("GET", "/livez", Live(), None, operation=LIVE)
    yield Entry("GET", "/readyz", ready, None, operation=READY)
    yield Entry("GET", "/health", ready, None, operation=READY)
    yield Entry("GET", "/metrics", MetricsPage(services.metrics), Scope.METRICS, operation=METRICS)
    for base in _BASES:
        yield Entry("GET", f"{base}/models", listed, Scope.INFERENCE, operation=MODELS)
        yield Entry("GET", f"{base}/models/{{name:path}}", named, Scope.INFERENCE, operation=MODEL)
