"""Numbers that only grow, even across restarts: versions of snapshots, revisions of applications."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, Session, mapped_column

from serve_app.control.database.tables import Table

SNAPSHOT: Final = "snapshot"
REVISION: Final = "revision"


class Counter(Table):
    """One counter, identified by its name."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


def current(session: Session, name: str) -> int:
    """The number that `advance` last returned; 0 if none yet."""
    found = session.get(Counter, name)
    return 0 if found is None else found.value


def advance(session: Session, name: str) -> int:
    """The next number, starting at 1."""
    found = session.get(Counter, name)
    if found is None:
        found = Counter(name=name, value=0)
        session.add(found)
    found.value += 1
    return found.value
