"""Which state each instance of a machine is in, as its owner says. Knows nothing of state machine libraries.

A state is the ids of the active states, outermost first and a blank between: one word for a flat machine. Every
function works inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.store.bulk import insert
from rqsched.store.changes import one_of
from rqsched.store.tables import machine_states as table

KEPT_AS = "__rqsched_machine__"
"""The attribute of a decorated class that says what rqsched calls it; it has a `name`."""


def name_of(cls: type) -> str:
    """Give the name a machine's class goes by here."""
    known = vars(cls).get(KEPT_AS)
    return cls.__name__ if known is None else str(known.name)


@dataclass(frozen=True, slots=True)
class InstanceState:
    """One instance's state as it was read."""

    state: str
    version: int
    """Counts every change; `replace` wants the one it was read at."""


def put(connection: Connection, machine: str, states: dict[str, str], now: datetime) -> None:
    """Set the states of instances by id, known ones or not."""
    rows = [
        {"machine": machine, "instance_id": instance_id, "state": state, "version": 1, "updated_at": now}
        for instance_id, state in sorted(states.items())  # in one order, so that two writers do not deadlock
    ]
    if not rows:
        return
    new = insert(connection, table)
    changes = {"state": new.excluded.state, "updated_at": new.excluded.updated_at, "version": table.c.version + 1}
    connection.execute(new.on_conflict_do_update(index_elements=["machine", "instance_id"], set_=changes), rows)


def replace(
    connection: Connection, machine: str, instance_id: str, known: InstanceState, state: str, now: datetime
) -> bool:
    """Set an instance's state if it is still the one that was read; False when somebody else was first.

    Asking again after a lost answer finds the row as this very call left it, and says True again.
    """
    mine = {"state": state, "version": known.version + 1, "updated_at": now}
    is_known = _is(machine, instance_id), table.c.version == known.version
    if connection.execute(sa.update(table).where(*is_known).values(**mine)).rowcount:
        return True
    is_mine = (table.c[name] == value for name, value in mine.items())
    return connection.execute(sa.select(table.c.version).where(_is(machine, instance_id), *is_mine)).first() is not None


def forget(connection: Connection, machine: str, instance_id: str) -> bool:
    """Remove an instance; False when it was not known."""
    return bool(connection.execute(sa.delete(table).where(_is(machine, instance_id))).rowcount)


def find(connection: Connection, machine: str, instance_id: str) -> InstanceState | None:
    """Read an instance's state; None when it is not known as one of this machine."""
    row = connection.execute(sa.select(table.c.state, table.c.version).where(_is(machine, instance_id))).first()
    return None if row is None else InstanceState(*row)


def known(connection: Connection, machine: str, instance_ids: Sequence[str]) -> set[str]:
    """Read which of these instances belong to the machine."""
    mine = table.c.machine == machine, one_of(table.c.instance_id, instance_ids, connection)
    return set(connection.execute(sa.select(table.c.instance_id).where(*mine)).scalars())


def states_in_use(connection: Connection, machine: str) -> list[str]:
    """Read every state some instance of the machine is in."""
    statement = sa.select(table.c.state).where(table.c.machine == machine).distinct()
    return sorted(connection.execute(statement).scalars())


def page_in(connection: Connection, machine: str, states: Collection[str], after: str, limit: int) -> list[str]:
    """Read the ids of instances in one of these states, those after an id; each instance is on one page only."""
    mine = table.c.machine == machine, table.c.instance_id > after, one_of(table.c.state, states, connection)
    statement = sa.select(table.c.instance_id).where(*mine).order_by(table.c.instance_id).limit(limit)
    return list(connection.execute(statement).scalars())


def _is(machine: str, instance_id: str) -> sa.ColumnElement[bool]:
    return (table.c.machine == machine) & (table.c.instance_id == instance_id)
