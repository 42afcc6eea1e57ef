"""The shapes of OpenVINO Model Server's answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import (
    FinishWord,
    FunctionCall,
    FunctionPiece,
    Head,
    LegacyLogprobs,
    Logprobs,
    PromptLogprobs,
    ToolCall,
    ToolCallPiece,
    TotalUsage,
)


class Message(TypedDict):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    function_call: NotRequired[FunctionCall]


class ChatChoice(TypedDict):
    """One answer of several."""

    index: int
    message: Message
    logprobs: Logprobs | None
    finish_reason: FinishWord | None
    token_ids: NotRequired[list[int]]


class Whole(Head):
    """What every whole answer has besides its choices."""

    usage: TotalUsage
    system_fingerprint: str
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatCompletion(Whole):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatDelta(TypedDict, total=False):
    """What a chunk adds; the last of a choice adds nothing."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallPiece]
    function_call: FunctionPiece


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: Logprobs | None
    finish_reason: FinishWord | None
    token_ids: NotRequired[list[int]]


class ChatChunk(Head):
    """A piece of a streamed answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[TotalUsage | None]


class CompletionChoice(TypedDict):
    """A continuation of the prompt, or a piece of it."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishWord | None
    token_ids: NotRequired[list[int]]


class Completion(Whole):
    """The whole answer to a completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunk(Head):
    """A piece of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[TotalUsage | None]


class RankedText(TypedDict):
    """A document's text."""

    text: str


class Ranked(TypedDict):
    """A document's place in the list that was sent, and how alike it is to the query."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(TypedDict):
    """The documents, the likest first."""

    results: list[Ranked]


class TextTokens(TypedDict):
    """The tokens of a text, or of each of several."""

    tokens: list[int] | list[list[int]]
