"""The tables, with the constraints and indexes that make the invariants true on SQLite and PostgreSQL alike.

Columns have the names of the fields in `kernel.decide.model`. JSON is stored as canonical text on both databases,
because it is copied far more often than read. Instants are aware UTC at microsecond precision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from rqsched.kernel.decide.model import (
    EXPIRED,
    OPEN,
    OPEN_TARGETS,
    REPEATEDLY,
    UNFINISHED,
    RunKind,
    RunStatus,
    ScheduleStatus,
    TargetStatus,
)

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Instant(TypeDecorator[datetime]):
    """An aware instant, read back as aware UTC; naive datetimes are refused."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store UTC; SQLite keeps it as naive text that sorts."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r} reached the store")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        """Return the function that makes aware UTC of each value, whatever the session's timezone is.

        With `process_result_value` SQLAlchemy would call two or three functions for each of the thousands of instants
        of a page.
        """
        del coltype
        return _of_text if dialect.name == "sqlite" else _in_utc


def _of_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


def _in_utc(value: datetime | None) -> datetime | None:
    return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)


class Microseconds(TypeDecorator[timedelta]):
    """A span as whole microseconds."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> int | None:
        """Store microseconds."""
        del dialect
        return None if value is None else value // timedelta(microseconds=1)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> timedelta | None:
        """Return a timedelta."""
        del dialect
        return None if value is None else timedelta(microseconds=value)


class PartialIndex(sa.Index):
    """An index of the rows that meet a condition.

    SQLAlchemy loads every dialect whose options it is given (twenty modules for PostgreSQL). Here SQLAlchemy gets the
    options only when it needs them, to create the index or to compare it.
    """

    inherit_cache = True

    def __init__(self, name: str, *columns: sa.ColumnElement[Any], where: sa.ColumnElement[bool], unique: bool = False):
        self._condition = where
        super().__init__(name, *columns, unique=unique)

    @cached_property
    def dialect_options(self) -> Any:
        """The options of each dialect, with the condition of the index."""
        options = super().dialect_options
        for dialect in ("sqlite", "postgresql"):
            options[dialect]["where"] = self._condition
        return options


Uid = sa.String(26)
Name = sa.String(255)
Traceparent = sa.String(55)


def _text(name: str, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=default is None, server_default=default)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _place_columns() -> list[sa.Column[Any]]:
    """Return the columns about the place in a group, for a run or a target."""
    return [
        sa.Column("limit_group", sa.String(511)),
        sa.Column("limit_at", Instant),
        # Grants write these columns. They lock the row of the group and then the row of the run or target, but no
        # schedule.
        sa.Column("granted_at", Instant),
        sa.Column("passed_at", Instant),
        sa.Column("passed_count", sa.Integer),
        sa.Column("is_rated", sa.Boolean, nullable=False, server_default=sa.false()),
    ]


def constant(word: StrEnum) -> sa.ColumnClause[str]:
    """Return a word as a literal of the SQL text, so that a plan made without values can still use a partial index."""
    return sa.literal_column(f"'{word.value}'", sa.String)


def is_held_by(table: sa.Table, token: str | sa.BindParameter[str] | None) -> sa.ColumnElement[bool]:
    """Return the condition that an attempt runs under a token.

    Only the token's holder may continue or end the attempt.
    """
    return (table.c.status == constant(RunStatus.RUNNING)) & (table.c.token == token)


def is_free_for(
    table: sa.Table, token: str | sa.BindParameter[str] | None, *may_start: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Return the condition that a token may claim an attempt: it is pending and `may_start`, or has this token.

    The attempt has the token already if a claim is repeated after a lost answer to its commit.
    """
    return sa.and_(table.c.status == constant(RunStatus.PENDING), *may_start) | is_held_by(table, token)


def _is_in_line(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that a run or a target waits in the line of its group."""
    return (
        table.c.limit_group.is_not(None)
        & (table.c.status == constant(RunStatus.PENDING))
        & table.c.granted_at.is_(None)
        & table.c.passed_at.is_(None)
    )


def line_order(rows: sa.FromClause) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the columns that order the line of a group: of runs, of targets, or of a selection of both."""
    return rows.c.limit_at, rows.c.number, rows.c.uid


def _had_place(table: sa.Table, *keeps: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition that a run or a target runs and `keeps` its place, or is pending and has or had a place."""
    is_running = sa.and_(table.c.status == constant(RunStatus.RUNNING), *keeps)
    is_waiting = (table.c.status == constant(RunStatus.PENDING)) & (
        table.c.granted_at.is_not(None) | table.c.passed_at.is_not(None)
    )
    return table.c.limit_group.is_not(None) & (is_running | is_waiting)


def of_schedule(column: sa.Column[str], table: sa.Table) -> sa.ScalarSelect[str]:
    """Read a column of each row's schedule. This is not a join, because a join could begin with all schedules."""
    # Correlate it explicitly. Inside another subquery, SQLAlchemy would otherwise read all rows of the table.
    return sa.select(column).where(schedules.c.uid == table.c.schedule_uid).correlate(table).scalar_subquery()


def incarnations(namespace: str, schedule_id: str) -> sa.CompoundSelect[str]:
    """Return the query for the uids of the schedules with an id, deleted or not; each part has its own index."""
    named = schedules.c.namespace == namespace, schedules.c.schedule_id == schedule_id
    return sa.union_all(*(sa.select(schedules.c.uid).where(*named, one) for one in (IS_LIVE, IS_DELETED)))


def _is_one_of(name: str, words: Iterable[str]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{name} IN ({', '.join(repr(str(word)) for word in words)})", name=name)


schedules = sa.Table(
    "rqsched_schedules",
    metadata,
    sa.Column("uid", Uid, primary_key=True),
    sa.Column("namespace", Name, nullable=False),
    sa.Column("schedule_id", Name, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    sa.Column("executor", sa.String(16), nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("queue", Name),
    sa.Column("connection", Name),
    sa.Column("timeout", sa.Integer),
    _text("defaults", "{}"),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("jitter", Microseconds, nullable=False, server_default="0"),
    sa.Column("policies", sa.Text, nullable=False),
    sa.Column("max_runs", sa.BigInteger),
    _text("labels", "{}"),
    _text("memo", "{}"),
    _text("search_attributes", "{}"),
    _text("description"),
    sa.Column("owner", Name),
    sa.Column("managed_by", sa.String(32)),
    _text("surface", "{}"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("timing_changed_at", Instant, nullable=False),
    sa.Column("evaluated_to", Instant, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    _count("n"),
    _count("version"),
    sa.Column("next_run_at", Instant),
    sa.Column("due_at", Instant),
    sa.Column("awaiting_run_uid", Uid),
    sa.Column("remaining", sa.BigInteger),
    _count("run_number"),
    _count("event_sequence"),
    _count("run_count"),
    _count("success_count"),
    _count("error_count"),
    _count("consecutive_failures"),
    _count("buffer_depth"),
    _count("backfill_waiting"),
    _count("backfill_unfinished"),
    _count("fire_failures"),
    _count("skipped_count"),
    _count("missed_count"),
    sa.Column("last_run_at", Instant),
    sa.Column("last_skip_reason", sa.String(64)),
    sa.Column("last_skipped_at", Instant),
    _text("last_error"),
    sa.Column("last_run_uid", Uid),
    sa.Column("last_instance_id", sa.String(512)),
    _text("note"),
    _text("status_reason"),
    sa.Column("paused_at", Instant),
    sa.Column("paused_next_run_at", Instant),
    sa.Column("deleted_at", Instant),
    sa.Column("tzdata", sa.String(32), nullable=False, server_default=""),
    sa.Column("operation", Uid),
    _text("notifications", "{}"),
    sa.Column("pruned_to", Instant),
    sa.Column("last_success_at", Instant),
    sa.Column("last_ended_at", Instant),
    sa.Column("last_outcome", sa.String(16)),
    sa.Column("overdue_at", Instant),
    sa.Column("overdue_since", Instant),
    sa.Column("resume_at", Instant),
    sa.Column("resume_mode", sa.String(16)),
    sa.Column("traceparent", Traceparent),
    _text("skips"),
    _text("calendars"),
    sa.Column("limit_group", sa.String(511)),
    sa.Column("upstream_id", Name),
    sa.Column("followed_at", Instant),
    sa.Column("missed_run_uid", Uid),
    _text("moves"),
    _is_one_of("status", ScheduleStatus),
    # I4: Only an active schedule has a next time. A nominal time always has the instant at which it is due.
    sa.CheckConstraint("due_at IS NULL OR status = 'active'", name="only_active_is_due"),
    sa.CheckConstraint("(due_at IS NULL) = (next_run_at IS NULL)", name="due_with_next"),
)

IS_LIVE = schedules.c.status != constant(ScheduleStatus.DELETED)
"""The condition of a partial index, like other conditions below.

To use the index, a query repeats the whole condition: SQLite does not know that `= 'a'` implies `IN ('a', 'b')`.
"""
IS_ACTIVE = schedules.c.status == constant(ScheduleStatus.ACTIVE)
HAS_WAITING = (schedules.c.buffer_depth > sa.text("0")) | (schedules.c.backfill_waiting > sa.text("0"))
PartialIndex(
    "uq_rqsched_schedules_incarnation", schedules.c.namespace, schedules.c.schedule_id, unique=True, where=IS_LIVE
)
PartialIndex("ix_rqsched_schedules_due", schedules.c.due_at, schedules.c.uid, where=IS_ACTIVE)
PartialIndex("ix_rqsched_schedules_waiting", schedules.c.uid, where=HAS_WAITING)
IS_WATCHED = schedules.c.overdue_at.is_not(None)
PartialIndex("ix_rqsched_schedules_overdue", schedules.c.overdue_at, schedules.c.uid, where=IS_WATCHED)
RESUMES = schedules.c.resume_at.is_not(None)
PartialIndex("ix_rqsched_schedules_resuming", schedules.c.resume_at, schedules.c.uid, where=RESUMES)
IS_OF_GROUP = schedules.c.limit_group.is_not(None)
PartialIndex("ix_rqsched_schedules_limit", schedules.c.limit_group, schedules.c.status, where=IS_OF_GROUP)
COMES_AFTER = schedules.c.upstream_id.is_not(None) & IS_LIVE
PartialIndex(
    "ix_rqsched_schedules_upstream", schedules.c.namespace, schedules.c.upstream_id, schedules.c.uid, where=COMES_AFTER
)
sa.Index("ix_rqsched_schedules_page", schedules.c.namespace, schedules.c.created_at, schedules.c.uid)
IS_DELETED = schedules.c.status == constant(ScheduleStatus.DELETED)
RESTING = ScheduleStatus.PAUSED, ScheduleStatus.DONE, ScheduleStatus.DEAD
"""The statuses of a schedule that is not deleted and does not fire."""
IS_RESTING = schedules.c.status.in_([constant(status) for status in RESTING])
IS_OVERDUE = schedules.c.overdue_since.is_not(None)
IS_FAILING = schedules.c.consecutive_failures >= sa.text(str(REPEATEDLY))
ENDED_BADLY = schedules.c.last_outcome.in_([constant(status) for status in (RunStatus.FAILED, RunStatus.LOST)])
# These indexes are for an operator who looks for exceptions. A schedule that fires and succeeds is in none of them.
for _name, _key, _condition in (
    ("resting", (schedules.c.status, schedules.c.schedule_id), IS_RESTING),
    ("resting_page", (schedules.c.status, schedules.c.created_at), IS_RESTING),
    ("deleted", (schedules.c.status, schedules.c.schedule_id, schedules.c.created_at), IS_DELETED),
    ("late", (schedules.c.overdue_since,), IS_OVERDUE),
    ("failing", (schedules.c.consecutive_failures,), IS_FAILING),
    ("ended_badly", (schedules.c.last_outcome, schedules.c.schedule_id), ENDED_BADLY),
):
    PartialIndex(f"ix_rqsched_schedules_{_name}", schedules.c.namespace, *_key, schedules.c.uid, where=_condition)

NAMES_CALENDARS = schedules.c.calendars.is_not(None)
PartialIndex("ix_rqsched_schedules_calendars", schedules.c.uid, where=NAMES_CALENDARS)

runs = sa.Table(
    "rqsched_runs",
    metadata,
    sa.Column("uid", Uid, primary_key=True),
    sa.Column("schedule_uid", Uid, sa.ForeignKey("rqsched_schedules.uid"), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("instance_id", sa.String(512), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("occurrence_at", Instant, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    sa.Column("executor", sa.String(16), nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("queue", Name),
    sa.Column("connection", Name),
    sa.Column("timeout", sa.Integer),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("overlap", sa.String(16), nullable=False),
    sa.Column("is_override", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("trigger_number", sa.BigInteger),
    _text("labels", "{}"),
    _text("memo", "{}"),
    _text("search_attributes", "{}"),
    _text("lineage", "{}"),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
    sa.Column("delivery", sa.Integer, nullable=False, server_default="1"),
    sa.Column("token", Uid),
    sa.Column("worker", Name),
    sa.Column("due_at", Instant),
    sa.Column("queued_at", Instant),
    sa.Column("started_at", Instant),
    sa.Column("ended_at", Instant),
    sa.Column("retry_at", Instant),
    sa.Column("heartbeat_at", Instant),
    _text("attempts", "[]"),
    _text("result"),
    _text("error"),
    sa.Column("idempotency_key", Name),
    sa.Column("backfill_uid", Uid),
    # These columns are not part of `kernel.decide.model.Run`. Only heartbeats and reconcile write them, so no decision
    # overwrites them.
    _count("beat"),
    sa.Column("seen_beat", sa.BigInteger),
    sa.Column("sightings", sa.Integer, nullable=False, server_default="0"),
    sa.Column("seen_at", Instant),
    sa.Column("target_counts", sa.Text),
    sa.Column("blocked_at", Instant),
    _text("blocked_reason"),
    sa.Column("asked_attempt", sa.Integer),
    sa.Column("dispatched_at", Instant),
    sa.Column("dead_letter_at", Instant),
    # Only claims and heartbeats of external workers write this column, and only reconcile reads it.
    sa.Column("held_until", Instant),
    sa.Column("long_at", Instant),
    sa.Column("traceparent", Traceparent),
    sa.Column("start_by", Instant),
    sa.Column("expired_at", Instant),
    *_place_columns(),
    # A run with this value is stored with the kind `manual`, and read with the kind `after`; see `rows.to_run`.
    sa.Column("upstream_run_uid", Uid),
    _text("nominals"),
    sa.UniqueConstraint("schedule_uid", "number"),
    sa.UniqueConstraint("schedule_uid", "instance_id"),
    sa.UniqueConstraint("schedule_uid", "idempotency_key"),
    _is_one_of("kind", [kind for kind in RunKind if kind is not RunKind.AFTER]),
    _is_one_of("status", RunStatus),
)

_UNFINISHED = [constant(status) for status in RunStatus if status in UNFINISHED]
IS_OCCURRENCE = runs.c.kind != constant(RunKind.MANUAL)
IS_UNFINISHED = runs.c.status.in_(_UNFINISHED)
IS_OPEN = runs.c.status.in_([*_UNFINISHED, constant(RunStatus.BUFFERED)])
IS_OPEN_UNFINISHED = IS_OPEN & (runs.c.status != constant(RunStatus.BUFFERED))
"""`IS_UNFINISHED` for given schedules. It keeps a plan from reading the unfinished runs of all schedules."""
IS_BACKFILLED = runs.c.kind == constant(RunKind.BACKFILL)
"""Whether a backfill asked for the run."""
IS_OPEN_LIVE = IS_OPEN_UNFINISHED & ~IS_BACKFILLED
"""The unfinished runs that a live decision depends on."""
PartialIndex("uq_rqsched_runs_occurrence", runs.c.schedule_uid, runs.c.occurrence_at, unique=True, where=IS_OCCURRENCE)
PartialIndex("ix_rqsched_runs_open", runs.c.schedule_uid, runs.c.status, runs.c.kind, runs.c.number, where=IS_OPEN)
PartialIndex("ix_rqsched_runs_unfinished", runs.c.status, runs.c.uid, where=IS_UNFINISHED)
PartialIndex("ix_rqsched_runs_backfill", runs.c.backfill_uid, runs.c.number, where=runs.c.backfill_uid.is_not(None))
PartialIndex("ix_rqsched_runs_live", runs.c.schedule_uid, runs.c.number, where=~IS_BACKFILLED)

IS_LIMITED = runs.c.limit_group.is_not(None) & runs.c.ended_at.is_(None)
"""Whether a run has a group and has not ended. The condition names no status. Otherwise a plan might take the index
with this condition instead of a smaller index that names a status."""

IS_IN_LINE = _is_in_line(runs)
"""The condition of `Run.is_in_line`."""
HAD_PLACE = _had_place(runs, runs.c.dispatched_at.is_(None))
"""Whether a run takes a place (`Run.takes_place`), or was passed over in its line. These few runs have their own index.
Otherwise a plan without fresh statistics would search all unfinished runs."""
HAS_JOB = runs.c.limit_group.is_(None) | runs.c.granted_at.is_not(None) | runs.c.passed_at.is_not(None)
"""Whether a pending run has a job, because it is not in line."""
MAY_START = runs.c.limit_group.is_(None) | runs.c.granted_at.is_not(None)
"""Whether a pending run needs no grant, or has one. No feature adds this condition: even in a process without limits, a
run without its grant must not start."""
PartialIndex("ix_rqsched_runs_limit", runs.c.limit_group, runs.c.status, where=IS_LIMITED)
PartialIndex("ix_rqsched_runs_place", runs.c.limit_group, runs.c.status, runs.c.passed_at, where=HAD_PLACE)
PartialIndex("ix_rqsched_runs_line", runs.c.limit_group, *line_order(runs), where=IS_IN_LINE)
IS_AFTER = runs.c.upstream_run_uid.is_not(None)
PartialIndex("uq_rqsched_runs_upstream", runs.c.upstream_run_uid, runs.c.schedule_uid, unique=True, where=IS_AFTER)

MAY_EXPIRE = runs.c.start_by.is_not(None) & (runs.c.status == constant(RunStatus.PENDING))
PartialIndex("ix_rqsched_runs_start_by", runs.c.start_by, runs.c.uid, where=MAY_EXPIRE)


def is_late(now: datetime | sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Return the condition that a pending run may not start any more (`Run.is_late`)."""
    return MAY_EXPIRE & (runs.c.start_by <= now)


IS_EXPIRED = runs.c.expired_at.is_not(None)
SHOWN_STATUS = sa.case((IS_EXPIRED, sa.literal_column(f"'{EXPIRED}'", sa.String)), else_=runs.c.status)
"""The status of a run, or `expired` for a run that was cancelled because it did not start in time."""
IS_BLOCKED = runs.c.blocked_at.is_not(None)
WAITS_FOR_CODE = IS_BLOCKED & (runs.c.status == constant(RunStatus.PENDING))
"""Whether a run is shown as blocked. The condition of the index comes first."""
HAS_FAILED = runs.c.status.in_([constant(RunStatus.FAILED), constant(RunStatus.LOST)])
IS_DEAD_LETTER = runs.c.dead_letter_at.is_not(None)
HAS_OPEN_TARGETS = runs.c.dispatched_at.is_not(None) & runs.c.ended_at.is_(None)
for _name, _columns, _condition in (
    ("blocked", (runs.c.blocked_at, runs.c.uid), IS_BLOCKED),
    ("failed", (runs.c.ended_at, runs.c.uid), HAS_FAILED),
    ("dead_letter", (runs.c.dead_letter_at, runs.c.uid), IS_DEAD_LETTER),
    ("dispatched", (runs.c.uid,), HAS_OPEN_TARGETS),
):
    PartialIndex(f"ix_rqsched_runs_{_name}", *_columns, where=_condition)

hours = sa.Table(
    "rqsched_hours",
    metadata,
    sa.Column("schedule_uid", Uid, primary_key=True),
    # How many hours the row covers: 1, or 24 for a day. A row of a day sums its hours, so that a year is read in days.
    sa.Column("width", sa.Integer, primary_key=True, autoincrement=False),
    # The number of the hour since 1970, UTC: it is short, and both databases group and compare it alike.
    sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("is_backfilled", sa.Boolean, primary_key=True),
    sa.Column("outcome", sa.String(16), primary_key=True),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("longest", Microseconds, nullable=False, server_default="0"),
    _text("waits", "{}"),
    _text("durations", "{}"),
    _is_one_of("outcome", [status for status in RunStatus if status not in OPEN]),
    sqlite_with_rowid=False,
)
"""How many runs of a schedule ended in an hour or a day, by outcome. The rows are kept when the runs are pruned."""

# This is not a column of the schedule, because a write to the schedule's row changes the version that `end_alone`
# compares.
counted = sa.Table(
    "rqsched_counted",
    metadata,
    sa.Column("schedule_uid", Uid, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The number up to which a schedule's runs are counted in its hours. The row is the lock for counting."""

uncounted = sa.Table(
    "rqsched_uncounted",
    metadata,
    sa.Column("schedule_uid", Uid, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""Runs up to the number in `counted` that are not counted in the hours yet, because they were open or are run again."""

audit_events = sa.Table(
    "rqsched_audit_events",
    metadata,
    sa.Column("schedule_uid", Uid, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("event_type", sa.String(64), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("workflow_instance_id", sa.String(512)),
    sa.Column("workflow_run_id", Uid),
    sa.Column("recorded_at", Instant, nullable=False),
)
sa.Index("ix_rqsched_audit_events_recorded_at", audit_events.c.recorded_at)
IS_ASKED = audit_events.c.payload.like(sa.literal_column("'%\"command_context\":%'"))
"""Whether an event may record who requested it, or why. The event of a fire has neither. Canonical JSON always writes
the key in this way, but arguments that an event repeats may have the key, too."""
PartialIndex(
    "ix_rqsched_audit_events_asked", audit_events.c.recorded_at, audit_events.c.schedule_uid, audit_events.c.sequence,
    where=IS_ASKED,
)  # fmt: skip

backfills = sa.Table(
    "rqsched_backfills",
    metadata,
    sa.Column("uid", Uid, primary_key=True),
    sa.Column("schedule_uid", Uid, sa.ForeignKey("rqsched_schedules.uid"), nullable=False),
    sa.Column("start_at", Instant, nullable=False),
    sa.Column("end_at", Instant, nullable=False),
    sa.Column("overlap", sa.String(16), nullable=False),
    sa.Column("bound", sa.BigInteger, nullable=False),
    sa.Column("cursor", Instant, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    _count("attempted"),
    _count("started"),
    _count("buffered"),
    _count("skipped"),
    _count("already_run"),
    _text("reason"),
    _text("context"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("rerun", sa.String(16)),
)
sa.Index("ix_rqsched_backfills_schedule_uid", backfills.c.schedule_uid, backfills.c.uid)

workflows = sa.Table(
    "rqsched_workflows",
    metadata,
    sa.Column("name", Name, primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("queue", Name),
    sa.Column("connection", Name),
    sa.Column("timeout", sa.Integer),
    sa.Column("registered_at", Instant, nullable=False),
    _text("options", "{}"),
)

targets = sa.Table(
    "rqsched_targets",
    metadata,
    sa.Column("uid", Uid, primary_key=True),
    # The uid of the run that dispatches the target. A fan-out that was started by hand has no run and generates a uid.
    sa.Column("run_uid", Uid, nullable=False),
    sa.Column("schedule_uid", Uid),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("target_id", Name, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    sa.Column("queue", Name),
    sa.Column("connection", Name),
    sa.Column("timeout", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("token", Uid),
    _text("error"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("queued_at", Instant),
    sa.Column("deadline_at", Instant),
    sa.Column("ended_at", Instant),
    _text("payload"),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
    sa.Column("worker", Name),
    sa.Column("started_at", Instant),
    sa.Column("retry_at", Instant),
    # The number of the target's job: a retry, or an offer to other workers, takes the next number.
    sa.Column("delivery", sa.Integer, nullable=False, server_default="1"),
    sa.Column("blocked_at", Instant),
    sa.Column("max_parallel", sa.Integer),
    # A target needs a place of its run's group. A target in line is pending and has no `queued_at`.
    *_place_columns(),
    sa.UniqueConstraint("run_uid", "target_id"),
    _is_one_of("status", TargetStatus),
)

IS_OPEN_TARGET = targets.c.status.in_([constant(status) for status in OPEN_TARGETS])
sa.Index("ix_rqsched_targets_batch", targets.c.run_uid, targets.c.status, targets.c.number)
PartialIndex("ix_rqsched_targets_open", targets.c.status, targets.c.uid, where=IS_OPEN_TARGET)
sa.Index("ix_rqsched_targets_schedule_uid", targets.c.schedule_uid)
IS_LIMITED_TARGET = targets.c.limit_group.is_not(None) & targets.c.ended_at.is_(None)
TARGET_HAD_PLACE = _had_place(targets)
IS_TARGET_IN_LINE = _is_in_line(targets)
PartialIndex("ix_rqsched_targets_limit", targets.c.limit_group, targets.c.status, where=IS_LIMITED_TARGET)
PartialIndex(
    "ix_rqsched_targets_place", targets.c.limit_group, targets.c.status, targets.c.passed_at, where=TARGET_HAD_PLACE
)
PartialIndex("ix_rqsched_targets_line", targets.c.limit_group, *line_order(targets), where=IS_TARGET_IN_LINE)

machine_states = sa.Table(
    "rqsched_machine_states",
    metadata,
    sa.Column("machine", Name, primary_key=True),
    sa.Column("instance_id", Name, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    _count("version"),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("entered_at", Instant),
)
sa.Index("ix_rqsched_machine_states_state", machine_states.c.machine, machine_states.c.state)

idempotency_keys = sa.Table(
    "rqsched_idempotency_keys",
    metadata,
    sa.Column("namespace", Name, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("schedule_uid", Uid, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    _text("answer"),
)
sa.Index("ix_rqsched_idempotency_keys_created_at", idempotency_keys.c.created_at)
sa.Index("ix_rqsched_idempotency_keys_schedule_uid", idempotency_keys.c.schedule_uid)

deliveries = sa.Table(
    "rqsched_deliveries",
    metadata,
    sa.Column("uid", Uid, primary_key=True),
    sa.Column("schedule_uid", Uid, nullable=False),
    sa.Column("run_uid", Uid),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("destination", sa.Text, nullable=False),
    sa.Column("event_type", sa.String(64), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("queue", Name),
    sa.Column("connection", Name),
    sa.Column("timeout", sa.Integer),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
    sa.Column("token", Uid),
    sa.Column("worker", Name),
    _text("error"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("due_at", Instant, nullable=False),
    sa.Column("started_at", Instant),
    sa.Column("ended_at", Instant),
    _is_one_of("status", ["pending", "running", "succeeded", "failed"]),
)
IS_OPEN_DELIVERY = deliveries.c.status.in_([sa.literal_column("'pending'"), sa.literal_column("'running'")])
PartialIndex("ix_rqsched_deliveries_open", deliveries.c.due_at, deliveries.c.uid, where=IS_OPEN_DELIVERY)
HAS_FAILED_DELIVERY = deliveries.c.status == sa.literal_column("'failed'")
PartialIndex("ix_rqsched_deliveries_failed", deliveries.c.ended_at, deliveries.c.uid, where=HAS_FAILED_DELIVERY)
sa.Index("ix_rqsched_deliveries_schedule_uid", deliveries.c.schedule_uid, deliveries.c.uid)

upstream_ends = sa.Table(
    "rqsched_upstream_ends",
    metadata,
    sa.Column("run_uid", Uid, primary_key=True),
    sa.Column("schedule_uid", Uid, primary_key=True),
    sa.Column("upstream_uid", Uid, nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("ended_at", Instant, nullable=False),
    sa.Column("due_at", Instant),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    _text("error"),
    sa.Column("followed", sa.String(16)),
    sa.Column("followed_at", Instant),
    sa.Column("upstream_id", Name),
    sqlite_with_rowid=False,
)
"""Ends of upstream runs, with one row for each downstream. A row says whether the downstream still has to react to the
end, or how it reacted."""
IS_OWED = upstream_ends.c.due_at.is_not(None)
PartialIndex("ix_rqsched_upstream_ends_owed", upstream_ends.c.schedule_uid, upstream_ends.c.due_at, where=IS_OWED)
sa.Index("ix_rqsched_upstream_ends_schedule_uid", upstream_ends.c.schedule_uid, upstream_ends.c.ended_at)
sa.Index("ix_rqsched_upstream_ends_upstream_uid", upstream_ends.c.upstream_uid, upstream_ends.c.due_at)


def is_outside(namespaces: Collection[str], of: sa.Column[Any] | None = None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a schedule is in none of these namespaces; no conditions if there are no namespaces.

    `of` is the column with the schedule's uid, if the query is about another table.
    """
    if not namespaces:
        return []
    if of is None:
        return [schedules.c.namespace.not_in(sorted(namespaces))]
    inside = sa.select(1).where(schedules.c.uid == of, schedules.c.namespace.in_(sorted(namespaces)))
    return [~inside.correlate_except(schedules).exists()]


limits = sa.Table(
    "rqsched_limits",
    metadata,
    sa.Column("limit_group", sa.String(511), primary_key=True),
    sa.Column("namespace", Name, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("number", sa.Integer),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("changes", sa.Text, nullable=False, server_default="[]"),
    sa.Column("rate_number", sa.Integer),
    sa.Column("rate_seconds", sa.Integer),
)
"""How many runs of a group may run at once, and how many may start in `rate_seconds`; NULL is no limit. The rows of
runs show which runs have a place. A grant of places locks the row of the group."""

limit_starts = sa.Table(
    "rqsched_limit_starts",
    metadata,
    sa.Column("limit_group", sa.String(511), primary_key=True),
    sa.Column("started_at", Instant, primary_key=True),
    sa.Column("uid", Uid, primary_key=True),
    sqlite_with_rowid=False,
)
"""The starts of runs in groups with a rate, as long as they count for the rate. Claims write them, and lock no
group."""

database_metadata = sa.Table(
    "rqsched_facts",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""Named values about the database, such as its id, and the tzdata version with which next times were computed."""

namespace_metadata = sa.Table(
    "rqsched_namespace_facts",
    metadata,
    sa.Column("namespace", Name, primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""Named values about a namespace: its freeze, and its freezes that were thawed."""

calendars = sa.Table(
    "rqsched_calendars",
    metadata,
    # The namespace of a shared calendar is `*`, a name that no namespace has.
    sa.Column("namespace", Name, primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("edit", Uid, nullable=False),
    _text("exclude", "[]"),
    # The time of the first change that some schedules are not planned with yet.
    sa.Column("since", Instant, nullable=False),
    sa.Column("is_planned", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("reaches", sa.String(10)),
    _text("source"),
    _text("description"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
    _text("changed_by"),
    _text("changes", "[]"),
    sqlite_with_rowid=False,
)
"""Exclusions that many schedules share, by name, with the newest changes of each."""
