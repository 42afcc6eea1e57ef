"""Decides what to do next with a request that has no replica: a pure function, without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

ATTEMPTS: Final = 3  # of a request of which nothing was delivered, after refusals and deaths


class Step(Enum):
    """What comes next."""

    CALL = auto()  # call a replica; if it refuses, decide again at once
    CALL_AND_WAIT = auto()  # call a replica; if it refuses, pause before the next decision
    WAIT = auto()  # pause: a replica may come up
    AWAIT_TRIAL = auto()  # pause: another suspect has a replica to itself
    REFUSE = auto()  # fail with the last refusal, since replicas died with the request
    GIVE_UP = auto()  # fail: no replica takes the request


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A request that no replica has, and the state of its model."""

    is_fresh: bool  # its client has received nothing, so another entity of the endpoint may answer
    is_patient: bool  # it waits for a replica, because no other entity can answer
    is_late: bool  # its patience is over
    attempts: int  # to find a replica so far
    was_refused_for_now: bool  # last, by a replica that stops or is full: a later call may succeed
    was_killed: bool  # a replica that had it, or its engine; Serve may not know of its loss yet
    is_suspect: bool  # a replica died with it before it had a token
    is_unlucky: bool  # too many replicas died since it began: its client may try again
    is_trial_on: bool  # another suspect has a replica to itself
    has_replica: bool  # the model has one that can be called
    may_return: bool  # a replica may start soon if there is none


def next_step(now: Situation) -> Step:
    """The next step of a request.

    The rest of an answer waits for a replica until its patience is over. A request without delivered tokens
    is tried up to `ATTEMPTS` times without waiting in between, and then fails. Suspects are tried one after
    the other. Tried together, all of them would die again with the one at fault, and all would be refused.
    """
    if now.is_fresh and now.is_unlucky:
        return Step.REFUSE
    if now.is_suspect and now.has_replica and now.is_trial_on:
        return Step.AWAIT_TRIAL
    waits = now.is_patient or now.was_refused_for_now or (now.was_killed and now.has_replica)
    if waits:
        is_over = now.is_late or not (now.has_replica or now.may_return)
    else:
        is_over = now.attempts >= ATTEMPTS or not now.has_replica
    if is_over:
        return Step.GIVE_UP
    if not now.has_replica:
        return Step.WAIT
    return Step.CALL_AND_WAIT if waits else Step.CALL
