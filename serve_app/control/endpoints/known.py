"""All endpoints in the database. Each version of a row is read once, so only changed rows cost time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from serve_app.control.endpoints import registry
from serve_app.control.endpoints.state import Config, loaded
from serve_app.control.endpoints.tables import EndpointRow
from serve_app.types.control import UpdateState

AT_ONCE: Final = 500  # rows of one statement


@dataclass(frozen=True)
class KnownEndpoint:
    """A row, detached from its session, and the parsed values of its columns."""

    row: EndpointRow
    serving: Config | None
    pending: Config | None

    @cached_property
    def served(self) -> bytes | None:
        """The endpoint as JSON for gateways. None: nothing serves yet."""
        return None if self.serving is None else msgspec.json.encode(registry.served(self.row, self.serving))

    @property
    def unready(self) -> str | None:
        """The reason why nothing serves yet, for callers of the endpoint; None if something serves."""
        if self.serving is not None:
            return None
        if self.row.update_state == UpdateState.UPDATE_FAILED.value:
            return "did not come up; who manages it sees why in its state"
        return "comes up: its config_update is IN_PROGRESS; try again"


class KnownEndpoints:
    """To be used only in transactions, which run one at a time."""

    def __init__(self) -> None:
        self._known: dict[str, KnownEndpoint] = {}
        self.newest: dict[str, KnownEndpoint] | None = None  # last read, for when the database is unreachable

    def read(self, session: Session) -> dict[str, KnownEndpoint]:
        """All endpoints by id, sorted by name."""
        columns = select(EndpointRow.id, EndpointRow.row_version).order_by(EndpointRow.name)
        versions: dict[str, int] = dict(session.execute(columns).tuples().all())
        before = self._known
        stale = [
            id
            for id, version in versions.items()
            if id not in before or before[id].row.row_version != version
        ]
        fresh: dict[str, KnownEndpoint] = {}
        for start in range(0, len(stale), AT_ONCE):
            rows = select(EndpointRow).where(EndpointRow.id.in_(stale[start : start + AT_ONCE]))
            for row in session.scalars(rows):
                fresh[row.id] = _known(row)
                session.expunge(row)
        self._known = {id: known for id in versions if (known := fresh.get(id) or before.get(id)) is not None}
        self.newest = self._known
        return self._known


def _known(row: EndpointRow) -> KnownEndpoint:
    return KnownEndpoint(
        row,
        None if row.serving is None else loaded(row.serving),
        None if row.pending is None else loaded(row.pending),
    )
