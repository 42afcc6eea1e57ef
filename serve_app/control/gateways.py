"""What gateways said of themselves last, and which of them live. After a restart they tell it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from serve_app.types.control import GatewayReport

FIRST_S: Final = 5.0  # after the start of the control plane, by which every gateway has reported
SILENT_S: Final = 30.0  # a gateway reports every 10 s; one that is silent for this long counts as gone


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    report: GatewayReport


class Gateways:
    """The newest report of each gateway that lives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._heard: dict[str, _Heard] = {}
        self._declared: dict[str, Any] = {}

    def take(self, report: GatewayReport) -> bool:
        """Note a report. Whether it says anything new."""
        before = self._heard.get(report.gateway)
        self._heard[report.gateway] = _Heard(self._clock(), report)
        if report.declared or report.in_force:  # a gateway that starts has not read its deploy file yet
            self._declared = report.declared
        return before is None or before.report != report

    @property
    def declared(self) -> dict[str, Any]:
        """The catalogue of the deploy file, as the gateway that was heard last has it; {}: none was heard."""
        return self._declared

    @property
    def ready(self) -> frozenset[str]:
        """The applications that some gateway says can answer."""
        return frozenset(app for report in self for app in report.ready)

    def follow(self, version: int, endpoint: str, apps: frozenset[str] = frozenset()) -> bool:
        """Whether all gateways route `endpoint` by the snapshot `version` or a newer one, and reach `apps`.

        True without any gateway: then nobody routes by an older one. But a control plane that has just
        started has yet to hear of them.
        """
        if not len(self) and self._clock() < self._since + FIRST_S:
            return False
        return all(
            report.in_force >= version and endpoint not in report.waiting and apps.issubset(report.ready)
            for report in self
        )

    def __iter__(self) -> Iterator[GatewayReport]:
        oldest = self._clock() - SILENT_S
        self._heard = {name: heard for name, heard in self._heard.items() if heard.at >= oldest}
        return iter([heard.report for heard in self._heard.values()])

    def __len__(self) -> int:
        return sum(1 for _ in self)
