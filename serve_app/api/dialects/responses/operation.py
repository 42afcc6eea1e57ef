"""The route of responses as the OpenAPI document describes it."""

from __future__ import annotations

from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.responses.answers import Event, Response
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.openapi.operation import ASKS_MODEL, EVENTS, Answer, Body, Errors, Operation


def response_operation(tag: str, errors: Errors) -> Operation:
    """Responses as OpenAI has them, below a protocol's tag and with its errors."""
    return Operation(
        summary="Responses",
        tag=tag,
        what=(
            "Items in, items out: what was said, thought, called and answered. Nothing of a response is "
            "kept: the input holds the earlier items. Unknown fields are ignored, and named in the header "
            "`X-Ignored-Fields`."
        ),
        bodies=(Body(type=ResponseBody, examples=examples.RESPONSE),),
        answers=(
            Answer(what="The whole response.", type=Response),
            Answer(what="With `stream`: the events by which it grows.", type=Event, media=EVENTS),
        ),
        errors=errors,
        conditions=ASKS_MODEL,
    )
