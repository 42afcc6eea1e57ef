"""Anthropic's messages: blocks of content in and out."""

from __future__ import annotations

from serve_app.api.dialects.anthropic.body import parse_message
from serve_app.api.dialects.anthropic.errors import render_error
from serve_app.api.dialects.anthropic.renderer import MessageRenderer
from serve_app.api.dialects.chat import wire
from serve_app.api.protocol.dialect import Call
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest


class MessageDialect:
    """A message, which is a chat of one choice in another form."""

    stream_type = wire.STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(self, *, notes_pictures: bool) -> None:
        """`notes_pictures`: whether each picture is replaced by a note, or is an error."""
        self._notes_pictures = notes_pictures

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or UnsupportedField."""
        body, pictures = parse_message(raw, notes_pictures=self._notes_pictures)
        model = body.endpoint(endpoint)
        if body.max_tokens is None:
            raise InvalidField("max_tokens", "is required")
        form, offer, hides_thoughts = body.form(), body.offer(), body.hides_thoughts
        request = GenerateRequest(
            id="",
            model=model,
            prompt=body.to_prompt(offer.tools),
            tool_choice=offer.choice,
            sampling=body.sampling(body.max_tokens),
            grammar=form.grammar,
            thinking_tokens=body.thinking_tokens,
            **body.row_options(),
        )
        return Call(
            model=model,
            task=Task.CHAT,
            user=body.sticky,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=body.timeout,
            tells_filtered=True,
            ignored=(*body.ignored, *pictures, *form.ignored, *offer.ignored),
            renderer=lambda id, info: MessageRenderer(id, info, hides_thoughts=hides_thoughts),
            names=body.names,
        )
