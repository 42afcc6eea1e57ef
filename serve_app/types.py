"""The contract: what crosses a process boundary, decided once.

Plain frozen dataclasses of the standard library, nothing else, so that every
layer can import this module and `msgspec` can carry it as bytes. Nothing here
is a torch object, a pydantic model or an HTTP notion.

    HTTP body --dialect.parse--> GenerateRequest --replica--> EngineRequest
    EngineOutput --replica--> TokenDelta --dialect.render--> bytes

A `GenerateRequest` is one *sequence group*: one prompt and its `n` choices. An
HTTP body with several prompts becomes several requests with one `parent_id`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a sequence ended. Each dialect has its own words for these."""

    EOS = "eos"  # the model's end-of-sequence token
    STOP = "stop"  # a stop string or stop token of the client
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context window is full
    ABORT = "abort"  # cancelled, by the client or by us
    ERROR = "error"  # see the `error` beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as it crosses a process: raw little-endian bytes, row-major."""

    dtype: str  # KServe names: FP32, FP16, BF16, INT32, INT64, BOOL, UINT8
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token of a sequence is chosen, and when the sequence ends.

    Ranges are the engine's own; a dialect may allow less. The order in which
    these act on the logits is the order of `engine/sampler.py`.
    """

    temperature: float = 1.0  # >= 0; 0 is greedy
    top_k: int = 0  # 0 is off; 1 is greedy
    top_p: float = 1.0  # (0, 1]; 1 is off
    min_p: float = 0.0  # [0, 1]; 0 is off
    typical_p: float = 1.0  # (0, 1]; 1 is off
    seed: int | None = None  # 0 .. 2**64-1; None: the engine draws one
    repetition_penalty: float = 1.0  # > 0; sees prompt and output
    presence_penalty: float = 0.0  # sees the output (and the prompt, see below)
    frequency_penalty: float = 0.0
    penalize_prompt: bool = False  # presence and frequency count prompt tokens too
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added logit)
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences never to complete
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    min_tokens: int = 0  # no EOS and no stop token before this many
    max_tokens: int | None = None  # >= 1; None: until the context is full
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # EOS does not end the sequence (it is not masked)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly one of `text`, `messages` and `token_ids` is set.

    `messages` are plain `{"role": ..., "content": str, ...}` mappings, already
    checked and flattened to text by the dialect; `tools` are handed to the
    model's own chat template. `suffix` asks for fill-in-the-middle.
    """

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    suffix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What a gateway asks of a model replica: one prompt, `n` choices."""

    id: str  # made by us at the gateway, never the client's
    model: str  # the Serve application that serves it
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    n: int = 1  # choices returned, numbered 0 .. n-1
    best_of: int | None = None  # sequences generated (>= n); None: n
    stop: tuple[str, ...] = ()  # stop strings, none empty
    include_stop: bool = False  # keep the matched stop string in the text
    skip_special_tokens: bool = True
    bad_words: tuple[str, ...] = ()  # as text; the replica tokenises them
    echo: bool = False  # the text starts with the prompt
    logprobs: int | None = None  # None: off; k: the chosen token and the k likeliest
    prompt_logprobs: int | None = None  # the same for every prompt token
    stream: bool = True  # False: one delta a choice, at the end
    priority: int = 0  # larger runs earlier
    timeout_s: float | None = None  # from the moment the replica has the request
    salt: str = ""  # tenant salt of the prefix cache
    parent_id: str | None = None  # the body this request was split from


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position, by id; the replica adds the text."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position, natural log of the raw model distribution."""

    token_id: int  # the token that stands there
    logprob: float
    top: tuple[TopLogprob, ...] = ()  # likeliest first


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A token with its own text; `top` are its alternatives, likeliest first."""

    token_id: int
    text: str
    data: bytes  # the token's bytes; several tokens may share one character
    logprob: float | None  # None: first prompt token, which nothing predicts
    top: tuple[TextLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request so far: cumulative, so that a broken stream can be billed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0  # over the choices returned, end tokens included
    cached_tokens: int = 0  # prompt tokens found in the prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of a request went, in seconds."""

    queue_s: float = 0.0  # from arrival in the engine to its first step
    first_token_s: float = 0.0  # from arrival in the engine to its first token


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An error of errors.py as it crosses a process."""

    kind: str  # class name in errors.py
    message: str  # public text: no prompt, path, address or class name
    param: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What a replica asks of its engine: token ids and nothing textual."""

    id: str
    token_ids: tuple[int, ...]  # at least one
    sampling: SamplingParams = SamplingParams()
    n: int = 1  # sequences forked from the prompt
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    timeout_s: float | None = None
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """What one step brought one sequence: 0..k new tokens, or its end."""

    request_id: str
    index: int  # 0 .. n-1
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()  # one a token, when asked for
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = None  # with the first token;
    # positions 1 .. len(prompt)-1: nothing predicts position 0
    finish: FinishReason | None = None
    error: ErrorInfo | None = None  # set when finish is ERROR
    cached_tokens: int = 0
    timing: Timing | None = None  # with the first token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """What one step brought one choice, as text. The last one carries `finish`."""

    request_id: str
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] | None = None
    prompt_text: str | None = None  # first delta, when `echo`
    prompt_token_ids: tuple[int, ...] | None = None  # first delta, when `echo` or prompt_logprobs
    prompt_logprobs: tuple[TextLogprob, ...] | None = None  # first delta, one a prompt token
    finish: FinishReason | None = None
    stop: str | int | None = None  # the stop string or stop token that matched
    usage: Usage = Usage()  # of the whole request, cumulative
    timing: Timing | None = None  # with a choice's first token
    error: ErrorInfo | None = None  # with finish ERROR
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine for metrics, autoscaling and health."""

    running: int = 0  # sequences in the batch
    waiting: int = 0  # sequences waiting for their first step or resumption
    waiting_tokens: int = 0  # prompt tokens not yet computed
    blocks_total: int = 0
    blocks_used: int = 0  # referenced by a live sequence
    blocks_cached: int = 0  # free, but holding a prefix that can be hit
    max_sequences: int = 0
    steps: int = 0
    prompt_tokens: int = 0  # counters since start
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    heartbeat_age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a gateway may know of a model without loading it."""

    name: str
    version: str = ""
    created: int  # Unix seconds, when the replica came up
    context_window: int  # prompt + output tokens
    vocab_size: int
    has_chat_template: bool
    has_fim: bool
    dtype: str
    device: str
    eos_token_ids: tuple[int, ...] = ()


class Scope(StrEnum):
    """What an API key may be allowed to do. Every route that is not open needs one."""

    INFERENCE = "inference"  # list models, generate
    METRICS = "metrics"  # read the server's metrics
    ROUTING = "routing"  # choose the served entity of a request, past the traffic split


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, as far as the server is concerned."""

    key_id: str  # name of the key, safe for logs
    scopes: frozenset[Scope]  # what the key may do
    salt: str  # tenant salt of the prefix cache: from the key, never from the client's input
    anonymous: bool = False  # no key is configured, so everybody is this caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a request takes from one budget: a bucket that fills steadily and never overflows."""

    bucket: str  # whose budget of what: unique in the cluster, never shown
    unit: str  # "requests", "input-tokens", "output-tokens" or "tokens": for the client
    amount: float  # >= 0
    capacity: float  # of the bucket: most that may come at once
    per_second: float  # at which it fills


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How a bucket stands after a claim, for `x-ratelimit-*`."""

    unit: str
    limit: int  # its capacity
    remaining: int  # >= 0
    reset_s: float  # until it is full again


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a claim: all draws of it were made, or none."""

    granted: bool
    budgets: tuple[Budget, ...]  # in the order of the draws
    retry_after_s: float | None = None  # refused: until this claim could be granted; None: never
    refused: str | None = None  # the unit that refused it


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one admitted request used: exactly one a request, however it ended."""

    id: str  # ours, unique
    key_id: str
    endpoint: str
    entity: str  # the served entity that answered, or was tried last
    kind: str  # of the endpoint: pay_per_token, provisioned_throughput
    route: str  # template of the HTTP route
    started: float  # Unix seconds
    outcome: str  # "finished", "failed", "aborted" (the client left) or "lost" (its gateway died)
    status: int = 0  # HTTP; 0: nothing was sent
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None  # from arrival at the gateway
    queue_s: float | None = None  # in the engine, before its first step
    total_s: float = 0.0
    cost: float | None = None  # by the endpoint's price, in `currency`
    currency: str | None = None
