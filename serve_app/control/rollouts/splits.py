"""What rollouts need of the registry of endpoints: who shares an endpoint's traffic, and how it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session

from serve_app.endpoints.ai_gateway import Shadow


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The traffic of one endpoint, as it is in force."""

    endpoint_id: str
    entities: tuple[str, ...]
    traffic: Mapping[str, int]  # percentages of entities that have some
    configured: float  # Unix seconds; when its newest configuration was asked for, 0: not known
    task: str | None = None  # None: not known yet

    def percentage(self, entity: str) -> int:
        return self.traffic.get(entity, 0)


class Splits(Protocol):
    """The traffic of all endpoints. Each call is part of the caller's transaction."""

    def read(self, session: Session, endpoint: str) -> Split:
        """Of any endpoint, declared ones included. Raises ModelNotFound, or Conflict before it serves."""
        ...

    def set_traffic(self, session: Session, endpoint: str, traffic: Mapping[str, int]) -> None:
        """In place: no replica starts or stops.

        Raises Conflict for a declared endpoint or one that is being updated, ModelNotFound, InvalidField.
        """
        ...

    def set_shadow(self, session: Session, endpoint: str, shadow: Shadow | None) -> None:
        """Raises as `set_traffic`."""
        ...

    def changed(self) -> None:
        """A transaction changed something: gateways must hear of it."""
        ...
