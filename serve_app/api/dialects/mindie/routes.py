"""MindIE's routes: chat, ending a running request, and the pages below /v2.

The module `shared_with_triton` has the routes generate and generate_stream, whose paths are also Triton's;
`shared_with_openai` has chat below /v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp

from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.chat.paths import CHAT, OVMS_BASES
from serve_app.api.dialects.mindie import answers, metadata
from serve_app.api.dialects.mindie.chat import ChatBody, ChatDialect, GreedyChatBody
from serve_app.api.dialects.mindie.errors import render_body_error, render_error
from serve_app.api.dialects.mindie.generate import TextBody
from serve_app.api.dialects.mindie.stop import StopBody, StopRoute
from serve_app.api.dialects.mindie.tgi import ContinueRoute, ContinueTarget
from serve_app.api.dialects.mindie.tgi_body import ContinueBody
from serve_app.api.edge.connection import JsonPage
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.kserve.paths import MODELS, PAGES
from serve_app.api.openapi.operation import (
    EVENTS,
    NAMES_MODEL,
    READS_BODY,
    Answer,
    Body,
    Conditions,
    Errors,
    Operation,
    asking,
    streamed,
)
from serve_app.api.pages import answers as shared_answers
from serve_app.api.pages.health import Live, Ready
from serve_app.api.protocol.family import Family
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.config import MindieConfig
from serve_app.errors import RouteNotFound, Unavailable
from serve_app.types import Scope

TAG: Final = "MindIE"
ERRORS: Final = Errors(type=answers.ErrorBody, render=render_error)
_BODY_ERRORS: Final = Errors(type=answers.ErrorBody, render=render_body_error)
_TEXT: Final[dict[str, Any]] = {
    "a continuation": {
        "id": "a1",
        "text_input": "2 + 2 =",
        "parameters": {"max_new_tokens": 8, "details": True},
    }
}
_PROMPT: Final[dict[str, Any]] = {
    "a continuation": {"inputs": "2 + 2 =", "parameters": {"max_new_tokens": 8, "details": True}}
}
_UNKNOWN: Final = "Unknown fields are ignored."
_operation: Final = partial(Operation, tag=TAG, errors=ERRORS)
_asking: Final = partial(asking, TAG, ERRORS)


def chat_operation(config: MindieConfig) -> Operation:
    """The chat, with the range of temperatures that the operator chose."""
    body = GreedyChatBody if config.allow_zero_temperature else ChatBody
    return asking(
        TAG,
        _BODY_ERRORS,
        "Chat",
        f"Messages in, the assistant's next message out. {_UNKNOWN}",
        Body(type=body, examples=examples.CHAT),
        *streamed(answers.ChatCompletion, answers.ChatChunk | answers.ErrorBody),
    )


def text_operation(*, stream: bool) -> Operation:
    """The continuation of a text."""
    events = Answer(what="An event a token.", type=answers.TextEvent | answers.ErrorBody, media=EVENTS)
    return _asking(
        "Generate, an event a token" if stream else "Generate",
        f"A text in, its continuation out. {_UNKNOWN}",
        Body(type=TextBody, examples=_TEXT),
        events if stream else Answer(what="The whole continuation.", type=answers.Text),
    )


def continue_operation(target: ContinueTarget) -> Operation:
    """The continuation of a prompt, on a route that names no model."""
    whole, event = {
        "infer": (answers.Infer, answers.InferEvent),
        "tgi": (answers.Tgi, answers.TgiEvent),
        "list": (list[answers.Tgi], answers.TgiEvent),
    }[target.form]
    events = Answer(what="An event a token.", type=event | answers.ErrorBody, media=EVENTS)
    both = (Answer(what="The whole continuation.", type=whole), events)
    return _asking(
        "Infer" if target.form == "infer" else "Generate, as Text Generation Inference does",
        f"A prompt in, its continuation out, by the first endpoint that generates. {_UNKNOWN}",
        Body(type=ContinueBody, examples=_PROMPT),
        *(both if target.stream is None else (events if target.stream else both[0],)),
    )


def _page(summary: str, what: str, type_: Any, *conditions: Conditions) -> Operation:
    return _operation(
        summary=summary,
        answers=(Answer(what=what, type=type_),),
        conditions=tuple(each for some in conditions for each in some),
    )


STOP: Final = _operation(
    summary="End a request",
    what="Ends the caller's newest request of this id.",
    bodies=(Body(type=StopBody, examples={"by id": {"id": "a1"}}),),
    answers=(Answer(what="The request is ended.", type=answers.Stopped),),
    conditions=(*READS_BODY, *NAMES_MODEL, RouteNotFound),
)
SERVER: Final = _page("The server", "Who answers.", answers.ServerPage)
LIVE: Final = _page("Whether the server lives", "It does.", shared_answers.Live)
READY: Final = _operation(
    summary="Whether the server is ready",
    answers=(
        Answer(what="Every endpoint is answered.", type=shared_answers.Ready),
        Answer(what="An endpoint has no entity that can answer.", type=shared_answers.NotReady, status=503),
    ),
)
MODEL: Final = _page("A model", "The model.", answers.ModelPage, NAMES_MODEL)
MODEL_READY: Final = _page(
    "Whether a model is ready", "It is.", answers.ReadyPage, NAMES_MODEL, (Unavailable,)
)
CONFIG: Final = _page("A model's limits", "The limits.", answers.ConfigPage, NAMES_MODEL, (Unavailable,))

CONTINUED: Final = {
    "/infer": ContinueTarget("infer"),
    "/generate": ContinueTarget("tgi", stream=False),
    "/generate_stream": ContinueTarget("tgi", stream=True),
    "/": ContinueTarget("list"),
}


def routes(services: Services) -> Iterator[Entry]:
    """All routes but generate, generate_stream and chat below /v1."""
    chat = GenerateRoute(ChatDialect(services.config.mindie), services)
    for base in OVMS_BASES:
        yield _entry("POST", f"{base}{CHAT}", chat, chat_operation(services.config.mindie))
    for path, target in CONTINUED.items():
        yield _entry("POST", path, ContinueRoute(services, target), continue_operation(target))
    server = JsonPage(lambda scope: metadata.server_page(services.config.v1_dialect))
    yield _entry("GET", "/v2", server, SERVER)
    yield _entry("GET", "/v2/health/live", Live(), LIVE)
    yield _entry("GET", "/v2/health/ready", Ready(services), READY)
    for model in MODELS:
        yield _entry("POST", f"{model}/stopInfer", StopRoute(services), STOP)
        yield _entry("GET", f"{model}/ready", JsonPage(partial(metadata.ready_page, services)), MODEL_READY)
        yield _entry("GET", f"{model}/config", JsonPage(partial(metadata.config_page, services)), CONFIG)
    for model in PAGES:
        yield _entry("GET", model, JsonPage(partial(metadata.model_page, services)), MODEL)


def _entry(method: str, path: str, app: ASGIApp, operation: Operation) -> Entry:
    return Entry(method, path, app, Scope.INFERENCE, Family.MINDIE, operation)
