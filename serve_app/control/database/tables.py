"""The base of all tables. Each area declares its own tables on it, in its module `tables`.

Times are Unix seconds (float), JSON columns hold plain values, and nothing depends on one kind of database.
"""

from __future__ import annotations

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

# Names for constraints, so that a migration can name what it changes on every database.
NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Table(DeclarativeBase):
    """Base of every table."""

    metadata = MetaData(naming_convention=NAMES)
