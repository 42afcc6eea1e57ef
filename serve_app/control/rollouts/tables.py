"""The tables of rollouts and of feedback."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index
from sqlalchemy.orm import Mapped, mapped_column

from serve_app.control.database.tables import Table


class RolloutRow(Table):
    """One rollout of one endpoint, and its state."""

    __tablename__ = "rollouts"
    __table_args__ = (Index("ix_rollouts_endpoint_id", "endpoint_id"), Index("ix_rollouts_state", "state"))

    id: Mapped[int] = mapped_column(primary_key=True)
    endpoint_id: Mapped[str]  # a later endpoint of the same name has a different id
    endpoint: Mapped[str]
    entity: Mapped[str]
    steps: Mapped[list[int]] = mapped_column(JSON)
    step: Mapped[int]
    interval_s: Mapped[float]
    guards: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str]
    message: Mapped[str]
    started: Mapped[float]
    changed: Mapped[float]
    step_started: Mapped[float]
    traffic: Mapped[dict[str, int]] = mapped_column(JSON)  # the split that the rollout set last
    former_traffic: Mapped[dict[str, int]] = mapped_column(JSON)


class FeedbackRow(Table):
    """A client's feedback about one answer, in one metric."""

    __tablename__ = "feedback"
    __table_args__ = (Index("ix_feedback_key_id_is_known", "key_id", "is_known"),)

    request_id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)  # who gave it
    metric: Mapped[str] = mapped_column(primary_key=True)
    endpoint: Mapped[str]  # the one that the client named, or ""
    value: Mapped[float]
    given: Mapped[float]
    is_known: Mapped[bool]  # whether the ledger has the request
