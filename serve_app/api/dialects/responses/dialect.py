"""Responses as OpenAI has them: items in, items out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from serve_app.api.dialects.base import Call, ErrorReply
from serve_app.api.dialects.chat import wire
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.dialects.responses.openai_wire import OpenaiWire
from serve_app.api.dialects.responses.renderer import ResponseRenderer
from serve_app.api.edge.body import parse_body
from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.types import GenerateRequest

# What an answer does not look back at; its body lives as long as the answer does.
_NOT_ANSWERED: Final = ("input", "logit_bias", "logits_processors", "chat_template_kwargs")


class ResponseDialect:
    """A response is a chat of one choice, told in other words. Nothing of it is kept."""

    stream_type = wire.STREAM_TYPE

    def __init__(self, render_error: Callable[[ServeError], ErrorReply]) -> None:
        """`render_error`: of the protocol whose route it is."""
        self._render_error = render_error

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or UnsupportedField."""
        body = parse_body(ResponseBody, raw)
        body.check_response()
        model = body.endpoint(endpoint)
        form = body.form_of_text()
        offer = body.offer()
        request = GenerateRequest(
            id="",
            model=model,
            prompt=body.to_prompt(offer.tools),
            tool_choice=offer.choice,
            sampling=body.sampling(body.max_output_tokens),
            logprobs=body.num_logprobs,
            thinking_tokens=body.thinking_token_budget,
            grammar=form.grammar,
            **body.row_options(),
        )
        kept = body.without(*_NOT_ANSWERED)
        return Call(
            model=model,
            task=Task.CHAT,
            user=body.sticky,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=body.timeout,
            tells_filtered=True,
            ignored=(*body.ignored, *form.ignored, *offer.ignored),
            renderer=lambda id, info: ResponseRenderer(OpenaiWire(id, info, kept)),
            names=body.names,
        )

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._render_error(error)
