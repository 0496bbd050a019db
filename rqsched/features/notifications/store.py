"""The rows of deliveries. This module uses no Redis and does not read the messages.

Every function works inside the caller's transaction. Only one process at a time attempts a delivery, because `claim` is
one conditional UPDATE. The later writes of that process have an effect only while the row has the process's token.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.features.notifications.decide import (
    FAILED,
    NO_ANSWER,
    PINGS,
    STARTED,
    SUCCEEDED,
    Delivery,
    DeliveryKind,
    DeliveryStatus,
    next_attempt_at,
)
from rqsched.kernel.decide.ids import DeliveryJobId
from rqsched.kernel.queries.pages import page_by_due_time
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.rows import insert_rows, state_columns
from rqsched.kernel.store.tables import (
    HAS_FAILED_DELIVERY,
    IS_OPEN_DELIVERY,
    constant,
    deliveries,
    is_free_for,
    is_held_by,
    schedules,
)

HAS_NO_RECEIVER = schedules.c.notifications == sa.literal_column("'{}'", sa.Text)
"""The condition that a schedule has no receiver in its options."""

_NAMES = [*Delivery.__dataclass_fields__]
_SELECT = sa.select(*(deliveries.c[name] for name in _NAMES))
VANISHED = "its process vanished"
"""The error of an attempt whose process vanished: it recorded no end by its deadline."""


def _read(row: Sequence[Any]) -> Delivery:
    values = dict(zip(_NAMES, row, strict=True))
    kind, status = DeliveryKind(values.pop("kind")), DeliveryStatus(values.pop("status"))
    return Delivery(**values, kind=kind, status=status)


def record(connection: Connection, owed: Sequence[Delivery]) -> None:
    """Insert deliveries; existing ones stay as they are."""
    insert_rows(connection, deliveries, state_columns(owed, _NAMES), or_ignore=True)


def find(connection: Connection, uid: str, *, locks: bool = False) -> Delivery | None:
    """Read one delivery; with `locks`, also lock it. Return None if it does not exist."""
    found = _SELECT.where(deliveries.c.uid == uid)
    row = connection.execute(found.with_for_update() if locks else found).first()
    return None if row is None else _read(row)


def pending(connection: Connection, uids: Sequence[str]) -> list[Delivery]:
    """Read the deliveries with these uids that are pending."""
    waits = deliveries.c.status == constant(DeliveryStatus.PENDING)
    statement = _SELECT.where(dialect_of(connection).one_of(deliveries.c.uid, uids), waits).order_by(deliveries.c.uid)
    return [_read(row) for row in connection.execute(statement)]


def claim(
    connection: Connection, job: DeliveryJobId, token: str, *, worker: str, now: datetime, until: datetime
) -> Delivery | None:
    """Make a pending attempt running, held by `token` until `until`; return None if it could not be claimed."""
    values = {"status": DeliveryStatus.RUNNING.value, "token": token, "worker": worker, "started_at": now}
    statement = (
        sa.update(deliveries)
        .where(deliveries.c.uid == job.uid, deliveries.c.attempt == job.attempt, is_free_for(deliveries, token))
        .values(**values, due_at=until)
    )
    return find(connection, job.uid) if connection.execute(statement).rowcount else None


def is_superseded(connection: Connection, delivery: Delivery) -> bool:
    """Return whether a later ping, about the end of a run, still waits to be sent to the same monitor."""
    at = deliveries.c.created_at
    is_later = at >= delivery.created_at if delivery.event_type == STARTED else at > delivery.created_at
    later = sa.select(deliveries.c.uid).where(
        *_same_monitor(delivery), is_later, deliveries.c.event_type.in_([SUCCEEDED, FAILED])
    )
    return connection.execute(later.limit(1)).first() is not None


def _same_monitor(delivery: Delivery) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        deliveries.c.schedule_uid == delivery.schedule_uid,
        deliveries.c.kind == delivery.kind.value,
        deliveries.c.destination == delivery.destination,
        deliveries.c.uid != delivery.uid,
    )


def silent_until(connection: Connection, delivery: Delivery, now: datetime) -> datetime | None:
    """If another delivery to this destination got no answer, return when it is tried again; otherwise None."""
    statement = sa.select(sa.func.min(deliveries.c.due_at, type_=deliveries.c.due_at.type)).where(
        IS_OPEN_DELIVERY,
        deliveries.c.due_at > now,
        deliveries.c.status == constant(DeliveryStatus.PENDING),
        deliveries.c.kind == delivery.kind.value,
        deliveries.c.destination == delivery.destination,
        deliveries.c.error.startswith(NO_ANSWER),
    )
    found: datetime | None = connection.execute(statement).scalar_one()
    return found


def put_off(connection: Connection, delivery: Delivery, token: str, due_at: datetime) -> None:
    """Make a claimed delivery pending again without counting the attempt."""
    values = {"status": DeliveryStatus.PENDING.value, "token": None, "due_at": due_at}
    connection.execute(_held(delivery.uid, token).values(**values))


def succeed(connection: Connection, delivery: Delivery, token: str, now: datetime) -> bool:
    """Record that a delivery arrived, if `token` still holds it.

    The row of a ping is deleted. Older pings to the same monitor that have not arrived are deleted, too, because they
    would report a former state.
    """
    if delivery.kind in PINGS:
        if delivery.event_type != STARTED:
            older = deliveries.c.created_at <= delivery.created_at
            connection.execute(sa.delete(deliveries).where(*_same_monitor(delivery), IS_OPEN_DELIVERY, older))
        gone = sa.delete(deliveries).where(deliveries.c.uid == delivery.uid, deliveries.c.token == token)
        return connection.execute(gone).rowcount == 1
    values = {"status": DeliveryStatus.SUCCEEDED.value, "ended_at": now, "error": None}
    return connection.execute(_held(delivery.uid, token).values(**values)).rowcount == 1


def fail(
    connection: Connection, delivery: Delivery, token: str, error: str, now: datetime, *, is_final: bool = False
) -> datetime | None:
    """Record that an attempt failed, if `token` still holds it; returns when the next attempt is due, or None."""
    again_at = None if is_final else next_attempt_at(delivery, now)
    is_ours = connection.execute(_held(delivery.uid, token).values(**_failed(delivery, error, again_at, now))).rowcount
    return again_at if is_ours else None


def drop_open(connection: Connection) -> int:
    """Delete the pending and running deliveries; returns how many."""
    return connection.execute(sa.delete(deliveries).where(IS_OPEN_DELIVERY)).rowcount


def _held(uid: str, token: str) -> sa.Update:
    return sa.update(deliveries).where(deliveries.c.uid == uid, is_held_by(deliveries, token))


def _failed(delivery: Delivery, error: str, again_at: datetime | None, now: datetime) -> dict[str, Any]:
    if again_at is None:
        return {"status": DeliveryStatus.FAILED.value, "error": error, "ended_at": now}
    following = {"attempt": delivery.attempt + 1, "due_at": again_at, "token": None}
    return {"status": DeliveryStatus.PENDING.value, "error": error} | following


def due(
    connection: Connection, now: datetime, after: tuple[datetime, str] | None, limit: int
) -> tuple[list[Delivery], tuple[datetime, str] | None]:
    """Read deliveries that should have been attempted by now, or whose attempt should have ended."""
    statement = _SELECT.where(IS_OPEN_DELIVERY, deliveries.c.due_at <= now)
    rows, cursor = page_by_due_time(connection, statement, deliveries, after, limit)
    return [_read(row) for row in rows], cursor


def lose(connection: Connection, silent: Sequence[Delivery], now: datetime) -> int:
    """Fail the attempts of deliveries whose process vanished, unless they ended meanwhile. Return how many.

    A row that another transaction holds is left to the next pass.
    """
    named = sa.select(deliveries.c.uid).where(
        dialect_of(connection).one_of(deliveries.c.uid, [one.uid for one in silent])
    )
    free = set(connection.execute(named.order_by(deliveries.c.uid).with_for_update(skip_locked=True)).scalars())
    lost = 0
    for delivery in sorted(silent, key=lambda one: one.uid):
        if delivery.uid not in free:
            continue
        statement = sa.update(deliveries).where(
            deliveries.c.uid == delivery.uid,
            deliveries.c.status == DeliveryStatus.RUNNING.value,
            deliveries.c.attempt == delivery.attempt,
            deliveries.c.due_at == delivery.due_at,
        )
        again_at = next_attempt_at(delivery, now)
        lost += connection.execute(statement.values(**_failed(delivery, VANISHED, again_at, now))).rowcount
    return lost


def newest(
    connection: Connection, schedule_uid: str, *, status: str | None = None, before: str | None = None, limit: int
) -> list[Delivery]:
    """Read a schedule's deliveries, newest first; with `before`, only deliveries whose uid is lower."""
    statement = _SELECT.where(deliveries.c.schedule_uid == schedule_uid)
    if status is not None:
        statement = statement.where(deliveries.c.status == status)
    if before is not None:
        statement = statement.where(deliveries.c.uid < before)
    return [_read(row) for row in connection.execute(statement.order_by(deliveries.c.uid.desc()).limit(limit))]


def failed_since(connection: Connection, namespace: str | None, since: datetime, limit: int) -> list[Delivery]:
    """Read the deliveries that were given up since an instant, in a namespace or in all, newest first."""
    statement = _SELECT.where(HAS_FAILED_DELIVERY, deliveries.c.ended_at >= since, *_is_of(namespace))
    return [_read(row) for row in connection.execute(statement.order_by(deliveries.c.ended_at.desc()).limit(limit))]


def count_open(connection: Connection, namespace: str | None, due_before: datetime, most: int) -> tuple[int, int]:
    """Count the pending and running deliveries, up to `most`, and those of them that were due before an instant."""
    first = (
        sa.select(deliveries.c.due_at)
        .where(IS_OPEN_DELIVERY, *_is_of(namespace))
        .order_by(deliveries.c.due_at, deliveries.c.uid)
    )
    some = first.limit(most).subquery()
    is_late = sa.case((some.c.due_at < due_before, 1), else_=0)
    row = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(is_late), 0)).select_from(some)
    ).one()
    return int(row[0]), int(row[1])


def _is_of(namespace: str | None) -> list[sa.ColumnElement[bool]]:
    is_owner = schedules.c.uid == deliveries.c.schedule_uid, schedules.c.namespace == namespace
    return [] if namespace is None else [sa.exists().where(*is_owner)]
