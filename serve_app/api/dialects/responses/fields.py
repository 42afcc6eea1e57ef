"""Fields that every protocol's body of a response has, and what they mean to a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.chat.response_format.grammar import Form, parse_named_schema
from serve_app.api.dialects.chat.templating import EFFORTS
from serve_app.api.dialects.responses import shapes
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.fields import Boolean, Described, Integer, OneOf, Text, checked, refusal
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import Grammar, GrammarKind

LOGPROBS: Final = "message.output_text.logprobs"  # of `include`
FORMAT: Final = "text.format"

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
# Fields of what OpenAI keeps, or does later, and is not kept or done here.
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


class ResponseStreamOptions(WireModel):
    """Options of a stream."""

    include_obfuscation: Annotated[bool | None, Boolean] = None


class ReasoningOptions(WireModel):
    """How much the model is to think, and what is told of it."""

    effort: Annotated[str | None, OneOf(EFFORTS)] = None
    summary: Annotated[str | None, OneOf(shapes.SUMMARIES)] = None


class ResponseFields(WireModel):
    """Everything but how tokens are drawn, and the variables of the template. None: absent."""

    free_form: ClassVar[tuple[str, ...]] = (
        "input",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "stream_options",
    )
    of_chats: ClassVar[Mapping[str, str]] = OF_CHATS

    input: Annotated[Any, Described(shapes.Input)] = None
    instructions: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS)] = None
    max_output_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = None
    top_logprobs: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = None
    include: Annotated[tuple[str, ...] | None, checked(_include, shapes.Include)] = None
    tools: Annotated[Any, Described(shapes.Tools)] = None
    tool_choice: Annotated[Any, Described(shapes.ToolChoice)] = None
    parallel_tool_calls: Annotated[bool | None, Boolean] = None
    max_tool_calls: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = None
    text: Annotated[Any, Described(shapes.TextOptions)] = None
    reasoning: ReasoningOptions | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[str | None, OneOf(("auto", "disabled"))] = None
    store: Annotated[bool | None, Boolean] = None
    metadata: Annotated[dict[str, str] | None, checked(_metadata, shapes.Metadata)] = None
    safety_identifier: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = None
    prompt_cache_key: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = None
    service_tier: Annotated[str | None, OneOf(shapes.TIERS)] = None
    user: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = None
    stream: Annotated[bool | None, Boolean] = None

    def check_response(self) -> None:
        """Raises UnsupportedField for what belongs to chats, and for what is not kept or done later here.

        Raises InvalidField for options of a stream without one.
        """
        extra = self.__pydantic_extra__ or {}
        for name, ours in self.of_chats.items():
            if extra.get(name) is not None:
                raise UnsupportedField(name, f"is a field of chats; a response has {ours}")
        for name, why in _NOT_HERE.items():
            if extra.get(name) not in (None, False):
                raise UnsupportedField(name, why)
        if self.stream_options is not None and not self.stream:
            raise InvalidField("stream_options", "only allowed when stream is true")

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields with a value that this protocol does not have, as the client spelt them."""
        extra = self.__pydantic_extra__ or {}
        return tuple(name for name, value in extra.items() if value is not None and name not in _NOT_HERE)

    @property
    def moot(self) -> tuple[str, ...]:
        """Known fields with a value that nothing comes of, wherever a response is asked for."""
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
        """The field that asks for the response to be kept, where it is not."""
        return ("store",) if self.store else ()

    @property
    def sticky(self) -> str | None:
        """The client's word for whom it asks."""
        return self.user or self.safety_identifier or self.prompt_cache_key

    @property
    def effort(self) -> str | None:
        """How much the model is to think."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def summary(self) -> str | None:
        """How long a summary of the thoughts is wanted. None: none is."""
        return None if self.reasoning is None else self.reasoning.summary

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives each token of the output is told with; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    def form_of_text(self) -> Form:
        """What the answer must match, by `text.format`. Raises InvalidField or UnsupportedField."""
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
