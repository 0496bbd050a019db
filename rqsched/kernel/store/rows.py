"""How state is stored in rows: the order of the columns, and how a batch of fires writes many rows in one statement.

Only this module knows the order of the columns. Many rows are passed as columns. If a column has the same value in all
rows, this value is sent once. In a batch of fires this is true of most columns. PostgreSQL gets each of the other
columns as one array. SQLite gets the other columns of many new rows as one JSON document. If the new rows are few, or
if rows are changed, SQLite gets them one by one through one prepared statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.kernel.decide.model import (
    DEFINITION,
    Change,
    Definition,
    Run,
    RunKind,
    RunStatus,
    Schedule,
    ScheduleStatus,
    changed,
    dumps,
)
from rqsched.kernel.store.dialect import POSTGRES, Dialect, dialect_of
from rqsched.kernel.store.named_calendars import NAMING, with_contents
from rqsched.kernel.store.tables import runs, schedules, upstream_ends

Row = Mapping[str, Any]
"""Column names and values."""
Columns = Mapping[str, Sequence[Any]]
"""Column names, each with one value for each row."""
_State = TypeVar("_State", Definition, Schedule, Run)
_SCHEDULE = tuple(field.name for field in fields(Schedule) if field.name not in {"definition", "contents"})
_RUN = tuple(field.name for field in fields(Run) if field.name not in {"place_in_line", "upstream_schedule_id"})
_DECLARED = frozenset(DEFINITION)
_ALL = (*DEFINITION, *_SCHEDULE)
_STATUS_AT = _SCHEDULE.index("status")
_RUN_STATUS_AT = _RUN.index("status")
_RUN_KIND_AT = _RUN.index("kind")
_RUN_UPSTREAM_AT = _RUN.index("upstream_run_uid")
_MANUAL, _AFTER = RunKind.MANUAL.value, RunKind.AFTER.value
SCHEDULE_COLUMNS = [schedules.c[name] for name in (*DEFINITION, *_SCHEDULE)]
"""The columns that `to_schedule` reads, in its order."""
RUN_COLUMNS = [runs.c[name] for name in _RUN]
"""The columns that `to_run` reads, in its order."""
ROW_VERSION: sa.ColumnElement[str] = sa.literal_column(f"{schedules.fullname}.xmin::text", sa.Text)
"""The version of a schedule's row: the transaction that wrote it. Locks do not change the version (PostgreSQL)."""
SELECT_SCHEDULES = sa.select(*SCHEDULE_COLUMNS)
SELECT_RUNS = sa.select(*RUN_COLUMNS)
SELECT_RUNS_WITH_SCHEDULES = sa.select(*RUN_COLUMNS, *SCHEDULE_COLUMNS).join_from(
    runs, schedules, schedules.c.uid == runs.c.schedule_uid
)
"""It is built once, because naming a hundred columns takes longer than the rest of a short query."""
_WORDS = {"status", "kind"}
"""Columns that store an enum member as text."""
_BLANK = {"action": '{"args":[],"kwargs":{}}', "memo": "{}", "search_attributes": "{}"}
_BLANK_RUN = {**_BLANK, "attempts": "[]", "result": None}


def _slim(columns: Sequence[sa.Column[Any]], blanks: Mapping[str, str | None]) -> sa.Select[Any]:
    known: dict[str, sa.ColumnElement[Any]] = {
        name: sa.literal_column("NULL" if text is None else f"'{text}'") for name, text in blanks.items()
    }
    return sa.select(*(known[c.name].label(c.name) if c.name in known else c for c in columns))


SELECT_SLIM_SCHEDULES = _slim(SCHEDULE_COLUMNS, _BLANK)
"""Schedules without arguments, memo and search attributes, which may be large."""
SELECT_SLIM_RUNS = _slim(RUN_COLUMNS, _BLANK_RUN)
"""Runs without arguments, memo, search attributes, attempts and results."""


def to_schedule(connection: Connection | None, row: Sequence[Any]) -> Schedule:
    """Read a schedule from a row of SCHEDULE_COLUMNS, with the calendars that it names unless `connection` is None."""
    split = len(DEFINITION)
    values = list(row[split:])
    values[_STATUS_AT] = ScheduleStatus(values[_STATUS_AT])
    definition = _made(Definition, zip(DEFINITION, row, strict=False))
    schedule = _made(Schedule, zip(_SCHEDULE, values, strict=True), definition=definition)
    if connection is None or NAMING not in definition.spec:
        return schedule
    return with_contents(connection, [schedule])[0]


def to_schedules(connection: Connection, rows: Iterable[Sequence[Any]]) -> list[Schedule]:
    """Read schedules as `to_schedule` does, and the calendars of all of them at once."""
    found = [to_schedule(None, row) for row in rows]
    return with_contents(connection, found) if any(NAMING in one.definition.spec for one in found) else found


def to_schedules_with_last(connection: Connection, rows: Sequence[Sequence[Any]]) -> list[tuple[Schedule, Any]]:
    """Read schedules as `to_schedules` does, each with the extra column at the end of its row."""
    return [*zip(to_schedules(connection, (row[:-1] for row in rows)), (row[-1] for row in rows), strict=True)]


def to_run(row: Sequence[Any]) -> Run:
    """Read a run from a row of RUN_COLUMNS."""
    values = list(row)
    values[_RUN_STATUS_AT] = RunStatus(values[_RUN_STATUS_AT])
    # A run of kind `after` is stored as `manual`, together with its upstream run.
    values[_RUN_KIND_AT] = RunKind(values[_RUN_KIND_AT] if values[_RUN_UPSTREAM_AT] is None else _AFTER)
    return _made(Run, zip(_RUN, values, strict=True))


def with_upstreams(connection: Connection, found: list[Run]) -> list[Run]:
    """Return runs, with the upstream schedule's id for runs of kind `after` and their copies.

    Without such runs nothing is read. The id is None if the upstream run was pruned.
    """
    uids = sorted({uid for run in found if (uid := run.came_after) is not None})
    if not uids:
        return found
    is_one = dialect_of(connection).one_of(upstream_ends.c.run_uid, uids)
    rows = connection.execute(sa.select(upstream_ends.c.run_uid, upstream_ends.c.upstream_id).where(is_one))
    ids = {row.run_uid: row.upstream_id for row in rows}
    return [changed(run, upstream_schedule_id=ids.get(run.came_after or "")) for run in found]


def to_run_and_schedule(connection: Connection, row: Sequence[Any]) -> tuple[Run, Schedule]:
    """Read a run and its schedule from a row that begins with the columns of SELECT_RUNS_WITH_SCHEDULES."""
    split = len(RUN_COLUMNS)
    return to_run(row[:split]), to_schedule(connection, row[split : split + len(SCHEDULE_COLUMNS)])


def to_runs_and_schedules(connection: Connection, rows: Iterable[Sequence[Any]]) -> list[tuple[Run, Schedule]]:
    """Read runs and their schedules, as `to_run_and_schedule` does."""
    split = len(RUN_COLUMNS)
    found = [*rows]
    of_runs = to_schedules(connection, (row[split : split + len(SCHEDULE_COLUMNS)] for row in found))
    return [(to_run(row[:split]), schedule) for row, schedule in zip(found, of_runs, strict=True)]


def _made(kind: type[_State], values: Iterable[tuple[str, Any]], **more: Any) -> _State:
    """Return a state with these fields, in half the time of `__init__`. Every fire and run reads some states."""
    state = object.__new__(kind)
    state.__dict__.update(values, **more)
    return state


def schedule_values(schedule: Schedule, names: Sequence[str] = _ALL) -> dict[str, Any]:
    """Return the values of a schedule's columns, or of the named columns, by name."""
    return _values_of(schedule, names)


def schedule_columns(found: Sequence[Schedule], names: Sequence[str] = _ALL) -> Columns:
    """Return the columns of schedules, or the named columns, each with its values."""
    return state_columns(found, names)


def run_values(run: Run, names: Sequence[str] = _RUN) -> dict[str, Any]:
    """Return the values of a run's columns, or of the named columns, by name."""
    return _values_of(run, names)


def _values_of(state: Schedule | Run, names: Sequence[str]) -> dict[str, Any]:
    values = zip(names, _reader(tuple(names), isinstance(state, Schedule))(state), strict=True)
    return {name: _stored(value) if name in _WORDS else value for name, value in values}


def _stored(word: StrEnum) -> str:
    return _MANUAL if word is RunKind.AFTER else word.value


def run_columns(found: Sequence[Run], names: Sequence[str] = _RUN) -> Columns:
    """Return the columns of runs, or the named columns, each with its values."""
    return state_columns(found, names)


def state_columns(found: Sequence[object], names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the named fields of objects of one class as columns, with the values that the columns store."""
    if not found:
        return dict.fromkeys(names, ())
    read = _reader(tuple(names), isinstance(found[0], Schedule))
    columns = zip(names, zip(*map(read, found), strict=True), strict=True)
    return {name: [_stored(word) for word in values] if name in _WORDS else values for name, values in columns}


@lru_cache(maxsize=1024)
def _reader(names: tuple[str, ...], is_of_schedule: bool) -> Callable[[object], tuple[Any, ...]]:
    """Return a function that reads these fields of an object in one step, because there may be fifty.

    The fields of a schedule's definition are columns of the schedule.
    """
    paths = [f"definition.{name}" if is_of_schedule and name in _DECLARED else name for name in names]
    if len(paths) > 1:
        return attrgetter(*paths)
    return lambda one: tuple(attrgetter(path)(one) for path in paths)


def schedule_differences(before: Schedule, after: Schedule) -> set[str]:
    """Return the columns in which two states of a schedule differ."""
    found = _differences(_SCHEDULE, before, after)
    if before.definition is after.definition:
        return found
    return found | _differences(DEFINITION, before.definition, after.definition)


def run_differences(before: Run, after: Run) -> set[str]:
    """Return the columns in which two states of a run differ."""
    return _differences(_RUN, before, after)


def _differences(names: Iterable[str], before: object, after: object) -> set[str]:
    old, new = vars(before), vars(after)
    # States are copied by `changed`, so nearly every value is the same object in both.
    return {name for name in names if old[name] is not new[name] and old[name] != new[name]}


def event_columns(changes: Sequence[Change]) -> Columns:
    """Return the columns of the events of Changes. A payload that Changes share is written as text once."""
    texts: dict[int, str] = {}
    return columns_of([row for change in changes for row in event_rows(change, texts)])


def event_rows(change: Change, texts: dict[int, str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a Change's events, numbered without gaps. The counter is in the schedule's locked row.

    `texts` has the texts of payloads that were written before, by the identity of the payload.
    """
    texts = {} if texts is None else texts
    first = change.after.event_sequence - len(change.events) + 1
    return [
        {
            "schedule_uid": change.after.uid,
            "sequence": first + index,
            "event_type": event.type,
            "payload": texts.get(id(event.payload)) or texts.setdefault(id(event.payload), dumps(event.payload)),
            "workflow_instance_id": event.instance_id,
            "workflow_run_id": event.run_uid,
            "recorded_at": change.after.updated_at,
        }
        for index, event in enumerate(change.events)
    ]


def columns_of(rows: Sequence[Row]) -> Columns:
    """Convert rows to columns; all rows must have the same columns."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


DOCUMENT_CHARACTERS = 8 * 1024 * 1024
"""The approximate size of one statement. It is limited because payloads may be large, and a batch is in memory several
times."""
_SEPARATOR = "\x1f"
_MANY = 20
"""SQLite gets this number of rows or more as a document. For fewer rows, this would take longer, because SQLite must
parse another statement."""
_NUL = "\\u0000"
"""The JSON escape of NUL. SQLite would cut off a value of a document at this escape."""


def insert_rows(connection: Connection, table: sa.Table, columns: Columns, *, or_ignore: bool = False) -> None:
    """Insert rows; `or_ignore` skips rows whose unique key exists."""
    count = _count(columns)
    if count > 1 and dialect_of(connection).takes_arrays:
        shared, own = _split(columns)
        statement = _set_insert(table, tuple(shared), tuple(own), or_ignore)
        for part in _parts(own, count):
            connection.execute(statement, _values(shared, part))
    elif count >= _MANY:
        _insert_documents(connection, table, columns, or_ignore)
    elif count > 1:
        _insert_each(connection, table, columns, or_ignore)
    elif count:
        row = {name: values[0] for name, values in columns.items()}
        connection.execute(_one_insert(dialect_of(connection), table, or_ignore), [row])


def _insert_documents(connection: Connection, table: sa.Table, columns: Columns, or_ignore: bool) -> None:
    """Insert rows on SQLite. The values that differ between rows are passed in JSON documents.

    Otherwise half of the time would go to binding sixty values for each row.

    Numbers must be whole and fit into 64 bits, because SQLite would make a float of a larger number.
    """
    shared, own = _split(columns)
    text = _document_insert(table, tuple(own), tuple(shared), or_ignore)
    once = [_raw(connection, table.c[name].type, [value])[0] for name, value in shared.items()]
    for part in _parts(own, _count(own)):
        document = json.dumps(_raw_rows(connection, table, part), ensure_ascii=False, allow_nan=False)
        if _NUL in document:
            repeated = {name: [value] * _count(part) for name, value in shared.items()}
            _insert_each(connection, table, {**part, **repeated}, or_ignore)
        else:
            connection.exec_driver_sql(text, (*once, document))


def _insert_each(connection: Connection, table: sa.Table, columns: Columns, or_ignore: bool) -> None:
    text = _each_insert(table, tuple(columns), or_ignore)
    connection.exec_driver_sql(text, _raw_rows(connection, table, columns))


def update_rows(connection: Connection, table: sa.Table, columns: Columns) -> None:
    """Update rows, each named by its `uid`. If two rows have the same uid, the later one wins."""
    count = _count(columns)
    if count > 1 and dialect_of(connection).takes_arrays:
        shared, own = _split(_latest(columns, count), apart="uid")
        statement = _set_update(table, tuple(shared), tuple(own))
        for part in _parts(own, _count(own)):
            connection.execute(statement, _values(shared, part))
    elif count:
        ordered = {name: columns[name] for name in (*(name for name in columns if name != "uid"), "uid")}
        if count > 1:
            text = _each_update(table, tuple(ordered))
            connection.exec_driver_sql(text, _raw_rows(connection, table, ordered))
        else:
            bound = {f"b_{name}": values[0] for name, values in ordered.items()}
            connection.execute(_one_update(table, tuple(ordered)), bound)


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _latest(columns: Columns, count: int) -> Columns:
    latest = {uid: at for at, uid in enumerate(columns["uid"])}
    if len(latest) == count:
        return columns
    return {name: [values[at] for at in latest.values()] for name, values in columns.items()}


def _parts(columns: Columns, count: int) -> Iterator[Columns]:
    """Yield the rows in parts of at most about DOCUMENT_CHARACTERS. A longer row is a part of its own."""
    texts = [values for values in columns.values() if any(type(value) is str for value in values)]
    if sum(len(value) for values in texts for value in values if value) <= DOCUMENT_CHARACTERS:
        yield columns
        return
    start = size = 0
    for at in range(count):
        length = sum(len(values[at] or "") for values in texts)
        if at > start and size + length > DOCUMENT_CHARACTERS:
            yield {name: values[start:at] for name, values in columns.items()}
            start, size = at, 0
        size += length
    yield {name: values[start:] for name, values in columns.items()}


def _split(columns: Columns, apart: str | None = None) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Separate columns with one value in all rows (returned as this value) from the other columns (at least one)."""
    shared: dict[str, Any] = {}
    own: dict[str, Sequence[Any]] = {}
    apart = apart or next(iter(columns))
    for name, values in columns.items():
        if name != apart and values.count(values[0]) == len(values):
            shared[name] = values[0]
        else:
            own[name] = values
    return shared, own


def _values(shared: Row, own: Columns) -> dict[str, Any]:
    bound = {f"s_{name}": value for name, value in shared.items()}
    texts: dict[datetime, str] = {}
    return bound | {f"a_{name}": _array(values, texts) for name, values in own.items()}


def _array(values: Sequence[Any], texts: dict[datetime, str]) -> str:
    """Write values as the text of an array of PostgreSQL."""
    try:
        joined = _SEPARATOR.join(values)
    except TypeError:  # some values are not texts
        joined = None
    if joined is None or joined.count(_SEPARATOR) != len(values) - 1:
        return "{" + ",".join(_element(value, texts) for value in values) + "}"
    return '{"' + _escaped(joined).replace(_SEPARATOR, '","') + '"}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _element(value: object, texts: dict[datetime, str]) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, datetime):
        return texts.get(value) or texts.setdefault(value, _instant(value))
    if isinstance(value, timedelta):
        return str(value // timedelta(microseconds=1))
    if isinstance(value, int):  # also a bool
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a valid value of a column")


def _instant(value: datetime) -> str:
    """Write an instant as `tables.Instant` does."""
    if value.tzinfo is None:
        raise ValueError(f"naive datetime {value!r} reached the store")
    return f'"{(value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat()}"'


@lru_cache(maxsize=1024)
def _set_insert(table: sa.Table, shared: tuple[str, ...], own: tuple[str, ...], or_ignore: bool) -> sa.Insert:
    values = _set_values(table, shared, own)
    statement = POSTGRES.insert(table).from_select(list(values), sa.select(*values.values()))
    return statement.on_conflict_do_nothing() if or_ignore else statement


@lru_cache(maxsize=1024)
def _set_update(table: sa.Table, shared: tuple[str, ...], own: tuple[str, ...]) -> sa.Update:
    values = _set_values(table, shared, own)
    uid = values.pop("uid")
    return sa.update(table).where(table.c.uid == uid).values(values)


def _set_values(table: sa.Table, shared: tuple[str, ...], own: tuple[str, ...]) -> dict[str, sa.ColumnElement[Any]]:
    """Return the expression for each column: a column of the arrays, or the shared value."""
    # Cast texts without a length, so that the column refuses a text that is too long. A cast with a length would cut
    # it.
    kinds = {name: sa.Text() if isinstance(table.c[name].type, sa.String) else table.c[name].type for name in own}
    arrays = [
        sa.cast(sa.bindparam(f"a_{name}", type_=sa.Text), sa.ARRAY(kind, dimensions=1)) for name, kind in kinds.items()
    ]
    columns = [sa.column(name, kind) for name, kind in kinds.items()]
    given = sa.func.unnest(*arrays).table_valued(*columns, name="given").render_derived()
    values: dict[str, sa.ColumnElement[Any]] = {name: given.c[name] for name in own}
    return values | {name: sa.bindparam(f"s_{name}", type_=table.c[name].type) for name in shared}


@lru_cache(maxsize=64)
def _one_insert(dialect: Dialect, table: sa.Table, or_ignore: bool) -> sa.Insert:
    statement = dialect.insert(table)
    return statement.on_conflict_do_nothing() if or_ignore else statement


@lru_cache(maxsize=1024)
def _one_update(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    values = {name: sa.bindparam(f"b_{name}", type_=table.c[name].type) for name in names if name != "uid"}
    return sa.update(table).where(table.c.uid == sa.bindparam("b_uid")).values(values)


@lru_cache(maxsize=1024)
def _each_insert(table: sa.Table, names: tuple[str, ...], or_ignore: bool) -> str:
    listed, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" for _ in names)
    conflict = " ON CONFLICT DO NOTHING" if or_ignore else ""
    return f"INSERT INTO {table.name} ({listed}) VALUES ({marks}){conflict}"  # noqa: S608 - names of our columns


@lru_cache(maxsize=1024)
def _document_insert(table: sa.Table, own: tuple[str, ...], shared: tuple[str, ...], or_ignore: bool) -> str:
    listed = ", ".join(f'"{name}"' for name in (*own, *shared))
    values = ", ".join([*(f"json_extract(value, '$[{at}]')" for at in range(len(own))), *("?" for _ in shared)])
    conflict = " WHERE true ON CONFLICT DO NOTHING" if or_ignore else ""
    return f"INSERT INTO {table.name} ({listed}) SELECT {values} FROM json_each(?){conflict}"  # noqa: S608 - as above


@lru_cache(maxsize=1024)
def _each_update(table: sa.Table, names: tuple[str, ...]) -> str:
    listed = ", ".join(f'"{name}" = ?' for name in names if name != "uid")
    return f'UPDATE {table.name} SET {listed} WHERE "uid" = ?'  # noqa: S608 - names of our columns


def _raw_rows(connection: Connection, table: sa.Table, columns: Columns) -> list[tuple[Any, ...]]:
    """Return rows as SQLite stores them. A value that many rows share, such as an instant, is converted once."""
    return list(zip(*(_raw(connection, table.c[name].type, values) for name, values in columns.items()), strict=True))


def _raw(connection: Connection, kind: Any, values: Sequence[Any]) -> Sequence[Any]:
    convert = kind.dialect_impl(connection.dialect).bind_processor(connection.dialect)
    if convert is None:
        return values
    known = {value: convert(value) for value in {*values}}
    return [known[value] for value in values]
