"""Named values about the whole database, such as its id and the tzdata version of the computed next times.

Other named values are about one namespace. Web processes also share some values here for hours, under names with a
prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.decide.rollback_marks import WentBack
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import database_metadata, namespace_metadata

DATABASE_ID = "database_id"
"""The name of the database's id, which no other database has."""
TAKEN_OVER = "taken_over"
"""The name of the record that this database's server took over from another server. It says from which, and when."""
MARK = "mark"
"""The name of a control queue's newest mark (see `of_queue`). Marks show whether SQL or Redis lost newer writes."""
WENT_BACK = "went_back"
"""The prefix of the name of a finding that SQL or Redis went back to an older state. A `WentBack` value follows it."""
SESSION_KEY = "session_key"
"""The name of the random value that signs the dashboard's sessions. It is never shown. A copy of the database gets
another value."""
FREEZE = "hold"
"""The name of the freeze of everything, or of a namespace. While it has a value, no claim begins an attempt there."""
_THAWED = "released"
"""The name of the list of the newest thawed freezes. They are still shown, and are never copied back from Redis."""
_FIRST = datetime.min.replace(tzinfo=UTC)
_LONGEST = 64
"""The maximum length of a name in the table, in characters."""
MOST_THAWED = 100
"""How many thawed freezes are kept."""
_ALTERED = "altered"
"""The name of the list of the newest changes of things that are not schedules."""
MOST_ALTERED = 100
"""How many such changes are kept."""


class Altered(NamedTuple):
    """A change of something that has no audit events because it is no schedule: a group's limit, or a calendar."""

    at: datetime
    """When it was made."""
    what: str
    """The change in words: `limit tenant:42: 5 → 2 at once`."""
    by: str | None
    """Who made it; None if not known."""
    source: str | None
    """The source of the request, as in `CommandContext.source`."""
    reason: str | None
    """Why, in the words of that person."""


def find_value(connection: Connection, name: str, namespace: str | None = None) -> str | None:
    """Return the value of a name, for the database or for a namespace; None if it has none."""
    return connection.execute(_value_of(name, namespace)).scalar_one_or_none()


def lock_value(connection: Connection, name: str, namespace: str | None = None) -> str | None:
    """Return the value of a name, and lock the value until the transaction ends."""
    return connection.execute(_value_of(name, namespace).with_for_update()).scalar_one_or_none()


def claim_value(connection: Connection, name: str, value: str, namespace: str | None = None) -> str:
    """Set a value unless the name has one; returns the value that the name has now."""
    connection.execute(_insert(connection, name, value, namespace).on_conflict_do_nothing())
    return find_value(connection, name, namespace) or value


def set_freeze(connection: Connection, freeze: Freeze) -> None:
    """Store a freeze. Do nothing if another freeze is stored in its place, or if this freeze was thawed."""
    if freeze.uid not in _lock_thawed(connection, freeze.namespace):
        claim_value(connection, FREEZE, freeze.to_text(), freeze.namespace)


def drop_freeze(
    connection: Connection, ended: Sequence[Freeze], *, text: str | None = None, namespace: str | None = None
) -> None:
    """Remove the freeze (with `text`, only a freeze with this text), and remember the ended freezes as thawed."""
    thawed = _lock_thawed(connection, namespace) | {one.uid: one for one in ended}
    texts = [one.to_text() for one in [*thawed.values()][-MOST_THAWED:]]
    set_value(connection, _THAWED, "\n".join(texts), namespace)
    table, key = _place(FREEZE, namespace)
    is_it = sa.true() if text is None else table.c.value == text
    connection.execute(sa.delete(table).where(*(table.c[name] == value for name, value in key.items()), is_it))


def find_lasting(connection: Connection) -> dict[str, str]:
    """Return the texts of the current freezes: the freeze of everything as `*`, others by their namespace."""
    of_all = sa.select(sa.literal_column("'*'", sa.Text), database_metadata.c.value)
    of_each = sa.select(namespace_metadata.c.namespace, namespace_metadata.c.value)
    where = database_metadata.c.name == FREEZE, namespace_metadata.c.name == FREEZE
    found = connection.execute(of_all.where(where[0]).union_all(of_each.where(where[1])))
    return {str(name): str(text) for name, text in found}


def find_freezes(connection: Connection, *namespaces: str | None) -> list[Freeze]:
    """Return the current and the thawed freezes of namespaces (None: of everything), the newest first."""
    found = list[Freeze]()
    for namespace in namespaces:
        lasting = find_value(connection, FREEZE, namespace)
        found += [] if lasting is None else [Freeze.from_text(lasting, "sql")]
        found += reversed(_read_thawed(find_value(connection, _THAWED, namespace) or ""))
    return sorted(found, key=lambda one: one.since or _FIRST, reverse=True)


def record_altered(
    connection: Connection, what: str, clock: Callable[[], datetime], context: CommandContext, namespace: str | None
) -> None:
    """Record that somebody altered something of a namespace, or something that all namespaces share (None).

    Transactions that record a change in the same namespace wait for each other. `clock` is read after the wait.
    """
    claim_value(connection, _ALTERED, "[]", namespace)
    known = _read_altered(lock_value(connection, _ALTERED, namespace))
    kept = [Altered(clock(), what, context.principal, context.source, context.reason), *known][:MOST_ALTERED]
    set_value(connection, _ALTERED, json.dumps(kept, default=datetime.isoformat), namespace)


def find_altered(connection: Connection, *namespaces: str | None) -> list[Altered]:
    """Return the last changes in namespaces (None: of shared things), the newest first."""
    found = [one for namespace in namespaces for one in _read_altered(find_value(connection, _ALTERED, namespace))]
    return sorted(found, key=lambda one: one.at, reverse=True)


def _read_altered(text: str | None) -> list[Altered]:
    found = (Altered._make(row) for row in json.loads(text or "[]"))
    return [one._replace(at=datetime.fromisoformat(str(one.at))) for one in found]


def is_namespace_frozen(namespace: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a namespace is frozen. Every statement that begins something contains it."""
    is_freeze = namespace_metadata.c.name == sa.literal_column(f"'{FREEZE}'", sa.Text)
    found = sa.select(1).where(namespace_metadata.c.namespace == namespace, is_freeze)
    return found.correlate_except(namespace_metadata).exists()


def is_frozen(namespace: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that everything or the namespace is frozen."""
    everything = database_metadata.c.name == sa.literal_column(f"'{FREEZE}'", sa.Text)
    return sa.exists(sa.select(1).where(everything)) | is_namespace_frozen(namespace)


def lock_freezes(connection: Connection, namespace: str | None) -> None:
    """Make other transactions that freeze or thaw wait until this transaction ends."""
    _lock_thawed(connection, namespace)


def _lock_thawed(connection: Connection, namespace: str | None) -> dict[str, Freeze]:
    """Read the thawed freezes by uid. Other transactions that freeze or thaw wait until this transaction ends."""
    claim_value(connection, _THAWED, "", namespace)
    return {one.uid: one for one in _read_thawed(lock_value(connection, _THAWED, namespace) or "")}


def _read_thawed(texts: str) -> list[Freeze]:
    return [Freeze.from_text(text) for text in texts.splitlines()]


def set_value(connection: Connection, name: str, value: str, namespace: str | None = None) -> None:
    """Set a value, whatever it was before."""
    statement, (_, key) = _insert(connection, name, value, namespace), _place(name, namespace)
    connection.execute(statement.on_conflict_do_update(index_elements=[*key], set_={"value": value}))


def lock_of(connection: Connection, what: str, namespace: str) -> None:
    """Lock something of a namespace, by name, until the transaction ends.

    The lock writes a row. If another transaction has written the row after this transaction's snapshot, this
    transaction fails instead of reading stale rows. On SQLite only one transaction writes at a time anyway.
    """
    if not dialect_of(connection).has_one_writer:
        digest = blake2b(namespace.encode(), digest_size=24).hexdigest()
        set_value(connection, f"{what}:{digest}", "")


def _place(name: str, namespace: str | None) -> tuple[sa.Table, dict[str, str]]:
    """Return the table of a value, and the key of its row."""
    if namespace is None:
        return database_metadata, {"name": name}
    return namespace_metadata, {"namespace": namespace, "name": name}


def _value_of(name: str, namespace: str | None) -> sa.Select[Any]:
    table, key = _place(name, namespace)
    return sa.select(table.c.value).where(*(table.c[part] == value for part, value in key.items()))


def _insert(connection: Connection, name: str, value: str, namespace: str | None) -> Any:
    table, key = _place(name, namespace)
    return dialect_of(connection).insert(table).values(**key, value=value)


def replace_value(connection: Connection, name: str, value: str, *, known: str | None, waits: bool = True) -> bool:
    """Set a value if the name still has the `known` value (None: no value); returns whether the value is set now.

    Also returns True if an earlier attempt, whose answer was lost, has set the value. Without `waits`, a value that
    another transaction has locked is not set.
    """
    if known is None:
        return claim_value(connection, name, value) == value
    row = database_metadata.c.name == name
    if not waits:
        free = sa.select(_FREE.c.name).where(_FREE.c.name == name).with_for_update(skip_locked=True)
        row &= database_metadata.c.name == free.scalar_subquery()
    replaced = sa.update(database_metadata).where(row, database_metadata.c.value == known).values(value=value)
    return connection.execute(replaced).rowcount == 1 or find_value(connection, name) == value


_FREE = database_metadata.alias("free")


def of_queue(name: str, control_queue: str) -> str:
    """Return the name of a value that belongs to one control queue. Each control queue has its own marks."""
    full = f"{name}:{control_queue}"
    return full if len(full) <= _LONGEST else f"{name}:{blake2b(control_queue.encode(), digest_size=16).hexdigest()}"


def find_mark(connection: Connection, control_queue: str) -> tuple[str | None, dict[WentBack, str]]:
    """Return the newest mark (None before the first), and the findings that SQL or Redis went back, by kind."""
    names = {of_queue(f"{WENT_BACK}:{which.value}", control_queue): which for which in WentBack}
    mark, statement = of_queue(MARK, control_queue), sa.select(database_metadata.c.name, database_metadata.c.value)
    rows = connection.execute(statement.where(database_metadata.c.name.in_([mark, *names])))
    found = {str(name): str(value) for name, value in rows}
    return found.pop(mark, None), {names[name]: value for name, value in found.items()}


def forget_went_back(connection: Connection) -> None:
    """Delete the findings that SQL or Redis went back, and the record that this server took over from another."""
    remove_values(connection, [*values_under(connection, f"{WENT_BACK}:"), TAKEN_OVER])


def renew_id(connection: Connection, database_id: str) -> None:
    """Make a copy a separate database, with another id and no marks."""
    set_value(connection, DATABASE_ID, database_id)
    forget_went_back(connection)
    remove_values(connection, [*values_under(connection, f"{MARK}:"), SESSION_KEY])


def forget_namespace(connection: Connection, namespace: str) -> None:
    """Delete every value of a namespace, its freeze among them."""
    connection.execute(sa.delete(namespace_metadata).where(namespace_metadata.c.namespace == namespace))


def values_under(connection: Connection, prefix: str) -> dict[str, str]:
    """Read the values whose names begin with a prefix, by name."""
    columns = database_metadata.c.name, database_metadata.c.value
    found = sa.select(*columns).where(database_metadata.c.name.startswith(prefix, autoescape=True))
    return {row.name: row.value for row in connection.execute(found)}


def remove_values(connection: Connection, names: Iterable[str]) -> None:
    """Delete the values of these names, if they have any."""
    is_one = dialect_of(connection).one_of(database_metadata.c.name, names)
    connection.execute(sa.delete(database_metadata).where(is_one))
