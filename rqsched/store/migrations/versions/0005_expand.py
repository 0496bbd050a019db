"""Hours of runs, which the dashboard reads in place of the runs; indexes of live runs and of what was asked; long runs;
ends of pauses; which traces schedules and runs belong to; what is skipped on request; facts of
namespaces; until when runs may start; calendars; limits across schedules; which schedules come after others, and what
is owed to them; what runs stand for that were moved.

Additions only, so that processes of 0.1 go on beside this one: they leave what they do not know.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
_TRACED = "rqsched_schedules", "rqsched_runs"


def upgrade() -> None:
    """Create the tables of hours; index live runs, and of backfills only the runs that belong to one; keep ends of
    pauses, traces, what is skipped on request, facts of namespaces, until when runs may start, calendars, limits across
    schedules, which schedules come after others, and what runs stand for.
    """
    _create_hours()
    op.add_column("rqsched_runs", sa.Column("long_at", INSTANT))
    op.create_index("ix_rqsched_runs_live", "rqsched_runs", ["schedule_uid", "number"], **_where("kind != 'backfill'"))
    # What the index of live runs adds to each write of a run, this one no longer takes.
    op.drop_index("ix_rqsched_runs_backfill", "rqsched_runs")
    is_backfilled = _where("backfill_uid IS NOT NULL")
    op.create_index("ix_rqsched_runs_backfill", "rqsched_runs", ["backfill_uid", "number"], **is_backfilled)
    is_asked, key = _where("payload LIKE '%\"command_context\":%'"), ["recorded_at", "schedule_uid", "sequence"]
    op.create_index("ix_rqsched_audit_events_asked", "rqsched_audit_events", key, **is_asked)
    op.add_column("rqsched_schedules", sa.Column("resume_at", INSTANT))
    op.add_column("rqsched_schedules", sa.Column("resume_catch_up", sa.String(16)))
    resumes = _where("resume_at IS NOT NULL")
    op.create_index("ix_rqsched_schedules_resuming", "rqsched_schedules", ["resume_at", "uid"], **resumes)
    for table in _TRACED:
        op.add_column(table, sa.Column("traceparent", sa.String(55)))
    op.add_column("rqsched_schedules", sa.Column("skips", sa.Text))
    _create_facts_of_namespaces()
    op.add_column("rqsched_runs", sa.Column("start_by", INSTANT))
    op.add_column("rqsched_runs", sa.Column("expired_at", INSTANT))
    may_expire = _where("start_by IS NOT NULL AND status = 'pending'")
    op.create_index("ix_rqsched_runs_start_by", "rqsched_runs", ["start_by", "uid"], **may_expire)
    _create_calendars()
    _create_limits()
    _create_upstream_ends()
    # Which instants a schedule and a run stand for where excluded ones were moved to another day.
    op.add_column("rqsched_schedules", sa.Column("moves", sa.Text))
    op.add_column("rqsched_runs", sa.Column("nominals", sa.Text))


def downgrade() -> None:
    """Drop the hours, which are counted again from the runs that there are; what was frozen is not any more.

    Calendars are lost; a release that does not know them does not touch the schedules that name one.
    """
    _drop_upstream_ends()
    op.drop_index("ix_rqsched_schedules_calendars", "rqsched_schedules")
    op.drop_column("rqsched_schedules", "calendars")
    op.drop_table("rqsched_calendars")
    _drop_limits()
    op.drop_table("rqsched_namespace_facts")
    for table in _TRACED:
        op.drop_column(table, "traceparent")
    op.drop_index("ix_rqsched_runs_start_by", "rqsched_runs")
    op.drop_column("rqsched_runs", "expired_at")
    op.drop_column("rqsched_runs", "start_by")
    op.drop_column("rqsched_schedules", "skips")
    op.drop_column("rqsched_runs", "nominals")
    op.drop_column("rqsched_schedules", "moves")
    op.drop_index("ix_rqsched_schedules_resuming", "rqsched_schedules")
    op.drop_column("rqsched_schedules", "resume_catch_up")
    op.drop_column("rqsched_schedules", "resume_at")
    op.drop_index("ix_rqsched_audit_events_asked", "rqsched_audit_events")
    op.drop_index("ix_rqsched_runs_backfill", "rqsched_runs")
    op.create_index("ix_rqsched_runs_backfill", "rqsched_runs", ["backfill_uid", "number"])
    op.drop_index("ix_rqsched_runs_live", "rqsched_runs")
    op.drop_column("rqsched_runs", "long_at")
    op.drop_table("rqsched_uncounted")
    op.drop_table("rqsched_counted")
    op.drop_table("rqsched_hours")


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
    """Create the table of calendars; schedules keep with which changes of them they were planned."""
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
    op.add_column("rqsched_schedules", sa.Column("calendars", sa.Text))
    names = _where("calendars IS NOT NULL")
    op.create_index("ix_rqsched_schedules_calendars", "rqsched_schedules", ["uid"], **names)


def _create_limits() -> None:
    """Create the table of groups of which only so many runs run at once; runs keep who is in line and has a place."""
    op.create_table(
        "rqsched_limits",
        sa.Column("limit_group", sa.String(511), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("changes", sa.Text, server_default="[]", nullable=False),
        # How many attempts start in so many seconds.
        sa.Column("rate_number", sa.Integer),
        sa.Column("rate_seconds", sa.Integer),
        sa.PrimaryKeyConstraint("limit_group", name=op.f("pk_rqsched_limits")),
    )
    op.add_column("rqsched_schedules", sa.Column("limit_group", sa.String(511)))
    is_of_group = _where("limit_group IS NOT NULL")
    op.create_index("ix_rqsched_schedules_limit", "rqsched_schedules", ["limit_group", "status"], **is_of_group)
    op.add_column("rqsched_runs", sa.Column("limit_group", sa.String(511)))
    for name in ("limit_at", "granted_at", "passed_at"):
        op.add_column("rqsched_runs", sa.Column(name, INSTANT))
    op.add_column("rqsched_runs", sa.Column("passed_count", sa.Integer))
    is_open = _where("limit_group IS NOT NULL AND ended_at IS NULL")
    is_in_line = _where("limit_group IS NOT NULL AND status = 'pending' AND granted_at IS NULL AND passed_at IS NULL")
    pending = "status = 'pending' AND (granted_at IS NOT NULL OR passed_at IS NOT NULL)"
    had_place = f"limit_group IS NOT NULL AND ({{}} OR {pending})"
    key = ["limit_group", "status"]
    runs = _where(had_place.format("status = 'running' AND dispatched_at IS NULL"))
    op.create_index("ix_rqsched_runs_limit", "rqsched_runs", key, **is_open)
    op.create_index("ix_rqsched_runs_place", "rqsched_runs", [*key, "passed_at"], **runs)
    place = ["limit_group", "limit_at", "number", "uid"]
    op.create_index("ix_rqsched_runs_line", "rqsched_runs", place, **is_in_line)
    # Targets need places of their run's group.
    op.add_column("rqsched_targets", sa.Column("limit_group", sa.String(511)))
    for name in ("limit_at", "granted_at", "passed_at"):
        op.add_column("rqsched_targets", sa.Column(name, INSTANT))
    op.add_column("rqsched_targets", sa.Column("passed_count", sa.Integer))
    op.create_index("ix_rqsched_targets_limit", "rqsched_targets", key, **is_open)
    targets = _where(had_place.format("status = 'running'"))
    op.create_index("ix_rqsched_targets_place", "rqsched_targets", [*key, "passed_at"], **targets)
    op.create_index("ix_rqsched_targets_line", "rqsched_targets", place, **is_in_line)
    _create_limit_starts()


def _create_limit_starts() -> None:
    """Create the table of the starts that rates count; a run, or target, keeps whether its start is one of them."""
    for table in ("rqsched_runs", "rqsched_targets"):
        op.add_column(table, sa.Column("is_rated", sa.Boolean, server_default=sa.false(), nullable=False))
    op.create_table(
        "rqsched_limit_starts",
        sa.Column("limit_group", sa.String(511), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("uid", sa.String(26), nullable=False),
        sa.PrimaryKeyConstraint("limit_group", "started_at", "uid", name=op.f("pk_rqsched_limit_starts")),
        sqlite_with_rowid=False,
    )


def _drop_limits() -> None:
    op.drop_table("rqsched_limit_starts")
    for table in ("rqsched_targets", "rqsched_runs"):
        for name in ("line", "place", "limit"):
            op.drop_index(f"ix_{table}_{name}", table)
        for name in ("is_rated", "passed_count", "passed_at", "granted_at", "limit_at", "limit_group"):
            op.drop_column(table, name)
    op.drop_index("ix_rqsched_schedules_limit", "rqsched_schedules")
    op.drop_column("rqsched_schedules", "limit_group")
    op.drop_table("rqsched_limits")


def _create_upstream_ends() -> None:
    """Create the table of what is owed to schedules that come after others; they and their runs keep after what."""
    op.add_column("rqsched_schedules", sa.Column("upstream_id", sa.String(255)))
    op.add_column("rqsched_schedules", sa.Column("followed_at", INSTANT))
    op.add_column("rqsched_schedules", sa.Column("missed_run_uid", sa.String(26)))
    comes_after, key = _where("upstream_id IS NOT NULL AND status != 'deleted'"), ["namespace", "upstream_id", "uid"]
    op.create_index("ix_rqsched_schedules_upstream", "rqsched_schedules", key, **comes_after)
    op.add_column("rqsched_runs", sa.Column("upstream_run_uid", sa.String(26)))
    is_after, key = _where("upstream_run_uid IS NOT NULL"), ["upstream_run_uid", "schedule_uid"]
    op.create_index("uq_rqsched_runs_upstream", "rqsched_runs", key, unique=True, **is_after)
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


def _drop_upstream_ends() -> None:
    op.drop_table("rqsched_upstream_ends")
    op.drop_index("uq_rqsched_runs_upstream", "rqsched_runs")
    op.drop_column("rqsched_runs", "upstream_run_uid")
    op.drop_index("ix_rqsched_schedules_upstream", "rqsched_schedules")
    for name in ("missed_run_uid", "followed_at", "upstream_id"):
        op.drop_column("rqsched_schedules", name)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
