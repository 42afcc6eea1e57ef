"""The body of a request for a message, and of a request that counts the message's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.anthropic import shapes
from serve_app.api.dialects.anthropic.messages import ASSISTANT, parse_messages
from serve_app.api.dialects.anthropic.tools import parse_tools
from serve_app.api.dialects.chat.field_types import Stop
from serve_app.api.dialects.chat.fields import AnswerFields
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS
from serve_app.api.dialects.chat.pictures import with_notes
from serve_app.api.dialects.chat.response_format.grammar import Form, parse_schema
from serve_app.api.dialects.chat.templating import TemplatingFields, with_effort, with_thinking
from serve_app.api.dialects.chat.thinking_budget import TYPES, ThinkingOptions
from serve_app.api.dialects.chat.tools import ToolOffer
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Integer, OneOf, Sets, Text, Texts
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import Prompt, Templating

FORMAT: Final = "output_config.format"

# Fields of chats that would change the answer if they were ignored, and what a message has in their place.
_OF_CHATS: Final[Mapping[str, str]] = {
    "max_completion_tokens": "max_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    **dict.fromkeys(
        ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), FORMAT
    ),
    "structured_outputs": FORMAT,
}
_NOT_HERE: Final[Mapping[str, str]] = {
    "mcp_servers": "no tools are run here: call them yourself and send tool_result blocks",
    "container": "no code is run here",
}
_CONTENT: Final = f"a string or a list of up to {limits.MAX_CONTENT_PARTS}"
_FORM: Final = "an object: `type` is json_schema, with `schema`"
_OLD_FORMAT: Final = "output_format"  # the name of `output_config.format` in betas
_OWN_CACHE: Final = "cache_control"  # what it asks for is done for every prompt


class RequestMetadata(WireModel):
    """The end user on whose behalf the client asks."""

    user_id: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = doc(
        "a sticky key for A/B splits, where there is no `user`"
    )


class MessageThinking(ThinkingOptions):
    """How much the model thinks, and whether its thoughts are shown."""

    display: Annotated[str | None, OneOf(shapes.DISPLAYS)] = doc(
        "default summarized: thoughts are sent in full; omitted leaves them empty"
    )
    type: Annotated[str | None, OneOf(TYPES)] = doc(
        "variable `enable_thinking` of the model's template: true for enabled, false for disabled, the "
        "template's own for the others"
    )


class OutputConfig(WireModel):
    """How much effort to spend on the answer, and the answer's form."""

    effort: Annotated[str | None, OneOf(shapes.EFFORTS)] = doc(
        "variable `reasoning_effort` of the model's template"
    )
    format: Annotated[Any, Described(shapes.JsonOutput)] = doc(
        "default none; the answer matches", accepts=_FORM
    )


class PromptFields(TemplatingFields):
    """What the model reads. None: absent."""

    system: Annotated[Any, Described(shapes.Texts)] = doc(
        "default none; the system's message, before the others", accepts=f"{_CONTENT} text blocks"
    )
    messages: Annotated[Any, Described(shapes.Messages), Sets("prompt")] = doc(
        "turns of one role that follow each other are one; an assistant's last message goes on",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages",
        members={
            "role": FieldDoc(
                "later words of the system become part of the user's turn",
                accepts="user, assistant or system",
            ),
            "content": FieldDoc(
                "joined by line breaks; of the user `text`, `image` (a note replaces it), "
                "`document`, `search_result`, `tool_result`; of the assistant `text`, `thinking`, "
                "`redacted_thinking`, `tool_use`",
                accepts=f"{_CONTENT} blocks",
            ),
            "source": FieldDoc(
                "of a document", accepts="an object: `type` is text with `data`, or content with `content`"
            ),
            "tool_use_id": FieldDoc(
                "of a result: the call that it answers",
                accepts=f"a string of 1 to {MAX_NAME_CHARS} characters",
            ),
            "input": FieldDoc("of a call: its arguments", accepts="an object"),
            "thinking": FieldDoc(
                "of thoughts: given to the template; a signature is not looked at", accepts="a string"
            ),
        },
        required=True,
    )
    tools: Annotated[Any, Described(shapes.Tools)] = doc(
        "default none; the model may call them",
        accepts=f"a list of up to {limits.MAX_AGENT_TOOLS} custom tools, each with `name` and "
        "`input_schema`, and of bash, text_editor, memory and computer by their dated types",
    )
    tool_choice: Annotated[Any, Described(shapes.ToolChoice)] = doc(
        "default auto; any and a tool force a call",
        accepts="an object: `type` is auto, any, none, or tool with `name`",
        members={
            "disable_parallel_tool_use": FieldDoc(
                "true allows one call", accepts="true or false", default=False
            )
        },
    )
    thinking: MessageThinking | None = doc("see its members", accepts="an object")
    output_config: OutputConfig | None = doc("see its members", accepts="an object")

    def templating(self) -> Templating:
        """As `TemplatingFields.templating`, with the effort, and with thinking switched on or off."""
        effort = None if self.output_config is None else self.output_config.effort
        is_on = None if self.thinking is None else self.thinking.is_on
        return with_thinking(with_effort(super().templating(), effort), is_on)

    def offer(self) -> ToolOffer:
        """The tools, and whether the client wants them called. Raises InvalidField or UnsupportedField."""
        return parse_tools(self.tools, self.tool_choice)

    def to_prompt(self, tools: tuple[dict[str, Any], ...]) -> Prompt:
        """What the model reads. Raises InvalidField or UnsupportedField."""
        messages, templating = parse_messages(self.system, self.messages), self.templating()
        is_begun = messages[-1]["role"] == ASSISTANT and messages[-1]["content"]
        if is_begun and self.add_generation_prompt is None and self.continue_final_message is None:
            templating = replace(templating, add_generation_prompt=False, continue_final_message=True)
        return Prompt(messages=messages, tools=tools, templating=templating)


class MessageBody(PromptFields, AnswerFields):
    """The body of a request for a message. None: the field is absent."""

    fields_beside: ClassVar[Mapping[str, Any]] = {
        _OLD_FORMAT: Annotated[shapes.JsonOutput, FieldDoc("the same, by its name in betas", accepts=_FORM)]
    }

    max_tokens: Annotated[int | None, Integer(0, limits.MAX_TOKENS)] = doc(
        "the limit of the answer; more than fits is clamped", accepts="; required"
    )
    stop_sequences: Annotated[
        tuple[str, ...] | None, Texts(limits.MAX_STOP_STRINGS, limits.MAX_STOP_CHARS), Sets("stop")
    ] = doc("default none; ends the answer before the match")
    metadata: RequestMetadata | None = doc("see its member", accepts="an object")
    service_tier: Annotated[str | None, OneOf(shapes.TIERS)] = doc("the server has one")
    stop: Stop = doc("the same", accepts="; not beside `stop_sequences`")

    def check_message(self) -> None:
        """Check combinations of fields. Raises InvalidField or UnsupportedField."""
        if self.stop_sequences and self.stop:
            raise InvalidField("stop", "must not be given beside stop_sequences")
        extra = self.extra
        for name, ours in _OF_CHATS.items():
            if name in extra:
                raise UnsupportedField(name, f"is a field of chats; a message has {ours}")
        for name, why in _NOT_HERE.items():
            if extra.get(name):
                raise UnsupportedField(name, why)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields with a value that has no effect here, as the client spelt them."""
        known = (_OWN_CACHE, _OLD_FORMAT, *_NOT_HERE)
        return tuple(name for name in self.extra if name not in known)

    @property
    def names(self) -> dict[str, str]:
        """The replica's names of fields -> the client's, for errors."""
        return {**super().names, "response_format": self._form_field()}

    @property
    def sticky(self) -> str | None:
        """The client's end-user id."""
        return self.user or (None if self.metadata is None else self.metadata.user_id)

    @property
    def thinking_tokens(self) -> int | None:
        """The limit on the tokens of thoughts."""
        return None if self.thinking is None else self.thinking.budget_tokens

    @property
    def hides_thoughts(self) -> bool:
        """Whether the answer hides the text of thoughts."""
        return self.thinking is not None and self.thinking.display == "omitted"

    def form(self) -> Form:
        """The form of the answer. Raises InvalidField or UnsupportedField."""
        field = self._form_field()
        is_old = field == _OLD_FORMAT
        value = self.extra[field] if is_old else self.output_config and self.output_config.format
        if value is None:
            return Form()
        if not isinstance(value, dict):
            raise InvalidField(field, "must be an object")
        if value.get("type") != "json_schema":
            raise InvalidField(field, "type must be json_schema")
        if not isinstance(value.get("schema"), dict):
            raise InvalidField(field, "schema must be an object")
        return parse_schema(value["schema"], field, "schema")

    def row_options(self) -> dict[str, Any]:
        """As `AnswerFields.row_options`, with the names of this protocol."""
        return {**super().row_options(), "stop": self.stop_sequences or self.stop or ()}

    def _form_field(self) -> str:
        """The name of the field with the answer's form: the current name, or that in earlier betas."""
        is_new = self.output_config is not None and self.output_config.format is not None
        return _OLD_FORMAT if _OLD_FORMAT in self.extra and not is_new else FORMAT


def parse_message(raw: bytes, *, notes_pictures: bool) -> tuple[MessageBody, tuple[str, ...]]:
    """The body of a message, with its pictures replaced by notes, and the places of the pictures.

    `notes_pictures`: if false, pictures are kept, and cause an error when the messages are parsed. Raises
    InvalidBody, InvalidField or UnsupportedField.
    """
    body = parse_body(MessageBody, raw)
    body.check_message()
    if not notes_pictures:
        return body, ()
    messages, pictures = with_notes(body.messages, "messages")
    return body.model_copy(update={"messages": messages}), pictures
