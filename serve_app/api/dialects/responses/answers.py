"""The shapes of a response and of its items, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import ListedToken, ReasoningTokens
from serve_app.api.dialects.chat.templating import EFFORTS
from serve_app.api.dialects.responses.shapes import SUMMARIES, VERBOSITIES, AnyTool, Metadata, ToolChoice
from serve_app.api.protocol.fields import Open, words

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """What the model says."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ListedToken]


class ReasoningText(TypedDict):
    """What the model thinks."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(TypedDict):
    """The model's thoughts, if the client asked for a summary."""

    type: Literal["summary_text"]
    text: str


class MessageItem(TypedDict):
    """What the model says, as an item."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]
    status: Status


class ReasoningItem(TypedDict):
    """What the model thinks, as an item."""

    id: str
    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: Status


class CallItem(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str
    status: Status


class CustomCallItem(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str
    status: Status


class ExecAction(TypedDict):
    """The command that the client is to execute."""

    type: Literal["exec"]
    command: list[Any]
    env: dict[str, Any]
    timeout_ms: Any
    user: Any
    working_directory: Any


class LocalShellCallItem(TypedDict):
    """A call of the local shell."""

    id: str
    type: Literal["local_shell_call"]
    call_id: str
    action: ExecAction
    status: Status


class ShellAction(TypedDict):
    """The commands that the client is to run."""

    commands: list[Any]
    timeout_ms: Any
    max_output_length: Any


class ShellCallItem(TypedDict):
    """A call of the shell."""

    id: str
    type: Literal["shell_call"]
    call_id: str
    action: ShellAction
    status: Status


class PatchOperation(TypedDict):
    """The change that the client is to make to a file."""

    type: Any
    path: Any
    diff: NotRequired[Any]


class PatchCallItem(TypedDict):
    """A call of the tool that changes files."""

    id: str
    type: Literal["apply_patch_call"]
    call_id: str
    operation: PatchOperation
    status: Literal["in_progress", "completed"]


Item: TypeAlias = Annotated[
    MessageItem
    | ReasoningItem
    | CallItem
    | CustomCallItem
    | LocalShellCallItem
    | ShellCallItem
    | PatchCallItem,
    Field(discriminator="type"),
]


class ResponseFault(TypedDict):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputTokens(TypedDict):
    """Tokens of the input that were found in the cache. Tokens written to the cache are not charged."""

    cached_tokens: int
    cache_write_tokens: Literal[0]


class ResponseUsage(TypedDict):
    """The number of tokens in the input, in the output and in both."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ReasoningShown(TypedDict):
    """The options for thinking that the client asked for."""

    effort: Annotated[str, words(EFFORTS)] | None
    summary: Annotated[str, words(SUMMARIES)] | None


class TextShown(TypedDict):
    """The options for the text that the client asked for."""

    format: dict[str, Any]
    verbosity: Annotated[str, words(VERBOSITIES)] | None


class Response(TypedDict):
    """A response, with the options of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    background: Literal[False]
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningShown
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: TextShown
    tool_choice: ToolChoice
    tools: list[AnyTool]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: Metadata


class ListedItem(Open):
    """An item of an input or an output, as it was sent, with an id added."""

    id: str
    type: str
    status: Status


class InputItems(TypedDict):
    """A page of the items that the model read for a response."""

    object: Literal["list"]
    data: list[ListedItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class RemovedResponse(TypedDict):
    """A response that is no longer kept."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
