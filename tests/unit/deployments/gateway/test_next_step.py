"""The table of what comes next for a request that no replica has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.deployments.gateway.next_step import ATTEMPTS, Situation, Step, next_step

# Nothing was delivered, a replica is there, and nothing bad has happened yet.
FRESH = Situation(
    is_fresh=True,
    is_patient=False,
    is_late=False,
    attempts=1,
    was_refused_for_now=False,
    was_killed=False,
    is_suspect=False,
    is_unlucky=False,
    is_trial_on=False,
    has_replica=True,
    may_return=False,
)
REST = replace(FRESH, is_fresh=False, is_patient=True)  # an answer that has begun
AWAY = {"has_replica": False}

TABLE = [
    (FRESH, {}, Step.CALL),
    (FRESH, {"attempts": ATTEMPTS - 1}, Step.CALL),
    (FRESH, {"attempts": ATTEMPTS}, Step.GIVE_UP),
    (FRESH, {"is_late": True}, Step.CALL),  # it counts attempts, not seconds
    (FRESH, AWAY, Step.GIVE_UP),
    (FRESH, {**AWAY, "may_return": True}, Step.GIVE_UP),  # another entity may answer at once
    (FRESH, {"was_refused_for_now": True}, Step.CALL_AND_WAIT),
    (FRESH, {"was_refused_for_now": True, "attempts": ATTEMPTS}, Step.CALL_AND_WAIT),
    (FRESH, {"was_refused_for_now": True, "is_late": True}, Step.GIVE_UP),
    (FRESH, {**AWAY, "was_refused_for_now": True}, Step.GIVE_UP),
    (FRESH, {**AWAY, "was_refused_for_now": True, "may_return": True}, Step.WAIT),
    (FRESH, {"was_killed": True, "attempts": ATTEMPTS}, Step.CALL_AND_WAIT),
    (FRESH, {**AWAY, "was_killed": True, "may_return": True}, Step.GIVE_UP),
    (FRESH, {"is_unlucky": True}, Step.REFUSE),
    (FRESH, {**AWAY, "is_unlucky": True}, Step.REFUSE),
    (FRESH, {"is_suspect": True}, Step.CALL),
    (FRESH, {"is_suspect": True, "is_trial_on": True}, Step.AWAIT_TRIAL),
    (FRESH, {"is_suspect": True, "is_trial_on": True, "attempts": ATTEMPTS}, Step.AWAIT_TRIAL),
    (FRESH, {"is_suspect": True, "is_trial_on": True, "is_unlucky": True}, Step.REFUSE),
    (FRESH, {**AWAY, "is_suspect": True, "is_trial_on": True}, Step.GIVE_UP),
    (FRESH, {"is_trial_on": True}, Step.CALL),  # who is no suspect does not wait for one
    (REST, {}, Step.CALL_AND_WAIT),
    (REST, {"attempts": 10 * ATTEMPTS}, Step.CALL_AND_WAIT),
    (REST, {"is_late": True}, Step.GIVE_UP),
    (REST, AWAY, Step.GIVE_UP),
    (REST, {**AWAY, "may_return": True}, Step.WAIT),
    (REST, {**AWAY, "may_return": True, "is_late": True}, Step.GIVE_UP),
    (REST, {"is_unlucky": True}, Step.CALL_AND_WAIT),  # its client cannot ask again
    (REST, {"is_suspect": True, "is_trial_on": True}, Step.AWAIT_TRIAL),
    (REST, {"is_suspect": True, "is_trial_on": True, "is_late": True}, Step.AWAIT_TRIAL),
]


@pytest.mark.parametrize(("usual", "changes", "step"), TABLE, ids=str)
def test_the_next_step(usual: Situation, changes: dict[str, bool | int], step: Step) -> None:
    assert next_step(replace(usual, **changes)) is step
