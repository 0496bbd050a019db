"""Operations in the caller's own transaction when something else fails."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import DatabaseUnavailableError, ScheduleExistsError, TransactionConflictError
from rqsched.kernel.transport.breaker import RedisAwayError
from tests.support.application import Application, application
from tests.support.env import MakeEnv, link_id, types
from tests.support.invariants import check_invariants
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

pytestmark = pytest.mark.every_database


class Together:
    """Two transactions of two threads; each waits for the other where it is told to."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.barrier = threading.Barrier(2, timeout=60)
        self.errors: list[Exception] = []

    def run(self, *stories: Any) -> None:
        threads = [threading.Thread(target=self._tell, args=(story,)) for story in stories]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    def _tell(self, story: Any) -> None:
        try:
            with self.app.engine.begin() as connection:
                story(connection)
        except Exception as error:  # noqa: BLE001 - judged by the test
            self.errors.append(error)


def test_redis_that_hangs_at_the_commit_is_waited_for_once(
    make_env: MakeEnv, own_valkey: ValkeyServer, database_url: str
) -> None:
    with application(make_env(database_url=database_url, redis_url=own_valkey.url, redis_timeout=1)) as app:
        app.env.create("before")
        with own_valkey.hanging():
            with app.session() as session:
                for number in range(30):
                    app.env.create(f"s{number}", session=session)
                session.commit()
            with pytest.raises(RedisAwayError):  # the breaker is open: nobody waits any more
                app.env.redis.ping()
            with app.engine.begin() as connection:
                app.env.create("after", connection=connection)
        assert len(app.names()) == 32


@pytest.mark.postgres
def test_of_two_that_create_the_same_schedule_the_second_waits_and_is_told_that_it_exists(
    postgres_app: Application,
) -> None:
    together = Together(postgres_app)
    waits = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    tried: list[str] = []

    def be_first(connection: sa.Connection) -> None:
        postgres_app.env.create(connection=connection)
        together.barrier.wait()
        with postgres_app.engine.connect() as watching:
            other = watching.execution_options(isolation_level="AUTOCOMMIT")
            wait_until(lambda: other.execute(waits).scalar_one(), what="the other to wait")

    def be_second(connection: sa.Connection) -> None:
        together.barrier.wait()
        tried.append("once")
        postgres_app.env.create(connection=connection)

    together.run(be_first, be_second)
    assert [type(error) for error in together.errors] == [ScheduleExistsError]
    assert tried == ["once"]
    assert postgres_app.linked() == ["report"]


@pytest.mark.postgres
def test_deadlock_of_two_transactions_is_a_conflict_of_one(postgres_app: Application) -> None:
    one, two = postgres_app.env.create("one"), postgres_app.env.create("two")
    together = Together(postgres_app)

    def story(first: ScheduleHandle, second: ScheduleHandle) -> Any:
        def tell(connection: sa.Connection) -> None:
            first.pause(connection=connection)
            together.barrier.wait()
            second.update(note="seen", connection=connection)

        return tell

    together.run(story(one, two), story(two, one))
    assert [type(error) for error in together.errors] == [TransactionConflictError]
    assert sorted(handle.refresh().status for handle in (one, two)) == ["active", "paused"]


@pytest.mark.postgres
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_snapshot_from_before_another_commit_is_a_conflict_and_a_fresh_one_is_not(
    postgres_app: Application, level: str
) -> None:
    schedule = postgres_app.env.create()
    engine = postgres_app.engine.execution_options(isolation_level=level)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM orders")
        schedule.pause()
        with pytest.raises(TransactionConflictError):
            schedule.resume(connection=connection)
        connection.rollback()
        schedule.resume(connection=connection)
        schedule.trigger(connection=connection)
        postgres_app.env.create("other", connection=connection)
        connection.commit()
    assert postgres_app.linked() == ["other", "report"]
    check_invariants(postgres_app.env.runtime)


@pytest.mark.postgres
def test_nothing_is_repeated_in_the_callers_transaction(postgres_app: Application) -> None:
    schedule = postgres_app.env.create()
    locks: list[str] = []

    def count(_: object, __: object, statement: str, *___: object) -> None:
        locks.extend(["locked"] if "FOR NO KEY UPDATE" in statement else [])

    with postgres_app.engine.begin() as holder, postgres_app.engine.connect() as connection:
        schedule.pause(connection=holder)
        sa.event.listen(postgres_app.engine, "before_cursor_execute", count)
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        with pytest.raises(TransactionConflictError):
            schedule.trigger(connection=connection)
    assert locks == ["locked"]


@pytest.mark.postgres
def test_connection_that_is_lost_is_an_unavailable_database(postgres_app: Application) -> None:
    with postgres_app.engine.connect() as connection, postgres_app.engine.connect() as operator:
        postgres_app.env.create(connection=connection)
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        operator.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 10000)")
        with pytest.raises(DatabaseUnavailableError, match="your transaction cannot go on"):
            postgres_app.env.create("other", connection=connection)
    assert (postgres_app.names(), postgres_app.env.armed()) == ([], {})


def test_transaction_that_is_repeated_under_its_key_publishes_what_the_first_could_not(app: Application) -> None:
    for _ in range(2):
        with app.engine.begin() as connection:
            created = app.env.create(idempotency_key="7", connection=connection)
            run = created.trigger(idempotency_key="7", connection=connection).run
        assert run is not None
        assert link_id(created.refresh()) in app.env.armed()
        assert len(app.env.queued()) == 1
        app.env.redis.flushdb()
    assert types(created) == ["Created", "Triggered"]
    app.env.recover(deep=True)
    check_invariants(app.env.runtime)


def test_notifications_of_a_transaction_are_enqueued_after_its_commit(make_env: MakeEnv, database_url: str) -> None:
    told = {"webhook": "https://example.com/hook", "events": ["SchedulePaused", "ScheduleResumed"]}
    with application(make_env(database_url=database_url, webhook_secret="a secret")) as app:
        schedule = app.env.create(notifications=told)
        with app.engine.begin() as connection:
            schedule.pause(connection=connection)
            savepoint = connection.begin_nested()
            schedule.resume(connection=connection)
            savepoint.rollback()
            assert app.env.queued() == []
        (delivery,) = schedule.deliveries().items
        assert delivery.event_type == "SchedulePaused"
        assert [delivery.uid in job for job in app.env.queued()] == [True]


def test_subscriber_that_raises_harms_no_commit(app: Application, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("not today")

    app.env.scheduler.on("ScheduleCreated", fail)
    with caplog.at_level(logging.ERROR), app.session() as session:
        app.env.create(session=session)
        session.commit()
    assert "subscriber_failed" in {getattr(record, "action", "") for record in caplog.records}
    assert app.linked() == ["report"]


def test_commit_in_a_thread_that_runs_an_event_loop_does_not_wait_for_the_publication(app: Application) -> None:
    published_by: list[threading.Thread] = []
    app.env.scheduler.on("*", lambda _: published_by.append(threading.current_thread()))

    async def commit() -> None:
        with app.session() as session:
            app.env.create(session=session)
            session.commit()

    asyncio.run(commit())
    assert app.linked() == ["report"]
    assert threading.main_thread() not in published_by
    assert len(published_by) == 1
