"""One Change in one statement: it writes what the statements of a batch write, or nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.kernel.decide.model import Change, RunKind, RunStatus, Schedule, changed
from rqsched.kernel.decide.runs_on_request import Trigger, decide_trigger
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.rows import columns_of, event_rows, insert_rows, run_values, schedule_values
from rqsched.kernel.store.tables import audit_events, runs, schedules
from tests.kernel.store.samples import LATER, add_runs, add_schedule, find, run_of
from tests.support.narrow import present

pytestmark = pytest.mark.postgres
UIDS = [letter * 26 for letter in "ABC"]


@pytest.fixture
def database(postgres_database: Database) -> Database:
    return postgres_database


def rows_of(database: Database, table: sa.Table) -> list[dict[str, Any]]:
    read = sa.select(table).order_by(*table.primary_key)
    return [dict(row) for row in database.read(lambda connection: connection.execute(read).mappings().all())]


def everything(database: Database) -> list[list[dict[str, Any]]]:
    return [rows_of(database, table) for table in (schedules, runs, audit_events)]


def read_idle(database: Database, schedule: Schedule) -> tuple[Schedule, str] | None:
    return database.transact_alone(partial(changes.read_idle, uid=schedule.uid))


def test_schedule_without_open_runs_is_read_with_the_version_of_its_row(database: Database) -> None:
    schedule = add_schedule(database)
    add_runs(database, schedule, [run_of(schedule, 1, status=RunStatus.SUCCEEDED)])
    found, version = present(read_idle(database, schedule))
    assert found == find(database, schedule.uid)
    database.transact(partial(changes.lock_one, uid=schedule.uid))
    assert read_idle(database, schedule) == (found, version)
    database.transact(lambda c: c.execute(sa.update(schedules).values(note="other")))
    assert present(read_idle(database, schedule))[1] != version


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.RETRYING])
def test_schedule_with_an_unfinished_run_is_not_idle(database: Database, status: RunStatus) -> None:
    schedule = add_schedule(database)
    add_runs(database, schedule, [run_of(schedule, 1, status=status)])
    assert read_idle(database, schedule) is None


def test_unfinished_run_of_a_backfill_or_of_another_schedule_leaves_a_schedule_idle(database: Database) -> None:
    schedule, other = add_schedule(database), add_schedule(database, "other")
    add_runs(database, schedule, [run_of(schedule, 1, kind=RunKind.BACKFILL)])
    add_runs(database, other, [run_of(other, 1)])
    assert present(read_idle(database, schedule))[0].uid == schedule.uid


@pytest.mark.parametrize("counted", ["buffer_depth", "backfill_waiting"])
def test_schedule_that_has_runs_waiting_is_not_idle(database: Database, counted: str) -> None:
    schedule = add_schedule(database)
    database.transact(lambda c: c.execute(sa.update(schedules).values({counted: 1})))
    assert read_idle(database, schedule) is None


def test_schedule_that_is_nowhere_is_not_idle(database: Database) -> None:
    assert database.transact_alone(partial(changes.read_idle, uid=UIDS[2])) is None


@pytest.mark.parametrize("is_locked", [True, False], ids=["locked", "of a version"])
def test_trigger_written_by_one_statement_is_stored_as_by_a_batch(database: Database, is_locked: bool) -> None:
    schedule = add_schedule(database)
    change, _ = decide_trigger(schedule, [], Trigger(UIDS[0], None, False, None), now=LATER)
    version = None if is_locked else present(read_idle(database, schedule))[1]

    assert database.transact(partial(changes.write_one, change=change, version=version))
    found = everything(database)

    assert find(database, schedule.uid) == change.after
    values = schedule_values(change.after)
    assert {name: found[0][0][name] for name in values} == values
    assert found[2][-len(change.events) :] == event_rows(change)
    row = run_values(change.new_runs[0])
    assert {name: found[1][0][name] for name in row} == row


def test_nothing_is_written_when_the_row_is_no_more_that_version(database: Database) -> None:
    schedule = add_schedule(database)
    change, _ = decide_trigger(schedule, [], Trigger(UIDS[0], None, False, None), now=LATER)
    version = present(read_idle(database, schedule))[1]
    database.transact(lambda c: c.execute(sa.update(schedules).values(note="other")))
    before = everything(database)

    assert not database.transact_alone(partial(changes.write_one, change=change, version=version))
    assert everything(database) == before


def test_nothing_is_written_and_nothing_waited_for_while_another_transaction_holds_the_row(database: Database) -> None:
    schedule = add_schedule(database)
    change, _ = decide_trigger(schedule, [], Trigger(UIDS[0], None, False, None), now=LATER)
    version = present(read_idle(database, schedule))[1]
    before = everything(database)

    with database.engine.begin() as other:
        changes.lock_one(other, schedule.uid)
        assert not database.transact_alone(partial(changes.write_one, change=change, version=version))
    assert everything(database) == before


def test_change_of_runs_that_there_are_is_left_to_a_batch(database: Database) -> None:
    schedule = add_schedule(database)
    started, _ = decide_trigger(schedule, [], Trigger(UIDS[0], None, False, None), now=LATER)
    database.transact(partial(changes.write, changes=[started]))
    [run] = started.new_runs
    ended = changed(run, worker="w")
    change = Change(started.after, started.after, changed_runs=((run, ended),), events=started.events)

    assert not database.transact(partial(changes.write_one, change=change))


def test_run_whose_name_is_taken_is_left_out_and_the_rest_written(database: Database) -> None:
    schedule = add_schedule(database)
    change, _ = decide_trigger(schedule, [], Trigger(UIDS[0], None, False, None), now=LATER)
    database.transact(lambda c: insert_rows(c, runs, columns_of([run_values(change.new_runs[0])])))

    assert database.transact(partial(changes.write_one, change=change))

    assert len(rows_of(database, runs)) == 1
    assert find(database, schedule.uid) == change.after
