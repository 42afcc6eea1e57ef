"""From the applications that run to those of a deploy file, in steps that lose no request.

Serve by itself takes a whole file at once: gateways send requests to applications that are
not up yet, and applications that the file no longer names are deleted under them. Here

1. models come up beside all that runs, while gateways route as before;
2. gateways take their new catalogue and settings, while the former models still answer;
3. models that are no longer named go, once no gateway routes to them.

    rollout(wanted, say=print)                   # a deploy file on the cluster of this driver
    plan(running, wanted)                        # the steps alone: pure, no Ray

A model whose `args` changed stays one application: Serve starts its new replicas beside the
old ones (`max_surge_percent`, see `build.py`) and lets these finish what they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

POLL_S: Final = 0.25
TIMEOUT_S: Final = 3_600.0  # of a step: a model may be downloaded, and an old answer may be long
# A request that found its entity before its gateway changed its mind is with its model by then.
SETTLE_S: Final = 2.0
FAILED: Final = "DEPLOY_FAILED"  # for good; what is UNHEALTHY may recover

File = Mapping[str, Any]  # a deploy file: `ServeDeploySchema` as plain values
Say = Callable[[str], None]
Cancelled = Callable[[], str | None]


class RolloutFailed(Exception):
    """A step did not come to its end; the message says which, why, and what serves now."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deployment of a whole file, and what to wait for before the next."""

    says: str  # for people: what happens
    file: File  # to be deployed
    up: tuple[str, ...]  # applications that must run
    unrouted: tuple[str, ...] = ()  # applications that no gateway may route to any more


class Cluster(Protocol):
    """A Serve that can be deployed to."""

    def running(self) -> File:
        """What was deployed last, as a deploy file; without applications where nothing was."""
        ...

    def deploy(self, file: File) -> None:
        """Deploy a whole file: what it does not name is deleted. Returns before it took effect."""
        ...

    def states(self) -> Mapping[str, tuple[str, str]]:
        """Application -> (Serve's status, what went wrong or "")."""
        ...

    def routed(self, gateways: Iterable[str]) -> frozenset[str] | None:
        """The applications that the gateways of these applications route to; None: not known yet."""
        ...


def plan(running: File, wanted: File) -> list[Step]:
    """The steps from `running` to `wanted`, at least one; the last deploys `wanted` itself.

    Applications with a route are gateways, all others are models.
    """
    before, after = _apps(running), _apps(wanted)
    gateways = {name for name, app in after.items() if _is_routed(app)}
    old_gateways = {name: app for name, app in before.items() if _is_routed(app)}
    gone = {name: app for name, app in before.items() if name not in after and not _is_routed(app)}
    models = [name for name in after if name not in gateways]
    fresh = [name for name in models if name not in before]
    changed = [name for name in models if name in before and before[name] != after[name]]
    ahead = [name for name in changed if _model(before[name]) == _model(after[name])]
    steps = []
    if old_gateways and (fresh or ahead):
        # What gateways expect of an application is in their catalogue: one that is to serve
        # another model changes with it, in the next step.
        early = {name: app for name, app in after.items() if name in fresh or name in ahead}
        apps = {**{name: app for name, app in before.items() if name not in early}, **early}
        steps.append(Step(f"starting {_words([*fresh, *ahead])}", _with(wanted, apps), tuple(early)))
    if gone and old_gateways:
        steps.append(
            Step(
                "new endpoints and settings of the gateway",
                _with(wanted, {**after, **gone}),
                tuple(after),
                tuple(gone),
            )
        )
        steps.append(Step(f"removing {_words(list(gone))}", wanted, tuple(after)))
    else:
        steps.append(Step("all of the file" if not steps else "the gateway", wanted, tuple(after)))
    return steps


def apply(
    steps: Sequence[Step],
    cluster: Cluster,
    say: Say,
    *,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    settle_s: float = SETTLE_S,
    cancelled: Cancelled = lambda: None,
) -> None:
    """Take the steps, one after the other. `say` hears of each, and of what changes meanwhile.

    `timeout_s` bounds each step; `cancelled` tells why to give up, if there is a reason. Raises
    RolloutFailed; then no further step is taken, so whatever ran before still does.
    """
    for number, step in enumerate(steps, 1):
        say(f"{number} of {len(steps)}: {step.says}")
        cluster.deploy(step.file)
        pause = _Pause(step, time.monotonic() + timeout_s, poll_s, cancelled)
        _until_up(step, cluster, say, pause)
        if step.unrouted:
            say(f"waiting until no gateway routes to {_words(step.unrouted)}")
            _until_unrouted(step, cluster, pause)
            time.sleep(settle_s)


def rollout(
    wanted: File, *, say: Say, timeout_s: float = TIMEOUT_S, cancelled: Cancelled = lambda: None
) -> None:
    """Take the Serve of this driver (`ray.init` is done) from what it runs to `wanted`.

    Returns when all of it runs and what is no longer named was told to go. Raises RolloutFailed.
    """
    from serve_app.deployments.deploy_file.rollout_cluster import ServeCluster, as_ray_has_it

    cluster = ServeCluster()
    steps = plan(cluster.running(), as_ray_has_it(wanted))
    apply(steps, cluster, say, timeout_s=timeout_s, cancelled=cancelled)


@dataclass(frozen=True, slots=True)
class _Pause:
    """Between two looks at a step."""

    step: Step
    deadline: float
    poll_s: float
    cancelled: Cancelled

    def __call__(self) -> bool:
        """Wait; False when it was for the last time. Raises RolloutFailed when somebody gave up."""
        if (why := self.cancelled()) is not None:
            raise RolloutFailed(f"{self.step.says}: {why}; {_STAYS}")
        time.sleep(self.poll_s)
        return time.monotonic() < self.deadline


def _until_up(step: Step, cluster: Cluster, say: Say, pause: _Pause) -> None:
    shown: dict[str, tuple[str, str]] = {}
    while True:
        states = cluster.states()
        for name in step.up:
            state, reason = states.get(name, ("NOT_STARTED", ""))
            if state == FAILED:
                raise RolloutFailed(f"{step.says}: application {name} failed; {_STAYS}.\n{reason}".rstrip())
            if shown.get(name) != (state, reason):
                shown[name] = state, reason
                # Of one that comes up Serve says something only where it cannot, such as for want of room.
                say(f"{name}: {state.lower().replace('_', ' ')}{reason and f': {reason}'}")
        late = [name for name in step.up if shown[name][0] != "RUNNING"]
        if not late:
            return
        if not pause():
            raise RolloutFailed(
                f"{step.says}: {_words(late)} did not come up in time; {_STAYS}. "
                f"A model that changes needs room for a second replica, or `max_surge_percent: 0`"
            )


def _until_unrouted(step: Step, cluster: Cluster, pause: _Pause) -> None:
    gateways = [name for name, app in _apps(step.file).items() if _is_routed(app)]
    while (routed := cluster.routed(gateways)) is None or not routed.isdisjoint(step.unrouted):
        if not pause():
            raise RolloutFailed(
                f"{step.says}: gateways still route to {_words(step.unrouted)}, which therefore stay; "
                "/readyz says what the gateways wait for"
            )


_STAYS: Final = "what served before still does. Deploy the former file to end the attempt"


def _apps(file: File) -> dict[str, Mapping[str, Any]]:
    return {str(app.get("name", "default")): app for app in file.get("applications") or ()}


def _with(file: File, apps: Mapping[str, Mapping[str, Any]]) -> File:
    return {**file, "applications": list(apps.values())}


def _is_routed(app: Mapping[str, Any]) -> bool:
    return app.get("route_prefix", "/") is not None  # Serve's own default


def _model(app: Mapping[str, Any]) -> tuple[str, str]:
    """Which model an application says it serves: its name and version."""
    args = app.get("args") or {}
    return str(args.get("name", "")), str(args.get("version") or "")


def _words(names: Sequence[str]) -> str:
    return ", ".join(names)
