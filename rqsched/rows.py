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

_IDENTITY = frozenset({"uid", "namespace", "schedule_id", "created_at"})
SCHEDULE_STATE = [name for name in _SCHEDULE if name not in _IDENTITY]
"""What a decision may change beside the definition."""
RUN_STATE = [
    "status", "trigger_number", "lineage", "attempt", "delivery", "token", "worker", "queued_at", "started_at",
    "ended_at", "retry_at", "heartbeat_at", "attempts", "result", "error",
]  # fmt: skip
"""What a decision may change about a run."""


def to_schedule(row: Sequence[Any]) -> Schedule:
    """Read a schedule from a row of SCHEDULE_COLUMNS."""
    split = len(DEFINITION)
    values = list(row[split:])
    values[_STATUS_AT] = ScheduleStatus(values[_STATUS_AT])
    return Schedule(definition=Definition(*row[:split]), **dict(zip(_SCHEDULE, values, strict=True)))


def to_run(row: Sequence[Any]) -> Run:
    """Read a run from a row of RUN_COLUMNS."""
    values = list(row)
    values[_RUN_STATUS_AT] = RunStatus(values[_RUN_STATUS_AT])
    values[_RUN_KIND_AT] = RunKind(values[_RUN_KIND_AT])
    return Run(*values)


def schedule_values(schedule: Schedule) -> dict[str, Any]:
    """Give every column of a schedule."""
    values = {name: getattr(schedule, name) for name in _SCHEDULE}
    values["status"] = schedule.status.value
    return values | definition_values(schedule.definition)


def definition_values(definition: Definition) -> dict[str, Any]:
    """Give the columns of what the owner declared."""
    return {name: getattr(definition, name) for name in DEFINITION}


def state_values(schedule: Schedule) -> dict[str, Any]:
    """Give the columns a decision may change."""
    values = {name: getattr(schedule, name) for name in SCHEDULE_STATE}
    values["status"] = schedule.status.value
    return values


def run_values(run: Run) -> dict[str, Any]:
    """Give every column of a new run."""
    values = {name: getattr(run, name) for name in _RUN}
    return values | {"status": run.status.value, "kind": run.kind.value}


def run_state_values(run: Run) -> dict[str, Any]:
    """Give the columns of a run that a decision may change."""
    return {name: getattr(run, name) for name in RUN_STATE} | {"status": run.status.value}
