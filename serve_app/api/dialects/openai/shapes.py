"""The shapes that only the body of an OpenAI chat has, for the OpenAPI document: custom tools.

These types are not used to check bodies: the parsers do that, with more helpful errors.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.chat import shapes as shared
from serve_app.api.dialects.chat.messages import MAX_TOOL_CALLS
from serve_app.api.protocol.fields import Open


class TextGrammar(Open):
    """The grammar or regex that a text must match."""

    syntax: Literal["lark", "regex"]
    definition: shared.GrammarText


class ChatToolFormat(Open):
    """The form of a text."""

    type: Literal["text", "grammar"]
    grammar: NotRequired[TextGrammar]


class ChatTextTool(Open):
    """A tool that the model may call with a text."""

    name: shared.ToolName
    description: NotRequired[str | None]
    format: NotRequired[ChatToolFormat | None]


class ChatCustomTool(Open):
    """A tool that is called with a text."""

    type: Literal["custom"]
    custom: ChatTextTool


class NamedCustomTool(Open):
    """The custom tool that must be called."""

    type: Literal["custom"]
    custom: shared.NamedFunction


class ToolsAmong(Open):
    """The tools that may be called; one may be required."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[shared.NamedTool | NamedCustomTool], Field(min_length=1)]


class AllowedChatTools(Open):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolsAmong


class EarlierText(Open):
    """A custom tool that was called, with its text."""

    name: shared.Name
    input: str


class EarlierCustomCall(Open):
    """A call of a custom tool in an earlier answer."""

    id: NotRequired[shared.Name | None]
    type: Literal["custom"]
    custom: EarlierText


class AnswerMessage(Open):
    """An earlier answer; the content may be absent if there are calls."""

    role: Literal["assistant"]
    content: NotRequired[shared.Content | None]
    name: NotRequired[shared.Name | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[
        Annotated[list[shared.EarlierCall | EarlierCustomCall], Field(max_length=MAX_TOOL_CALLS)] | None
    ]
    function_call: NotRequired[shared.EarlierFunction | None]


Messages: TypeAlias = Annotated[
    list[
        Annotated[
            shared.SystemMessage
            | shared.UserMessage
            | AnswerMessage
            | shared.ToolMessage
            | shared.FunctionMessage,
            Field(discriminator="role"),
        ]
    ],
    Field(min_length=1, max_length=limits.MAX_MESSAGES),
]
Tools: TypeAlias = Annotated[list[shared.Tool | ChatCustomTool], Field(max_length=limits.MAX_TOOLS)]
ToolChoice: TypeAlias = (
    Literal["auto", "none", "required"] | shared.NamedTool | NamedCustomTool | AllowedChatTools
)
