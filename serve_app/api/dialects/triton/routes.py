"""Triton's routes below /v2: inference, and the pages of server, models and repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final

from starlette.types import ASGIApp
from starlette.types import Scope as AsgiScope

from serve_app.api.dialects.triton import answers, metadata, shapes
from serve_app.api.dialects.triton.errors import probe_error, render_error
from serve_app.api.dialects.triton.inference_routes import InferRoute, ValuesRoute
from serve_app.api.dialects.triton.repository import (
    ControlBody,
    IndexBody,
    IndexRoute,
    LoadRoute,
    UnloadRoute,
)
from serve_app.api.dialects.triton.statistics import statistics
from serve_app.api.edge.connection import JsonPage
from serve_app.api.kserve.http_body import HEADER
from serve_app.api.kserve.paths import MODELS, PAGES
from serve_app.api.openapi.operation import (
    ASKS_MODEL,
    BINARY,
    EVENTS,
    NAMES_MODEL,
    READS_BODY,
    Answer,
    Body,
    Conditions,
    Errors,
    Operation,
    Parameter,
)
from serve_app.api.protocol.family import Family
from serve_app.api.protocol.string_error import StringErrorBody
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import DeadlineExceeded, InvalidField, Unavailable
from serve_app.types import Scope

TAG: Final = "Triton"
ERRORS: Final = Errors(type=StringErrorBody, render=render_error)
_operation: Final = partial(Operation, tag=TAG, errors=ERRORS)
_PROBE_ERRORS: Final = Errors(type=StringErrorBody, render=probe_error)

_VALUES: Final = Annotated[dict[str, Any], answers.Values]
_TEXT: Final[dict[str, Any]] = {
    "a text": {"text_input": "2 + 2 =", "max_tokens": 8},
    "token ids": {"input_ids": [1, 2, 3], "request_output_len": 8},
}
_TENSORS: Final[dict[str, Any]] = {
    "token ids": {
        "inputs": [
            {"name": "input_ids", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "request_output_len", "datatype": "INT32", "shape": [1, 1], "data": [8]},
        ]
    }
}
_ENSEMBLE: Final = (
    "The names of TensorRT-LLM's ensemble (settings below `trtllm`) mean texts in and out, or the steps "
    "between texts and tensors."
)

INFER: Final = _operation(
    summary="Infer",
    what=f"Tensors in, tensors out, as JSON or with binary data after it. {_ENSEMBLE}",
    parameters=(
        Parameter(
            name=HEADER,
            place="header",
            type=int,
            what="Bytes of JSON at the beginning of the body, where binary tensors follow it.",
        ),
    ),
    bodies=(
        Body(type=shapes.InferBody, examples=_TENSORS),
        Body(type=bytes, media=BINARY),
    ),
    answers=(
        Answer(what="The outputs.", type=answers.Inference),
        Answer(what="With `binary_data`: JSON, and the outputs as bytes after it.", type=bytes, media=BINARY),
    ),
    conditions=ASKS_MODEL,
)


def generate_operation(*, stream: bool) -> Operation:
    """The operation of a route that takes and returns the values of tensors."""
    bodies = (shapes.Values, shapes.PreprocessingValues, shapes.PostprocessingValues)
    values = Answer(what="The outputs.", type=_VALUES)
    events = Answer(
        what="The outputs, with `streaming` of a token.", type=_VALUES | StringErrorBody, media=EVENTS
    )
    return _operation(
        summary="Generate, as events" if stream else "Generate",
        what=f"Tensors as values in, outputs as values out. {_ENSEMBLE}",
        bodies=tuple(
            Body(type=Annotated[dict[str, Any], body], examples=_TEXT if body is shapes.Values else {})
            for body in bodies
        ),
        answers=(events if stream else values,),
        conditions=ASKS_MODEL,
    )


def _page(summary: str, what: str, type_: Any, conditions: Conditions = ()) -> Operation:
    answer = Answer(what=what, type=type_)
    return _operation(summary=summary, answers=(answer,), conditions=conditions)


SERVER: Final = _page("The server", "Who answers.", answers.ServerPage)
LIVE: Final = _page("Whether the server lives", "It does.", answers.Live)
READY: Final = _operation(
    summary="Whether the server is ready",
    answers=(
        Answer(what="Every endpoint is answered.", type=answers.Ready),
        Answer(what="An endpoint has no entity that can answer.", type=answers.NotReady, status=400),
    ),
)
MODEL: Final = _page("A model", "The model and its tensors.", answers.ModelPage, NAMES_MODEL)
MODEL_READY: Final = Operation(
    summary="Whether a model is ready",
    tag=TAG,
    answers=(Answer(what="It is.", type=answers.ModelReady),),
    errors=_PROBE_ERRORS,
    conditions=(*NAMES_MODEL, Unavailable),
)
CONFIG: Final = _page("A model's configuration", "The configuration.", answers.ModelConfig, NAMES_MODEL)
STATISTICS: Final = _page(
    "A model's statistics", "What this gateway counted.", answers.Statistics, NAMES_MODEL
)
ALL_STATISTICS: Final = _page("Statistics", "What this gateway counted.", answers.Statistics)

INDEX: Final = _operation(
    summary="The index of models",
    bodies=(Body(type=IndexBody, is_required=False, examples={"what is ready": {"ready": True}}),),
    answers=(Answer(what="An entry for each version of each model.", type=list[answers.IndexEntry]),),
    conditions=READS_BODY,
)
LOAD: Final = _operation(
    summary="Load a model",
    what="Wakes a model of the deploy file, and answers once it can answer.",
    bodies=(Body(type=ControlBody, is_required=False),),
    answers=(Answer(what="The model can answer."),),
    conditions=(*READS_BODY, Unavailable, DeadlineExceeded),
)
UNLOAD: Final = _operation(
    summary="Unload a model",
    what="Always refused: the deploy file says which models there are.",
    bodies=(Body(type=ControlBody, is_required=False),),
    answers=(),
    conditions=(*READS_BODY, InvalidField),
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of Triton."""

    def page(path: str, answer: Callable[[AsgiScope], object], operation: Operation) -> Entry:
        return _entry("GET", path, JsonPage(answer), operation)

    def found(scope: AsgiScope) -> metadata.Found:
        return metadata.find(services, scope, scope["path_params"])

    yield page("/v2", lambda scope: metadata.server_metadata(services.config.v1_dialect), SERVER)
    yield page("/v2/health/live", lambda scope: {"live": True}, LIVE)
    yield _entry("GET", "/v2/health/ready", metadata.ServerReady(services), READY)
    yield page("/v2/models/stats", lambda scope: statistics(services, scope), ALL_STATISTICS)
    yield _entry("POST", "/v2/repository/index", IndexRoute(services), INDEX)
    yield _entry("POST", "/v2/repository/models/{model:path}/load", LoadRoute(services), LOAD)
    yield _entry("POST", "/v2/repository/models/{model:path}/unload", UnloadRoute(services), UNLOAD)
    for model in MODELS:
        yield _entry(
            "POST",
            f"{model}/generate",
            ValuesRoute(services, stream=False),
            generate_operation(stream=False),
        )
        yield _entry(
            "POST",
            f"{model}/generate_stream",
            ValuesRoute(services, stream=True),
            generate_operation(stream=True),
        )
        yield _entry("POST", f"{model}/infer", InferRoute(services), INFER)
        yield page(f"{model}/ready", partial(metadata.model_ready, services), MODEL_READY)
        yield page(f"{model}/config", lambda scope: metadata.model_config(services, found(scope)), CONFIG)
        yield page(
            f"{model}/stats", lambda scope: statistics(services, scope, scope["path_params"]), STATISTICS
        )
    for model in PAGES:
        yield page(model, lambda scope: metadata.model_metadata(found(scope)), MODEL)


def _entry(method: str, path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.TRITON, operation)
