"""The shapes of OpenAI's answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from serve_app.api.dialects.chat import answers as shared
from serve_app.api.dialects.openai.errors import SPENT, TABLE
from serve_app.api.protocol.fields import words

ErrorType: TypeAlias = Annotated[str, words([*(row.type for row in TABLE.values()), SPENT])]


class Error(TypedDict):
    """What went wrong."""

    message: str
    type: ErrorType
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """An error in OpenAI's shape."""

    error: Error


class Usage(shared.TotalUsage):
    """The numbers of tokens: in the prompt, in the output, in both, in the cache, and in thoughts."""

    prompt_tokens_details: shared.CachedTokens
    completion_tokens_details: NotRequired[shared.ReasoningTokens]


class NamedHead(shared.Head):
    """The members that every answer begins with."""

    system_fingerprint: str


class NamedBegun(NamedHead):
    """The first members of every answer, whatever its `object`."""

    object: Any


class ChatLogprobs(shared.Logprobs):
    """Log-probabilities of a chat's output."""

    refusal: None


class TextCall(TypedDict):
    """A custom tool, and the text it is called with."""

    name: str
    input: str


class CustomToolCall(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: TextCall


class TextPiece(TypedDict):
    """A piece of a call of a custom tool: first the name with an empty text, then the whole text."""

    name: NotRequired[str]
    input: str


class CustomToolCallPiece(TypedDict):
    """A call of a custom tool in a stream; id and type come with the first piece."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["custom"]]
    custom: TextPiece


class Message(TypedDict):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[shared.ToolCall | CustomToolCall]]
    function_call: NotRequired[shared.FunctionCall]


class ChatChoice(TypedDict):
    """One answer of several."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: shared.LegacyFinishWord | None
    stop_reason: NotRequired[str | int]
    token_ids: NotRequired[list[int]]


class ChatCompletion(NamedHead):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[shared.PromptLogprobs]
    prompt_token_ids: NotRequired[Sequence[int] | None]


class ChatDelta(TypedDict, total=False):
    """The members that a chunk adds."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[shared.ToolCallPiece | CustomToolCallPiece]
    function_call: shared.FunctionPiece


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: shared.LegacyFinishWord | None
    stop_reason: NotRequired[str | int]
    token_ids: NotRequired[list[int]]


class ChatChunk(NamedHead):
    """A piece of a streamed answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | shared.TotalUsage | None]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunkChoice(TypedDict):
    """A piece of one continuation."""

    index: int
    text: str
    logprobs: shared.LegacyLogprobs | None
    finish_reason: shared.LegacyFinishWord | None
    stop_reason: NotRequired[str | int]
    prompt_token_ids: NotRequired[Sequence[int] | None]
    token_ids: NotRequired[list[int]]


class CompletionChoice(CompletionChunkChoice):
    """One continuation of one prompt."""

    prompt_logprobs: NotRequired[shared.PromptLogprobs]


class Completion(NamedHead):
    """The whole answer to a completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(NamedHead):
    """A piece of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: NotRequired[Usage | shared.TotalUsage | None]


class InputTokenCount(TypedDict):
    """The number of tokens in the input of a response."""

    object: Literal["response.input_tokens"]
    input_tokens: int
