"""One attempt of a target in SQL: a process claims it, and it is ended by that process or for it. Knows no Redis.

Every function works inside the caller's transaction. A target is handled once because `claim` is one conditional
UPDATE, and it ends once because its end is fenced by the token of that claim. On PostgreSQL either is one statement, so
that it may be a transaction of its own. What a pass of reconcile ends leaves out rows that another transaction holds:
the next pass finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.ids import TargetJobId
from rqsched.core.model import OPEN_TARGETS, RunStatus, TargetStatus
from rqsched.core.target_decision import TargetEnd
from rqsched.store.dialect import POSTGRES, dialect_of
from rqsched.store.fan_out_targets import TARGET, Target, has_ended_in_vain, is_open, take_waiting
from rqsched.store.tables import IS_OPEN_TARGET, constant, runs, targets


class ClaimedTarget(NamedTuple):
    """A target that a process may handle now."""

    target: Target
    """What its job needs."""
    payload: str | None
    """The JSON of its payload; None without one."""
    started_at: datetime
    """When the attempt began: after the one before it, whatever the clocks say."""
    run: tuple[RunStatus, int] | None
    """The status and the attempt of its run; None when the fan-out was started by hand."""


GIVEN_UP = "its run ended before it began"
"""The error of a target that no process began."""
_COLUMNS = targets.c
_IS_RUNNING = is_open(TargetStatus.RUNNING)
# Every target is claimed and ended with these: composed once, they cost a third of what they cost composed each time.
_CLAIM_OF = (
    sa.select(*TARGET, _COLUMNS.payload, _COLUMNS.token, _COLUMNS.started_at, runs.c.status, runs.c.attempt)
    .select_from(targets.outerjoin(runs, runs.c.uid == _COLUMNS.run_uid))
    .where(_COLUMNS.uid == sa.bindparam("of"))
)
# A commit whose answer was lost is repeated: then the row holds this very token.
_IS_MINE = (_COLUMNS.status == constant(TargetStatus.RUNNING)) & (_COLUMNS.token == sa.bindparam("by"))
_IS_FREE = (_COLUMNS.status == constant(TargetStatus.PENDING)) | _IS_MINE
_CLAIM = (
    sa.update(targets)
    .where(_COLUMNS.uid == sa.bindparam("of"), _COLUMNS.delivery == sa.bindparam("delivered"), _IS_FREE)
    .values(status=TargetStatus.RUNNING.value, token=sa.bindparam("by"), worker=sa.bindparam("worker_name"))
    .values(started_at=sa.bindparam("begun"), deadline_at=sa.bindparam("deadline"))
)
_OF_RUN = [
    sa.select(runs.c[name]).where(runs.c.uid == _COLUMNS.run_uid).correlate(targets).scalar_subquery()
    for name in ("status", "attempt")
]
_BEGAN = POSTGRES.after(_COLUMNS.started_at, sa.bindparam("begun", type_=_COLUMNS.started_at.type))
_CLAIM_RETURNING = _CLAIM.values(
    started_at=sa.case((_IS_MINE, _COLUMNS.started_at), else_=_BEGAN),
    deadline_at=sa.bindparam("begun", type_=_COLUMNS.started_at.type)
    + sa.func.make_interval(0, 0, 0, 0, 0, 0, _COLUMNS.timeout, type_=sa.Interval),
).returning(*TARGET, _COLUMNS.payload, _COLUMNS.started_at, *_OF_RUN)
"""All of it in one statement (PostgreSQL): a fan-out that was started by hand has no run to join."""
_ENDED_BY = ("status", "error", "retry_at", "blocked_at", "ended_at")
_FINISH = (
    sa.update(targets)
    .where(_COLUMNS.uid == sa.bindparam("of"), _IS_MINE)
    .values({name: sa.bindparam(f"new_{name}") for name in _ENDED_BY})
)
_OTHERS = targets.alias("others")
_NOT_BEGUN = (
    sa.select(_OTHERS.c.uid)
    .where(_OTHERS.c.run_uid == sa.bindparam("run"))
    .where(_OTHERS.c.status.in_([constant(status) for status in OPEN_TARGETS if status is not TargetStatus.RUNNING]))
    .limit(1)
)
_FINISH_RETURNING = _FINISH.returning(_NOT_BEGUN.exists())
"""With the question whether others are left to begin (PostgreSQL)."""


def claim(
    connection: Connection, job: TargetJobId, token: str, now: datetime, worker: str | None = None
) -> ClaimedTarget | None:
    """Make a pending target running, held by `token`; None when it could not be claimed. One statement on PostgreSQL.

    Repeated with the same token after a lost answer, it returns the same again.
    """
    mine = _mine(job, token, now, worker)
    if not dialect_of(connection).joins_writes:
        found = connection.execute(_CLAIM_OF, {"of": job.uid}).first()
        if found is None:
            return None
        begun = now if found.started_at is None else max(now, found.started_at + timedelta(microseconds=1))
        if found.token == token:
            begun = found.started_at
        mine |= {"begun": begun, "deadline": now + timedelta(seconds=found.timeout)}
        if not connection.execute(_CLAIM, mine).rowcount:
            return None
    elif (found := connection.execute(_CLAIM_RETURNING, mine).first()) is None:
        return None
    else:
        begun = found.started_at
    run_status, run_attempt = found[-2:]
    run = None if run_status is None else (RunStatus(run_status), run_attempt)
    return ClaimedTarget(Target(*found[: len(TARGET)]), found.payload, begun, run)


def _mine(job: TargetJobId, token: str, now: datetime, worker: str | None) -> dict[str, Any]:
    return {"of": job.uid, "delivered": job.delivery, "by": token, "worker_name": worker, "begun": now}


def exists(connection: Connection, uid: str) -> bool:
    """Return whether there is such a target."""
    return connection.execute(sa.select(sa.exists().where(targets.c.uid == uid))).scalar_one()


def finish(
    connection: Connection, target: Target, token: str, end: TargetEnd, now: datetime
) -> tuple[bool, list[Target]]:
    """Record how an attempt ended, unless `token` does not hold the target any more.

    Returns whether the target may have been the last one, and the one that takes its place under `max_parallel`. It is
    not the last one while others wait for a process. Those that run at this moment are seen after the commit only.
    One statement on PostgreSQL, unless a place is to be filled.
    """
    new = {f"new_{name}": value for name, value in _end_values(end, now).items()}
    given = {"of": target.uid, "by": token, **new}
    if not dialect_of(connection).joins_writes or target.max_parallel is not None:
        is_done = connection.execute(_FINISH, given).rowcount > 0
        return _after(connection, target, now, has_place=is_done)
    others_wait = connection.execute(_FINISH_RETURNING, {**given, "run": target.run_uid}).scalar_one_or_none()
    return not others_wait, []


def lose(connection: Connection, target: Target, end: TargetEnd, now: datetime) -> tuple[bool, list[Target]]:
    """Record what follows for a running target whose process died; returns what `finish` does."""
    gone = sa.update(targets).where(targets.c.uid == target.uid, targets.c.delivery == target.delivery, _IS_RUNNING)
    is_done = connection.execute(gone.values(**_end_values(end, now))).rowcount > 0
    return _after(connection, target, now, has_place=is_done)


def _after(connection: Connection, target: Target, now: datetime, *, has_place: bool) -> tuple[bool, list[Target]]:
    is_limited = target.max_parallel is not None and has_place
    following = take_waiting(connection, target.run_uid, 1, now) if is_limited else []
    if following:
        return False, following
    return connection.execute(_NOT_BEGUN, {"run": target.run_uid}).first() is None, []


def find_running(connection: Connection, job: TargetJobId, token: str | None = None) -> Target | None:
    """Return a target whose present job is `job` and that a process handles; None when it is not so.

    With a `token`, only if that one holds it.
    """
    found = sa.select(*TARGET).where(targets.c.uid == job.uid, targets.c.delivery == job.delivery, _IS_RUNNING)
    row = connection.execute(found if token is None else found.where(targets.c.token == token)).first()
    return None if row is None else Target(*row)


def is_held(connection: Connection, uid: str, token: str) -> bool:
    """Return whether a token holds a running target whose run is not over."""
    held = sa.exists().where(targets.c.uid == uid, targets.c.token == token, _IS_RUNNING, ~has_ended_in_vain())
    return connection.execute(sa.select(held)).scalar_one()


def _end_values(end: TargetEnd, now: datetime) -> dict[str, Any]:
    """Return what an end of an attempt writes."""
    return {
        "status": end.status.value,
        "error": end.error,
        "retry_at": end.retry_at,
        "blocked_at": end.blocked_at,
        "ended_at": now if end.has_ended else None,
    }


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
    return _end_free(connection, (_IS_RUNNING, targets.c.deadline_at < before), step)


def end_blocked(connection: Connection, before: datetime, step: EndStep) -> list[str]:
    """End targets that are blocked since an instant or longer; returns the uids of their runs."""
    return _end_free(connection, (is_open(TargetStatus.BLOCKED), targets.c.blocked_at <= before), step)


def _end_free(connection: Connection, found: Sequence[sa.ColumnElement[bool]], step: EndStep) -> list[str]:
    free = sa.select(*TARGET).where(*found).order_by(targets.c.uid).limit(step.limit)
    rows = [Target(*row) for row in connection.execute(free.with_for_update(skip_locked=True))]
    for target in rows:
        mine = sa.update(targets).where(targets.c.uid == target.uid)
        connection.execute(mine.values(**_end_values(step.decide(connection, target), step.now)))
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


def rehearse(connection: Connection, uid: str, now: datetime) -> None:
    """Execute what a claim and an end of a target read and write, for a `uid` that nothing has: all is compiled."""
    claim(connection, TargetJobId(uid), uid, now)
    if not dialect_of(connection).joins_writes:
        connection.execute(_CLAIM, {**_mine(TargetJobId(uid), uid, now, None), "deadline": now})
    target = Target(uid, uid, None, "", "", 1, None, None, 1, 1, None, None)
    finish(connection, target, uid, TargetEnd(TargetStatus.SUCCEEDED), now)
