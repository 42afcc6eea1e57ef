"""POST /v1/responses/input_tokens: the number of tokens in the input of a response."""

from __future__ import annotations

from serve_app.api.dialects.openai.answers import InputTokenCount
from serve_app.api.dialects.responses.body import Reading, ResponseBody, parse_response
from serve_app.api.dialects.responses.previous_response import Earlier
from serve_app.api.exchange.ask import Inquiry, length_of
from serve_app.api.protocol.dialect import Referring
from serve_app.types import Tokens


def parse_input_tokens(raw: bytes, reading: Reading) -> Inquiry[Tokens] | Referring[Inquiry[Tokens]]:
    """The body is the same as for the response. Raises InvalidBody, InvalidField or UnsupportedField."""
    body, _ = parse_response(raw, reading)
    body.form_of_text()
    references = body.references(are_kept=reading.keeps)
    if not references:
        return _inquiry(body, Earlier())
    return Referring(
        model=body.endpoint(None),
        ids=references.responses,
        last=references.previous,
        names=body.names,
        complete=lambda kept: _inquiry(body, references.found(kept)),
    )


def _inquiry(body: ResponseBody, earlier: Earlier) -> Inquiry[Tokens]:
    prompt = body.to_prompt(body.offer().read, earlier)
    return length_of(prompt, model=body.endpoint(None), names=body.names, answer=_told)


def _told(num_tokens: int) -> InputTokenCount:
    return {"object": "response.input_tokens", "input_tokens": num_tokens}
