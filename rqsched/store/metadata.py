"""Named values about the database as a whole: its id, the tzdata version next times were computed with.

Also what the web processes have to know of each other for some hours, under a prefix of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.core.marks import WentBack
from rqsched.store.dialect import dialect_of
from rqsched.store.tables import database_metadata

DATABASE_ID = "database_id"
"""The name of the value that tells this database from every other one."""
TAKEN_OVER = "taken_over"
"""The name of the time at which this database's server took over from another one, and of that one's identity."""
MARK = "mark"
"""The name of the newest mark of a reconcile pass."""
_OF_MARKS = {f"went_back:{one.value}": one for one in WentBack}
"""The names of what marks told."""
HOLD = "hold"
"""The name of the hold, while there is one: no claim begins an attempt then."""
_RELEASED = "released"
"""The name of the uids of the holds that were released last, so that none is copied back from Redis."""
_MOST_RELEASED = 20


def find_value(connection: Connection, name: str) -> str | None:
    """Return the value of a name; None when it was never set."""
    statement = sa.select(database_metadata.c.value).where(database_metadata.c.name == name)
    return connection.execute(statement).scalar_one_or_none()


def lock_value(connection: Connection, name: str) -> str | None:
    """Return the value of a name, and keep others from changing it until the transaction ends."""
    statement = sa.select(database_metadata.c.value).where(database_metadata.c.name == name).with_for_update()
    return connection.execute(statement).scalar_one_or_none()


def claim_value(connection: Connection, name: str, value: str) -> str:
    """Set a value unless the name has one; returns the value it has then."""
    statement = dialect_of(connection).insert(database_metadata).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_nothing())
    return find_value(connection, name) or value


def set_hold(connection: Connection, uid: str, text: str) -> None:
    """Set the hold of this uid, unless there is one or this one was released."""
    if uid not in _lock_released(connection):
        claim_value(connection, HOLD, text)


def drop_hold(connection: Connection, uids: Sequence[str], *, text: str | None = None) -> None:
    """Remove the hold, or only the one of this text, and remember that these were released."""
    released = [*_lock_released(connection), *uids][-_MOST_RELEASED:]
    set_value(connection, _RELEASED, " ".join(released))
    is_it = sa.true() if text is None else database_metadata.c.value == text
    connection.execute(sa.delete(database_metadata).where(database_metadata.c.name == HOLD, is_it))


def _lock_released(connection: Connection) -> list[str]:
    """Read the uids of released holds; others who set or release one wait until the transaction ends."""
    claim_value(connection, _RELEASED, "")
    return (lock_value(connection, _RELEASED) or "").split()


def set_value(connection: Connection, name: str, value: str) -> None:
    """Set a value, whatever it was before."""
    statement = dialect_of(connection).insert(database_metadata).values(name=name, value=value)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def replace_value(connection: Connection, name: str, value: str, *, known: str | None) -> bool:
    """Set a value if it is still the `known` one (None: if there is none); returns whether it is set now.

    So it is, too, when an earlier attempt has set it whose answer was lost.
    """
    if known is None:
        return claim_value(connection, name, value) == value
    row = database_metadata.c.name == name
    replaced = sa.update(database_metadata).where(row, database_metadata.c.value == known).values(value=value)
    return connection.execute(replaced).rowcount == 1 or find_value(connection, name) == value


def find_mark(connection: Connection) -> tuple[str | None, dict[WentBack, str]]:
    """Return the newest mark, None before the first, and what was recorded of each side that went back."""
    statement = sa.select(database_metadata.c.name, database_metadata.c.value)
    named = statement.where(database_metadata.c.name.in_([MARK, *_OF_MARKS]))
    found = {str(name): str(value) for name, value in connection.execute(named)}
    return found.pop(MARK, None), {_OF_MARKS[name]: value for name, value in found.items()}


def record_went_back(connection: Connection, which: WentBack, value: str) -> None:
    """Record that a side went back, in place of what was recorded of it before."""
    set_value(connection, f"went_back:{which.value}", value)


def forget_went_back(connection: Connection) -> None:
    """Delete what was recorded of sides that went back, and of a server that this one took over from."""
    remove_values(connection, [*_OF_MARKS, TAKEN_OVER])


def renew_id(connection: Connection, database_id: str) -> None:
    """Make a copy a database of its own: it has another id, and no marks yet."""
    set_value(connection, DATABASE_ID, database_id)
    forget_went_back(connection)
    remove_values(connection, [MARK])


def replace_went_back(connection: Connection, which: WentBack, known: str, value: str) -> None:
    """Record more of a side that went back, if nothing else was recorded of it since."""
    replace_value(connection, f"went_back:{which.value}", value, known=known)


def values_under(connection: Connection, prefix: str) -> dict[str, str]:
    """Read the values whose names begin with a prefix, by name."""
    columns = database_metadata.c.name, database_metadata.c.value
    found = sa.select(*columns).where(database_metadata.c.name.startswith(prefix, autoescape=True))
    return {row.name: row.value for row in connection.execute(found)}


def remove_values(connection: Connection, names: Iterable[str]) -> None:
    """Delete the values of these names; a name without one is left out."""
    is_one = dialect_of(connection).one_of(database_metadata.c.name, names)
    connection.execute(sa.delete(database_metadata).where(is_one))
