"""POST /v1/responses/input_tokens: how many tokens the input of a response has, before it is asked for."""

from __future__ import annotations

from typing import Any

from serve_app.api.admission.estimates import prompt_tokens
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.edge.body import parse_body
from serve_app.api.exchange.ask import Inquiry, count_tokens
from serve_app.types import ModelInfo, TokenizeRequest, Tokens, ToolMode


def parse_input_tokens(raw: bytes) -> Inquiry[Tokens]:
    """The body is that of the response. Raises InvalidBody, InvalidField or UnsupportedField."""
    body = parse_body(ResponseBody, raw)
    body.check_response()
    body.form_of_text()
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
    return {"object": "response.input_tokens", "input_tokens": count_tokens(replies)}
