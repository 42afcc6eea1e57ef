"""The pages that no protocol owns, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Final

from serve_app.api.openapi.operation import NAMES_MODEL, TEXT, Answer, Operation
from serve_app.api.pages.answers import Live, ModelEntry, ModelList, NotReady, Ready
from serve_app.errors import Unavailable

TAG: Final = "Pages"

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
    what="Every endpoint, and beside it the adapters of its model as ENDPOINT:ADAPTER.",
    answers=(Answer(what="The list.", type=ModelList),),
)
MODEL: Final = Operation(
    summary="One model",
    tag=TAG,
    answers=(Answer(what="The model.", type=ModelEntry),),
    conditions=(*NAMES_MODEL, Unavailable),
)
