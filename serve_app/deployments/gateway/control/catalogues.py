"""The endpoints of a gateway from both sources: the deploy file, and the control plane's snapshots.

The deploy file takes precedence: a run-time endpoint that has the same name, or conflicts with it, is left
out. Only changes in a snapshot cost time: equal endpoints are recognised by their bytes, not parsed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control.takeover import LOOK_S, Takeover
from serve_app.endpoints.beside import Beside
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.types.control import GatewayReport, Snapshot

logger = logging.getLogger(__name__)

LEFT_OUT: Final = "the run-time endpoint %s is left out: %s"


class Catalogues:
    """Joins both sources, and puts the result into effect when one of them changes."""

    def __init__(self, gateway: str, directory: Directory, backend: ServeBackend, wait_s: float) -> None:
        """`gateway`: a name that is unique to this run. `wait_s`: see `Takeover`."""
        self._gateway = gateway
        self._directory = directory
        self._backend = backend
        self._takeover = Takeover(directory, backend, wait_s, on_change=lambda: self.on_change())
        self._beside = Beside()
        self._declared: dict[str, Any] | None = None  # None: not read yet, so nothing is in effect
        self._raw: Mapping[str, bytes] = {}  # the run-time endpoints of the newest snapshot
        self._version = 0
        self._late: dict[str, ServedEntity] = {}  # by application: of run time, and could not answer yet
        self._watching: asyncio.Task[None] | None = None
        self.on_change: Callable[[], None] = lambda: None  # called when `report` may say something new

    @property
    def is_read(self) -> bool:
        """Whether the deploy file's endpoints are known."""
        return self._declared is not None

    def declare(self, catalogue: Catalogue) -> None:
        """Set the endpoints of the deploy file."""
        changes = self._beside.declare(catalogue.endpoints)
        is_first, self._declared = self._declared is None, catalogue.dump()
        for name, why in self._beside.left_out.items():
            logger.error(LEFT_OUT, name, why)
        self._put_into_effect(self._beside.endpoints if is_first else changes)

    def take(self, snapshot: Snapshot) -> None:
        """Set the endpoints of the control plane."""
        before, self._raw = self._raw, snapshot.endpoints
        self._version = snapshot.version
        changed = {
            name: _read(name, raw) for name, raw in snapshot.endpoints.items() if before.get(name) != raw
        }
        changes = self._beside.change(dict.fromkeys(before.keys() - self._raw.keys()) | changed)
        if changed or changes:
            for name in changed.keys() & self._beside.left_out.keys():
                logger.error(LEFT_OUT, name, self._beside.left_out[name])
            if self._declared is not None:
                self._put_into_effect(changes)
        self.on_change()

    def report(self) -> GatewayReport:
        """This gateway's report for the control plane."""
        return GatewayReport(
            gateway=self._gateway,
            declared=self._declared or {},
            in_force=self._version if self._declared is not None else 0,
            waiting={name: tuple(apps) for name, apps in self._directory.waiting.items()},
            ready=self._backend.ready(),
        )

    def close(self) -> None:
        self._takeover.close()
        if self._watching is not None:
            self._watching.cancel()

    def _put_into_effect(self, changes: Mapping[str, Endpoint | None]) -> None:
        self._directory.run_time = self._beside.run_time
        self._takeover.begin(changes)
        self.on_change()
        for name in changes.keys() & self._directory.run_time:
            endpoint = changes[name]
            self._late |= {} if endpoint is None else {each.app: each for each in endpoint.served_entities}
        if self._late and (self._watching is None or self._watching.done()):
            self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """Report each late application as soon as it can answer, because an update is waiting for it."""
        while self._late:
            late = {
                app: entity
                for app, entity in self._late.items()
                if self._backend.watches(entity) and not self._backend.is_ready(app)
            }
            if late.keys() != self._late.keys():
                self._late = late
                self.on_change()
            await asyncio.sleep(LOOK_S)


def _read(name: str, raw: bytes) -> Endpoint | None:
    """The endpoint; None if this version of the server cannot parse it."""
    try:
        return Endpoint.model_validate_json(raw)
    except ValueError as error:
        logger.error("the run-time endpoint %s is not understood: %s", name, error)
        return None
