"""The tables of endpoints. Configurations are stored as JSON of `state.Config`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from serve_app.control.database.tables import Table


class EndpointRow(Table):
    """One endpoint. The row is deleted with the endpoint. Its id is random, so that no other endpoint ever
    gets the same id."""

    __tablename__ = "endpoints"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(256), unique=True)
    kind: Mapped[str] = mapped_column(String(32))
    task: Mapped[str | None] = mapped_column(String(32))
    creator: Mapped[str] = mapped_column(String(256))
    created: Mapped[float] = mapped_column(Double)
    updated: Mapped[float] = mapped_column(Double)
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[dict[str, str]] = mapped_column(JSON)
    ai_gateway: Mapped[dict[str, Any]] = mapped_column(JSON)
    shadow: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    stored: Mapped[dict[str, Any]] = mapped_column(JSON)
    serving: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    pending: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    config_version: Mapped[int] = mapped_column(Integer)  # of the newest configuration
    update_state: Mapped[str] = mapped_column(String(32))  # see types.control.UpdateState
    message: Mapped[str] = mapped_column(Text)
    pending_since: Mapped[float] = mapped_column(Double)
    # While an update only waits for gateways: the version of the first snapshot with the new configuration.
    switch_version: Mapped[int] = mapped_column(BigInteger)
    row_version: Mapped[int] = mapped_column(Integer)  # to detect changes by another control plane

    __mapper_args__ = {"version_id_col": row_version}  # noqa: RUF012  # as SQLAlchemy has it


class EventRow(Table):
    """Something that happened to an endpoint, for its build logs."""

    __tablename__ = "endpoint_events"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("endpoints.id", ondelete="CASCADE"), index=True
    )
    at: Mapped[float] = mapped_column(Double)
    text: Mapped[str] = mapped_column(Text)
