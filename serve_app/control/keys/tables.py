"""The tables of keys and grants. No column holds a key, or enough of a key to use it."""

from __future__ import annotations

from sqlalchemy import JSON, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from serve_app.control.database.tables import Table


class ApiKey(Table):
    """A key, which may have expired or been revoked."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)  # unique among keys in force
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)  # SHA-256 of the whole key
    prefix: Mapped[str]  # the first characters of the key
    user: Mapped[str]
    is_service_principal: Mapped[bool]
    groups: Mapped[list[str]] = mapped_column(JSON)
    scopes: Mapped[list[str]] = mapped_column(JSON)
    endpoints: Mapped[list[str]] = mapped_column(JSON)
    creator: Mapped[str]
    created: Mapped[float]
    expires: Mapped[float | None]
    revoked: Mapped[float | None]
    budget: Mapped[float | None]
    soft_budget: Mapped[float | None]
    currency: Mapped[str]
    comment: Mapped[str]

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, {self.name!r})"


class EndpointGrant(Table):
    """What one principal may do with one endpoint."""

    __tablename__ = "endpoint_grant"

    endpoint_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[str]
