"""Rows and states: how `Schedule` and `Run` lie in the tables. The only place that knows the order of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from .state import Definition, Run, RunKind, RunStatus, Schedule, ScheduleStatus
from .tables import runs, schedules

DEFINITION = [field.name for field in fields(Definition)]
"""What an owner declares."""
_SCHEDULE = [field.name for field in fields(Schedule) if field.name != "definition"]
_RUN = [field.name for field in fields(Run)]
_STATUS_AT = _SCHEDULE.index("status")
_RUN_STATUS_AT = _RUN.index("status")
_RUN_KIND_AT = _RUN.index("kind")

SCHEDULE_COLUMNS = [schedules.c[name] for name in (*DEFINITION, *_SCHEDULE)]
"""What `to_schedule` reads, in its order."""
RUN_COLUMNS = [runs.c[name] for name in _RUN]
"""What `to_run` reads, in its order."""


def to_schedule(row: Sequence[Any]) -> Schedule:
    """Read a schedule from a row of SCHEDULE_COLUMNS."""
    split = len(DEFINITION)
    values = list(row[split:])
    values[_STATUS_AT] = ScheduleStatus(values[_STATUS_AT])
    schedule = object.__new__(Schedule)  # no check to run: the row was a Schedule, and every fire reads one
    schedule.__dict__.update(zip(_SCHEDULE, values, strict=True), definition=Definition(*row[:split]))
    return schedule


def to_run(row: Sequence[Any]) -> Run:
    """Read a run from a row of RUN_COLUMNS."""
    values = list(row)
    values[_RUN_STATUS_AT] = RunStatus(values[_RUN_STATUS_AT])
    values[_RUN_KIND_AT] = RunKind(values[_RUN_KIND_AT])
    return Run(*values)


def schedule_values(schedule: Schedule) -> dict[str, Any]:
    """Give every column of a schedule."""
    definition = schedule.definition
    values = {name: getattr(definition, name) for name in DEFINITION}
    values |= {name: getattr(schedule, name) for name in _SCHEDULE}
    values["status"] = schedule.status.value
    return values


def run_values(run: Run) -> dict[str, Any]:
    """Give every column of a new run."""
    values = {name: getattr(run, name) for name in _RUN}
    return values | {"status": run.status.value, "kind": run.kind.value}
