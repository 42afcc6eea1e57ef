"""What the ledger knows of keys: their last use. A key is known there by its name."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from serve_app.control.keys.tables import ApiKey
from serve_app.control.ledger.tables import Usage


def last_uses(session: Session) -> Mapping[str, float]:
    """The Unix time at which the newest request of each key began, by the key's id.

    A key has none from before it was made, when another one of its name may have been used. One look into
    an index for each key, whatever the ledger holds.
    """
    newest = select(func.max(Usage.started)).where(Usage.key_id == ApiKey.name).scalar_subquery()
    found = session.execute(select(ApiKey.id, ApiKey.created, newest))
    return {id: used for id, created, used in found if used is not None and used >= created}
