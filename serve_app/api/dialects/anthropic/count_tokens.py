"""POST /v1/messages/count_tokens: how many tokens the model would read, before it is asked."""

from __future__ import annotations

from typing import Any

from serve_app.api.admission.estimates import prompt_tokens
from serve_app.api.dialects.anthropic.body import MessageBody
from serve_app.api.edge.body import parse_body
from serve_app.api.exchange.ask import Inquiry, count_tokens
from serve_app.types import ModelInfo, TokenizeRequest, Tokens, ToolMode


def parse_count(raw: bytes) -> Inquiry[Tokens]:
    """The body is that of the message; its length is not needed.

    Raises InvalidBody, InvalidField or UnsupportedField.
    """
    body = parse_body(MessageBody, raw)
    body.check_message()
    body.form()
    offer = body.offer()
    is_offered = offer.choice.mode is not ToolMode.NONE
    question = TokenizeRequest(id="", prompt=body.to_prompt(offer.tools if is_offered else ()))
    return Inquiry(
        model=body.endpoint(None),
        questions=(question,),
        answer=_count,
        estimate=lambda: prompt_tokens(question.prompt),
        tokens=count_tokens,
        names=body.names,
    )


def _count(info: ModelInfo, replies: list[Tokens]) -> dict[str, Any]:
    return {"input_tokens": count_tokens(replies)}
