"""POST /v1/responses of OpenAI: items in, items out."""

from __future__ import annotations

from functools import partial
from typing import Final

from serve_app.api.dialects.base import Call, ErrorReply
from serve_app.api.dialects.chat import wire
from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.openai.responses.body import ResponseBody
from serve_app.api.dialects.openai.responses.input_items import parse_input
from serve_app.api.dialects.openai.responses.renderer import ResponseRenderer
from serve_app.api.dialects.openai.responses.tools import parse_tools
from serve_app.api.edge.body import parse_body
from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.types import GenerateRequest, Prompt

# What an answer does not look back at; its body lives as long as the answer does.
_NOT_ANSWERED: Final = ("input", "logit_bias", "logits_processors", "chat_template_kwargs")


class ResponseDialect:
    """A response is a chat of one choice, told in other words. Nothing of it is kept."""

    stream_type = wire.STREAM_TYPE

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or UnsupportedField."""
        body = parse_body(ResponseBody, raw)
        body.check()
        model = body.endpoint(endpoint)
        form = body.form()
        offer = parse_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False)
        request = GenerateRequest(
            id="",
            model=model,
            prompt=Prompt(
                messages=parse_input(body.input, body.instructions),
                tools=offer.tools,
                templating=body.templating(),
            ),
            tool_choice=offer.choice,
            sampling=body.sampling(body.max_output_tokens),
            logprobs=body.logprobs,
            grammar=form.grammar,
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
            ignored=(*body.ignored, *form.ignored, *offer.ignored),
            renderer=partial(ResponseRenderer, body=body.without(*_NOT_ANSWERED)),
            names=body.names,
        )

    def render_error(self, error: ServeError) -> ErrorReply:
        return render_error(error)
