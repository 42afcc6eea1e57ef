"""Decides about a step of a rollout by its measurements. Pure: no clock, database or endpoint.

Each guard bounds a share of requests: the share that failed, or the share that was slower than the limit of a
95th percentile. The bound of the latter is 5 %. So one test serves all guards, see `proportions`. The test is
exact, and holds however often it is looked at. Its level ALPHA is divided among the guards and steps of a
rollout: an entity that keeps to its guards is moved back by mistake with a probability of at most ALPHA.

A step is left for the next one when it has lasted long enough, has seen enough requests, and every measured
share is within its bound. An entity that is outside of its bounds, but not provably so, stays at its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from serve_app.control.rollouts.proportions import Share, evidence_against
from serve_app.types.control import Guards

ALPHA: Final = 0.05
TAIL: Final = 0.05  # the share of requests that may be slower than a limit for the 95th percentile
NONE: Final = Share(0, 0)


class Move(StrEnum):
    """The next action of a rollout."""

    STAY = "stay"
    GO_ON = "go on"  # to the next step, or to the end after the last one
    GO_BACK = "go back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """The new entity's requests that began in this step and have ended."""

    seconds: float  # since the step began
    failed: Share = NONE  # a hit is a failure
    slow_first: Share = NONE  # a hit came later than `Guards.max_first_token_s`
    slow_total: Share = NONE  # a hit took longer than `Guards.max_total_s`


class Decision(NamedTuple):
    move: Move
    reason: str  # for people


class _Check(NamedTuple):
    """One guard and its measurement."""

    name: str
    share: Share
    limit: float  # the largest share that is allowed

    @property
    def is_within(self) -> bool:
        return (self.share.mean or 0.0) <= self.limit

    def is_broken(self, alpha: float) -> bool:
        """Whether the true share is proven to be above the limit."""
        return not self.is_within and evidence_against(self.share, self.limit) >= math.log(1 / alpha)

    def __str__(self) -> str:
        return f"{self.name} in {self.share.hits} of {self.share.count} (at most {self.limit:.3g})"


def decide(guards: Guards, num_steps: int, interval_s: float, seen: StepSeen) -> Decision:
    """The action for the current state of a step."""
    checks = list(_checks(guards, seen))
    alpha = ALPHA / (num_steps * max(1, len(checks)))
    broken = [check for check in checks if check.is_broken(alpha)]
    if broken:
        return Decision(Move.GO_BACK, f"a guard is broken: {_told(broken)}")
    if seen.seconds < interval_s:
        return Decision(Move.STAY, f"the step lasts {interval_s:g} s; {_told(checks)}")
    fewest = min((check.share.count for check in checks), default=seen.failed.count)
    if fewest < guards.min_requests:
        return Decision(Move.STAY, f"waits for requests: {fewest} of {guards.min_requests}")
    outside = [check for check in checks if not check.is_within]
    if outside:
        return Decision(Move.STAY, f"a guard may be broken; waits until it is certain: {_told(outside)}")
    return Decision(Move.GO_ON, f"within all guards: {_told(checks)}")


def _checks(guards: Guards, seen: StepSeen) -> Iterator[_Check]:
    if guards.max_error_rate is not None:
        yield _Check("failed", seen.failed, guards.max_error_rate)
    if guards.max_first_token_s is not None:
        yield _Check(f"first token after {guards.max_first_token_s:g} s", seen.slow_first, TAIL)
    if guards.max_total_s is not None:
        yield _Check(f"longer than {guards.max_total_s:g} s", seen.slow_total, TAIL)


def _told(checks: list[_Check]) -> str:
    return "; ".join(map(str, checks)) or "no guard is set"
