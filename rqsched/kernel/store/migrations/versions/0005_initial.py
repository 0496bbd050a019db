"""The tables of the first release, 0.1.

This revision never changes after the release. Later changes of `tables` need a later revision. Builds before the
release made the tables in five revisions, 0001 to 0005. A database at 0001 to 0004 cannot be upgraded.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
SPAN = sa.BigInteger


def upgrade() -> None:
    """Create every table with its constraints and indexes."""
    _create_schedules()
    _create_runs()
    _create_audit_events()
    _create_backfills()
    _create_workflows()
    _create_targets()
    _create_machine_states()
    _create_idempotency_keys()
    _create_deliveries()
    _create_facts()
    _create_hours()
    _create_facts_of_namespaces()
    _create_calendars()
    _create_limits()
    _create_upstream_ends()


def downgrade() -> None:
    """Drop every table with its rows."""
    op.drop_table("rqsched_upstream_ends")
    op.drop_table("rqsched_limit_starts")
    op.drop_table("rqsched_limits")
    op.drop_table("rqsched_calendars")
    op.drop_table("rqsched_namespace_facts")
    op.drop_table("rqsched_uncounted")
    op.drop_table("rqsched_counted")
    op.drop_table("rqsched_hours")
    op.drop_table("rqsched_facts")
    op.drop_table("rqsched_deliveries")
    op.drop_table("rqsched_idempotency_keys")
    op.drop_table("rqsched_machine_states")
    op.drop_table("rqsched_targets")
    op.drop_table("rqsched_workflows")
    op.drop_table("rqsched_backfills")
    op.drop_table("rqsched_audit_events")
    op.drop_table("rqsched_runs")
    op.drop_table("rqsched_schedules")


def _create_schedules() -> None:
    op.create_table(
        "rqsched_schedules",
        sa.Column("uid", sa.String(26), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("schedule_id", sa.String(255), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("workflow", sa.String(255), nullable=False),
        sa.Column("executor", sa.String(16), nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("queue", sa.String(255)),
        sa.Column("connection", sa.String(255)),
        sa.Column("timeout", sa.Integer),
        sa.Column("defaults", sa.Text, server_default="{}", nullable=False),
        sa.Column("priority", sa.Integer, server_default="0", nullable=False),
        sa.Column("jitter", SPAN, server_default="0", nullable=False),
        sa.Column("policies", sa.Text, nullable=False),
        sa.Column("max_runs", sa.BigInteger),
        sa.Column("labels", sa.Text, server_default="{}", nullable=False),
        sa.Column("memo", sa.Text, server_default="{}", nullable=False),
        sa.Column("search_attributes", sa.Text, server_default="{}", nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("owner", sa.String(255)),
        sa.Column("managed_by", sa.String(32)),
        sa.Column("surface", sa.Text, server_default="{}", nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("timing_changed_at", INSTANT, nullable=False),
        sa.Column("evaluated_to", INSTANT, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("n", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("next_run_at", INSTANT),
        sa.Column("due_at", INSTANT),
        sa.Column("awaiting_run_uid", sa.String(26)),
        sa.Column("remaining", sa.BigInteger),
        sa.Column("run_number", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("event_sequence", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("run_count", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("success_count", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("error_count", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("consecutive_failures", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("buffer_depth", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("backfill_waiting", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("backfill_unfinished", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("fire_failures", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("skipped_count", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("missed_count", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("last_run_at", INSTANT),
        sa.Column("last_skip_reason", sa.String(64)),
        sa.Column("last_skipped_at", INSTANT),
        sa.Column("last_error", sa.Text),
        sa.Column("last_run_uid", sa.String(26)),
        sa.Column("last_instance_id", sa.String(512)),
        sa.Column("note", sa.Text),
        sa.Column("status_reason", sa.Text),
        sa.Column("paused_at", INSTANT),
        sa.Column("paused_next_run_at", INSTANT),
        sa.Column("deleted_at", INSTANT),
        sa.Column("tzdata", sa.String(32), server_default="", nullable=False),
        sa.Column("operation", sa.String(26)),
        sa.Column("notifications", sa.Text, server_default="{}", nullable=False),
        sa.Column("pruned_to", INSTANT),
        sa.Column("last_success_at", INSTANT),
        sa.Column("last_ended_at", INSTANT),
        sa.Column("last_outcome", sa.String(16)),
        sa.Column("overdue_at", INSTANT),
        sa.Column("overdue_since", INSTANT),
        sa.Column("resume_at", INSTANT),
        sa.Column("resume_mode", sa.String(16)),
        sa.Column("traceparent", sa.String(55)),
        sa.Column("skips", sa.Text),
        sa.Column("calendars", sa.Text),
        sa.Column("limit_group", sa.String(511)),
        sa.Column("upstream_id", sa.String(255)),
        sa.Column("followed_at", INSTANT),
        sa.Column("missed_run_uid", sa.String(26)),
        sa.Column("moves", sa.Text),
        sa.CheckConstraint("(due_at IS NULL) = (next_run_at IS NULL)", name=op.f("ck_rqsched_schedules_due_with_next")),
        sa.CheckConstraint("due_at IS NULL OR status = 'active'", name=op.f("ck_rqsched_schedules_only_active_is_due")),
        sa.CheckConstraint(
            "status IN ('active', 'paused', 'done', 'dead', 'deleted')", name=op.f("ck_rqsched_schedules_status")
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_schedules")),
    )
    op.create_index(
        "ix_rqsched_schedules_deleted",
        "rqsched_schedules",
        ["namespace", "status", "schedule_id", "created_at", "uid"],
        **_where("status = 'deleted'"),
    )
    op.create_index(
        "ix_rqsched_schedules_due",
        "rqsched_schedules",
        ["due_at", "uid"],
        **_where("status = 'active'"),
    )
    op.create_index(
        "ix_rqsched_schedules_ended_badly",
        "rqsched_schedules",
        ["namespace", "last_outcome", "schedule_id", "uid"],
        **_where("last_outcome IN ('failed', 'lost')"),
    )
    op.create_index(
        "ix_rqsched_schedules_failing",
        "rqsched_schedules",
        ["namespace", "consecutive_failures", "uid"],
        **_where("consecutive_failures >= 3"),
    )
    op.create_index(
        "ix_rqsched_schedules_late",
        "rqsched_schedules",
        ["namespace", "overdue_since", "uid"],
        **_where("overdue_since IS NOT NULL"),
    )
    op.create_index(
        "ix_rqsched_schedules_overdue",
        "rqsched_schedules",
        ["overdue_at", "uid"],
        **_where("overdue_at IS NOT NULL"),
    )
    op.create_index("ix_rqsched_schedules_page", "rqsched_schedules", ["namespace", "created_at", "uid"])
    op.create_index(
        "ix_rqsched_schedules_resting",
        "rqsched_schedules",
        ["namespace", "status", "schedule_id", "uid"],
        **_where("status IN ('paused', 'done', 'dead')"),
    )
    op.create_index(
        "ix_rqsched_schedules_resting_page",
        "rqsched_schedules",
        ["namespace", "status", "created_at", "uid"],
        **_where("status IN ('paused', 'done', 'dead')"),
    )
    op.create_index(
        "ix_rqsched_schedules_waiting",
        "rqsched_schedules",
        ["uid"],
        **_where("buffer_depth > 0 OR backfill_waiting > 0"),
    )
    op.create_index(
        "uq_rqsched_schedules_incarnation",
        "rqsched_schedules",
        ["namespace", "schedule_id"],
        unique=True,
        **_where("status != 'deleted'"),
    )
    op.create_index(
        "ix_rqsched_schedules_resuming", "rqsched_schedules", ["resume_at", "uid"], **_where("resume_at IS NOT NULL")
    )
    op.create_index("ix_rqsched_schedules_calendars", "rqsched_schedules", ["uid"], **_where("calendars IS NOT NULL"))
    op.create_index(
        "ix_rqsched_schedules_limit",
        "rqsched_schedules",
        ["limit_group", "status"],
        **_where("limit_group IS NOT NULL"),
    )
    op.create_index(
        "ix_rqsched_schedules_upstream",
        "rqsched_schedules",
        ["namespace", "upstream_id", "uid"],
        **_where("upstream_id IS NOT NULL AND status != 'deleted'"),
    )


def _create_runs() -> None:
    op.create_table(
        "rqsched_runs",
        sa.Column("uid", sa.String(26), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("instance_id", sa.String(512), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("occurrence_at", INSTANT, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("workflow", sa.String(255), nullable=False),
        sa.Column("executor", sa.String(16), nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("queue", sa.String(255)),
        sa.Column("connection", sa.String(255)),
        sa.Column("timeout", sa.Integer),
        sa.Column("priority", sa.Integer, server_default="0", nullable=False),
        sa.Column("overlap", sa.String(16), nullable=False),
        sa.Column("is_override", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("trigger_number", sa.BigInteger),
        sa.Column("labels", sa.Text, server_default="{}", nullable=False),
        sa.Column("memo", sa.Text, server_default="{}", nullable=False),
        sa.Column("search_attributes", sa.Text, server_default="{}", nullable=False),
        sa.Column("lineage", sa.Text, server_default="{}", nullable=False),
        sa.Column("attempt", sa.Integer, server_default="1", nullable=False),
        sa.Column("delivery", sa.Integer, server_default="1", nullable=False),
        sa.Column("token", sa.String(26)),
        sa.Column("worker", sa.String(255)),
        sa.Column("due_at", INSTANT),
        sa.Column("queued_at", INSTANT),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("retry_at", INSTANT),
        sa.Column("heartbeat_at", INSTANT),
        sa.Column("attempts", sa.Text, server_default="[]", nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("backfill_uid", sa.String(26)),
        sa.Column("beat", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("seen_beat", sa.BigInteger),
        sa.Column("sightings", sa.Integer, server_default="0", nullable=False),
        sa.Column("seen_at", INSTANT),
        sa.Column("target_counts", sa.Text),
        sa.Column("blocked_at", INSTANT),
        sa.Column("blocked_reason", sa.Text),
        sa.Column("asked_attempt", sa.Integer),
        sa.Column("dispatched_at", INSTANT),
        sa.Column("dead_letter_at", INSTANT),
        sa.Column("held_until", INSTANT),
        sa.Column("long_at", INSTANT),
        sa.Column("traceparent", sa.String(55)),
        sa.Column("start_by", INSTANT),
        sa.Column("expired_at", INSTANT),
        sa.Column("limit_group", sa.String(511)),
        sa.Column("limit_at", INSTANT),
        sa.Column("granted_at", INSTANT),
        sa.Column("passed_at", INSTANT),
        sa.Column("passed_count", sa.Integer),
        sa.Column("is_rated", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("upstream_run_uid", sa.String(26)),
        sa.Column("nominals", sa.Text),
        sa.CheckConstraint("kind IN ('scheduled', 'manual', 'backfill')", name=op.f("ck_rqsched_runs_kind")),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'retrying', 'buffered', "
            "'succeeded', 'failed', 'cancelled', 'terminated', 'lost')",
            name=op.f("ck_rqsched_runs_status"),
        ),
        sa.ForeignKeyConstraint(["schedule_uid"], ["rqsched_schedules.uid"], name=op.f("fk_rqsched_runs_schedule_uid")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_runs")),
        sa.UniqueConstraint(
            "schedule_uid", "idempotency_key", name=op.f("uq_rqsched_runs_schedule_uid_idempotency_key")
        ),
        sa.UniqueConstraint("schedule_uid", "instance_id", name=op.f("uq_rqsched_runs_schedule_uid_instance_id")),
        sa.UniqueConstraint("schedule_uid", "number", name=op.f("uq_rqsched_runs_schedule_uid_number")),
    )
    op.create_index(
        "ix_rqsched_runs_backfill",
        "rqsched_runs",
        ["backfill_uid", "number"],
        **_where("backfill_uid IS NOT NULL"),
    )
    op.create_index(
        "ix_rqsched_runs_blocked",
        "rqsched_runs",
        ["blocked_at", "uid"],
        **_where("blocked_at IS NOT NULL"),
    )
    op.create_index(
        "ix_rqsched_runs_dead_letter",
        "rqsched_runs",
        ["dead_letter_at", "uid"],
        **_where("dead_letter_at IS NOT NULL"),
    )
    op.create_index(
        "ix_rqsched_runs_dispatched",
        "rqsched_runs",
        ["uid"],
        **_where("dispatched_at IS NOT NULL AND ended_at IS NULL"),
    )
    op.create_index(
        "ix_rqsched_runs_failed",
        "rqsched_runs",
        ["ended_at", "uid"],
        **_where("status IN ('failed', 'lost')"),
    )
    op.create_index(
        "ix_rqsched_runs_open",
        "rqsched_runs",
        ["schedule_uid", "status", "kind", "number"],
        **_where("status IN ('pending', 'running', 'retrying', 'buffered')"),
    )
    op.create_index(
        "ix_rqsched_runs_unfinished",
        "rqsched_runs",
        ["status", "uid"],
        **_where("status IN ('pending', 'running', 'retrying')"),
    )
    op.create_index(
        "uq_rqsched_runs_occurrence",
        "rqsched_runs",
        ["schedule_uid", "occurrence_at"],
        unique=True,
        **_where("kind != 'manual'"),
    )
    op.create_index("ix_rqsched_runs_live", "rqsched_runs", ["schedule_uid", "number"], **_where("kind != 'backfill'"))
    op.create_index(
        "ix_rqsched_runs_start_by",
        "rqsched_runs",
        ["start_by", "uid"],
        **_where("start_by IS NOT NULL AND status = 'pending'"),
    )
    op.create_index(
        "uq_rqsched_runs_upstream",
        "rqsched_runs",
        ["upstream_run_uid", "schedule_uid"],
        unique=True,
        **_where("upstream_run_uid IS NOT NULL"),
    )
    _index_places("rqsched_runs", "status = 'running' AND dispatched_at IS NULL")


def _create_audit_events() -> None:
    op.create_table(
        "rqsched_audit_events",
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("sequence", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("event_type", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("workflow_instance_id", sa.String(512)),
        sa.Column("workflow_run_id", sa.String(26)),
        sa.Column("recorded_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("schedule_uid", "sequence", name=op.f("pk_rqsched_audit_events")),
    )
    op.create_index("ix_rqsched_audit_events_recorded_at", "rqsched_audit_events", ["recorded_at"])
    op.create_index(
        "ix_rqsched_audit_events_asked",
        "rqsched_audit_events",
        ["recorded_at", "schedule_uid", "sequence"],
        **_where("payload LIKE '%\"command_context\":%'"),
    )


def _create_backfills() -> None:
    op.create_table(
        "rqsched_backfills",
        sa.Column("uid", sa.String(26), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("start_at", INSTANT, nullable=False),
        sa.Column("end_at", INSTANT, nullable=False),
        sa.Column("overlap", sa.String(16), nullable=False),
        sa.Column("bound", sa.BigInteger, nullable=False),
        sa.Column("cursor", INSTANT, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempted", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("started", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("buffered", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("skipped", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("already_run", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("context", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("rerun", sa.String(16)),
        sa.ForeignKeyConstraint(
            ["schedule_uid"], ["rqsched_schedules.uid"], name=op.f("fk_rqsched_backfills_schedule_uid")
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_rqsched_backfills")),
    )
    op.create_index("ix_rqsched_backfills_schedule_uid", "rqsched_backfills", ["schedule_uid", "uid"])


def _create_workflows() -> None:
    op.create_table(
        "rqsched_workflows",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("queue", sa.String(255)),
        sa.Column("connection", sa.String(255)),
        sa.Column("timeout", sa.Integer),
        sa.Column("registered_at", INSTANT, nullable=False),
        sa.Column("options", sa.Text, server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_rqsched_workflows")),
    )


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
        sa.Column("payload", sa.Text),
        sa.Column("attempt", sa.Integer, server_default="1", nullable=False),
        sa.Column("worker", sa.String(255)),
        sa.Column("started_at", INSTANT),
        sa.Column("retry_at", INSTANT),
        sa.Column("delivery", sa.Integer, server_default="1", nullable=False),
        sa.Column("blocked_at", INSTANT),
        sa.Column("max_parallel", sa.Integer),
        sa.Column("limit_group", sa.String(511)),
        sa.Column("limit_at", INSTANT),
        sa.Column("granted_at", INSTANT),
        sa.Column("passed_at", INSTANT),
        sa.Column("passed_count", sa.Integer),
        sa.Column("is_rated", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.CheckConstraint(
            "status IN ('waiting', 'pending', 'running', 'retrying', 'blocked', "
            "'succeeded', 'ignored', 'failed', 'lost', 'cancelled')",
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
        **_where("status IN ('waiting', 'pending', 'running', 'retrying', 'blocked')"),
    )
    op.create_index("ix_rqsched_targets_schedule_uid", "rqsched_targets", ["schedule_uid"])
    _index_places("rqsched_targets", "status = 'running'")


def _create_machine_states() -> None:
    op.create_table(
        "rqsched_machine_states",
        sa.Column("machine", sa.String(255), nullable=False),
        sa.Column("instance_id", sa.String(255), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("entered_at", INSTANT),
        sa.PrimaryKeyConstraint("machine", "instance_id", name=op.f("pk_rqsched_machine_states")),
    )
    op.create_index("ix_rqsched_machine_states_state", "rqsched_machine_states", ["machine", "state"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "rqsched_idempotency_keys",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("answer", sa.Text),
        sa.PrimaryKeyConstraint("namespace", "key", name=op.f("pk_rqsched_idempotency_keys")),
    )
    op.create_index("ix_rqsched_idempotency_keys_created_at", "rqsched_idempotency_keys", ["created_at"])
    op.create_index("ix_rqsched_idempotency_keys_schedule_uid", "rqsched_idempotency_keys", ["schedule_uid"])


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
    op.create_index(
        "ix_rqsched_deliveries_failed",
        "rqsched_deliveries",
        ["ended_at", "uid"],
        **_where("status = 'failed'"),
    )
    op.create_index(
        "ix_rqsched_deliveries_open",
        "rqsched_deliveries",
        ["due_at", "uid"],
        **_where("status IN ('pending', 'running')"),
    )
    op.create_index("ix_rqsched_deliveries_schedule_uid", "rqsched_deliveries", ["schedule_uid", "uid"])


def _create_facts() -> None:
    op.create_table(
        "rqsched_facts",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_rqsched_facts")),
    )


def _create_hours() -> None:
    op.create_table(
        "rqsched_hours",
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("width", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("hour", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("is_backfilled", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("longest", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("waits", sa.Text, server_default="{}", nullable=False),
        sa.Column("durations", sa.Text, server_default="{}", nullable=False),
        sa.CheckConstraint(
            "outcome IN ('succeeded', 'failed', 'cancelled', 'terminated', 'lost')",
            name=op.f("ck_rqsched_hours_outcome"),
        ),
        sa.PrimaryKeyConstraint(
            "schedule_uid", "width", "hour", "is_backfilled", "outcome", name=op.f("pk_rqsched_hours")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rqsched_counted",
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("schedule_uid", name=op.f("pk_rqsched_counted")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rqsched_uncounted",
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("schedule_uid", "number", name=op.f("pk_rqsched_uncounted")),
        sqlite_with_rowid=False,
    )


def _create_facts_of_namespaces() -> None:
    op.create_table(
        "rqsched_namespace_facts",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name=op.f("pk_rqsched_namespace_facts")),
        sqlite_with_rowid=False,
    )


def _create_calendars() -> None:
    op.create_table(
        "rqsched_calendars",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("edit", sa.String(26), nullable=False),
        sa.Column("exclude", sa.Text, server_default="[]", nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("is_planned", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("reaches", sa.String(10)),
        sa.Column("source", sa.Text),
        sa.Column("description", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("changed_at", INSTANT, nullable=False),
        sa.Column("changed_by", sa.Text),
        sa.Column("changes", sa.Text, server_default="[]", nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name=op.f("pk_rqsched_calendars")),
        sqlite_with_rowid=False,
    )


def _create_limits() -> None:
    op.create_table(
        "rqsched_limits",
        sa.Column("limit_group", sa.String(511), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("changes", sa.Text, server_default="[]", nullable=False),
        # At most `rate_number` attempts start in any `rate_seconds`.
        sa.Column("rate_number", sa.Integer),
        sa.Column("rate_seconds", sa.Integer),
        sa.PrimaryKeyConstraint("limit_group", name=op.f("pk_rqsched_limits")),
    )
    op.create_table(
        "rqsched_limit_starts",
        sa.Column("limit_group", sa.String(511), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("uid", sa.String(26), nullable=False),
        sa.PrimaryKeyConstraint("limit_group", "started_at", "uid", name=op.f("pk_rqsched_limit_starts")),
        sqlite_with_rowid=False,
    )


def _create_upstream_ends() -> None:
    op.create_table(
        "rqsched_upstream_ends",
        sa.Column("run_uid", sa.String(26), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("upstream_uid", sa.String(26), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT),
        sa.Column("tries", sa.Integer, server_default="0", nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("followed", sa.String(16)),
        sa.Column("followed_at", INSTANT),
        sa.Column("upstream_id", sa.String(255)),
        sa.PrimaryKeyConstraint("run_uid", "schedule_uid", name=op.f("pk_rqsched_upstream_ends")),
        sqlite_with_rowid=False,
    )
    is_owed, name = _where("due_at IS NOT NULL"), "rqsched_upstream_ends"
    op.create_index("ix_rqsched_upstream_ends_owed", name, ["schedule_uid", "due_at"], **is_owed)
    op.create_index("ix_rqsched_upstream_ends_schedule_uid", name, ["schedule_uid", "ended_at"])
    op.create_index("ix_rqsched_upstream_ends_upstream_uid", name, ["upstream_uid", "due_at"])


def _index_places(table: str, runs: str) -> None:
    """Index the lines and places of limits. `runs` is the condition that a row is running, and so has a place."""
    key, is_limited = ["limit_group", "status"], "limit_group IS NOT NULL"
    pending = "status = 'pending' AND (granted_at IS NOT NULL OR passed_at IS NOT NULL)"
    is_in_line = f"{is_limited} AND status = 'pending' AND granted_at IS NULL AND passed_at IS NULL"
    op.create_index(f"ix_{table}_limit", table, key, **_where(f"{is_limited} AND ended_at IS NULL"))
    op.create_index(
        f"ix_{table}_place", table, [*key, "passed_at"], **_where(f"{is_limited} AND ({runs} OR {pending})")
    )
    line = ["limit_group", "limit_at", "number", "uid"]
    op.create_index(f"ix_{table}_line", table, line, **_where(is_in_line))


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
