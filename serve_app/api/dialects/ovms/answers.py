"""The shapes of OpenVINO Model Server's answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from serve_app.api.dialects.chat import answers as shared


class Message(TypedDict):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[shared.ToolCall]]
    function_call: NotRequired[shared.FunctionCall]


class ChatChoice(TypedDict):
    """One answer of several."""

    index: int
    message: Message
    logprobs: shared.Logprobs | None
    finish_reason: shared.FinishWord | None
    token_ids: NotRequired[list[int]]


class Whole(shared.Head):
    """The members of every whole answer besides its choices."""

    usage: shared.TotalUsage
    system_fingerprint: str
    prompt_logprobs: NotRequired[shared.PromptLogprobs]


class ChatCompletion(Whole):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class AnyWhole(Whole):
    """A whole answer with choices of any kind."""

    object: str
    choices: Sequence[ChatChoice | CompletionChoice]


class ChatDelta(TypedDict, total=False):
    """The members that a chunk adds; the last chunk of a choice adds none."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[shared.ToolCallPiece]
    function_call: shared.FunctionPiece


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: shared.Logprobs | None
    finish_reason: shared.FinishWord | None
    token_ids: NotRequired[list[int]]


class ChatChunk(shared.Head):
    """A piece of a streamed answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[shared.TotalUsage | None]


class CompletionChoice(TypedDict):
    """A continuation of the prompt, or a piece of it."""

    index: int
    text: str
    logprobs: shared.LegacyLogprobs | None
    finish_reason: shared.FinishWord | None
    token_ids: NotRequired[list[int]]


class Completion(Whole):
    """The whole answer to a completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunk(shared.Head):
    """A piece of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[shared.TotalUsage | None]


class RankedText(TypedDict):
    """A document's text."""

    text: str


class Ranked(TypedDict):
    """A document's place in the list that was sent, and its similarity to the query."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(TypedDict):
    """The documents, the most similar first."""

    results: list[Ranked]


class TextTokens(TypedDict):
    """The tokens of a text, or of each of several texts."""

    tokens: list[int] | list[list[int]]
