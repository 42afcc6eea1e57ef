"""The shapes of what only the body of an OpenAI chat holds, for the OpenAPI document: custom tools.

Nothing is checked by these types: the parsers do that, and say more than a schema can.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from pydantic import Field, with_config
from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.dialects.chat.messages import MAX_TOOL_CALLS
from serve_app.api.dialects.chat.shapes import (
    Content,
    EarlierCall,
    EarlierFunction,
    FunctionMessage,
    GrammarText,
    Name,
    NamedFunction,
    NamedTool,
    SystemMessage,
    Tool,
    ToolMessage,
    ToolName,
    UserMessage,
)


@with_config(extra="allow")
class TextGrammar(TypedDict):
    """What a text must match."""

    syntax: Literal["lark", "regex"]
    definition: GrammarText


@with_config(extra="allow")
class ChatToolFormat(TypedDict):
    """The form of a text."""

    type: Literal["text", "grammar"]
    grammar: NotRequired[TextGrammar]


@with_config(extra="allow")
class ChatTextTool(TypedDict):
    """What the model may call with a text."""

    name: ToolName
    description: NotRequired[str | None]
    format: NotRequired[ChatToolFormat | None]


@with_config(extra="allow")
class ChatCustomTool(TypedDict):
    """A tool that is called with a text."""

    type: Literal["custom"]
    custom: ChatTextTool


@with_config(extra="allow")
class NamedCustomTool(TypedDict):
    """The custom tool that must be called."""

    type: Literal["custom"]
    custom: NamedFunction


@with_config(extra="allow")
class ToolsAmong(TypedDict):
    """The tools of which one may, or must, be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedCustomTool], Field(min_length=1)]


@with_config(extra="allow")
class AllowedChatTools(TypedDict):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolsAmong


@with_config(extra="allow")
class EarlierText(TypedDict):
    """A custom tool that was called, with its text."""

    name: Name
    input: str


@with_config(extra="allow")
class EarlierCustomCall(TypedDict):
    """A call of a custom tool in an earlier answer."""

    id: NotRequired[Name | None]
    type: Literal["custom"]
    custom: EarlierText


@with_config(extra="allow")
class AnswerMessage(TypedDict):
    """An earlier answer. Its content may be absent beside calls."""

    role: Literal["assistant"]
    content: NotRequired[Content | None]
    name: NotRequired[Name | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[
        Annotated[list[EarlierCall | EarlierCustomCall], Field(max_length=MAX_TOOL_CALLS)] | None
    ]
    function_call: NotRequired[EarlierFunction | None]


Messages: TypeAlias = Annotated[
    list[
        Annotated[
            SystemMessage | UserMessage | AnswerMessage | ToolMessage | FunctionMessage,
            Field(discriminator="role"),
        ]
    ],
    Field(min_length=1, max_length=limits.MAX_MESSAGES),
]
Tools: TypeAlias = Annotated[list[Tool | ChatCustomTool], Field(max_length=limits.MAX_TOOLS)]
ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool | NamedCustomTool | AllowedChatTools
