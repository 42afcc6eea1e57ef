"""Checks the steps, interval and guards of a new rollout. Pure logic."""

from __future__ import annotations

import itertools
import math

from serve_app.control.rollouts.splits import Split
from serve_app.endpoints.endpoint import Task
from serve_app.errors import Conflict, InvalidField
from serve_app.limits import MAX_GUARD_REQUESTS, MAX_GUARDED_S, MAX_ROLLOUT_STEPS, MAX_STEP_S, MIN_STEP_S
from serve_app.types.control import Guards, StartRollout


def check_start(command: StartRollout, split: Split) -> None:
    """Raises InvalidField, or Conflict if there is no traffic to move."""
    _check_steps(command.steps)
    _check_number("interval_s", command.interval_s, MIN_STEP_S, MAX_STEP_S)
    _check_guards(command.guards, split)
    if command.entity not in split.entities:
        raise InvalidField(
            "entity", f"the endpoint has no entity {command.entity!r}; there is: {', '.join(split.entities)}"
        )
    if split.percentage(command.entity) == 100:
        raise Conflict(f"the entity {command.entity!r} has all traffic already")


def _check_steps(steps: tuple[int, ...]) -> None:
    rises = all(low < high for low, high in itertools.pairwise(steps))
    if not (1 <= len(steps) <= MAX_ROLLOUT_STEPS and rises and steps[0] >= 1 and steps[-1] == 100):
        raise InvalidField(
            "steps",
            f"must be 1 to {MAX_ROLLOUT_STEPS} percentages that rise from 1 or more to 100, which comes last",
        )


def _check_guards(guards: Guards, split: Split) -> None:
    if guards.max_error_rate is not None:
        _check_number("guards.max_error_rate", guards.max_error_rate, 0.0, 1.0)
    for name in ("max_first_token_s", "max_total_s"):
        limit = getattr(guards, name)
        if limit is not None:
            _check_number(f"guards.{name}", limit, 0.0, MAX_GUARDED_S)
    if guards.max_first_token_s is not None and split.task == Task.EMBEDDINGS:
        raise InvalidField("guards.max_first_token_s", "embeddings have no first token; set max_total_s")
    if not 1 <= guards.min_requests <= MAX_GUARD_REQUESTS:
        raise InvalidField("guards.min_requests", f"must be from 1 to {MAX_GUARD_REQUESTS}")


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidField(name, f"must be from {low:g} to {high:g}")
