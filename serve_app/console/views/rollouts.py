"""A rollout as the console shows it, and the body that starts one. Does not depend on routes or templates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from serve_app.console.forms import Form, number, words
from serve_app.console.views import Json, status
from serve_app.console.views.status import Status

STEPS: Final = "5, 25, 50, 100"
GUARDS: Final = ("max_error_rate", "max_first_token_s", "max_total_s", "min_requests")
_DEFAULTS: Final = {
    "steps": STEPS,
    "interval_s": "60",
    "guards.max_error_rate": "0.05",
    "guards.min_requests": "20",
}


class Progress(StrEnum):
    """The progress of one step of a rollout."""

    PAST = "past"
    CURRENT = "current"
    TO_COME = "to come"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    percentage: int
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """The newest rollout of an endpoint. Times are milliseconds since 1970."""

    entity: str
    status: Status
    is_running: bool
    message: str
    steps: tuple[StepView, ...]
    percentage: int
    interval_s: float
    guards: tuple[tuple[str, str], ...]  # in words: the bounded quantity, and the bound
    former: tuple[tuple[str, int], ...]  # the split that a rollback restores
    started: int
    changed: int


def rollout_view(rollout: Json) -> RolloutView:
    """The view of a rollout's JSON."""
    is_running = rollout["state"] == "RUNNING"
    current = rollout["step"]
    return RolloutView(
        entity=rollout["entity"],
        status=status.of_rollout(rollout["state"]),
        is_running=is_running,
        message=rollout.get("message", ""),
        steps=tuple(
            StepView(percentage=percentage, progress=_progress(index, current, rollout["state"]))
            for index, percentage in enumerate(rollout["steps"])
        ),
        percentage=rollout["percentage"],
        interval_s=rollout["interval_s"],
        guards=_guards(rollout["guards"]),
        former=tuple(rollout.get("former_traffic", {}).items()),
        started=rollout["start_timestamp"],
        changed=rollout["last_updated_timestamp"],
    )


def fields_of(form: Form | None = None) -> dict[str, str]:
    """The fields of the form that starts a rollout, with initial values or with those that were sent."""
    names = ("entity", "steps", "interval_s", *(f"guards.{name}" for name in GUARDS))
    if form is None:
        return {name: _DEFAULTS.get(name, "") for name in names}
    return {name: form.text(name) for name in names}


def rollout_body(form: Form) -> dict[str, Any]:
    """The rollout described by a form."""
    body: dict[str, Any] = {"entity": form.text("entity")}
    if steps := words(form.text("steps")):
        body["steps"] = [number(step) for step in steps]
    if (interval := number(form.text("interval_s"))) is not None:
        body["interval_s"] = interval
    given = {name: number(form.text(f"guards.{name}")) for name in GUARDS}
    if guards := {name: value for name, value in given.items() if value is not None}:
        body["guards"] = guards
    return body


def shadow_body(form: Form) -> dict[str, Any]:
    """The shadow described by a form."""
    return {"entity": form.text("entity"), "percentage": number(form.text("percentage"))}


def _progress(index: int, current: int, state: str) -> Progress:
    if state == "DONE" or index < current:
        return Progress.PAST
    return Progress.CURRENT if index == current else Progress.TO_COME


def _guards(guards: Json) -> tuple[tuple[str, str], ...]:
    rate, first, total = (guards.get(name) for name in GUARDS[:3])
    found = [
        ("failed requests", None if rate is None else f"at most {rate * 100:g} %"),
        ("time to first token, 95th percentile", None if first is None else f"at most {first:g} s"),
        ("whole answer, 95th percentile", None if total is None else f"at most {total:g} s"),
        ("requests in a step", f"at least {guards.get('min_requests', 0):,}"),
    ]
    return tuple((what, bound) for what, bound in found if bound is not None)
