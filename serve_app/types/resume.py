"""The delivered part of an answer, from which another replica continues the answer.

A replica with the same weights recomputes prompt and tokens, as after a preemption, and continues with
the next token. Noise, masks and penalties depend only on seed, choice and position, so the rest equals what
the first replica would have sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.result import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSoFar:
    """The part of one choice that the client has already received."""

    token_ids: tuple[int, ...] = ()  # all delivered tokens, in order
    finished: bool = False  # its last delta was delivered: nothing more is generated
    timing: Timing | None = None  # from the delta with its first token


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A continued answer. At least one choice has a delivered token or has ended."""

    weights: str  # `ModelInfo.weights` of the replica that made the tokens: another model refuses
    choices: tuple[ChoiceSoFar, ...]  # exactly `n`, by index
    usage: Usage  # as last delivered
    age_s: float  # since the request was first sent to a replica
