"""How `Schedule` and `Run` are stored in rows. The only module that knows the order of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import sqlalchemy as sa

from rqsched.core.model import DEFINITION, Change, Definition, Run, RunKind, RunStatus, Schedule, ScheduleStatus, dumps
from rqsched.store.bulk import Columns, columns_of
from rqsched.store.tables import runs, schedules

_State = TypeVar("_State", Definition, Schedule, Run)

_SCHEDULE = tuple(field.name for field in fields(Schedule) if field.name != "definition")
_RUN = tuple(field.name for field in fields(Run))
_DECLARED = frozenset(DEFINITION)
_ALL = (*DEFINITION, *_SCHEDULE)
_STATUS_AT = _SCHEDULE.index("status")
_RUN_STATUS_AT = _RUN.index("status")
_RUN_KIND_AT = _RUN.index("kind")

SCHEDULE_COLUMNS = [schedules.c[name] for name in (*DEFINITION, *_SCHEDULE)]
"""The columns `to_schedule` reads, in its order."""
RUN_COLUMNS = [runs.c[name] for name in _RUN]
"""The columns `to_run` reads, in its order."""
ROW_VERSION: sa.ColumnElement[str] = sa.literal_column(f"{schedules.fullname}.xmin::text", sa.Text)
"""The transaction that wrote a schedule's row as it is; no lock of it changes that (PostgreSQL)."""
SELECT_SCHEDULES = sa.select(*SCHEDULE_COLUMNS)
SELECT_RUNS = sa.select(*RUN_COLUMNS)
"""Built once: naming a hundred columns takes longer than the rest of a short query."""
_BLANK = {"action": '{"args":[],"kwargs":{}}', "memo": "{}", "search_attributes": "{}", "lineage": "{}"}
_BLANK_RUN = {**_BLANK, "attempts": "[]", "result": None}


def _slim(columns: Sequence[sa.Column[Any]], blanks: Mapping[str, str | None]) -> sa.Select[Any]:
    known: dict[str, sa.ColumnElement[Any]] = {
        name: sa.literal_column("NULL" if text is None else f"'{text}'") for name, text in blanks.items()
    }
    return sa.select(*(known[c.name].label(c.name) if c.name in known else c for c in columns))


SELECT_SLIM_SCHEDULES = _slim(SCHEDULE_COLUMNS, _BLANK)
"""Schedules without arguments, memo and search attributes, which may be large."""
SELECT_SLIM_RUNS = _slim(RUN_COLUMNS, _BLANK_RUN)
"""Runs without those, their lineage, attempts and results."""


def to_schedule(row: Sequence[Any]) -> Schedule:
    """Read a schedule from a row of SCHEDULE_COLUMNS."""
    split = len(DEFINITION)
    values = list(row[split:])
    values[_STATUS_AT] = ScheduleStatus(values[_STATUS_AT])
    definition = _made(Definition, zip(DEFINITION, row, strict=False))
    return _made(Schedule, zip(_SCHEDULE, values, strict=True), definition=definition)


def to_run(row: Sequence[Any]) -> Run:
    """Read a run from a row of RUN_COLUMNS."""
    values = list(row)
    values[_RUN_STATUS_AT] = RunStatus(values[_RUN_STATUS_AT])
    values[_RUN_KIND_AT] = RunKind(values[_RUN_KIND_AT])
    return _made(Run, zip(_RUN, values, strict=True))


def _made(kind: type[_State], values: Iterable[tuple[str, Any]], **more: Any) -> _State:
    """Return a state of these fields: half of what `__init__` takes, and every fire and run reads some."""
    state = object.__new__(kind)
    state.__dict__.update(values, **more)
    return state


def schedule_values(schedule: Schedule, names: Sequence[str] = _ALL) -> dict[str, Any]:
    """Return the columns of a schedule, or the named ones."""
    definition = schedule.definition
    values = {name: getattr(definition if name in _DECLARED else schedule, name) for name in names}
    if "status" in values:
        values["status"] = schedule.status.value
    return values


def schedule_columns(found: Sequence[Schedule], names: Sequence[str] = _ALL) -> Columns:
    """Return the columns of schedules, or the named ones, each with its values."""
    own, declared = ([name for name in names if (name in _DECLARED) is of] for of in (False, True))
    columns = _columns_of(found, own) | _columns_of([one.definition for one in found], declared)
    if "status" in columns:
        columns["status"] = [status.value for status in columns["status"]]
    return columns


def _columns_of(found: Sequence[object], names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return what objects have under these names."""
    if not found:
        return dict.fromkeys(names, ())
    return dict(zip(names, zip(*map(_reader(tuple(names)), found), strict=True), strict=True))


@lru_cache(maxsize=1024)
def _reader(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    """Return what reads these fields of an object, all in one step: there may be fifty."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def schedule_differences(before: Schedule, after: Schedule) -> set[str]:
    """Return the columns in which two states of a schedule differ."""
    found = _differences(_SCHEDULE, before, after)
    if before.definition is not after.definition:
        found |= _differences(DEFINITION, before.definition, after.definition)
    return found


def run_values(run: Run, names: Sequence[str] = _RUN) -> dict[str, Any]:
    """Return the columns of a run, or the named ones."""
    values = dict(zip(names, _reader(tuple(names))(run), strict=True))
    for name in ("status", "kind"):
        if name in values:
            values[name] = values[name].value
    return values


def run_columns(found: Sequence[Run], names: Sequence[str] = _RUN) -> Columns:
    """Return the columns of runs, or the named ones, each with its values."""
    columns = _columns_of(found, names)
    for name in ("status", "kind"):
        if name in columns:
            columns[name] = [word.value for word in columns[name]]
    return columns


def run_differences(before: Run, after: Run) -> set[str]:
    """Return the columns in which two states of a run differ."""
    return _differences(_RUN, before, after)


def _differences(names: Sequence[str], before: object, after: object) -> set[str]:
    values = _reader(tuple(names))
    # Most fields are the very same object in both.
    return {
        name
        for name, old, new in zip(names, values(before), values(after), strict=True)
        if old is not new and old != new
    }


def event_columns(changes: Sequence[Change]) -> Columns:
    """Return the columns of the events of Changes; what Changes that were decided alike share is written once."""
    texts: dict[int, str] = {}
    return columns_of([row for change in changes for row in event_rows(change, texts)])


def event_rows(change: Change, texts: dict[int, str] | None = None) -> list[dict[str, Any]]:
    """Number a Change's events: sequences have no gaps because the counter is in the schedule's locked row.

    `texts` are those of payloads that were written before, by the identity of the payload.
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
