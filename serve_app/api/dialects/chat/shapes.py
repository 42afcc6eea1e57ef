"""The shapes of the parts of a chat's body, for the OpenAPI document: messages, tools, forms of the answer.

These types are not used to check bodies: the parsers beside them do that, with more helpful errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS, MAX_TOOL_CALLS
from serve_app.api.dialects.chat.tools import MAX_NAME_CHARS as MAX_TOOL_NAME_CHARS
from serve_app.api.protocol.fields import MAX_TOKEN_ID, Open

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
ToolName: TypeAlias = Annotated[str, Field(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_TOOL_NAME_CHARS}}}$")]
JsonSchema: TypeAlias = dict[str, Any]
TokenId: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds: TypeAlias = Annotated[list[TokenId], Field(min_length=1)]


class TextPart(Open):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class RefusalPart(Open):
    """An assistant's refusal, which counts as text."""

    type: Literal["refusal"]
    refusal: str


Content: TypeAlias = str | Annotated[list[TextPart | RefusalPart], Field(max_length=limits.MAX_CONTENT_PARTS)]


class SystemMessage(Open):
    """Instructions on how the model should behave."""

    role: Literal["system", "developer"]
    content: Content
    name: NotRequired[Name | None]


class UserMessage(Open):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: NotRequired[Name | None]


class EarlierFunction(Open):
    """A function that was called, with its arguments as JSON text."""

    name: Name
    arguments: str


class EarlierCall(Open):
    """A call of a tool in an earlier answer."""

    id: NotRequired[Name | None]
    type: NotRequired[Literal["function"]]
    function: EarlierFunction


class AssistantMessage(Open):
    """An earlier answer; the content may be absent if there are calls."""

    role: Literal["assistant"]
    content: NotRequired[Content | None]
    name: NotRequired[Name | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[Annotated[list[EarlierCall], Field(max_length=MAX_TOOL_CALLS)] | None]
    function_call: NotRequired[EarlierFunction | None]


class ToolMessage(Open):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name


class FunctionMessage(Open):
    """The deprecated form of a tool's answer."""

    role: Literal["function"]
    name: Name
    content: NotRequired[Content | None]


Messages: TypeAlias = Annotated[
    list[
        Annotated[
            SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage,
            Field(discriminator="role"),
        ]
    ],
    Field(min_length=1, max_length=limits.MAX_MESSAGES),
]


class Function(Open):
    """A function that the model may call."""

    name: ToolName
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]


class Tool(Open):
    """A tool, which is a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(Open):
    """The function that must be called."""

    name: ToolName


class NamedTool(Open):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


Tools: TypeAlias = Annotated[list[Tool], Field(max_length=limits.MAX_TOOLS)]
ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
Functions: TypeAlias = Annotated[list[Function], Field(max_length=limits.MAX_TOOLS)]
FunctionCallChoice: TypeAlias = Literal["auto", "none"] | NamedFunction

TemplateVariables: TypeAlias = Annotated[dict[str, Any], Field(max_length=limits.MAX_TEMPLATE_VARIABLES)]


class NamedSchema(Open):
    """A JSON Schema with a name."""

    name: ToolName
    schema: JsonSchema
    strict: NotRequired[bool | None]
    description: NotRequired[str | None]


class PlainFormat(Open):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Open):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat: TypeAlias = Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")]
SchemaOrText: TypeAlias = JsonSchema | Annotated[str, Field(max_length=limits.MAX_SCHEMA_BYTES)]
Regex: TypeAlias = Annotated[str, Field(min_length=1, max_length=limits.MAX_REGEX_CHARS)]
Choices: TypeAlias = Annotated[list[str], Field(min_length=1, max_length=limits.MAX_GRAMMAR_CHOICES)]
GrammarText: TypeAlias = Annotated[str, Field(min_length=1, max_length=limits.MAX_GRAMMAR_CHARS)]


class StructuredOutputs(TypedDict, total=False):
    """vLLM's container. At most one of the first five members is given; the answer must match it."""

    json: SchemaOrText | None
    json_object: bool | None
    regex: Regex | None
    choice: Choices | None
    grammar: GrammarText | None
    disable_any_whitespace: bool | None
    whitespace_pattern: str | None
    disable_additional_properties: Any
    disable_fallback: Any


PromptText: TypeAlias = Annotated[str, Field(max_length=limits.MAX_PROMPT_CHARS)]
Prompts: TypeAlias = (
    PromptText
    | TokenIds
    | Annotated[list[PromptText], Field(min_length=1, max_length=limits.MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=limits.MAX_PROMPTS)]
)
PromptTexts: TypeAlias = (
    PromptText | Annotated[list[PromptText], Field(min_length=1, max_length=limits.MAX_PROMPTS)]
)

EmbedText: TypeAlias = Annotated[str, Field(min_length=1, max_length=limits.MAX_PROMPT_CHARS)]
EmbedTexts: TypeAlias = (
    EmbedText | Annotated[list[EmbedText], Field(min_length=1, max_length=limits.MAX_EMBED_INPUTS)]
)
EmbedInputs: TypeAlias = (
    EmbedTexts | TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=limits.MAX_EMBED_INPUTS)]
)
