"""The targets of fan-outs, and the current states of machines."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create both tables."""
    _create_targets()
    _create_machine_states()


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("rqsched_machine_states")
    op.drop_table("rqsched_targets")


def _create_targets() -> None:
    op.create_table(
        "rqsched_targets",
        sa.Column("uid", sa.String(26), nullable=False),
        sa.Column("run_uid", sa.String(26), nullable=False),
        sa.Column("schedule_uid", sa.String(26)),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("target_id", sa.String(255), nullable=False),
        sa.Column("workflow", sa.String(255), nullable=False),
        sa.Column("queue", sa.String(255)),
        sa.Column("connection", sa.String(255)),
        sa.Column("timeout", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("token", sa.String(26)),
        sa.Column("error", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("queued_at", INSTANT),
        sa.Column("deadline_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.CheckConstraint(
            "status IN ('waiting', 'pending', 'running', 'succeeded', 'ignored', 'failed')",
            name=op.f("ck_rqsched_targets_status"),
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_targets")),
        sa.UniqueConstraint("run_uid", "target_id", name=op.f("uq_rqsched_targets_run_uid_target_id")),
    )
    op.create_index("ix_rqsched_targets_batch", "rqsched_targets", ["run_uid", "status", "number"])
    op.create_index(
        "ix_rqsched_targets_open",
        "rqsched_targets",
        ["status", "uid"],
        **_where("status IN ('waiting', 'pending', 'running')"),
    )
    op.create_index("ix_rqsched_targets_schedule_uid", "rqsched_targets", ["schedule_uid"])


def _create_machine_states() -> None:
    op.create_table(
        "rqsched_machine_states",
        sa.Column("machine", sa.String(255), nullable=False),
        sa.Column("instance_id", sa.String(255), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("machine", "instance_id", name=op.f("pk_rqsched_machine_states")),
    )
    op.create_index("ix_rqsched_machine_states_state", "rqsched_machine_states", ["machine", "state"])


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
