"""Executes the steps of a plan: deploys each, waits until its conditions hold, and stops if a step fails.

    rollout(wanted, say=print)  # a deploy file on the cluster of this driver

Depends on Serve only through `ServeCluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from serve_app.deployments.rollout.cluster import ServeCluster, as_ray_has_it
from serve_app.deployments.rollout.plan import File, RolloutStep, plan, without_place

POLL_S: Final = 0.1
TIMEOUT_S: Final = 3_600.0  # of a step: a model may be downloaded, and an old answer may be long
# A gateway may have sent a request just before it changed its routes; the request arrives by then.
SETTLE_S: Final = 2.0
FAILED: Final = "DEPLOY_FAILED"  # for good; an application that is UNHEALTHY may recover

Say: TypeAlias = Callable[[str], None]
Cancelled: TypeAlias = Callable[[], str | None]  # why to give up; None: go on


class RolloutFailed(Exception):
    """A step was not completed; the message says which step, why, and what is serving now."""


def rollout(
    wanted: File, *, say: Say, timeout_s: float = TIMEOUT_S, cancelled: Cancelled = lambda: None
) -> None:
    """Change this driver's Serve (after `ray.init`) from what it runs now to the deploy file `wanted`.

    Returns when all of `wanted` runs, and the deletion of other applications has begun. Raises RolloutFailed.
    """
    cluster = ServeCluster()
    if problems := list(without_place(wanted, cluster.gpus())):
        raise RolloutFailed("nothing has changed: " + "; ".join(problems))
    steps = plan(cluster.running(), as_ray_has_it(wanted))
    apply(steps, cluster, say, timeout_s=timeout_s, cancelled=cancelled)


def apply(
    steps: Sequence[RolloutStep],
    cluster: ServeCluster,
    say: Say,
    *,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    settle_s: float = SETTLE_S,
    cancelled: Cancelled = lambda: None,
) -> None:
    """Take the steps, one after the other. `say` gets a line for each step, and for every change of state.

    `timeout_s` bounds each step. If a step fails, raises RolloutFailed and takes no further step, so that
    former models still run.
    """
    for number, step in enumerate(steps, 1):
        say(f"step {number} of {len(steps)}: {step.title}" if len(steps) > 1 else step.title)
        cluster.deploy(step.file)
        pause = _Pause(step, time.monotonic() + timeout_s, poll_s, cancelled)
        _until_up(step, cluster, say, pause)
        if step.unrouted:
            say(f"waiting until no gateway routes to {', '.join(step.unrouted)}")
            _until_unrouted(step, cluster, pause)
            time.sleep(settle_s)


@dataclass(frozen=True, slots=True)
class _Pause:
    """The wait between two checks of a step."""

    step: RolloutStep
    deadline: float
    poll_s: float
    cancelled: Cancelled

    def __call__(self) -> bool:
        """Wait; False when the step's time is over. Raises RolloutFailed if the rollout was cancelled."""
        if (reason := self.cancelled()) is not None:
            raise _failed(self.step, reason)
        time.sleep(self.poll_s)
        return time.monotonic() < self.deadline


def _until_up(step: RolloutStep, cluster: ServeCluster, say: Say, pause: _Pause) -> None:
    shown: dict[str, tuple[str, str]] = {}
    while True:
        states = cluster.states()
        for name in step.up:
            state, reason = states.get(name, ("NOT_STARTED", ""))
            if state == FAILED:
                raise _failed(step, f"application {name} failed", f".\n{reason}" if reason else "")
            if shown.get(name) != (state, reason):
                shown[name] = state, reason
                # While an application comes up, Serve gives a reason only if it cannot, such as no room.
                say(f"{name}: {state.lower().replace('_', ' ')}{reason and f': {reason}'}")
        late = [name for name in step.up if shown[name][0] != "RUNNING"]
        if not late:
            return
        if not pause():
            hint = ". A model that changes needs room for a second replica, or `max_surge_percent: 0`"
            raise _failed(step, f"{', '.join(late)} did not come up in time", hint if step.replaces else "")


def _until_unrouted(step: RolloutStep, cluster: ServeCluster, pause: _Pause) -> None:
    while (routed := cluster.routed(step.gateways)) is None or not routed.isdisjoint(step.unrouted):
        if not pause():
            raise RolloutFailed(
                f"{step.title}: gateways still route to {', '.join(step.unrouted)}, which therefore stay; "
                "/readyz says what the gateways wait for"
            )


def _failed(step: RolloutStep, reason: str, more: str = "") -> RolloutFailed:
    stays = "; what served before still does. Deploy the former file to end the attempt"
    return RolloutFailed(f"{step.title}: {reason}{stays if step.replaces else ''}{more}")
