"""A status: a word for people and a tone for its colour. Independent of pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Tone(StrEnum):
    """The meaning of a colour. The status's word has the same meaning."""

    GOOD = "good"
    BUSY = "warn"
    BAD = "bad"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Status:
    word: str
    tone: Tone


_OF_DEPLOYMENTS: Final[Mapping[str, Status]] = {
    "DEPLOYMENT_CREATING": Status("starting", Tone.BUSY),
    "DEPLOYMENT_READY": Status("ready", Tone.GOOD),
    "DEPLOYMENT_RECOVERING": Status("recovering", Tone.BUSY),
    "DEPLOYMENT_FAILED": Status("failed", Tone.BAD),
    "DEPLOYMENT_ABORTED": Status("canceled", Tone.IDLE),
}
_OF_ROLLOUTS: Final[Mapping[str, Status]] = {
    "RUNNING": Status("running", Tone.BUSY),
    "DONE": Status("done", Tone.GOOD),
    "ROLLED_BACK": Status("rolled back", Tone.BAD),
    "STOPPED": Status("stopped", Tone.IDLE),
}
_UPDATING: Final = Status("updating", Tone.BUSY)
_COMING_UP: Final = Status("starting", Tone.BUSY)


def of_endpoint(state: Mapping[str, Any]) -> Status:
    """The status of an endpoint by its `state` in the API."""
    is_ready, update = state.get("ready") == "READY", state.get("config_update", "")
    match update:
        case "IN_PROGRESS":
            return _UPDATING if is_ready else _COMING_UP
        case "UPDATE_FAILED":
            return Status("serving; update failed" if is_ready else "failed", Tone.BAD)
        case "UPDATE_CANCELED":
            return Status("serving; update canceled" if is_ready else "canceled", Tone.IDLE)
    return Status("serving", Tone.GOOD) if is_ready else Status("not ready", Tone.IDLE)


def of_deployment(state: Mapping[str, Any]) -> Status:
    """The status of a served entity by its `state` in the API."""
    return _known(_OF_DEPLOYMENTS, str(state.get("deployment", "")))


def of_rollout(state: str) -> Status:
    return _known(_OF_ROLLOUTS, state)


def _known(table: Mapping[str, Status], state: str) -> Status:
    return table.get(state) or Status(state.lower().replace("_", " ") or "unknown", Tone.IDLE)
