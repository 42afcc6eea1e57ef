"""The traffic of endpoints in the registry, and of those that the deploy file declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy.orm import Session

from serve_app.control.endpoints import registry
from serve_app.control.endpoints.shown import declared_id
from serve_app.control.rollouts.shares import present
from serve_app.control.rollouts.splits import Split
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import Conflict


class EndpointSplits:
    """A `Splits` over the tables of endpoints."""

    def __init__(self, declared: Callable[[], Mapping[str, Endpoint]], changed: Callable[[], None]) -> None:
        """`declared`: the endpoints of the deploy file. `changed`: see `Snapshots.changed`."""
        self._declared = declared
        self.changed = changed

    def read(self, session: Session, endpoint: str) -> Split:
        found = self._declared().get(endpoint)
        if found is not None:
            return Split(
                endpoint_id=declared_id(endpoint),
                entities=tuple(entity.name for entity in found.served_entities),
                traffic=present(found.traffic),
                configured=0.0,  # nobody knows
                task=found.task,
            )
        row = registry.find(session, endpoint)
        return Split(
            endpoint_id=row.id,
            entities=tuple(entity.wanted.name for entity in registry.entities(session, endpoint)),
            traffic=present(registry.traffic(session, endpoint)),
            configured=row.pending_since or row.created,
            task=row.task,
        )

    def set_traffic(self, session: Session, endpoint: str, traffic: Mapping[str, int]) -> None:
        self._refuse_declared(endpoint)
        registry.set_traffic(session, endpoint, dict(traffic))

    def set_shadow(self, session: Session, endpoint: str, shadow: Shadow | None) -> None:
        self._refuse_declared(endpoint)
        registry.set_shadow(session, endpoint, shadow)

    def _refuse_declared(self, endpoint: str) -> None:
        if endpoint in self._declared():
            raise Conflict(
                f"the endpoint {endpoint!r} is declared in the deploy file, which alone changes its traffic "
                "and shadow: edit the file, and deploy it"
            )
