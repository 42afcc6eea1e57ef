"""OpenAI's responses: items in, items out."""

from __future__ import annotations

from collections.abc import Callable

from serve_app.api.dialects.chat import examples, wire
from serve_app.api.dialects.responses.answers import Response
from serve_app.api.dialects.responses.body import Reading, ResponseBody, parse_response
from serve_app.api.dialects.responses.events import Event
from serve_app.api.dialects.responses.openai_wire import OpenaiWire
from serve_app.api.dialects.responses.previous_response import Earlier, packed
from serve_app.api.dialects.responses.renderer import ResponseRenderer
from serve_app.api.openapi.operation import EVENTS, Answer, Body, Errors, Operation, asking
from serve_app.api.protocol.dialect import Call, ErrorReply, Referring
from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.types import GenerateRequest, ModelInfo


def response_operation(tag: str, errors: Errors) -> Operation:
    """OpenAI's responses in the OpenAPI document, with the tag and errors of the route's protocol."""
    return asking(
        tag,
        errors,
        "Responses",
        "Items in, items out: what was said, thought, called and answered. A response is kept for its "
        "key, unless `store` is false: `previous_response_id` goes on from it, and an `item_reference` "
        "stands for an item of it. Unknown fields are ignored, and named in `X-Ignored-Fields`.",
        Body(type=ResponseBody, examples=examples.RESPONSE),
        Answer(what="The whole response.", type=Response),
        Answer(what="With `stream`: the events by which it grows.", type=Event, media=EVENTS),
    )


class ResponseDialect:
    """A response, which is a chat of one choice in another form; later requests may continue it."""

    stream_type = wire.STREAM_TYPE

    def __init__(self, render_error: Callable[[ServeError], ErrorReply], reading: Reading) -> None:
        """`render_error`: the error renderer of the route's protocol."""
        self.render_error = render_error
        self._reading = reading

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises InvalidBody, InvalidField or UnsupportedField."""
        body, pictures = parse_response(raw, self._reading)
        references = body.references(are_kept=self._reading.keeps)
        if not references:
            return self._call(body, endpoint, Earlier(), pictures)
        return Referring(
            model=body.endpoint(endpoint),
            ids=references.responses,
            last=references.previous,
            names=body.names,
            complete=lambda kept: self._call(body, endpoint, references.found(kept), pictures),
        )

    def _call(
        self, body: ResponseBody, endpoint: str | None, earlier: Earlier, pictures: tuple[str, ...]
    ) -> Call:
        """Raises NotKept, or an error of `parse`."""
        model = body.endpoint(endpoint)
        form = body.form_of_text()
        offer = body.offer()
        request = GenerateRequest(
            id="",
            model=model,
            prompt=body.to_prompt(offer.tools, earlier),
            tool_choice=offer.choice,
            sampling=body.sampling(body.max_output_tokens),
            logprobs=body.num_logprobs,
            thinking_tokens=body.thinking_token_budget,
            grammar=form.grammar,
            **body.row_options(),
        )
        asked = body.for_answer()
        stores = self._reading.keeps and body.store is not False
        input = packed(earlier.resolved(body.input)) if stores else b""

        def renderer(id: str, info: ModelInfo) -> ResponseRenderer:
            wire = OpenaiWire(id, info, asked, stores=stores)
            return ResponseRenderer(wire, (asked.previous_response_id or "", input) if stores else None)

        return Call(
            model=model,
            task=Task.CHAT,
            user=body.sticky,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=body.timeout,
            tells_filtered=True,
            ignored=(
                *(*body.ignored, *(() if stores else body.unkept)),
                *(*pictures, *form.ignored, *offer.ignored),
            ),
            renderer=renderer,
            names=body.names,
        )
