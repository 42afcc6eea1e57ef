"""The interface of every dialect to the HTTP layer: a body becomes a `Call`, deltas become bytes.

Independent of protocols, sockets and backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, runtime_checkable

from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Perf,
    Tensor,
    TextLogprob,
    TokenDelta,
    ToolCallDelta,
    Usage,
)
from serve_app.types.control import KeptResponse


class Work(Protocol):
    """A checked body."""

    @property
    def num_prompts(self) -> int:
        """The number of the prompts. Each needs a permit."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """The client's names of fields, by the replica's names."""
        ...


WorkT = TypeVar("WorkT")
ParsedT = TypeVar("ParsedT", bound=Work, covariant=True)
PromptDelta = tuple[int, TokenDelta]  # the place of the prompt in its call, and a delta of its answer
Find = Callable[[], object]  # raises ModelNotFound


@dataclass(slots=True)
class ToolCall:
    """A tool call, put together from its deltas."""

    id: str
    name: str
    fragments: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The JSON text as the model wrote it."""
        return "".join(self.fragments)


@dataclass(slots=True)
class Choice:
    """The complete content of one choice, for answers that are not streamed."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TextLogprob] = field(default_factory=list)
    num_thought: int = 0  # those of tokens up to the last one with thoughts
    prompt_text: str | None = None
    prompt_logprobs: tuple[TextLogprob, ...] | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: tuple[int, ...] | None = None
    is_clamped: bool = False  # the client asked for more tokens than it may have
    num_prompt_tokens: int = 0
    tensors: list[dict[str, Tensor]] = field(default_factory=list)  # of the deltas that have any
    perf: Perf | None = None
    timed: list[TokenDelta] = field(default_factory=list)  # those with a `step`
    finish: FinishReason | None = None
    stop: str | int | None = None  # the stop string or stop token that matched

    def add(self, delta: TokenDelta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        for piece in delta.tool_calls:
            self._add_call(piece)
        self.logprobs += delta.logprobs or ()
        if delta.reasoning:
            self.num_thought = len(self.logprobs)
        self.token_ids += delta.token_ids
        if delta.prompt_text is not None:
            self.prompt_text = delta.prompt_text
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.step is not None:
            self.timed.append(delta)
        if delta.prompt_token_ids is not None:
            self.prompt_token_ids = delta.prompt_token_ids
        if delta.clamped is not None:
            self.is_clamped = True
        self.num_prompt_tokens = delta.usage.prompt_tokens
        if delta.tensors:
            self.tensors.append(delta.tensors)
        self.perf = delta.perf or self.perf
        self.finish = delta.finish or self.finish
        self.stop = delta.stop if delta.finish else self.stop

    def _add_call(self, piece: ToolCallDelta) -> None:
        if piece.index == len(self.calls):
            self.calls.append(ToolCall(piece.id or "", piece.name or ""))
        self.calls[piece.index].fragments.append(piece.arguments)


class Renderer(Protocol):
    """Writes the answer to one body. May keep state between events."""

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        """The wire events of one delta of the body's `prompt`-th prompt; may be empty."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The bytes that close a complete stream."""
        ...

    def broken(self, error: ServeError) -> bytes:
        """The bytes that close a stream that failed."""
        ...

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed; `choices` in the order of their index."""
        ...


@runtime_checkable
class OwnHeaders(Protocol):
    """A renderer that adds its own headers to an answer that is not streamed, once the body is written."""

    headers: Mapping[str, str]


@runtime_checkable
class KeepsAnswer(Protocol):
    """A renderer whose answer is stored, so that later requests may refer to it. The answer is stored before
    the client reads that it is complete."""

    def to_keep(self, usage: Usage, choices: Iterable[Choice] = ()) -> KeptResponse | None:
        """The response to store; None: nothing. `choices` are given for an answer that is not streamed."""
        ...

    def not_kept(self) -> None:
        """Called if the answer could not be stored: the answer must say so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The parts of a call that decide which entity answers, and by when."""

    task: Task
    version: str | None = None  # of the model, where the client names one
    user: str | None = None  # the client's end-user id, for stickiness
    timeout_s: float | None = None  # None: the server's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Target):
    """A checked body: what to generate and how to answer.

    `requests` lack the fields that the server sets: ids, the tenant's salt and the deadline.
    """

    model: str  # name of the endpoint
    client_id: str | None = None  # by which the client may stop it
    requests: tuple[GenerateRequest, ...]
    stream: bool
    ignored: tuple[str, ...]  # unknown top-level fields, as sent
    renderer: Callable[[str, ModelInfo], Renderer]  # for a request id and its model
    names: Mapping[str, str] = field(default_factory=dict)  # a replica's name of a field -> the client's
    # A request as it goes to a model, where its protocol has ranges that only the model can tell.
    # Raises InvalidField.
    fit: Callable[[GenerateRequest, ModelInfo], GenerateRequest] = lambda request, info: request
    shows_ids: str | None = None  # the client's field because of which the answer has token ids
    tells_filtered: bool = False  # a choice may end with FILTERED; else the answer ends with an error

    @property
    def num_prompts(self) -> int:
        return len(self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Referring(Generic[WorkT]):
    """A checked body that refers to stored responses, which must be fetched before a model can be called."""

    model: str  # name of the endpoint
    ids: tuple[str, ...]  # of responses
    last: str  # the response that the body goes on from, with all that this one goes on from; "": none
    names: Mapping[str, str]  # as of a `Call`
    complete: Callable[[Mapping[str, KeptResponse]], WorkT]  # takes those found; raises what `parse` raises
    num_prompts: int = 1


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Parser(Protocol[ParsedT]):
    """The part of a route's protocol that reads bodies and renders errors."""

    def parse(self, raw: bytes, endpoint: str | None = None) -> ParsedT | Referring[ParsedT]:
        """Parse a body. `endpoint` is set if the path names it, rather than the body.

        Raises InvalidBody, InvalidField or PromptTooLong; raises ModelNotFound if the body's form depends on
        the endpoint.
        """
        ...

    def render_error(self, error: ServeError) -> ErrorReply: ...


class Dialect(Parser[Call], Protocol):
    """The protocol of a route that generates."""

    @property
    def stream_type(self) -> str:
        """Content-Type of streams."""
        ...


class ChosenDialect:
    """Passes one request on to a dialect, which the body may still replace by another."""

    def __init__(self, dialect: Dialect) -> None:
        self._chosen = dialect

    @property
    def stream_type(self) -> str:
        return self._chosen.stream_type

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises the errors of the dialect's `parse`."""
        return self._chosen.parse(raw, endpoint)

    def render_error(self, error: ServeError) -> ErrorReply:
        return self._chosen.render_error(error)


class KnownModel(ChosenDialect):
    """For paths that name the model, so that an unknown model is reported before errors in the body."""

    def __init__(self, dialect: Dialect, find: Find) -> None:
        super().__init__(dialect)
        self._find = find

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call | Referring[Call]:
        """Raises ModelNotFound, or what the dialect's `parse` raises."""
        self._find()
        return super().parse(raw, endpoint)
