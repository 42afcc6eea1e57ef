"""The shapes of a response and of its events, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import ListedToken
from serve_app.api.dialects.responses.answers import (
    CallItem,
    ResponseFault,
    ResponseUsage,
    Status,
    SummaryText,
)
from serve_app.api.dialects.responses.events import Numbered
from serve_app.api.dialects.responses.shapes import AnyTool, Metadata, ToolChoice


class SaidText(TypedDict):
    """What the model says."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: NotRequired[list[ListedToken]]


class SaidItem(TypedDict):
    """What the model says, as an item."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[SaidText]


class SummaryItem(TypedDict):
    """What the model thinks, as an item."""

    id: str
    type: Literal["reasoning"]
    summary: list[SummaryText]


OutputItem: TypeAlias = Annotated[SaidItem | SummaryItem | CallItem, Field(discriminator="type")]


class IncompleteReason(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_tokens", "content_filter"]


class TextFormat(TypedDict):
    """The options for the text, as the client sent them."""

    format: dict[str, Any]


class OvmsResponse(TypedDict):
    """A response. Members without a value are left out."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: NotRequired[int]
    incomplete_details: NotRequired[IncompleteReason]
    error: ResponseFault | None
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    parallel_tool_calls: bool
    store: bool
    text: TextFormat
    tool_choice: ToolChoice
    tools: list[AnyTool]
    truncation: Literal["disabled"]
    metadata: Metadata
    instructions: NotRequired[str]
    temperature: NotRequired[float]
    top_p: NotRequired[float]
    min_p: NotRequired[float]
    max_output_tokens: NotRequired[int]
    user: NotRequired[str]
    output: list[OutputItem]
    usage: NotRequired[ResponseUsage]


class OvmsResponseEvent(Numbered):
    """The response at its beginning, or at its end."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: OvmsResponse


class OutputItemEvent(Numbered):
    """An item begins, or has ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _OfContent(Numbered):
    output_index: int
    content_index: Literal[0]
    item_id: str


class SaidPartEvent(_OfContent):
    """The text of a message begins, or has ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: SaidText


class SaidDelta(_OfContent):
    """More of what the model says."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: NotRequired[list[ListedToken]]


class SaidDone(_OfContent):
    """All of what the model says."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: NotRequired[list[ListedToken]]


class _OfSummary(Numbered):
    output_index: int
    summary_index: Literal[0]
    item_id: str


class SummaryPartEvent(_OfSummary):
    """The text of thoughts begins, or has ended."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    part: SummaryText


class SummaryDelta(_OfSummary):
    """More of what the model thinks."""

    type: Literal["response.reasoning_summary_text.delta"]
    delta: str


class SummaryDone(_OfSummary):
    """All of what the model thinks."""

    type: Literal["response.reasoning_summary_text.done"]
    text: str


class _OfCall(Numbered):
    output_index: int
    item_id: str
    call_id: str


class CallDelta(_OfCall):
    """More of the arguments of a call."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class CallDone(_OfCall):
    """All arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str


OvmsEvent: TypeAlias = Annotated[
    OvmsResponseEvent
    | OutputItemEvent
    | SaidPartEvent
    | SaidDelta
    | SaidDone
    | SummaryPartEvent
    | SummaryDelta
    | SummaryDone
    | CallDelta
    | CallDone,
    Field(discriminator="type"),
]
