"""The rows of a namespace: count them, and delete them in small steps.

Every function works inside the caller's transaction. A test checks that each table is in exactly one of the tuples
here, so that a deletion leaves no rows of a new table behind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.ids import BatchJobId, DeliveryJobId, LinkId, RetryLinkId, RunJobId, TargetJobId
from rqsched.kernel.decide.limit_options import key_of
from rqsched.kernel.decide.model import OPEN, RunStatus, TargetStatus
from rqsched.kernel.decide.policy import Policies
from rqsched.kernel.queries.pages import counting
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import (
    IS_OPEN,
    IS_OPEN_TARGET,
    IS_UNFINISHED,
    audit_events,
    backfills,
    calendars,
    constant,
    counted,
    database_metadata,
    deliveries,
    hours,
    idempotency_keys,
    limit_starts,
    limits,
    machine_states,
    namespace_metadata,
    runs,
    schedules,
    targets,
    uncounted,
    upstream_ends,
    workflows,
)

OF_SCHEDULES = (counted, uncounted, hours, targets, runs, backfills, deliveries, audit_events, upstream_ends)
"""Tables whose rows belong to a schedule. They are deleted in this order, and then the schedule."""
OF_NAMESPACES = (idempotency_keys, limit_starts, limits, calendars)
"""Tables whose rows belong to a namespace; they are deleted after its schedules."""
LAST = (namespace_metadata,)
"""Tables with named values of a namespace, such as its freeze. They are deleted in the last step."""
OF_NO_NAMESPACE = (workflows, machine_states, database_metadata)
"""Tables whose rows belong to the whole installation. The last step deletes the values in `database_metadata` that name
the namespace."""
RUNNING = frozenset({RunStatus.RUNNING})
"""The status of a run that executes, or that waits for its targets."""
WAITING = OPEN - RUNNING
"""The statuses of a run that waits for an attempt to begin."""
_AT_ONCE = 100
"""The number of schedules in one step."""
_MOST_JOBS = 20
"""For a run, the jobs of this many newest attempts are removed; for an attempt, this many newest jobs. RQ expires older
jobs."""


class Step(NamedTuple):
    """The rows that one step deleted."""

    rows: Counter[str]
    """The number of deleted rows by kind."""
    links: list[str]
    """The ids of the links to remove from Redis."""
    jobs: dict[tuple[str | None, str | None], list[str]]
    """The ids of the jobs to remove from Redis, by connection and queue."""
    is_over: bool
    """Whether only the named values of the namespace are left."""


def noun(table: sa.Table) -> str:
    """Return the noun for the rows of a table in a count."""
    return table.name.removeprefix("rqsched_")


def count(connection: Connection, namespace: str, most: int | None = None) -> dict[str, int]:
    """Count the rows of a namespace by kind, each kind up to `most`."""
    mine = sa.select(schedules.c.uid).where(schedules.c.namespace == namespace)
    where: dict[sa.Table, sa.ColumnElement[bool]] = {schedules: schedules.c.namespace == namespace}
    where |= {table: table.c.schedule_uid.in_(mine) for table in OF_SCHEDULES}
    where |= {table: _is_of(table, namespace) for table in OF_NAMESPACES}
    found: dict[sa.Table, sa.Select[Any]] = {
        table: sa.select(sa.literal_column("1")).select_from(table).where(one) for table, one in where.items()
    }
    return {noun(table): connection.execute(counting(rows, most)).scalar_one() for table, rows in found.items()}


def executing(connection: Connection, namespace: str, most: int) -> list[str]:
    """Read the uids of at most `most` runs of a namespace that execute now, or whose targets execute now."""
    of = sa.select(runs.c.uid).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    target = sa.exists().where(
        targets.c.run_uid == runs.c.uid, IS_OPEN_TARGET, targets.c.status == constant(TargetStatus.RUNNING)
    )
    is_running = IS_UNFINISHED & (runs.c.status == constant(RunStatus.RUNNING))
    statement = of.where(schedules.c.namespace == namespace, is_running | target).order_by(runs.c.uid).limit(most)
    return list(connection.execute(statement).scalars())


class OpenRuns(NamedTuple):
    """How many runs of a namespace have not ended; each number is exact up to the limit of the count."""

    waiting: int
    """The runs that wait for an attempt to begin: pending, retrying and buffered runs."""
    running: int
    """The runs that execute, or wait for their targets."""
    without_retries: int
    """The runs among `running` whose schedules have `max_retries=0`."""


def count_open(connection: Connection, namespace: str, most: int) -> OpenRuns:
    """Count the waiting and the running runs of a namespace, each up to `most`."""
    waiting = _unfinished(connection, namespace, WAITING, runs.c.uid).limit(most).subquery()
    running = _unfinished(connection, namespace, RUNNING, schedules.c.policies).limit(most).subquery()
    by_policies = sa.select(running.c.policies, sa.func.count()).group_by(running.c.policies)
    counts = [(Policies.loads(text).retry, count) for text, count in connection.execute(by_policies)]
    return OpenRuns(
        connection.execute(sa.select(sa.func.count()).select_from(waiting)).scalar_one(),
        sum(count for _, count in counts),
        sum(count for retry, count in counts if retry.max_retries == 0),
    )


def newest_open(
    connection: Connection, namespace: str, statuses: frozenset[RunStatus], most: int, below: str | None = None
) -> list[str]:
    """Read the uids of the newest runs with one of these statuses, WAITING or RUNNING; only uids lower than `below`."""
    statement = _unfinished(connection, namespace, statuses, runs.c.uid).order_by(runs.c.uid.desc()).limit(most)
    if below is not None:
        statement = statement.where(runs.c.uid < below)
    return list(connection.execute(statement).scalars())


def _unfinished(
    connection: Connection, namespace: str, statuses: frozenset[RunStatus], column: sa.Column[Any]
) -> sa.Select[Any]:
    is_open = IS_OPEN if RunStatus.BUFFERED in statuses else IS_UNFINISHED
    has_status = runs.c.status.in_([constant(status) for status in sorted(statuses)])
    of = sa.select(column).select_from(runs).join(schedules, schedules.c.uid == runs.c.schedule_uid)
    # Begin with the open runs: a namespace may have many more schedules than runs that are open.
    return of.where(is_open, has_status, dialect_of(connection).unindexed(schedules.c.namespace) == namespace)


def delete_some(connection: Connection, namespace: str, most: int) -> Step:
    """Delete up to `most` rows of a namespace, and the schedules that have no rows left.

    The schedules of the step are locked first, as in every change of a schedule.
    """
    step = Step(Counter(), [], defaultdict(list), is_over=False)
    first = sa.select(schedules.c.uid, schedules.c.n).where(schedules.c.namespace == namespace)
    mine = connection.execute(first.order_by(schedules.c.uid).limit(_AT_ONCE).with_for_update()).all()
    if not mine:
        for table in OF_NAMESPACES:
            most -= _delete(connection, table, _is_of(table, namespace), most, step)
            if most <= 0:
                return step
        return step._replace(is_over=True)
    uids = [row.uid for row in mine]
    one_of = dialect_of(connection).one_of
    for table in OF_SCHEDULES:
        most -= _delete(connection, table, one_of(table.c.schedule_uid, uids), most, step)
        if most <= 0:
            return step
    most -= _delete(connection, upstream_ends, one_of(upstream_ends.c.upstream_uid, uids), most, step)
    if most > 0:
        connection.execute(sa.delete(schedules).where(one_of(schedules.c.uid, uids)))
        step.rows[noun(schedules)] += len(uids)
        # Remove the previous link, too: it may have fired, but may still be in Redis.
        step.links.extend(str(LinkId(row.uid, n)) for row in mine for n in (row.n - 1, row.n) if n >= 0)
    return step


def _is_of(table: sa.Table, namespace: str) -> sa.ColumnElement[bool]:
    if table is limit_starts:  # its only reference to the namespace is the key of a group
        return limit_starts.c.limit_group.startswith(key_of(namespace, ""), autoescape=True)
    return table.c.namespace == namespace


def _delete(connection: Connection, table: sa.Table, where: sa.ColumnElement[bool], most: int, step: Step) -> int:
    """Delete up to `most` rows of a table, and add their jobs to the step. Return the number of rows."""
    keys = [*table.primary_key.columns]
    names = _JOB_COLUMNS.get(noun(table), ())
    rows = connection.execute(sa.select(*keys, *(table.c[name] for name in names)).where(where).limit(most)).all()
    if rows:
        key: Any = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
        values = [row[0] if len(keys) == 1 else tuple(row[: len(keys)]) for row in rows]
        for part in (values[at : at + _BOUND] for at in range(0, len(values), _BOUND)):
            connection.execute(sa.delete(table).where(key.in_(part)))
        step.rows[noun(table)] += len(rows)
    for row in rows if names else ():
        _note_jobs(table, row, step)
    return len(rows)


_BOUND = 200
"""The maximum number of rows that one statement names, because SQLite takes few values in a statement."""
_JOB_COLUMNS = {
    "runs": ("schedule_uid", "number", "attempt", "delivery", "queue", "connection"),
    "targets": ("run_uid", "number", "delivery", "queue", "connection"),
    "deliveries": ("attempt", "queue", "connection"),
}
"""The columns from which the jobs of a row are computed."""


def _note_jobs(table: sa.Table, row: Any, step: Step) -> None:
    jobs = step.jobs[row.connection, row.queue]
    if table is runs:
        step.links.append(str(RetryLinkId(row.schedule_uid, row.number, row.attempt)))
        attempts, given = _newest(row.attempt), _newest(row.delivery)
        jobs.extend(str(RunJobId(row.uid, attempt, delivery)) for attempt in attempts for delivery in given)
    elif table is targets:
        jobs.extend(str(TargetJobId(row.uid, delivery)) for delivery in _newest(row.delivery))
        jobs.append(str(BatchJobId(row.run_uid, row.number)))
    else:
        jobs.extend(str(DeliveryJobId(row.uid, attempt)) for attempt in _newest(row.attempt))


def _newest(number: int) -> Sequence[int]:
    return range(max(1, number - _MOST_JOBS + 1), number + 1)
