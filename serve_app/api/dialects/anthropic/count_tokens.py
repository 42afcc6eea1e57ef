"""POST /v1/messages/count_tokens: how many tokens the model would read, before it is asked."""

from __future__ import annotations

from typing import Any

from serve_app.api.dialects.anthropic.body import MessageBody
from serve_app.api.edge.body import parse_body
from serve_app.api.exchange.ask import Inquiry, length_of
from serve_app.types import Tokens


def parse_count(raw: bytes) -> Inquiry[Tokens]:
    """The body is that of the message; its length is not needed.

    Raises InvalidBody, InvalidField or UnsupportedField.
    """
    body = parse_body(MessageBody, raw)
    body.check_message()
    body.form()
    return length_of(
        body.to_prompt(body.offer().read), model=body.endpoint(None), names=body.names, answer=_told
    )


def _told(num_tokens: int) -> dict[str, Any]:
    return {"input_tokens": num_tokens}
