"""Plans the next actions towards the wanted state. Pure logic: no clock, database or cluster.

    what is wanted, what is seen  --plan-->  actions

Plans are made again and again, each from the current state. So an action that failed or was lost is planned
again, and doing an action twice changes nothing. What keeps clients served:

* an endpoint's former configuration is wanted until the new one is up;
* an application that is no longer wanted is deleted only once no gateway routes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from serve_app.control.endpoints.cluster import AppSeen, AppStatus
from serve_app.control.endpoints.state import RUN_TIME, AppSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The applications that an endpoint needs."""

    id: str
    serving: tuple[AppSpec, ...] = ()
    pending: tuple[AppSpec, ...] | None = None  # of the configuration that is starting, if any
    is_late: bool = False  # the pending configuration ran out of time
    is_followed: bool | None = None  # whether all gateways have the last change; None if not awaited


@dataclass(frozen=True, slots=True)
class Seen:
    """The current state of the cluster."""

    apps: Mapping[str, AppSeen]
    routed: frozenset[str] | None  # applications that gateways route to; None: not known
    again: frozenset[str] = frozenset()  # failed applications without replicas that may be started again


@dataclass(frozen=True, slots=True)
class Deploy:
    """Start the application, or change its size."""

    spec: AppSpec


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the application."""

    app: str


@dataclass(frozen=True, slots=True)
class Promote:
    """The pending configuration of the endpoint is up: let it serve."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The pending configuration of the endpoint failed: abandon it."""

    endpoint: str
    app: str | None  # the application that failed; None after a timeout
    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    """All gateways have the last change of the endpoint: the update is done."""

    endpoint: str


Action: TypeAlias = Deploy | Delete | Promote | Fail | Settle


def plan(wanted: Iterable[Wanted], seen: Seen) -> list[Action]:
    """The actions that bring the cluster closer to the wanted state, in the order in which to take them."""
    actions: list[Action] = []
    specs: dict[str, AppSpec] = {}
    for endpoint in wanted:
        verdict = _verdict(endpoint, seen)
        if verdict is not None:
            actions.append(verdict)
        if endpoint.is_followed:
            actions.append(Settle(endpoint.id))
        specs |= {spec.name: spec for spec in endpoint.serving}
        if not isinstance(verdict, Fail):
            specs |= {spec.name: spec for spec in endpoint.pending or ()}
    for spec in specs.values():
        actions.extend(_toward(spec, seen))
    if seen.routed is not None:
        actions.extend(
            Delete(name)
            for name, app in seen.apps.items()
            if name.startswith(RUN_TIME)
            and name not in specs
            and name not in seen.routed
            and app.status is not AppStatus.GOING
        )
    return actions


def _verdict(endpoint: Wanted, seen: Seen) -> Promote | Fail | None:
    """Whether the endpoint's pending configuration is up or has failed; None if neither is so yet."""
    if endpoint.pending is None:
        return None
    late: AppSpec | None = None
    for spec in endpoint.pending:
        app = seen.apps.get(spec.name)
        if app is not None and app.status is AppStatus.FAILED and app.size == spec.size:
            return Fail(endpoint.id, spec.name, app.message)
        if app is None or app.status is not AppStatus.UP or app.size != spec.size:
            late = late or spec
    if late is None:
        return Promote(endpoint.id)
    if endpoint.is_late:
        app = seen.apps.get(late.name)
        return Fail(endpoint.id, None, "" if app is None else app.message)
    return None


def _toward(spec: AppSpec, seen: Seen) -> Iterable[Action]:
    app = seen.apps.get(spec.name)
    if app is None or (app.size != spec.size and app.status is not AppStatus.GOING):
        yield Deploy(spec)
    elif app.status is AppStatus.FAILED and spec.name in seen.again:
        yield Delete(spec.name)  # the application is started again once it is gone
