"""What a pass of reconcile reads and writes about targets of fan-outs, in the caller's transaction.

Rows that another transaction holds are left out: the next pass finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.ids import BatchJobId
from rqsched.core.model import RunStatus, TargetStatus
from rqsched.core.target_ends import TargetEnd
from rqsched.store.dialect import dialect_of
from rqsched.store.fan_out_targets import TARGET, Target, has_ended_in_vain, is_running
from rqsched.store.tables import HAS_OPEN_TARGETS, IS_OPEN_TARGET, constant, runs, targets
from rqsched.store.target_attempts import end_values

GIVEN_UP = "its run ended before it began"
"""The error of a target that no process began."""


def pending(connection: Connection, before: datetime, after: str | None, limit: int) -> tuple[list[Target], str | None]:
    """Return a page of targets that should be on their queue since `before`, and the next cursor."""
    statement = sa.select(*TARGET).where(_is(TargetStatus.PENDING), targets.c.queued_at <= before)
    if after is not None:
        statement = statement.where(targets.c.uid > after)
    rows = [Target(*row) for row in connection.execute(statement.order_by(targets.c.uid).limit(limit))]
    return rows, rows[-1].uid if len(rows) == limit else None


def unfinished_batches(connection: Connection, before: datetime) -> list[tuple[BatchJobId, Target]]:
    """Return the fan-outs with targets left to dispatch: the job that continues each, and its first waiting target.

    Fan-outs whose workflow has not returned are left out: the next attempt may name further targets first.
    """
    is_by_hand = runs.c.uid.is_(None) & targets.c.schedule_uid.is_(None) & (targets.c.created_at <= before)
    is_over = (runs.c.status == RunStatus.SUCCEEDED.value) | HAS_OPEN_TARGETS | is_by_hand
    joined = targets.outerjoin(runs, runs.c.uid == targets.c.run_uid)
    first = sa.select(targets.c.run_uid, sa.func.min(targets.c.number).label("number")).select_from(joined)
    named = first.where(_is(TargetStatus.WAITING), is_over).group_by(targets.c.run_uid).subquery()
    same = (targets.c.run_uid == named.c.run_uid) & (targets.c.number == named.c.number)
    statement = sa.select(named.c.run_uid, named.c.number, *TARGET).select_from(named.join(targets, same))
    return [(BatchJobId(row[0], row[1]), Target(*row[2:])) for row in connection.execute(statement)]


@dataclass(frozen=True, slots=True)
class EndStep:
    """How many targets a repair ends at once, and how."""

    decide: Callable[[Connection, Target], TargetEnd]
    """Decides what follows for a target."""
    now: datetime
    """The present."""
    limit: int
    """The most targets of one transaction."""


def end_silent(connection: Connection, before: datetime, step: EndStep) -> list[str]:
    """End the attempts of running targets whose deadline was before an instant; returns the uids of their runs."""
    return _end(connection, (is_running(), targets.c.deadline_at < before), step)


def end_blocked(connection: Connection, before: datetime, step: EndStep) -> list[str]:
    """End targets that are blocked since an instant or longer; returns the uids of their runs."""
    return _end(connection, (_is(TargetStatus.BLOCKED), targets.c.blocked_at <= before), step)


def _end(connection: Connection, found: Sequence[sa.ColumnElement[bool]], step: EndStep) -> list[str]:
    free = sa.select(*TARGET).where(*found).order_by(targets.c.uid).limit(step.limit)
    rows = [Target(*row) for row in connection.execute(free.with_for_update(skip_locked=True))]
    for target in rows:
        mine = sa.update(targets).where(targets.c.uid == target.uid)
        connection.execute(mine.values(**end_values(step.decide(connection, target), step.now)))
    return [target.run_uid for target in rows]


def give_up(connection: Connection, now: datetime) -> int:
    """Cancel targets that no process handles and whose run ended without success; returns how many."""
    not_begun = IS_OPEN_TARGET & (targets.c.status != constant(TargetStatus.RUNNING))
    free = sa.select(targets.c.uid).where(not_begun, has_ended_in_vain()).order_by(targets.c.uid)
    uids = list(connection.execute(free.with_for_update(skip_locked=True)).scalars())
    if uids:
        error = sa.func.coalesce(targets.c.error, GIVEN_UP)
        values = {"status": TargetStatus.CANCELLED.value, "error": error, "ended_at": now, "retry_at": None}
        connection.execute(
            sa.update(targets).where(dialect_of(connection).one_of(targets.c.uid, uids)).values(**values)
        )
    return len(uids)


def _is(status: TargetStatus) -> sa.ColumnElement[bool]:
    return IS_OPEN_TARGET & (targets.c.status == constant(status))
