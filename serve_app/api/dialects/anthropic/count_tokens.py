"""How many tokens of a message the model would read."""

from __future__ import annotations

from serve_app.api.dialects.anthropic.answers import TokenCount
from serve_app.api.dialects.anthropic.body import parse_message
from serve_app.api.exchange.ask import Inquiry, length_of
from serve_app.types import Tokens


def parse_count(raw: bytes, *, notes_pictures: bool) -> Inquiry[Tokens]:
    """How many tokens of a message the model would read; the body needs no `max_tokens`.

    `notes_pictures`: as in messages. Raises InvalidBody, InvalidField or UnsupportedField.
    """
    body, _ = parse_message(raw, notes_pictures=notes_pictures)
    body.form()
    return length_of(
        body.to_prompt(body.offer().read), model=body.endpoint(None), names=body.names, answer=_count
    )


def _count(num_tokens: int) -> TokenCount:
    return {"input_tokens": num_tokens}
