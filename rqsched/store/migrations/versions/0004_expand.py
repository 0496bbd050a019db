"""Room for blocked runs, retries asked for by an operator, deliveries, fan-outs of any workflow, and pruning.

It only adds: code of the release before works on this schema, so workers may be replaced one after the other.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
OLD_STATUSES = ("waiting", "pending", "running", "succeeded", "ignored", "failed")
OLD_OPEN = ("waiting", "pending", "running")
NEW_OPEN = (*OLD_OPEN, "retrying", "blocked")
NEW_STATUSES = (*NEW_OPEN, "succeeded", "ignored", "failed", "lost", "cancelled")
SCHEDULE_INDEXES = (
    ("ix_rqsched_schedules_resting", ["status", "schedule_id"], "status IN ('paused', 'done', 'dead')"),
    ("ix_rqsched_schedules_resting_page", ["status", "created_at"], "status IN ('paused', 'done', 'dead')"),
    ("ix_rqsched_schedules_deleted", ["status", "schedule_id", "created_at"], "status = 'deleted'"),
    ("ix_rqsched_schedules_late", ["overdue_since"], "overdue_since IS NOT NULL"),
    ("ix_rqsched_schedules_failing", ["consecutive_failures"], "consecutive_failures >= 3"),
    ("ix_rqsched_schedules_ended_badly", ["last_outcome", "schedule_id"], "last_outcome IN ('failed', 'lost')"),
)


def _schedule_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("notifications", sa.Text, server_default="{}", nullable=False),
        sa.Column("pruned_to", INSTANT),
        sa.Column("last_success_at", INSTANT),
        sa.Column("last_ended_at", INSTANT),
        sa.Column("last_outcome", sa.String(16)),
        sa.Column("overdue_at", INSTANT),
        sa.Column("overdue_since", INSTANT),
    ]


def _run_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("target_counts", sa.Text),
        sa.Column("blocked_at", INSTANT),
        sa.Column("blocked_reason", sa.Text),
        sa.Column("asked_attempt", sa.Integer),
        sa.Column("dispatched_at", INSTANT),
        sa.Column("dead_letter_at", INSTANT),
        sa.Column("held_until", INSTANT),
    ]


def _target_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("payload", sa.Text),
        sa.Column("attempt", sa.Integer, server_default="1", nullable=False),
        sa.Column("worker", sa.String(255)),
        sa.Column("started_at", INSTANT),
        sa.Column("retry_at", INSTANT),
        sa.Column("delivery", sa.Integer, server_default="1", nullable=False),
        sa.Column("blocked_at", INSTANT),
        sa.Column("max_parallel", sa.Integer),
    ]


def _other_columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "rqsched_workflows": [sa.Column("options", sa.Text, server_default="{}", nullable=False)],
        "rqsched_backfills": [sa.Column("rerun", sa.String(16))],
        "rqsched_machine_states": [sa.Column("entered_at", INSTANT)],
        "rqsched_idempotency_keys": [sa.Column("answer", sa.Text)],
    }


def upgrade() -> None:
    """Add the columns, the table of deliveries and the partial indexes; give targets more statuses."""
    _add("rqsched_schedules", _schedule_columns())
    _add("rqsched_runs", _run_columns())
    for table, columns in _other_columns().items():
        _add(table, columns)
    _index("ix_rqsched_schedules_overdue", "rqsched_schedules", ["overdue_at", "uid"], "overdue_at IS NOT NULL")
    for name, key, condition in SCHEDULE_INDEXES:
        _index(name, "rqsched_schedules", ["namespace", *key, "uid"], condition)
    _index("ix_rqsched_runs_blocked", "rqsched_runs", ["blocked_at", "uid"], "blocked_at IS NOT NULL")
    _index("ix_rqsched_runs_failed", "rqsched_runs", ["ended_at", "uid"], "status IN ('failed', 'lost')")
    _index("ix_rqsched_runs_dead_letter", "rqsched_runs", ["dead_letter_at", "uid"], "dead_letter_at IS NOT NULL")
    _index("ix_rqsched_runs_dispatched", "rqsched_runs", ["uid"], "dispatched_at IS NOT NULL AND ended_at IS NULL")
    _change_targets(NEW_STATUSES, NEW_OPEN, is_upgrade=True)
    _create_deliveries()


def downgrade() -> None:
    """Take them away again, and what is in them."""
    op.drop_table("rqsched_deliveries")
    _change_targets(OLD_STATUSES, OLD_OPEN, is_upgrade=False)
    for name in ("dispatched", "dead_letter", "failed", "blocked"):
        op.drop_index(f"ix_rqsched_runs_{name}", "rqsched_runs")
    for name in ("ix_rqsched_schedules_overdue", *(name for name, *_ in SCHEDULE_INDEXES)):
        op.drop_index(name, "rqsched_schedules")
    for table, columns in (
        *_other_columns().items(),
        ("rqsched_runs", _run_columns()),
        ("rqsched_schedules", _schedule_columns()),
    ):
        for column in columns:
            op.drop_column(table, column.name)


def _add(table: str, columns: list[sa.Column[Any]]) -> None:
    for column in columns:
        op.add_column(table, column)


def _index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _change_targets(statuses: tuple[str, ...], is_open: tuple[str, ...], *, is_upgrade: bool) -> None:
    op.drop_index("ix_rqsched_targets_open", "rqsched_targets")
    if not is_upgrade:
        op.execute(f"UPDATE rqsched_targets SET status = 'failed' WHERE status NOT IN {statuses!r}")  # noqa: S608
    if op.get_bind().dialect.name == "sqlite":
        _copy_targets(statuses, _target_columns() if is_upgrade else [])
    else:
        op.drop_constraint(op.f("ck_rqsched_targets_status"), "rqsched_targets")
        for column in _target_columns():
            op.add_column("rqsched_targets", column) if is_upgrade else op.drop_column("rqsched_targets", column.name)
        op.create_check_constraint(op.f("ck_rqsched_targets_status"), "rqsched_targets", f"status IN {statuses!r}")
    _index("ix_rqsched_targets_open", "rqsched_targets", ["status", "uid"], f"status IN {is_open!r}")


def _copy_targets(statuses: tuple[str, ...], more: list[sa.Column[Any]]) -> None:
    """Make the table anew and copy its rows: SQLite changes no constraint in place."""
    kept: list[sa.Column[Any]] = [
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
    ]
    names = ", ".join(f'"{column.name}"' for column in kept)
    op.drop_index("ix_rqsched_targets_batch", "rqsched_targets")
    op.drop_index("ix_rqsched_targets_schedule_uid", "rqsched_targets")
    op.rename_table("rqsched_targets", "rqsched_targets_old")
    op.create_table(
        "rqsched_targets",
        *kept,
        *more,
        sa.CheckConstraint(f"status IN {statuses!r}", name=op.f("ck_rqsched_targets_status")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_targets")),
        sa.UniqueConstraint("run_uid", "target_id", name=op.f("uq_rqsched_targets_run_uid_target_id")),
    )
    op.execute(f"INSERT INTO rqsched_targets ({names}) SELECT {names} FROM rqsched_targets_old")  # noqa: S608
    op.drop_table("rqsched_targets_old")
    op.create_index("ix_rqsched_targets_batch", "rqsched_targets", ["run_uid", "status", "number"])
    op.create_index("ix_rqsched_targets_schedule_uid", "rqsched_targets", ["schedule_uid"])


def _create_deliveries() -> None:
    op.create_table(
        "rqsched_deliveries",
        sa.Column("uid", sa.String(26), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("run_uid", sa.String(26)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("event_type", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("queue", sa.String(255)),
        sa.Column("connection", sa.String(255)),
        sa.Column("timeout", sa.Integer),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, server_default="1", nullable=False),
        sa.Column("token", sa.String(26)),
        sa.Column("worker", sa.String(255)),
        sa.Column("error", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'succeeded', 'failed')", name=op.f("ck_rqsched_deliveries_status")
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_deliveries")),
    )
    _index("ix_rqsched_deliveries_open", "rqsched_deliveries", ["due_at", "uid"], "status IN ('pending', 'running')")
    _index("ix_rqsched_deliveries_failed", "rqsched_deliveries", ["ended_at", "uid"], "status = 'failed'")
    op.create_index("ix_rqsched_deliveries_schedule_uid", "rqsched_deliveries", ["schedule_uid", "uid"])
