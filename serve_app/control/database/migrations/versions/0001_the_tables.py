"""the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "endpoints",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("task", sa.String(length=32), nullable=True),
        sa.Column("creator", sa.String(length=256), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("ai_gateway", sa.JSON(), nullable=False),
        sa.Column("shadow", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stored", sa.JSON(), nullable=False),
        sa.Column("serving", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("pending", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.Column("update_state", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("pending_since", sa.Double(), nullable=False),
        sa.Column("switch_version", sa.BigInteger(), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
        sa.UniqueConstraint("name", name=op.f("uq_endpoints_name")),
    )
    op.create_table(
        "feedback",
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("given", sa.Double(), nullable=False),
        sa.Column("is_known", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", "key_id", "metric", name=op.f("pk_feedback")),
    )
    with op.batch_alter_table("feedback", schema=None) as batch_op:
        batch_op.create_index("ix_feedback_key_id_is_known", ["key_id", "is_known"], unique=False)

    op.create_table(
        "rollouts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("guards", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("step_started", sa.Double(), nullable=False),
        sa.Column("traffic", sa.JSON(), nullable=False),
        sa.Column("former_traffic", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.create_index("ix_rollouts_endpoint_id", ["endpoint_id"], unique=False)
        batch_op.create_index("ix_rollouts_state", ["state"], unique=False)

    op.create_table(
        "usage",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("is_ended", sa.Boolean(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("groups", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("discarded_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_token_s", sa.Double(), nullable=True),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("migrations", sa.Integer(), nullable=False),
        sa.Column("failed_over", sa.String(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("currency", sa.String(), nullable=True),
        sa.Column("is_shadow", sa.Boolean(), nullable=False),
        sa.Column("parts", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
    )
    with op.batch_alter_table("usage", schema=None) as batch_op:
        batch_op.create_index("ix_usage_endpoint_started", ["endpoint", "started"], unique=False)
        batch_op.create_index("ix_usage_key_id_started", ["key_id", "started"], unique=False)
        batch_op.create_index("ix_usage_started", ["started"], unique=False)

    op.create_table(
        "usage_spending",
        sa.Column("month", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("currency", sa.String(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("month", "key_id", "currency", name=op.f("pk_usage_spending")),
    )
    op.create_table(
        "endpoint_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("endpoint_id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["endpoints.id"],
            name=op.f("fk_endpoint_events_endpoint_id_endpoints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_events")),
    )
    with op.batch_alter_table("endpoint_events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_endpoint_events_endpoint_id"), ["endpoint_id"], unique=False)
