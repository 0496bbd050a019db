"""Schedules and runs as the pure decisions make them, written through the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.lifecycle import Identity
from rqsched.kernel.decide.model import Change, Definition, Run, RunKind, RunStatus, Schedule, dump_spec
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.when.members import Cron
from rqsched.when.spec import Spec

NOW = datetime(2026, 1, 15, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def spec_text(expression: str = "*/5 * * * *", timezone: str = "UTC") -> str:
    return dump_spec(Spec([Cron(expression)], timezone=timezone))


def created(schedule_id: str = "report", *, incarnation: int = 1, **definition: Any) -> Change:
    """The Change that creates a schedule every five minutes."""
    uid = derived_uid(NOW, schedule_id, incarnation)
    declared = Definition(**{"spec": spec_text(), "workflow": "report", **definition})
    return lifecycle.decide_create(Identity(uid, "default", schedule_id), declared, now=NOW, operation=uid)


def write(database: Database, *written: Change) -> None:
    database.transact(lambda connection: changes.write(connection, written))


def add_schedule(database: Database, schedule_id: str = "report", **definition: Any) -> Schedule:
    """A schedule that is in the database."""
    change = created(schedule_id, **definition)
    write(database, change)
    return change.after


def run_of(schedule: Schedule, number: int, status: RunStatus = RunStatus.PENDING, **fields: Any) -> Run:
    """The schedule's `number`-th run; its occurrence is `number` minutes after NOW."""
    kind = fields.pop("kind", RunKind.SCHEDULED)
    return Run(
        uid=derived_uid(NOW, schedule.uid, number),
        schedule_uid=schedule.uid,
        number=number,
        instance_id=f"schedule:{schedule.schedule_id}:{number}",
        kind=kind,
        occurrence_at=fields.pop("occurrence_at", NOW + timedelta(minutes=number)),
        status=status,
        created_at=NOW,
        workflow="report",
        **fields,
    )


def add_runs(database: Database, schedule: Schedule, runs: Iterable[Run]) -> list[Run]:
    """Runs that are in the database, offered in this order."""
    runs = list(runs)
    write(database, Change(schedule, replace(schedule, run_number=len(runs)), new_runs=tuple(runs)))
    return runs


def find(database: Database, uid: str) -> Schedule | None:
    return database.read(lambda connection: changes.find(connection, uid))


def find_run(database: Database, uid: str) -> Run | None:
    return database.read(lambda connection: changes.find_run(connection, uid))


def count(connection: Connection, table: str) -> int:
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())
