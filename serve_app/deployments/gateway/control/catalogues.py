"""The endpoints of a gateway from both sources: the deploy file, and the control plane's snapshots.

What the deploy file declares goes first: a run-time endpoint of the same name, or one that does not fit
beside it, is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control.takeover import LOOK_S, Takeover
from serve_app.endpoints.beside import beside
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint
from serve_app.types.control import GatewayReport, Snapshot

logger = logging.getLogger(__name__)


class Catalogues:
    """Puts both together, and into effect whenever one of them changes."""

    def __init__(self, gateway: str, directory: Directory, backend: ServeBackend, wait_s: float) -> None:
        """`gateway`: unique to this run. `wait_s`: see `Takeover`."""
        self._gateway = gateway
        self._directory = directory
        self._backend = backend
        self._takeover = Takeover(directory, backend, wait_s, on_change=lambda: self.on_change())
        self._declared: Catalogue | None = None  # None: not read yet, so nothing is in effect
        self._run_time: tuple[Endpoint, ...] = ()
        self._version = 0
        self._watching: asyncio.Task[None] | None = None
        self.on_change: Callable[[], None] = lambda: None  # called when `report` may say something new

    @property
    def is_read(self) -> bool:
        """Whether the deploy file's endpoints are known."""
        return self._declared is not None

    def declare(self, catalogue: Catalogue) -> None:
        """These are the endpoints of the deploy file from now on."""
        self._declared = catalogue
        self._put_into_effect()

    def take(self, snapshot: Snapshot) -> None:
        """These are the endpoints of the control plane from now on."""
        found = tuple(_readable(snapshot.endpoints))
        self._version = snapshot.version
        if found != self._run_time:
            self._run_time = found
            if self._declared is not None:
                self._put_into_effect()
        self.on_change()

    def report(self) -> GatewayReport:
        """What the control plane is told of this gateway."""
        declared = self._declared or Catalogue()
        apps = dict.fromkeys(e.app for endpoint in self._directory for e in endpoint.served_entities)
        return GatewayReport(
            gateway=self._gateway,
            declared=declared.dump(),
            in_force=self._version if self._declared is not None else 0,
            waiting={name: tuple(apps) for name, apps in self._directory.waiting.items()},
            ready=tuple(app for app in apps if self._backend.is_ready(app)),
        )

    def close(self) -> None:
        self._takeover.close()
        if self._watching is not None:
            self._watching.cancel()

    def _put_into_effect(self) -> None:
        declared = self._declared or Catalogue()
        both, left_out = beside(declared, self._run_time)
        for name, why in left_out.items():
            logger.error("the run-time endpoint %s is left out: %s", name, why)
        self._directory.run_time = frozenset(
            endpoint.name for endpoint in both.endpoints[len(declared.endpoints) :]
        )
        self._takeover.begin(both)
        self.on_change()
        if self._watching is not None:
            self._watching.cancel()
        made = Catalogue(endpoints=both.endpoints[len(declared.endpoints) :])
        self._watching = asyncio.ensure_future(self._watch(frozenset(made.apps)))

    async def _watch(self, apps: frozenset[str]) -> None:
        """Report each of `apps` as soon as it can answer: an update waits for it."""
        while apps:
            late = frozenset(app for app in apps if not self._backend.is_ready(app))
            if late != apps:
                apps = late
                self.on_change()
            await asyncio.sleep(LOOK_S)


def _readable(raw: Iterable[dict[str, object]]) -> Iterable[Endpoint]:
    """The endpoints that this version of the server understands."""
    for each in raw:
        try:
            yield Endpoint.model_validate(each)
        except ValueError as error:
            logger.error("the run-time endpoint %s is not understood: %s", each.get("name"), error)
