"""Results of a request: deltas of text, tokens, usage, errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a sequence ended. Each dialect has its own names for these reasons."""

    EOS = "eos"  # the model's end-of-sequence token
    STOP = "stop"  # a stop string or stop token of the client
    REPETITION = "repetition"  # the output repeats itself, and the client has set a rule for that
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context window is full
    ABORT = "abort"  # cancelled, by the client or by us
    ERROR = "error"  # see the `error` beside it
    TOOL_CALLS = "tool_calls"  # the model asks for tools and waits
    FILTERED = "filtered"  # a guardrail ended it; only of dialects that have a word for that


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as it crosses a process boundary: raw little-endian bytes, row-major."""

    dtype: str  # KServe names: FP32, FP16, BF16, INT32, INT64, BOOL, UINT8
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position, by id; the replica adds the text."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position: natural logarithms of the raw model distribution."""

    token_id: int  # the token at this place
    logprob: float
    top: tuple[TopLogprob, ...] = ()  # likeliest first
    rank: int | None = None  # of a prompt token among all tokens, from 1


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token with its own text; `top` are its alternatives, likeliest first."""

    token_id: int
    text: str
    data: bytes  # the token's bytes; several tokens may share one character
    logprob: float | None  # None: first prompt token, which nothing predicts
    top: tuple[TextLogprob, ...] = ()
    rank: int | None = None  # of a prompt token, among all tokens of the vocabulary, from 1


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens of one request so far: cumulative, so that a broken stream can be billed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # over the choices returned, end tokens included
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    discarded_tokens: int = 0  # generated for candidates and beams that lost, so for no returned choice
    reasoning_tokens: int = 0  # of `completion_tokens`: those of thoughts, where their format is known

    @property
    def generated_tokens(self) -> int:
        """All generated tokens, delivered or not, as limits and records count them."""
        return self.completion_tokens + self.discarded_tokens

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        """The sum over several requests."""
        prompt = completion = cached = discarded = reasoning = 0
        for usage in usages:
            prompt += usage.prompt_tokens
            completion += usage.completion_tokens
            cached += usage.cached_tokens
            discarded += usage.discarded_tokens
            reasoning += usage.reasoning_tokens
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            discarded_tokens=discarded,
            reasoning_tokens=reasoning,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of a request, in seconds."""

    queue_s: float = 0.0  # from arrival in the engine to its first step
    first_token_s: float = 0.0  # from arrival in the engine to its first token


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The step that made a token, as its sequence experienced it."""

    batch_size: int  # sequences in the step
    wait_s: float  # from the sequence's last token (the first: from arrival) to the step's begin
    run_s: float  # of the step itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Perf:
    """How one sequence was served. Times are in ns of one clock with an arbitrary zero."""

    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    blocks_total: int  # of the KV cache, at the end: reused + new
    blocks_reused: int  # found in the prefix cache
    blocks_new: int
    draft_tokens: int = 0  # verified, from the client or our own
    accepted_tokens: int = 0  # of those, in the output


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call: the first piece for each index carries `id` and `name`."""

    index: int  # of the call in its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # more of the JSON text


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An error of errors.py as it crosses a process boundary."""

    kind: str  # class name in errors.py
    reason: str  # public text: no prompt, path, address or class name
    param: str | None = None  # the field at fault: its name, and the text that joins name and reason
    joint: str | None = None
    retry_after_s: float | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of one step for one choice, as text. The last delta carries `finish`."""

    request_id: str
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] | None = None
    prompt_text: str | None = None  # first delta, when `echo`
    prompt_token_ids: tuple[int, ...] | None = None  # first delta, when asked for
    clamped: int | None = None  # first delta: the limit of output tokens, if lower than requested
    prompt_logprobs: tuple[TextLogprob, ...] | None = None  # first delta, one a prompt token
    finish: FinishReason | None = None
    stop: str | int | None = None  # the stop string or stop token that matched
    usage: Usage = Usage()  # of the whole request, cumulative
    timing: Timing | None = None  # with a choice's first token
    step: StepTiming | None = None  # when `per_token`
    reasoning: str = ""  # the model's thoughts, apart from `text`
    tool_calls: tuple[ToolCallDelta, ...] = ()
    error: ErrorInfo | None = None  # with finish ERROR
    # "context_logits" FP32 (prompt, vocab): first delta of choice 0, after each prompt token;
    # "generation_logits" FP32 (tokens of the delta, vocab): from which each was chosen. Both raw.
    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)
    perf: Perf | None = None  # with a choice's last delta; none where a stop string cut it
    is_progress: bool = False  # only `usage` is new, nothing is delivered; see GenerateRequest.progress
