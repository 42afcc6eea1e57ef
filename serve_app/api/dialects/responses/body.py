"""OpenAI's body of a request for a response."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from serve_app import limits
from serve_app.api.dialects.chat.fields import AnswerFields
from serve_app.api.dialects.chat.pictures import with_notes
from serve_app.api.dialects.chat.templating import TemplatingFields, with_effort
from serve_app.api.dialects.chat.thinking_budget import ThinkingTokenBudget
from serve_app.api.dialects.chat.tools import ToolOffer
from serve_app.api.dialects.responses.fields import FORMAT, ITEM_DOCS, NOT_KEPT, InputItems, ResponseFields
from serve_app.api.dialects.responses.input_items import parse_input
from serve_app.api.dialects.responses.previous_response import PREVIOUS, Earlier, References
from serve_app.api.dialects.responses.tools import parse_tools
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Flag, Text
from serve_app.errors import UnsupportedField
from serve_app.types import Prompt, Templating


class ResponseBody(ResponseFields, AnswerFields, TemplatingFields):
    """The body of a request for a response. None: the field is absent."""

    previous_response_id: Annotated[str | None, Text(1, limits.MAX_KEPT_ID_CHARS)] = doc(
        "default none; goes on from a kept response of the same key: its input and its output come before "
        "`input`; its instructions and its tools do not"
    )
    thinking_token_budget: ThinkingTokenBudget = None
    input: InputItems = doc(
        "a string is what the user says; the items of one turn of the assistant are one message",
        accepts=f"a string or a list of 1 to {limits.MAX_MESSAGES} items",
        required=True,
        members={
            **ITEM_DOCS,
            "id": FieldDoc(
                "of an item_reference: an item of a kept response of the same key", accepts="a string"
            ),
        },
    )
    store: Flag = doc(
        "default true: kept for later requests of the same key; the answer says whether it is kept"
    )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields with a value that has no effect here, as the client spelt them."""
        return (*self.unknown, *self.moot)

    @property
    def names(self) -> dict[str, str]:
        """The replica's names of fields -> the client's, for errors."""
        asked = "top_logprobs" if self.top_logprobs else "include"
        return {**super().names, "response_format": FORMAT, "logprobs": asked}

    @property
    def left_to_model(self) -> tuple[str, ...]:
        """As `AnswerFields.left_to_model`, with the length if it is not set."""
        return super().left_to_model + (("max_tokens",) if self.max_output_tokens is None else ())

    def templating(self) -> Templating:
        """As `TemplatingFields.templating`, with the effort of `reasoning`."""
        return with_effort(super().templating(), self.effort)

    def offer(self) -> ToolOffer:
        """The tools, and whether the client wants them called. Raises InvalidField or UnsupportedField."""
        return parse_tools(self.tools, self.tool_choice, parallel=self.parallel_tool_calls is not False)

    def references(self, *, are_kept: bool) -> References:
        """The body's references. Raises InvalidField; raises UnsupportedField if responses are not kept."""
        found = References.of(self.input, self.previous_response_id)
        if found and not are_kept:
            raise UnsupportedField(PREVIOUS if found.previous else "input", NOT_KEPT)
        return found

    def to_prompt(self, tools: tuple[dict[str, Any], ...], earlier: Earlier) -> Prompt:
        """The prompt: the earlier items, then the body's input. Raises InvalidField or UnsupportedField."""
        messages = parse_input(earlier.resolved(self.input), self.instructions, history=earlier.history)
        return Prompt(messages=messages, tools=tools, templating=self.templating())


class Reading(NamedTuple):
    """The server's settings for reading bodies of responses."""

    keeps: bool  # responses, for later requests
    notes_pictures: bool  # a note replaces a picture; else it is an error


def parse_response(raw: bytes, reading: Reading) -> tuple[ResponseBody, tuple[str, ...]]:
    """The body of a response, with its pictures replaced by notes, and the places of the pictures.

    Raises InvalidBody, InvalidField or UnsupportedField.
    """
    body = parse_body(ResponseBody, raw)
    body.check_response()
    if not reading.notes_pictures:
        return body, ()
    input, pictures = with_notes(body.input, "input")
    return body.model_copy(update={"input": input}), pictures
