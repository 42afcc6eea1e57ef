"""What an answer has so far, so that another replica can go on with it.

A replica with the same weights computes prompt and tokens again, as after a preemption, and goes on with
the next token. Noise, masks and penalties follow from seed, choice and position, so the rest is the rest
that the first replica would have sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.result import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSoFar:
    """The part of one choice that its client has."""

    token_ids: tuple[int, ...] = ()  # all delivered tokens, in order
    finished: bool = False  # its last delta was delivered: nothing more is generated
    timing: Timing | None = None  # as its first token told


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An answer that goes on. At least one of its choices has a token or an end."""

    weights: str  # `ModelInfo.weights` of the replica that made the tokens: another model refuses
    choices: tuple[ChoiceSoFar, ...]  # exactly `n`, by index
    usage: Usage  # as last told
    age_s: float  # since the request was first sent to a replica
