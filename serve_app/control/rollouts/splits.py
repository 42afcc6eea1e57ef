"""The traffic splits of endpoints, for rollouts to read and change; those in the deploy file are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from serve_app.control.endpoints import registry
from serve_app.control.endpoints.shown import declared_id
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The traffic split of one endpoint that is in force."""

    endpoint_id: str
    entities: tuple[str, ...]
    traffic: Mapping[str, int]  # percentages of the entities that have traffic
    configured: float  # when its newest configuration was requested, in Unix seconds; 0 if unknown
    task: str | None = None  # None: not known yet

    def percentage(self, entity: str) -> int:
        return self.traffic.get(entity, 0)


def with_share(former: Mapping[str, int], entity: str, percentage: int) -> dict[str, int]:
    """A split with `percentage` for `entity`; the others share the rest in proportion to their former shares.

    The shares are whole numbers that add up to 100; entities without traffic are left out. Raises ValueError
    if no other entity can take the rest.
    """
    others = {name: share for name, share in former.items() if name != entity and share > 0}
    rest, total = 100 - percentage, sum(others.values())
    if rest and not total:
        raise ValueError("no other entity has traffic")
    shares = {name: rest * share // total for name, share in others.items()} if rest else {}
    # What rounding down leaves over goes to the entities that lost most by it, in order.
    lost = sorted(others, key=lambda name: -(rest * others[name] % total)) if rest else []
    for name in lost[: rest - sum(shares.values())]:
        shares[name] += 1
    shares[entity] = percentage
    return present(shares)


def present(traffic: Mapping[str, int]) -> dict[str, int]:
    """The entities that have traffic."""
    return {name: share for name, share in traffic.items() if share > 0}


class Splits:
    """The traffic of all endpoints, declared ones included. Each call is part of the caller's transaction."""

    def __init__(self, declared: Callable[[], Mapping[str, Endpoint]], changed: Callable[[], None]) -> None:
        """`declared`: the endpoints of the deploy file.

        `changed` is called after a transaction that changed something: see `Snapshots.changed`.
        """
        self._declared = declared
        self.changed = changed

    def read(self, session: Session, endpoint: str) -> Split:
        """Raises ModelNotFound, or Conflict if the endpoint does not serve yet."""
        found = self._declared().get(endpoint)
        if found is not None:
            return Split(
                endpoint_id=declared_id(endpoint),
                entities=tuple(entity.name for entity in found.served_entities),
                traffic=present(found.traffic),
                configured=0.0,  # unknown
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
        """Changes the split in place: no replica starts or stops.

        Raises ModelNotFound, InvalidField, or Conflict if the endpoint is declared or being updated.
        """
        self._refuse_declared(endpoint)
        registry.set_traffic(session, endpoint, dict(traffic))

    def set_shadow(self, session: Session, endpoint: str, shadow: Shadow | None) -> None:
        """Same errors as `set_traffic`."""
        self._refuse_declared(endpoint)
        registry.set_shadow(session, endpoint, shadow)

    def _refuse_declared(self, endpoint: str) -> None:
        if endpoint in self._declared():
            raise Conflict(
                f"the endpoint {endpoint!r} is declared in the deploy file, which alone changes its traffic "
                "and shadow: edit the file, and deploy it"
            )
