"""The control plane's state as gateways keep it, so that they can serve without the control plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serve_app.types.control.command import Command
from serve_app.types.control.endpoints import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that is in force, as gateways check it."""

    digest: bytes = field(repr=False)  # SHA-256 of the whole key
    name: str
    user: str
    is_service_principal: bool
    groups: tuple[str, ...]
    scopes: tuple[str, ...]
    endpoints: tuple[str, ...]  # that it may use; empty: all
    expires: float | None = None  # Unix seconds
    over_budget: str = ""  # why its requests are refused now; "": they are not
    over_soft_budget: str = ""  # the warning in its answers
    budget: float | None = None  # of a calendar month (UTC), in `currency`
    currency: str = "USD"
    spent: float = 0.0  # of it in `month`, at least: rounded down to steps
    month: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that was made at run time. A newer snapshot replaces an older one as a whole."""

    version: int  # grows with every change, also over restarts of the control plane
    problem: str = ""  # of a reply: why nothing can be changed now; "": it can
    # By name, each an `endpoints.endpoint.Endpoint` as JSON: equal ones are not parsed again.
    endpoints: dict[str, bytes] = field(default_factory=dict)
    unready: dict[str, str] = field(default_factory=dict)  # endpoints without a ready entity, and why
    keys: tuple[KnownKey, ...] = ()
    grants: dict[str, tuple[Grant, ...]] = field(
        default_factory=dict
    )  # by endpoint's name, where there are some


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """A gateway's report about itself, sent when it polls for the newest snapshot."""

    gateway: str  # unique to one run of one gateway
    declared: dict[str, Any]  # the catalogue of its deploy file, as plain values
    in_force: int  # version of the snapshot by which it routes; 0: none yet
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)  # endpoint -> applications it waits for
    ready: tuple[str, ...] = ()  # applications that can answer, as it sees them
    is_leaving: bool = False  # its last report: it serves no more requests


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSnapshot(Command[Snapshot]):
    """The first snapshot that is newer than `after`. The reply waits for it, at most `wait_s`."""

    report: GatewayReport
    after: int
    wait_s: float
    number: int = 0  # grows with each command of the gateway: an older report may arrive after a newer one


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The number of gateways in which a change has not taken effect yet."""

    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitChanges(Command[Followed]):
    """Wait, for a bounded time, until all changes so far have taken effect in all known gateways."""

    endpoint: str = ""  # whose new models the gateways must have, too
