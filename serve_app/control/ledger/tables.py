"""The tables of the ledger."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from serve_app.control.database.tables import Table


class Usage(Table):
    """One admitted request: a `types.UsageRecord`, merged from all reports."""

    __tablename__ = "usage"
    __table_args__ = (
        Index("ix_usage_started", "started"),
        Index("ix_usage_endpoint_started", "endpoint", "started"),
        Index("ix_usage_key_id_started", "key_id", "started"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    is_ended: Mapped[bool]  # its own gateway has closed it, so it no longer changes
    key_id: Mapped[str]
    user: Mapped[str]
    groups: Mapped[str]  # JSON: a list of names, sorted
    endpoint: Mapped[str]
    entity: Mapped[str]
    kind: Mapped[str]
    route: Mapped[str]
    started: Mapped[float]
    day: Mapped[str]  # on which the request began, in UTC: 2026-03-01
    outcome: Mapped[str]
    status: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    discarded_tokens: Mapped[int] = mapped_column(BigInteger)
    first_token_s: Mapped[float | None]
    queue_s: Mapped[float | None]
    total_s: Mapped[float]
    migrations: Mapped[int]
    failed_over: Mapped[str]  # entities that were tried before and failed, separated by commas
    cost: Mapped[float | None]
    currency: Mapped[str | None]
    is_shadow: Mapped[bool]  # a shadow copy, whose answer was dropped
    # For a request that has not ended: the report from each source. See `accounts.merge`.
    parts: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class Spending(Table):
    """The spending of a key in one month (UTC): the sum over the key's `Usage` rows, updated with them."""

    __tablename__ = "usage_spending"

    month: Mapped[str] = mapped_column(primary_key=True)  # 2026-03
    key_id: Mapped[str] = mapped_column(primary_key=True)
    currency: Mapped[str] = mapped_column(primary_key=True)
    cost: Mapped[float]
