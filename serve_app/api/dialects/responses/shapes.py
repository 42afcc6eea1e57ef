"""The shapes of the parts of a response's body, for the OpenAPI document.

These types are not used to check bodies: the parsers beside them do that, with more helpful errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.chat import shapes as shared
from serve_app.api.dialects.responses.tools import UNASKED
from serve_app.api.protocol.fields import Open, words

SUMMARIES: Final = ("auto", "concise", "detailed")
VERBOSITIES: Final = ("low", "medium", "high")
TIERS: Final = ("auto", "default", "flex", "scale", "priority")
INCLUDABLE: Final = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


class InputText(Open):
    """A piece of text."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputImage(Open):
    """A picture; the model is shown a note in its place."""

    type: Literal["input_image"]


Content: TypeAlias = (
    str
    | Annotated[list[InputText | InputImage | shared.RefusalPart], Field(max_length=limits.MAX_CONTENT_PARTS)]
)


class InputMessage(Open):
    """A message of one role."""

    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class InputThought(Open):
    """A piece of the model's thoughts."""

    type: Literal["reasoning_text"]
    text: str


class InputSummary(Open):
    """A piece of the summary of the model's thoughts."""

    type: Literal["summary_text"]
    text: str


class InputReasoning(Open):
    """The model's thoughts in an earlier answer; the template gets them with the text after them."""

    type: Literal["reasoning"]
    summary: NotRequired[list[InputSummary] | None]
    content: NotRequired[list[InputThought] | None]


class InputCall(shared.EarlierFunction):
    """A call of a tool in an earlier answer."""

    type: Literal["function_call"]
    call_id: shared.Name


class InputCallOutput(Open):
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: shared.Name
    output: Content


class InputCustomCall(Open):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    call_id: shared.Name
    name: shared.Name
    input: str


class InputCustomCallOutput(Open):
    """The answer of a custom tool."""

    type: Literal["custom_tool_call_output"]
    call_id: shared.Name
    output: Content


class InputClientTool(Open):
    """A call of a tool that the client runs, or the client's answer to it."""

    type: Literal[
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
    ]


class InputReference(Open):
    """An item of a kept response."""

    type: NotRequired[Literal["item_reference"] | None]
    id: str


Item: TypeAlias = (
    InputMessage
    | InputReasoning
    | InputCall
    | InputCallOutput
    | InputCustomCall
    | InputCustomCallOutput
    | InputClientTool
    | InputReference
)
Input: TypeAlias = str | Annotated[list[Item], Field(min_length=1, max_length=limits.MAX_MESSAGES)]


class ResponseTool(shared.Function):
    """A function that the model may call."""

    type: Literal["function"]


class FreeTool(Open):
    """A tool that is called with a text."""

    type: Literal["custom"]
    name: shared.ToolName
    description: NotRequired[str | None]
    format: NotRequired[dict[str, Any] | None]


class ToolNamespace(Open):
    """A group of tools with a name, which is repeated in calls of these tools."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    tools: list[ResponseTool | FreeTool]


class ClientTool(Open):
    """A tool of a known schema, which the client runs."""

    type: Literal["local_shell", "shell", "apply_patch"]


class UnaskedTool(Open):
    """A tool for servers that run tools; it has no effect here."""

    type: Annotated[str, words(UNASKED)]


class NamedResponseTool(shared.NamedFunction):
    """The tool that must be called."""

    type: Literal["function", "custom"]


class AllowedTools(Open):
    """The tools that may be called; one may be required."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedResponseTool | ClientTool], Field(min_length=1)]


AnyTool: TypeAlias = ResponseTool | FreeTool | ToolNamespace | ClientTool | UnaskedTool
Tools: TypeAlias = Annotated[list[AnyTool], Field(max_length=limits.MAX_TOOLS)]
ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedResponseTool | AllowedTools | ClientTool


class SchemaTextFormat(shared.NamedSchema):
    """JSON that matches a schema."""

    type: Literal["json_schema"]


class TextOptions(Open):
    """The form of the text."""

    format: NotRequired[shared.PlainFormat | SchemaTextFormat | None]
    verbosity: NotRequired[Annotated[str, words(VERBOSITIES)] | None]


_Key: TypeAlias = Annotated[str, Field(max_length=limits.MAX_METADATA_KEY_CHARS)]
_Value: TypeAlias = Annotated[str, Field(max_length=limits.MAX_METADATA_VALUE_CHARS)]
Metadata: TypeAlias = Annotated[dict[_Key, _Value], Field(max_length=limits.MAX_METADATA)]
Include: TypeAlias = list[Annotated[str, words(INCLUDABLE)]]
