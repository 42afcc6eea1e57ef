"""POST /v1/responses/input_tokens: how many tokens the input of a response has, before it is asked for."""

from __future__ import annotations

from typing import Any

from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.edge.body import parse_body
from serve_app.api.exchange.ask import Inquiry, length_of
from serve_app.types import Tokens


def parse_input_tokens(raw: bytes) -> Inquiry[Tokens]:
    """The body is that of the response. Raises InvalidBody, InvalidField or UnsupportedField."""
    body = parse_body(ResponseBody, raw)
    body.check_response()
    body.form_of_text()
    return length_of(
        body.to_prompt(body.offer().read), model=body.endpoint(None), names=body.names, answer=_told
    )


def _told(num_tokens: int) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": num_tokens}
