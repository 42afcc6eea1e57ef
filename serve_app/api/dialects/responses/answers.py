"""The shapes of a response and of the events by which it grows, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field, with_config
from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import ListedToken, ReasoningTokens
from serve_app.api.dialects.chat.templating import EFFORTS
from serve_app.api.dialects.fields import words
from serve_app.api.dialects.responses.shapes import (
    SUMMARIES,
    VERBOSITIES,
    AnyTool,
    Metadata,
    ToolChoice,
)

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
    """What the model thinks, where a summary was asked for."""

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


Item: TypeAlias = Annotated[
    MessageItem | ReasoningItem | CallItem | CustomCallItem, Field(discriminator="type")
]


class ResponseFault(TypedDict):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputTokens(TypedDict):
    """Tokens of the input that were found in the cache. None is charged for being written to it."""

    cached_tokens: int
    cache_write_tokens: Literal[0]


class ResponseUsage(TypedDict):
    """Tokens of the input, of the output and of both."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ReasoningShown(TypedDict):
    """What was asked of the thoughts."""

    effort: Annotated[str, words(EFFORTS)] | None
    summary: Annotated[str, words(SUMMARIES)] | None


class TextShown(TypedDict):
    """What was asked of the text."""

    format: dict[str, Any]
    verbosity: Annotated[str, words(VERBOSITIES)] | None


class Response(TypedDict):
    """A response, with what was asked of it."""

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


@with_config(extra="allow")
class ListedItem(TypedDict):
    """An item as it was sent, or as it was an output, with an id."""

    id: str
    type: str
    status: Status


class InputItems(TypedDict):
    """A page of the items that a response was made of."""

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


class Numbered(TypedDict):
    """What every event has."""

    sequence_number: int


class ResponseEvent(Numbered):
    """The response as it begins, or as it ended."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(Numbered):
    """An item begins, or has ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class PartEvent(Numbered):
    """The text of an item begins, or has ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: Literal[0]
    part: Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class TextDelta(Numbered):
    """More of what the model says."""

    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: int
    content_index: Literal[0]
    delta: str
    logprobs: list[ListedToken]


class TextDone(Numbered):
    """All of what the model says."""

    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: Literal[0]
    text: str
    logprobs: list[ListedToken]


class ReasoningDelta(Numbered):
    """More of what the model thinks."""

    type: Literal["response.reasoning_text.delta"]
    item_id: str
    output_index: int
    content_index: Literal[0]
    delta: str


class ReasoningDone(Numbered):
    """All of what the model thinks."""

    type: Literal["response.reasoning_text.done"]
    item_id: str
    output_index: int
    content_index: Literal[0]
    text: str


class SummaryPartEvent(Numbered):
    """The summary of thoughts begins, or has ended."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    item_id: str
    output_index: int
    summary_index: Literal[0]
    part: SummaryText


class SummaryDelta(Numbered):
    """More of the summary of thoughts."""

    type: Literal["response.reasoning_summary_text.delta"]
    item_id: str
    output_index: int
    summary_index: Literal[0]
    delta: str


class SummaryDone(Numbered):
    """All of the summary of thoughts."""

    type: Literal["response.reasoning_summary_text.done"]
    item_id: str
    output_index: int
    summary_index: Literal[0]
    text: str


class ArgumentsDelta(Numbered):
    """More of the arguments of a call."""

    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class InputTextDelta(Numbered):
    """The input of a custom tool, all of it."""

    type: Literal["response.custom_tool_call_input.delta"]
    item_id: str
    output_index: int
    delta: str


class InputTextDone(Numbered):
    """All of the input of a custom tool."""

    type: Literal["response.custom_tool_call_input.done"]
    item_id: str
    output_index: int
    input: str


class ArgumentsDone(Numbered):
    """All arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str


Event: TypeAlias = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | SummaryPartEvent
    | SummaryDelta
    | SummaryDone
    | ArgumentsDelta
    | InputTextDelta
    | InputTextDone
    | ArgumentsDone,
    Field(discriminator="type"),
]
