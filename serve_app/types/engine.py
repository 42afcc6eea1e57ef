"""Requests from a replica to its engine, and the engine's outputs: token ids, no text."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from serve_app.types.inputs import Draft, PromptTable
from serve_app.types.result import (
    ErrorInfo,
    FinishReason,
    Perf,
    PositionLogprobs,
    StepTiming,
    Tensor,
    Timing,
)
from serve_app.types.resume import ChoiceSoFar
from serve_app.types.sampling import DEFAULT_SAMPLING, Beam, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request from a replica to its engine: token ids, no text."""

    id: str
    token_ids: tuple[int, ...]  # at least one
    sampling: SamplingParams = DEFAULT_SAMPLING
    n: int = 1  # sequences forked from the prompt
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    context_logits: bool = False
    generation_logits: bool = False
    bias: Tensor | None = None  # FP32 (vocab,), finite: added to the logits before everything else
    prompt_table: PromptTable | None = None
    draft: Draft | None = None
    beam: Beam | None = None  # n: hypotheses returned, best first
    grammar: str | None = None  # in llguidance's notation, after a trial: see replica/grammar/compiler.py
    timings: bool = False  # also return `EngineOutput.steps`
    progress: bool = False  # also return outputs that only report progress
    priority: int = 0
    timeout_s: float | None = None
    salt: str = ""
    adapter: str | None = None  # key of a loaded adapter; None: the bare model
    begun: tuple[ChoiceSoFar, ...] = ()  # of a continued answer: one for each of the `n`; not with a beam
    age_s: float = 0.0  # of a continued answer: since it was first sent to a replica


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one step for one sequence: 0..k new tokens, or the end of the sequence."""

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
    steps: tuple[StepTiming, ...] = ()  # one a token, when asked for
    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)  # as in TokenDelta
    perf: Perf | None = None  # with the last token
    by_sequence: bool = False  # with finish STOP: a stop sequence matched; its tokens belong to the answer
    computed: int | None = None  # prompt tokens so far, in an output that only reports progress
    searched: int = 0  # tokens computed so far for all beams of a search


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine for metrics, autoscaling and health."""

    running: int = 0  # sequences in the batch
    waiting: int = 0  # sequences waiting for their first step or resumption
    waiting_tokens: int = 0  # prompt tokens not yet computed
    blocks_total: int = 0
    blocks_used: int = 0  # referenced by a live sequence
    blocks_cached: int = 0  # free, but holding a prefix that can be hit
    blocks_ready: int = 0  # used or free blocks to which the system has given memory
    max_sequences: int = 0
    steps: int = 0
    prompt_tokens: int = 0  # counters since start
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    draft_tokens: int = 0  # draft tokens verified
    accepted_tokens: int = 0  # of those, accepted
    heartbeat_age_s: float = 0.0
    computed_tokens: int = 0  # since start: prompt tokens, without those from the prefix cache
