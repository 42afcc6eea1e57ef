"""Anthropic's routes as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Final

from serve_app.api.dialects.anthropic.answers import AnthropicErrorBody, Message, MessageEvent, TokenCount
from serve_app.api.dialects.anthropic.body import MessageBody
from serve_app.api.dialects.anthropic.errors import render_error
from serve_app.api.dialects.chat import examples
from serve_app.api.openapi.operation import ASKS_MODEL, EVENTS, Answer, Body, Errors, Operation

TAG: Final = "Anthropic"
ERRORS: Final = Errors(type=AnthropicErrorBody, render=render_error)

MESSAGES: Final = Operation(
    summary="Messages",
    tag=TAG,
    what=(
        "Messages in, the assistant's next message out. Unknown fields are ignored, and named in the header "
        "`X-Ignored-Fields`."
    ),
    bodies=(Body(type=MessageBody, examples=examples.MESSAGE, required=("max_tokens",)),),
    answers=(
        Answer(what="The whole message.", type=Message),
        Answer(what="With `stream`: the events by which it grows.", type=MessageEvent, media=EVENTS),
    ),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
COUNT_TOKENS: Final = Operation(
    summary="Count the tokens of a message",
    tag=TAG,
    what="How many tokens the model would read. The body is that of the message, without its length.",
    bodies=(Body(type=MessageBody, examples=examples.MESSAGE_TO_COUNT),),
    answers=(Answer(what="The count.", type=TokenCount),),
    errors=ERRORS,
    conditions=ASKS_MODEL,
)
