"""The state of each instance of a state machine, as the application reports it. No state machine library is needed.

A state is stored as a text: the ids of the active states, outermost first, separated by blanks. For a flat machine it
is one word. An instance entered its state when this text last changed.

Every function works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import machine_states as table

KEPT_AS = "__rqsched_machine__"
"""The attribute of a decorated class that holds its machine. The machine has a `name`."""


def name_of(cls: type) -> str:
    """Return the name under which the instances of a machine's class are stored."""
    known = vars(cls).get(KEPT_AS)
    return cls.__name__ if known is None else str(known.name)


@dataclass(frozen=True, slots=True)
class InstanceState:
    """One instance's state as it was read."""

    state: str
    """The active states, outermost first."""
    version: int
    """Counts every change. `replace` requires that it is unchanged."""


def put(
    connection: Connection, machine: str, states: dict[str, str], now: datetime, entered_at: datetime | None = None
) -> None:
    """Set the states of instances, by id. Instances that do not exist are created.

    An instance that is already in its state keeps the time at which it entered the state, unless `entered_at` is given.
    """
    fixed: dict[str, Any] = {"machine": machine, "version": 1, "updated_at": now, "entered_at": entered_at or now}
    rows = [
        fixed | {"instance_id": instance_id, "state": state}
        for instance_id, state in sorted(states.items())  # sort them, so that two writers do not deadlock
    ]
    if not rows:
        return
    new = dialect_of(connection).insert(table)
    since = new.excluded.entered_at
    changes = {
        "state": new.excluded.state,
        "updated_at": new.excluded.updated_at,
        "entered_at": _kept_unless_moved(new.excluded.state, since) if entered_at is None else since,
        "version": table.c.version + 1,
    }
    connection.execute(new.on_conflict_do_update(index_elements=["machine", "instance_id"], set_=changes), rows)


def replace(
    connection: Connection, machine: str, instance_id: str, known: InstanceState, state: str, now: datetime
) -> bool:
    """Set an instance's state if its version is still the one in `known`; False if another process changed it first.

    If the first call was committed but its answer was lost, a second call finds its own values and returns True.
    """
    mine = {"state": state, "version": known.version + 1, "updated_at": now}
    entered_at = _kept_unless_moved(sa.literal(state), sa.literal(now, table.c.entered_at.type))
    is_known = _is(machine, instance_id), table.c.version == known.version
    if connection.execute(sa.update(table).where(*is_known).values(**mine, entered_at=entered_at)).rowcount:
        return True
    is_mine = (table.c[name] == value for name, value in mine.items())
    return connection.execute(sa.select(table.c.version).where(_is(machine, instance_id), *is_mine)).first() is not None


def lock(connection: Connection, machine: str, instance_ids: Collection[str]) -> None:
    """Lock these instances, if they exist.

    Read the clock for `entered_at` after this call, which may wait for the lock.
    """
    mine = table.c.machine == machine, dialect_of(connection).one_of(table.c.instance_id, sorted(instance_ids))
    connection.execute(sa.select(table.c.version).where(*mine).order_by(table.c.instance_id).with_for_update())


def forget(connection: Connection, machine: str, instance_id: str) -> bool:
    """Delete an instance; False if it does not exist."""
    return bool(connection.execute(sa.delete(table).where(_is(machine, instance_id))).rowcount)


def find(connection: Connection, machine: str, instance_id: str) -> InstanceState | None:
    """Return an instance's state; None when the machine has no such instance."""
    row = connection.execute(sa.select(table.c.state, table.c.version).where(_is(machine, instance_id))).first()
    return None if row is None else InstanceState(*row)


def known(connection: Connection, machine: str, instance_ids: Sequence[str]) -> set[str]:
    """Return which of these instances belong to the machine."""
    mine = table.c.machine == machine, dialect_of(connection).one_of(table.c.instance_id, instance_ids)
    return set(connection.execute(sa.select(table.c.instance_id).where(*mine)).scalars())


def states_in_use(connection: Connection, machine: str) -> list[str]:
    """Return the states that at least one instance of the machine is in."""
    statement = sa.select(table.c.state).where(table.c.machine == machine).distinct()
    return sorted(connection.execute(statement).scalars())


def entered_at(connection: Connection, machine: str, instance_id: str) -> datetime | None:
    """Return when an instance entered its state; None if the machine has no such instance."""
    return connection.execute(sa.select(table.c.entered_at).where(_is(machine, instance_id))).scalar()


def page_in(
    connection: Connection,
    machine: str,
    states: Collection[str],
    after: str,
    limit: int,
    entered_until: datetime | None = None,
) -> list[str]:
    """Return a page of the ids of instances in one of these states; the ids follow the id `after`.

    With `entered_until`, return only instances that entered their state then or earlier.
    """
    is_in = dialect_of(connection).one_of(table.c.state, states)
    mine = [table.c.machine == machine, table.c.instance_id > after, is_in]
    if entered_until is not None:
        mine.append(table.c.entered_at <= entered_until)
    statement = sa.select(table.c.instance_id).where(*mine).order_by(table.c.instance_id).limit(limit)
    return list(connection.execute(statement).scalars())


def _kept_unless_moved(state: sa.ColumnElement[str], moved_at: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.case((table.c.state == state, table.c.entered_at), else_=moved_at)


def _is(machine: str, instance_id: str) -> sa.ColumnElement[bool]:
    return (table.c.machine == machine) & (table.c.instance_id == instance_id)
