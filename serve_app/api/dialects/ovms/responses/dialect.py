"""Responses of OpenVINO Model Server: items in, items out."""

from __future__ import annotations

from serve_app.api.dialects.chat.pictures import with_notes
from serve_app.api.dialects.ovms.errors import OvmsDialect
from serve_app.api.dialects.ovms.responses.body import ResponseBody
from serve_app.api.dialects.ovms.responses.wire import OvmsWire
from serve_app.api.dialects.responses.input_items import parse_input
from serve_app.api.dialects.responses.renderer import ResponseRenderer
from serve_app.api.dialects.responses.tools import parse_tools
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call
from serve_app.config import OvmsConfig
from serve_app.endpoints.endpoint import Task
from serve_app.types import GenerateRequest, Prompt


class ResponseDialect(OvmsDialect):
    """A response, which is a chat in another form and is not kept."""

    def __init__(self, config: OvmsConfig, *, notes_pictures: bool) -> None:
        """`notes_pictures`: whether each picture is replaced by a note, or is an error."""
        super().__init__(config)
        self._notes_pictures = notes_pictures

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or UnsupportedField."""
        body = parse_body(ResponseBody, raw)
        body.check(self._config)
        items, pictures = with_notes(body.input, "input") if self._notes_pictures else (body.input, ())
        model = endpoint or body.model or ""
        offer = parse_tools(
            body.tools,
            body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            subset=False,
            nested=True,
        )
        form = body.form()
        # The product added this route after it began to separate thoughts from text: no profile mixes them.
        options = {**body.options(self._config, form.grammar), "reasoning": True}
        request = GenerateRequest(
            id="",
            model=model,
            prompt=Prompt(
                messages=parse_input(items, body.instructions, keeps_thoughts=True),
                tools=offer.tools,
                templating=body.templating(),
            ),
            tool_choice=offer.choice,
            logprobs=body.num_logprobs,
            **options,
        )
        kept = body.for_answer()
        return Call(
            model=model,
            task=Task.CHAT,
            user=body.sticky,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=None,
            tells_filtered=True,
            ignored=(
                *body.moot,
                *body.unkept,
                *pictures,
                *form.ignored,
                *offer.ignored,
            ),  # unknown fields are in silence
            renderer=lambda id, info: ResponseRenderer(OvmsWire(id, kept, offer.choice)),
            names=body.names,
        )
