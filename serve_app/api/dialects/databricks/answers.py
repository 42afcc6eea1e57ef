"""The shapes of Databricks' answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from serve_app.api.dialects.chat import answers as shared
from serve_app.api.dialects.databricks.errors import CODE
from serve_app.api.protocol.fields import words

ErrorCode: TypeAlias = Annotated[str, words(CODE.values())]


class ErrorDetail(TypedDict):
    """An error in the place where OpenAI's clients look for it."""

    message: str
    type: ErrorCode
    param: str | None
    code: ErrorCode


class DatabricksError(TypedDict):
    """An error in Databricks' own words."""

    error_code: ErrorCode
    message: str


class ErrorBody(DatabricksError):
    """An error in Databricks' shape."""

    error: ErrorDetail


class ErrorEvent(DatabricksError):
    """An error after the first byte; it is repeated under `error`, where OpenAI's packages look."""

    error: DatabricksError


class Usage(shared.TotalUsage):
    """The number of tokens in the prompt, in the output and in both."""

    prompt_tokens_details: NotRequired[shared.CachedTokens]


class ThoughtText(TypedDict):
    """A piece of what the model thinks."""

    type: Literal["summary_text"]
    text: str


class ThoughtPart(TypedDict):
    """The model's thoughts, as a part of the content."""

    type: Literal["reasoning"]
    summary: list[ThoughtText]


class SaidPart(TypedDict):
    """The text of the answer, beside the thoughts."""

    type: Literal["text"]
    text: str


class Message(TypedDict):
    """The assistant's message; with `thinking`, its content is a list of parts."""

    role: Literal["assistant"]
    content: str | list[ThoughtPart | SaidPart] | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[shared.ToolCall]]


class ChatChoice(TypedDict):
    """One answer of several."""

    index: int
    message: Message
    logprobs: NotRequired[shared.Logprobs]
    finish_reason: shared.FinishWord | None


class ChatCompletion(shared.Head):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict, total=False):
    """The members that a chunk adds."""

    role: Literal["assistant"]
    content: str | list[ThoughtPart]
    reasoning_content: str
    tool_calls: list[shared.ToolCallPiece]


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: NotRequired[shared.Logprobs | None]
    finish_reason: shared.FinishWord | None


class ChatChunk(shared.Head):
    """A piece of a streamed answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class CompletionChoice(TypedDict):
    """One continuation of one prompt, or a piece of it."""

    index: int
    text: str
    logprobs: NotRequired[shared.LegacyLogprobs | None]
    finish_reason: shared.FinishWord | None


class Completion(shared.Head):
    """The whole answer to a completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(shared.Head):
    """A piece of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class Embeddings(shared.EmbeddingList):
    """The vectors in the order of the texts."""

    id: str
