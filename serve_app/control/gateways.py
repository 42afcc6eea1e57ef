"""The last reports of gateways, and which gateways are alive. After a restart of the control plane they
report again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from serve_app.types.control import GatewayReport

FIRST_S: Final = 5.0  # by then every gateway has reported to a new control plane
SILENT_S: Final = 30.0  # a gateway reports every 10 s; one that is silent for this long counts as gone


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    report: GatewayReport
    number: int


class Gateways:
    """The newest report of each gateway that is alive."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._heard: dict[str, _Heard] = {}
        self._given_up: set[str] = set()  # gateways that were too slow and have not reported since
        self.declared: dict[str, Any] = {}  # the catalogue of the deploy file, from the newest report

    def take(self, report: GatewayReport, number: int = 0) -> bool:
        """Record a report; returns whether it is new. `number` grows with each report of a gateway."""
        before = self._heard.get(report.gateway)
        if before is not None and before.number > number:
            return False
        self._given_up.discard(report.gateway)
        if report.is_leaving:
            return self._heard.pop(report.gateway, None) is not None
        self._heard[report.gateway] = _Heard(self._clock(), report, number)
        if report.declared or report.in_force:  # a gateway that is starting has not read its deploy file yet
            self.declared = report.declared
        return before is None or before.report != report

    @property
    def ready(self) -> frozenset[str]:
        """The applications that at least one gateway reports as ready."""
        return frozenset(app for report in self for app in report.ready)

    def follow(self, version: int, endpoint: str, apps: frozenset[str] = frozenset()) -> bool:
        """Whether all gateways route `endpoint` by the snapshot `version` or a newer one, and reach `apps`.

        True if there are no gateways, since no gateway then routes by an older snapshot. False just after a
        start of the control plane, when gateways may not have reported yet.
        """
        return self.are_known and not any(
            _is_behind(report, version, endpoint) or not apps.issubset(report.ready) for report in self
        )

    @property
    def are_known(self) -> bool:
        """Whether every gateway has had time to report."""
        return len(self) > 0 or self._clock() >= self._since + FIRST_S

    def behind(self, version: int, endpoint: str = "") -> frozenset[str]:
        """The gateways that do not use the snapshot `version` yet, at least not for `endpoint`."""
        return frozenset(each.gateway for each in self if _is_behind(each, version, endpoint))

    def awaited(self, gateways: frozenset[str]) -> frozenset[str]:
        """Those of `gateways` that are still worth waiting for."""
        return gateways - self._given_up

    def give_up(self, gateways: frozenset[str]) -> None:
        """Stop waiting for `gateways` until they report again: they may be dead."""
        self._given_up = (self._given_up | gateways) & self._heard.keys()

    def __iter__(self) -> Iterator[GatewayReport]:
        oldest = self._clock() - SILENT_S
        self._heard = {name: heard for name, heard in self._heard.items() if heard.at >= oldest}
        return iter([heard.report for heard in self._heard.values()])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_behind(report: GatewayReport, version: int, endpoint: str) -> bool:
    return report.in_force < version or endpoint in report.waiting
