"""Fields that the bodies of responses have in every protocol, and their meaning for a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from serve_app import limits
from serve_app.api.dialects.chat.field_types import ParallelToolCalls, Stream, TopLogprobs, User
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS
from serve_app.api.dialects.chat.response_format.grammar import Form, parse_named_schema
from serve_app.api.dialects.chat.templating import EFFORTS
from serve_app.api.dialects.responses import shapes
from serve_app.api.dialects.responses.tools import UNASKED
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, OneOf, Sets, Text, checked, refusal
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import Grammar, GrammarKind

LOGPROBS: Final = "message.output_text.logprobs"  # of `include`
FORMAT: Final = "text.format"
FORMATS: Final = (
    "an object: `type` is text, json_object, or json_schema with `name`, `schema`, `strict`, `description`"
)

# Fields of chats that would change the answer if they were ignored, and what a response has in their place.
OF_CHATS: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
    **dict.fromkeys(
        ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), FORMAT
    ),
    "structured_outputs": FORMAT,
}
NOT_KEPT: Final = "no response is kept here, as with store: false: send the earlier items in input"
# Fields for things that OpenAI stores, or does in the background, and this server does not.
_NOT_HERE: Final[Mapping[str, str]] = {
    "previous_response_id": NOT_KEPT,
    "conversation": "no conversation is kept here: send the earlier items in input",
    "background": "nothing is answered in the background: read the answer on its connection, or stream it",
    "prompt": "no prompt is kept here: send it as instructions and input",
}


def _metadata(value: Any) -> dict[str, str]:
    most, keys, chars = limits.MAX_METADATA, limits.MAX_METADATA_KEY_CHARS, limits.MAX_METADATA_VALUE_CHARS
    if (
        type(value) is not dict
        or len(value) > most
        or not all(
            len(key) <= keys and type(text) is str and len(text) <= chars for key, text in value.items()
        )
    ):
        raise refusal(
            f"must map up to {most} names of up to {keys} characters to strings of up to {chars} characters"
        )
    return dict(value)


def _include(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(each) is str and each in shapes.INCLUDABLE for each in value):
        raise refusal(f"must be a list of: {', '.join(shapes.INCLUDABLE)}")
    return tuple(dict.fromkeys(value))


_TEXTS: Final = f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts"


class ResponseStreamOptions(WireModel):
    """Options of a stream."""

    include_obfuscation: Flag = doc("nothing is padded", default=False)


class ReasoningOptions(WireModel):
    """How much the model thinks, and the form of its thoughts."""

    effort: Annotated[str | None, OneOf(EFFORTS)] = doc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false"
    )
    summary: Annotated[str | None, OneOf(shapes.SUMMARIES)] = doc(
        "default none: thoughts are the content of reasoning items; any word: their summary, in full"
    )


VERBOSITY_DOC: Final = FieldDoc("ignored and listed", accepts="low, medium or high")
ITEM_DOCS: Final[Mapping[str, FieldDoc]] = {
    "type": FieldDoc(
        "any order; an item with a role is a message",
        accepts="message, reasoning, item_reference, function_call, custom_tool_call, local_shell_call, "
        "shell_call or apply_patch_call, or one of these calls with _output",
    ),
    "role": FieldDoc(
        "of a message; developer counts as system", accepts="user, assistant, system or developer"
    ),
    "content": FieldDoc(
        "of a message; parts are joined by line breaks; a note replaces a picture", accepts=_TEXTS
    ),
    "call_id": FieldDoc(
        "of a call, and of its output", accepts=f"a string of 1 to {MAX_NAME_CHARS} characters"
    ),
    "arguments": FieldDoc("of a call: JSON as the model wrote it", accepts="a string"),
    "input": FieldDoc("of a call of a custom tool: its text", accepts="a string"),
    "output": FieldDoc("what the tool answered; a note replaces a picture", accepts=_TEXTS),
}
InputItems: TypeAlias = Annotated[
    Any,
    Described(shapes.Input),
    Mark.UNANSWERED,
    Sets("prompt"),
    doc(
        "a string is what the user says; the items of one turn of the assistant are one message",
        accepts=f"a string or a list of 1 to {limits.MAX_MESSAGES} items",
        members=ITEM_DOCS,
        required=True,
    ),
]


TextOptions: TypeAlias = Annotated[
    Any,
    Described(shapes.TextOptions),
    doc(
        "see its members",
        accepts="an object",
        members={
            "format": FieldDoc("default text; the answer matches", accepts=FORMATS),
            "verbosity": VERBOSITY_DOC,
        },
    ),
]


class ResponseFields(WireModel):
    """All fields except those for drawing tokens and the variables of the template. None: absent."""

    of_chats: ClassVar[Mapping[str, str]] = OF_CHATS

    input: InputItems = None
    instructions: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS)] = doc(
        "default none; the system's message, before the input"
    )
    max_output_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS), Sets("max_tokens")] = doc(
        "default the model's, else up to the window; more than fits is clamped"
    )
    top_logprobs: TopLogprobs = doc(
        "alternatives a token; above 0 also turns log-probabilities on", default=0
    )
    include: Annotated[tuple[str, ...] | None, checked(_include, shapes.Include)] = doc(
        "`message.output_text.logprobs` adds log-probabilities; the other words are ignored and listed",
        accepts="a list of OpenAI's words",
    )
    tools: Annotated[Any, Described(shapes.Tools)] = doc(
        "default none; the model may call them; a custom tool is called with a text; forced calls match "
        "its `format`, a regular expression or a Lark grammar, else the format is ignored and listed, as "
        f"are {', '.join(UNASKED)}",
        accepts=f"a list of up to {limits.MAX_TOOLS} function and custom tools, local_shell, shell and "
        "apply_patch, and namespaces of them",
    )
    tool_choice: Annotated[Any, Described(shapes.ToolChoice)] = doc(
        "default auto; required and a name force a call",
        accepts="none, auto, required, an object that names a tool, or one of type allowed_tools",
    )
    parallel_tool_calls: ParallelToolCalls = None
    max_tool_calls: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "ignored and listed: it counts calls of tools that the server runs"
    )
    text: TextOptions = None
    reasoning: ReasoningOptions | None = doc("see its members", accepts="an object")
    stream_options: ResponseStreamOptions | None = doc(
        "see its member", accepts="an object; only with `stream: true`"
    )
    truncation: Annotated[str | None, OneOf(("auto", "disabled"))] = doc(
        "input that does not fit is an error; auto is ignored and listed"
    )
    store: Flag = doc("nothing is kept; true is ignored and listed", default=False)
    metadata: Annotated[dict[str, str] | None, checked(_metadata, shapes.Metadata)] = doc(
        "default none; echoed in the answer",
        accepts=f"up to {limits.MAX_METADATA} names of up to {limits.MAX_METADATA_KEY_CHARS} characters, "
        f"with strings of up to {limits.MAX_METADATA_VALUE_CHARS} characters",
    )
    safety_identifier: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = doc(
        "a sticky key for A/B splits, where there is no `user`"
    )
    prompt_cache_key: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = doc(
        "a sticky key, where there is neither of the two"
    )
    service_tier: Annotated[str | None, OneOf(shapes.TIERS)] = doc(
        "the server has one; flex, scale and priority are ignored and listed"
    )
    user: User = None
    stream: Stream = None

    def check_response(self) -> None:
        """Raises UnsupportedField for fields of chats, and for features of responses that this server lacks.

        Raises InvalidField for options of a stream if there is no stream.
        """
        extra = self.extra
        for name, ours in self.of_chats.items():
            if name in extra:
                raise UnsupportedField(name, f"is a field of chats; a response has {ours}")
        for name, why in _NOT_HERE.items():
            if extra.get(name) not in (None, False):
                raise UnsupportedField(name, why)
        if self.stream_options is not None and not self.stream:
            raise InvalidField("stream_options", "only allowed when stream is true")

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields with a value that this protocol does not have, as the client spelt them."""
        return tuple(name for name in self.extra if name not in _NOT_HERE)

    @property
    def moot(self) -> tuple[str, ...]:
        """Known fields whose value has no effect here, whatever the protocol."""
        text = self.text if isinstance(self.text, dict) else {}
        moot = {
            "truncation": self.truncation == "auto",
            "max_tool_calls": self.max_tool_calls,
            "service_tier": self.service_tier not in (None, "auto", "default"),
            "text.verbosity": text.get("verbosity") is not None,
        }
        listed = [name for name, is_given in moot.items() if is_given]
        return (*listed, *(f"include.{each}" for each in self.include or () if each != LOGPROBS))

    @property
    def unkept(self) -> tuple[str, ...]:
        """The field that asks for the response to be kept, for routes that do not keep it."""
        return ("store",) if self.store else ()

    @property
    def sticky(self) -> str | None:
        """The client's end-user id."""
        return self.user or self.safety_identifier or self.prompt_cache_key

    @property
    def effort(self) -> str | None:
        """How much the model is to think."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def summary(self) -> str | None:
        """The length of the summary of thoughts that the client asks for. None: no summary."""
        return None if self.reasoning is None else self.reasoning.summary

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives for each output token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    def form_of_text(self) -> Form:
        """The form of the answer, by `text.format`. Raises InvalidField or UnsupportedField."""
        if self.text is None:
            return Form()
        if not isinstance(self.text, dict):
            raise InvalidField("text", "must be an object")
        if self.text.get("verbosity") not in (None, *shapes.VERBOSITIES):
            raise InvalidField("text.verbosity", f"must be one of: {', '.join(shapes.VERBOSITIES)}")
        value = self.text.get("format")
        if value is None:
            return Form()
        if not isinstance(value, dict):
            raise InvalidField(FORMAT, "must be an object")
        kind = value.get("type")
        if kind == "text":
            return Form()
        if kind == "json_object":
            return Form(Grammar(kind=GrammarKind.JSON))
        if kind != "json_schema":
            raise InvalidField(FORMAT, "type must be text, json_object or json_schema")
        return parse_named_schema(value, FORMAT, subset=True)
