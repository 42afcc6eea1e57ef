"""The shapes of the events by which a response grows, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import ListedToken
from serve_app.api.dialects.responses.answers import Item, OutputText, ReasoningText, Response, SummaryText


class Numbered(TypedDict):
    """The members that every event has."""

    sequence_number: int


class ResponseEvent(Numbered):
    """The response at its beginning, or at its end."""

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
    """The whole input of a custom tool, as a single delta."""

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
