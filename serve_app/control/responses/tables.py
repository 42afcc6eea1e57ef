"""The table of kept responses."""

from __future__ import annotations

from sqlalchemy import Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from serve_app.control.database.tables import Table


class ResponseRow(Table):
    """A response, and the input that it answers."""

    __tablename__ = "responses"
    # The second index covers all queries over many rows, so that they need not read the rows.
    __table_args__ = (
        Index("ix_responses_used", "used"),
        Index("ix_responses_owner_used_size", "owner", "used", "size"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]  # see types.control.responses.owner_of
    previous: Mapped[str]
    used: Mapped[float]  # when the response was made or last continued
    size: Mapped[int]  # bytes that count towards its owner's limit
    input: Mapped[bytes] = mapped_column(LargeBinary)
    response: Mapped[bytes] = mapped_column(LargeBinary)
