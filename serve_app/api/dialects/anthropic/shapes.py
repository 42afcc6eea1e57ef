"""The shapes of the parts of a message's body, for the OpenAPI document.

These types are not used to check bodies: the parsers beside them do that, with more helpful errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.anthropic.tools import MAX_NAME_CHARS
from serve_app.api.dialects.chat.shapes import JsonSchema, Name
from serve_app.api.protocol.fields import Open

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
DISPLAYS: Final = ("summarized", "omitted")
TIERS: Final = ("auto", "standard_only")


class TextBlock(Open):
    """A piece of text."""

    type: Literal["text"]
    text: str


Texts: TypeAlias = str | Annotated[list[TextBlock], Field(max_length=limits.MAX_CONTENT_PARTS)]


class TextSource(Open):
    """The text of a document."""

    type: Literal["text"]
    data: str


class ContentSource(Open):
    """The text of a document, in blocks."""

    type: Literal["content"]
    content: Texts


class DocumentBlock(Open):
    """A document; the model reads its title and its context first."""

    type: Literal["document"]
    source: TextSource | ContentSource
    title: NotRequired[str | None]
    context: NotRequired[str | None]


class SearchResultBlock(Open):
    """A search result; the model reads its title and its source first."""

    type: Literal["search_result"]
    title: str
    source: str
    content: Texts


class ImageBlock(Open):
    """A picture; the model is shown a note in its place."""

    type: Literal["image"]


Shown: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock
Blocks: TypeAlias = Annotated[list[Shown], Field(max_length=limits.MAX_CONTENT_PARTS)]


class ToolResultBlock(Open):
    """The result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: NotRequired[str | Blocks | None]
    is_error: NotRequired[bool]


class EarlierThinkingBlock(Open):
    """What the model thought in an earlier answer. Its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str]


class HiddenThinkingBlock(Open):
    """Encrypted thoughts, which the model does not read."""

    type: Literal["redacted_thinking"]


class EarlierToolUseBlock(Open):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


_Told: TypeAlias = Annotated[
    list[Shown | ToolResultBlock], Field(min_length=1, max_length=limits.MAX_CONTENT_PARTS)
]
_Answered: TypeAlias = Annotated[
    list[TextBlock | EarlierThinkingBlock | HiddenThinkingBlock | EarlierToolUseBlock],
    Field(min_length=1, max_length=limits.MAX_CONTENT_PARTS),
]
_Ruled: TypeAlias = Annotated[list[TextBlock], Field(min_length=1, max_length=limits.MAX_CONTENT_PARTS)]


class UserTurn(Open):
    """What the user says, and the results of tools."""

    role: Literal["user"]
    content: str | _Told


class AssistantTurn(Open):
    """An earlier answer; if it is the last message, the model continues it."""

    role: Literal["assistant"]
    content: str | _Answered


class SystemTurn(Open):
    """Instructions on how the model should behave from here on."""

    role: Literal["system"]
    content: str | _Ruled


Messages: TypeAlias = Annotated[
    list[UserTurn | AssistantTurn | SystemTurn], Field(min_length=1, max_length=limits.MAX_MESSAGES)
]


class CustomTool(Open):
    """A tool that the client runs."""

    type: NotRequired[Literal["custom"] | None]
    name: Annotated[str, Field(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_NAME_CHARS}}}$")]
    description: NotRequired[str | None]
    input_schema: JsonSchema
    strict: NotRequired[bool | None]


class ClientTool(Open):
    """A tool of a known schema, which the client runs."""

    type: Annotated[str, Field(pattern=r"^(bash|text_editor|memory|computer)_[0-9]{8}$")]
    name: str


class ToolUseChoice(Open):
    """Whether tools may, must or must not be called."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: NotRequired[bool | None]


class NamedToolChoice(Open):
    """The tool that must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: NotRequired[bool | None]


class JsonOutput(Open):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema: JsonSchema


Tools: TypeAlias = Annotated[list[CustomTool | ClientTool], Field(max_length=limits.MAX_AGENT_TOOLS)]
ToolChoice: TypeAlias = ToolUseChoice | NamedToolChoice
