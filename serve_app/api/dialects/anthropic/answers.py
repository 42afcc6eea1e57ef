"""The shapes of a message and of the events by which it grows, of counts, models and errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict


class SaidBlock(TypedDict):
    """What the model says."""

    type: Literal["text"]
    text: str


class ThoughtBlock(TypedDict):
    """What the model thinks."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class CalledBlock(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = Annotated[SaidBlock | ThoughtBlock | CalledBlock, Field(discriminator="type")]


class ThinkingTokens(TypedDict):
    """Tokens of thoughts, which also count as output."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Tokens of the prompt, split into computed and cached ones, and tokens of the output."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class StopDetails(TypedDict):
    """Why an answer was refused."""

    type: Literal["refusal"]
    category: None
    explanation: str


StopReason: TypeAlias = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]


class MessageEnd(TypedDict):
    """How an answer ended; the members are null until then."""

    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: StopDetails | None


class Message(MessageEnd):
    """What the assistant answers."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    usage: MessageUsage


class MessageStart(TypedDict):
    """The message, which has no content yet."""

    type: Literal["message_start"]
    message: Message


class BlockStart(TypedDict):
    """A block begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class SaidDelta(TypedDict):
    """More of what the model says."""

    type: Literal["text_delta"]
    text: str


class ThoughtDelta(TypedDict):
    """More of what the model thinks."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The signature of thoughts, before their end."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """More of the JSON of a call's input."""

    type: Literal["input_json_delta"]
    partial_json: str


ContentDelta: TypeAlias = Annotated[
    SaidDelta | ThoughtDelta | SignatureDelta | InputDelta, Field(discriminator="type")
]


class BlockDelta(TypedDict):
    """The last block grows."""

    type: Literal["content_block_delta"]
    index: int
    delta: ContentDelta


class BlockStop(TypedDict):
    """A block ends."""

    type: Literal["content_block_stop"]
    index: int


class MessageDelta(TypedDict):
    """The end of the content."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(TypedDict):
    """The end of the stream."""

    type: Literal["message_stop"]


class AnthropicError(TypedDict):
    """What is wrong."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    ]
    message: str


class AnthropicErrorBody(TypedDict):
    """An error, in place of the answer or of its end."""

    type: Literal["error"]
    error: AnthropicError


MessageEvent: TypeAlias = Annotated[
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | AnthropicErrorBody,
    Field(discriminator="type"),
]


class TokenCount(TypedDict):
    """The number of tokens that the model would read."""

    input_tokens: int


class AnthropicModel(TypedDict):
    """An endpoint, or an adapter of its model."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None


class AnthropicModels(TypedDict):
    """A page of the endpoints that can answer."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
