"""The end of a run in one statement: both rows are written or none, whatever others do to either meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import sqlalchemy as sa
from psycopg import _queries

from rqsched.features.limits.store import STARTS_UNCOUNTED
from rqsched.features.notifications.store import HAS_NO_RECEIVER
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.claims import StartedRun
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs, schedules
from tests.kernel.store.samples import LATER, add_runs, add_schedule, find, find_run, run_of
from tests.support.narrow import present
from tests.support.sql import wait_for_a_lock

pytestmark = pytest.mark.postgres
TOKEN = "T" * 26


@dataclass(frozen=True)
class Success:
    """A run that was claimed, and its success as it is decided from that."""

    database: Database
    started: StartedRun
    change: Change

    def write(self, *, token: str = TOKEN, version: str | None = None) -> bool:
        given = version or present(self.started.version)
        end = partial(changes.end_alone, change=self.change, token=token, version=given)
        return self.database.transact_alone(end) is not None

    def rows(self) -> tuple[Schedule, Run]:
        run, schedule, _ = self.started
        return present(find(self.database, schedule.uid)), present(find_run(self.database, run.uid))

    def is_written(self) -> bool:
        schedule, run = self.rows()
        return (schedule.success_count, run.status) == (1, RunStatus.SUCCEEDED)

    def is_untouched(self) -> bool:
        schedule, run = self.rows()
        return (schedule.success_count, run.result) == (0, None)


@pytest.fixture
def succeeding(postgres_database: Database) -> Success:
    schedule = add_schedule(postgres_database)
    [run] = add_runs(postgres_database, schedule, [run_of(schedule, 1)])
    start = {"token": TOKEN, "started_at": LATER, "worker": "worker-1"}
    claim = partial(claims.start_run, run_uid=run.uid, attempt=1, delivery=1, start=start)
    started = present(postgres_database.transact_alone(claim))
    success = AttemptResult(AttemptOutcome.SUCCEEDED, result="1")
    change = decide_settle(started.schedule, [started.run], started.run, success, now=LATER)
    return Success(postgres_database, started, change)


@contextmanager
def beside(database: Database, act: Callable[[sa.Connection], object], end: Callable[[], bool]) -> Iterator[list[bool]]:
    """Let `end` wait for what `act` has done in a transaction that is committed once it waits."""
    found: list[bool] = []
    with ThreadPoolExecutor(1) as threads:
        with database.engine.begin() as connection:
            act(connection)
            ended = threads.submit(end)
            wait_for_a_lock(database)
        found.append(ended.result())
    yield found


def test_both_rows_are_written(succeeding: Success) -> None:
    assert succeeding.write()
    assert succeeding.is_written()
    assert succeeding.rows()[1].result == "1"


def test_psycopg_keeps_what_it_has_parsed_of_a_claim_and_an_end(succeeding: Success) -> None:
    sent: list[tuple[str, dict[str, object]]] = []
    run, database = succeeding.started.run, succeeding.database
    start = {"token": TOKEN, "started_at": LATER, "worker": "worker-1"}
    sa.event.listen(database.engine, "before_cursor_execute", lambda *told: sent.append(told[2:4]))

    for alone in (None, (HAS_NO_RECEIVER, STARTS_UNCOUNTED)):
        claim = partial(claims.start_run, run_uid=run.uid, attempt=1, delivery=1, start=start, alone=alone)
        assert present(database.transact_alone(claim)).run == run
    assert succeeding.write()

    assert len(sent) == 3
    for text, given in sent:
        assert len(text) <= _queries.MAX_CACHED_STATEMENT_LENGTH
        assert len(given) <= _queries.MAX_CACHED_STATEMENT_PARAMS


def test_nothing_is_written_twice(succeeding: Success) -> None:
    assert [succeeding.write(), succeeding.write()] == [True, False]
    assert succeeding.is_written()


def test_nothing_is_written_under_another_token(succeeding: Success) -> None:
    assert not succeeding.write(token="U" * 26)
    assert succeeding.is_untouched()


def test_nothing_is_written_when_the_schedule_has_changed_since_the_claim(succeeding: Success) -> None:
    succeeding.database.transact(lambda c: c.execute(sa.update(schedules).values(note="other")))
    assert not succeeding.write()
    assert succeeding.is_untouched()


def test_lock_of_the_schedule_that_changed_nothing_is_no_change(succeeding: Success) -> None:
    succeeding.database.transact(lambda c: changes.lock_one(c, succeeding.started.schedule.uid))
    assert succeeding.write()
    assert succeeding.is_written()


def test_heartbeat_meanwhile_is_no_change(succeeding: Success) -> None:
    succeeding.database.transact(lambda c: claims.record_heartbeat(c, succeeding.started.run.uid, TOKEN))
    assert succeeding.write()
    assert succeeding.is_written()


def change_schedule(connection: sa.Connection) -> None:
    connection.execute(sa.update(schedules).values(buffer_depth=1))


def cancel_run_alone(connection: sa.Connection) -> None:
    connection.execute(sa.select(schedules.c.uid).with_for_update(key_share=True))
    connection.execute(sa.update(runs).values(status="cancelled"))


@pytest.mark.parametrize("act", [change_schedule, cancel_run_alone])
def test_nothing_is_written_after_waiting_for_a_transaction_that_changed_either_row(
    succeeding: Success, act: Callable[[sa.Connection], None]
) -> None:
    with beside(succeeding.database, act, succeeding.write) as found:
        assert found == [False]
    assert succeeding.is_untouched()


def test_end_that_waits_for_a_heartbeat_is_written(succeeding: Success) -> None:
    def beat(connection: sa.Connection) -> None:
        claims.record_heartbeat(connection, succeeding.started.run.uid, TOKEN)

    with beside(succeeding.database, beat, succeeding.write) as found:
        assert found == [True]
    assert succeeding.is_written()
