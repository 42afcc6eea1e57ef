"""The shapes that answers of chats, completions and embeddings have in common, for the OpenAPI document.

The module `wire` writes the answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from serve_app.api.dialects.chat.finish import CONTENT_FILTER, FINISH, LEGACY_TOOL_CALLS, REPETITION
from serve_app.api.protocol.fields import words

_OF_OPENAI: Final = (CONTENT_FILTER, REPETITION)
FinishWord: TypeAlias = Annotated[str, words(each for each in FINISH.values() if each not in _OF_OPENAI)]
LegacyFinishWord: TypeAlias = Annotated[str, words((*FINISH.values(), LEGACY_TOOL_CALLS))]


class Head(TypedDict):
    """The members that every answer begins with."""

    id: str
    created: int
    model: str


class Begun(Head):
    """The first members of every answer, whatever its `object`."""

    object: Any


class TokenLogprob(TypedDict):
    """A token and its log-probability."""

    token: str
    logprob: float | None
    bytes: list[int]


class ListedToken(TokenLogprob):
    """A token with its likeliest alternatives."""

    top_logprobs: list[TokenLogprob]


class Logprobs(TypedDict):
    """The log-probability of each token of a chat's output."""

    content: list[ListedToken]


class LegacyLogprobs(TypedDict):
    """Log-probabilities of a completion: four lists, with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """One token at its place in the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]


class FunctionCall(TypedDict):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionPiece(TypedDict):
    """A piece of a call; the name comes with the first piece."""

    name: NotRequired[str]
    arguments: str


class ToolCallPiece(TypedDict):
    """A piece of a call in a stream; id and type come with the first piece."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionPiece


class TotalUsage(TypedDict):
    """The number of tokens in the prompt, in the output and in both."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CachedTokens(TypedDict):
    """Tokens of the prompt that were found in the cache."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """The number of tokens in the output that are thoughts."""

    reasoning_tokens: int


class EmbeddingUsage(TypedDict):
    """The number of tokens in the texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """A text's vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """The vectors in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
