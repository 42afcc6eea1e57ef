"""The pages that no protocol owns, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Final

from serve_app.api.dialects.anthropic.answers import AnthropicErrorBody, AnthropicModel, AnthropicModels
from serve_app.api.dialects.family import ANTHROPIC_VERSION
from serve_app.api.openapi.operation import NAMES_MODEL, TEXT, Answer, Operation
from serve_app.api.pages.answers import Live, ModelEntry, ModelList, NotReady, Ready
from serve_app.errors import Unavailable

TAG: Final = "Pages"
_ANTHROPICS: Final = (
    f"In Anthropic's shape where the path or the header `{ANTHROPIC_VERSION}` says that the client is one of "
    "Anthropic's; its list has pages, by `limit`, `after_id` and `before_id`."
)

LIVE: Final = Operation(
    summary="Whether the process lives",
    tag=TAG,
    answers=(Answer(what="It does.", type=Live),),
)
READY: Final = Operation(
    summary="Whether the gateway is ready",
    tag=TAG,
    what="The reasons of a state that is not `ready` are told to those who may list the models.",
    answers=(
        Answer(what="Every endpoint is answered.", type=Ready),
        Answer(what="An endpoint has nobody who can answer.", type=NotReady, status=503),
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
        Answer(what="The list.", type=ModelList),
        Answer(what="Anthropic's list.", type=AnthropicModels),
        Answer(what="A page that cannot be.", type=AnthropicErrorBody, status=400),
    ),
)
MODEL: Final = Operation(
    summary="One model",
    tag=TAG,
    what=_ANTHROPICS,
    answers=(
        Answer(what="The model.", type=ModelEntry),
        Answer(what="Anthropic's.", type=AnthropicModel),
        *(Answer(what="", type=AnthropicErrorBody, status=status) for status in (404, 503)),
    ),
    conditions=(*NAMES_MODEL, Unavailable),
)
