"""Operations in the caller's own transaction: written and rolled back with it, published after its commit."""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.pool import NullPool

from rqsched import Every
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    ConflictError,
    InvalidInputError,
    InvalidTypeError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    ScheduleStateError,
    TransactionConflictError,
    WrongDatabaseError,
)
from tests.support.application import Application, application, orders
from tests.support.env import MINUTE, Env, MakeEnv, run_job_id, types
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

pytestmark = pytest.mark.every_database
Transaction: TypeAlias = sa.Connection | orm.Session


@contextmanager
def undone(transaction: Transaction) -> Iterator[None]:
    """A savepoint that is rolled back."""
    savepoint = transaction.begin_nested()
    yield
    savepoint.rollback()


def test_schedule_of_a_connections_transaction_is_written_and_published_with_its_commit(app: Application) -> None:
    with app.engine.begin() as connection:
        app.order(connection)
        created = app.env.create(connection=connection)
        assert app.names() == []
        assert app.env.armed() == {}
    assert created.next_run_at is not None
    assert (app.ordered(), app.names(), app.linked()) == ([1], ["report"], ["report"])
    check_invariants(app.env.runtime)


def test_schedule_of_a_sessions_transaction_is_published_when_commit_returns(app: Application) -> None:
    with app.session() as session:
        app.order(session)
        app.env.create(session=session)
        assert (app.names(), app.env.armed()) == ([], {})
        session.commit()
        assert (app.ordered(), app.names(), app.linked()) == ([1], ["report"], ["report"])


def test_every_commit_of_a_session_publishes_what_it_wrote(app: Application) -> None:
    with app.session() as session:
        for name in ("one", "two"):
            app.env.create(name, session=session)
            session.commit()
            assert name in app.linked()


def test_the_session_that_a_scoped_session_finds_is_taken(app: Application) -> None:
    sessions = orm.scoped_session(orm.sessionmaker(app.engine))
    app.env.create(session=sessions)
    sessions.commit()
    assert app.linked() == ["report"]
    sessions.remove()


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_schedule_of_a_connection_that_does_not_commit_never_was(app: Application, end: str) -> None:
    with app.engine.connect() as connection:
        app.order(connection)
        app.env.create(connection=connection)
        if end == "rollback":
            connection.rollback()
    assert (app.ordered(), app.names(), app.env.armed()) == ([], [], {})


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_schedule_of_a_session_that_does_not_commit_never_was(app: Application, end: str) -> None:
    with app.session() as session:
        app.order(session)
        app.env.create(session=session)
        if end == "rollback":
            session.rollback()
    assert (app.ordered(), app.names(), app.env.armed()) == ([], [], {})


def test_connection_that_is_kept_publishes_when_its_next_transaction_begins(app: Application) -> None:
    with app.engine.connect() as connection:
        app.env.create(connection=connection)
        connection.commit()
        assert app.env.armed() == {}
        connection.execute(sa.select(1))
        assert app.linked() == ["report"]


def test_connection_that_is_rolled_back_after_its_commit_publishes_what_it_committed(app: Application) -> None:
    with app.engine.connect() as connection:
        app.env.create("committed", connection=connection)
        connection.commit()
        app.env.create("undone", connection=connection)
        connection.rollback()
    assert app.names() == app.linked() == ["committed"]


def test_connection_of_an_engine_without_a_pool_publishes_when_it_is_closed(any_env: Env) -> None:
    with application(any_env, poolclass=NullPool) as app:
        with app.engine.begin() as connection:
            app.env.create(connection=connection)
        assert app.linked() == ["report"]


def test_engine_that_was_disposed_of_publishes_all_the_same(app: Application) -> None:
    for name in ("one", "two"):
        with app.engine.begin() as connection:
            app.env.create(name, connection=connection)
        app.engine.dispose()
    assert app.linked() == ["one", "two"]


def test_connection_that_is_forgotten_publishes_when_it_is_collected(app: Application) -> None:
    def forget() -> None:
        connection = app.engine.connect()
        app.env.create(connection=connection)
        connection.commit()

    forget()
    gc.collect()
    wait_until(lambda: app.linked() == ["report"], what="the link")


def test_session_over_a_connection_publishes_when_the_outer_transaction_commits(app: Application) -> None:
    with app.engine.connect() as connection:
        outer = connection.begin()
        with orm.Session(connection, join_transaction_mode="create_savepoint") as session:
            app.env.create(session=session)
            session.commit()
            assert app.env.armed() == {}
        outer.commit()
    assert app.linked() == ["report"]


def test_what_was_undone_by_a_savepoint_is_not_published(app: Application) -> None:
    schedule = app.env.create()
    with app.engine.begin() as connection:
        app.order(connection)
        with undone(connection):
            app.env.create("undone", connection=connection)
            assert schedule.trigger(connection=connection).outcome == "triggered"
        app.env.create("kept", connection=connection)
    assert app.ordered() == [1]
    assert app.names() == app.linked() == ["kept", "report"]
    assert app.env.queued() == []
    check_invariants(app.env.runtime)


def test_what_was_undone_by_a_sessions_savepoint_is_not_published(app: Application) -> None:
    schedule = app.env.create()
    with app.session() as session:
        with session.begin_nested():
            app.env.create("kept", session=session)
        assert app.env.armed().keys() == {f"sched-{schedule.uid}-n{schedule.state.n}-rc0"}
        with undone(session):
            schedule.trigger(session=session)
        session.commit()
    assert app.linked() == ["kept", "report"]
    assert app.env.queued() == []


def test_commit_that_fails_publishes_nothing(app: Application) -> None:
    lines = sa.Table(
        "lines",
        sa.MetaData(),
        sa.Column("id", sa.ForeignKey(orders.c.id, deferrable=True, initially="DEFERRED"), primary_key=True),
    )
    lines.create(app.engine)

    def order_what_is_not() -> None:
        with app.engine.begin() as connection:
            app.env.create(connection=connection)
            connection.execute(sa.insert(lines).values(id=7))

    if app.env.runtime.database.dialect.name == "sqlite":
        sa.event.listen(app.engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys=ON"))
        app.engine.dispose()
    with pytest.raises(sa.exc.IntegrityError):
        order_what_is_not()
    lines.drop(app.engine)
    assert (app.names(), app.env.armed()) == ([], {})


def _revived(schedule: ScheduleHandle, transaction: sa.Connection) -> None:
    schedule.pause(connection=transaction)
    schedule.resume(connection=transaction)


OPERATIONS: dict[str, tuple[Callable[[ScheduleHandle, Any], Any], list[str]]] = {
    "update": (lambda schedule, session: schedule.update(spec=Every("2m"), session=session), ["Updated"]),
    "pause": (lambda schedule, session: schedule.pause("away", session=session), ["Paused"]),
    "pause and resume": (_revived, ["Paused", "Resumed"]),
    "trigger": (lambda schedule, session: schedule.trigger(session=session), ["Triggered"]),
    "delete": (lambda schedule, session: schedule.delete(session=session), ["Deleted"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_operation_of_a_handle_is_a_part_of_the_transaction(app: Application, name: str, commits: bool) -> None:
    operate, recorded = OPERATIONS[name]
    schedule = app.env.create()
    before = schedule.state
    with app.engine.connect() as connection:
        app.order(connection)
        operate(schedule, connection)
        if commits:
            connection.commit()
    assert types(schedule) == ["Created", *(recorded if commits else [])]
    assert app.ordered() == ([1] if commits else [])
    assert (schedule.refresh().state == before) is not commits
    assert len(app.env.queued()) == int(commits and name == "trigger")
    check_invariants(app.env.runtime)


def test_done_schedule_is_restarted_in_a_transaction(app: Application) -> None:
    schedule = app.env.create(max_runs=1)
    app.env.run_next(schedule)
    assert schedule.refresh().status == "done"
    with app.session() as session:
        schedule.restart(session=session)
        session.commit()
    assert (schedule.refresh().status, app.linked()) == ("active", ["report"])


def test_upsert_in_a_transaction_creates_and_changes(app: Application) -> None:
    outcomes = []
    for minutes in (1, 2, 2):
        with app.engine.begin() as connection:
            _, outcome = app.env.scheduler.upsert("report", "note", Every(minutes * MINUTE), connection=connection)
            outcomes.append(outcome)
    assert outcomes == ["created", "updated", "unchanged"]
    assert app.linked() == ["report"]


def test_schedule_is_found_and_used_in_the_transaction_that_created_it(app: Application) -> None:
    with app.engine.begin() as connection:
        app.env.create(connection=connection)
        found = app.env.scheduler.get("report", connection=connection)
        found.trigger(connection=connection)
        with pytest.raises(ScheduleNotFoundError):
            app.env.scheduler.get("report")
    assert len(app.env.queued()) == 1
    check_invariants(app.env.runtime)


def test_triggers_of_one_transaction_see_each_other(app: Application) -> None:
    schedule = app.env.create()
    with app.engine.begin() as connection:
        outcomes = [schedule.trigger(connection=connection).outcome for _ in range(2)]
    assert outcomes == ["triggered", "skipped"]
    assert len(app.env.queued()) == 1


def test_run_that_a_transaction_cancels_loses_its_job_at_its_commit(app: Application) -> None:
    schedule = app.env.create()
    waiting = present(schedule.trigger().run)
    for commits in (False, True):
        with app.engine.connect() as connection:
            schedule.trigger("cancel_other", connection=connection)
            if commits:
                connection.commit()
        assert (run_job_id(waiting) in app.env.queued()) is not commits
    assert len(app.env.queued()) == 1


def test_end_of_a_run_that_a_transaction_cancels_is_logged_once(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rqsched.runs")
    schedule = app.env.create()
    run = present(schedule.trigger().run)
    with app.engine.begin() as connection:
        schedule.trigger("cancel_other", connection=connection)
    ends = [one.getMessage() for one in caplog.records if vars(one).get("action") == "run_ended"]
    assert ends == [f"run cancelled: default/report, run {run.uid}, attempt 1"]


def test_two_schedulers_of_one_transaction_publish_each_its_own(app: Application, make_env: MakeEnv) -> None:
    settings = app.env.scheduler.settings
    other = make_env(
        database_url=settings.database_url, redis_url=str(settings.redis_url).replace("/0", "/1"), control_queue="other"
    )
    other.redis.flushdb()
    with app.session() as session:
        app.env.create("ours", session=session)
        other.scheduler.create("theirs", "note", Every(MINUTE), session=session)
        session.commit()
    assert app.linked() == ["ours"]
    assert len(other.armed()) == 1
    other.redis.flushdb()


def test_events_are_told_after_the_commit_and_only_those_committed(app: Application) -> None:
    heard: list[str] = []
    known = app.env.create("known")
    app.env.scheduler.on("*", lambda message: heard.append(f"{message['event']} {message['data'].get('schedule_id')}"))
    with app.engine.begin() as connection:
        app.env.create(connection=connection)
        with undone(connection):
            app.env.create("undone", connection=connection)
            known.pause(connection=connection)
        assert heard == []
    assert heard == ["ScheduleCreated report"]


def test_connection_that_names_a_redis_is_an_option_also_in_a_transaction(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, connections={"eu": "redis://127.0.0.1:1/0"})
    with application(env) as app:
        with app.engine.begin() as transaction:
            created = app.env.create(connection="eu", session=transaction)
            with pytest.raises(InvalidInputError, match="not configured"):
                app.env.create("other", connection="us", session=transaction)
        assert created.refresh().state.definition.connection == "eu"


def test_redis_that_is_away_at_the_commit_is_logged_and_followed_by_reconcile(
    make_env: MakeEnv, own_valkey: ValkeyServer, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with application(make_env(database_url=database_url, redis_url=own_valkey.url, redis_timeout=1)) as app:
        with app.session() as session:
            app.env.create(session=session)
            own_valkey.stop()
            with caplog.at_level(logging.WARNING):
                session.commit()
        assert app.names() == ["report"]
        assert "follow_failed" in {getattr(record, "action", "") for record in caplog.records}
        own_valkey.start()
        worker = make_env(database_url=database_url, redis_url=own_valkey.url)
        worker.recover(deep=True)
        assert [schedule.uid in link for schedule in app.env.scheduler.iter() for link in worker.armed()] == [True]


def test_database_that_is_away_after_the_commit_is_logged_and_the_commit_stands(
    app: Application, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, ConnectionError("no route to host"))

    with app.session() as session:
        app.env.create(session=session)
        engine = app.env.runtime.database.engine
        sa.event.listen(engine, "begin", fail)
        with caplog.at_level(logging.ERROR):
            session.commit()
        sa.event.remove(engine, "begin", fail)
    assert "follow_failed" in {getattr(record, "action", "") for record in caplog.records}
    assert (app.names(), app.linked()) == (["report"], [])
    app.env.recover(deep=True)
    assert app.linked() == ["report"]


def test_refused_operation_leaves_the_transaction_as_it_was(app: Application) -> None:
    app.env.create()
    with app.engine.begin() as connection:
        app.order(connection)
        with pytest.raises(ScheduleExistsError):
            app.env.create(connection=connection)
        with pytest.raises(ScheduleStateError):
            app.env.scheduler.get("report", connection=connection).resume(connection=connection)
    assert (app.ordered(), app.names()) == ([1], ["report"])


def test_operation_that_fails_half_way_leaves_nothing_in_the_transaction(app: Application) -> None:
    def refuse(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO rqsched_audit_events" in statement:
            raise ZeroDivisionError

    with app.engine.begin() as connection:
        app.order(connection)
        sa.event.listen(connection, "before_cursor_execute", refuse)
        with pytest.raises(ZeroDivisionError):
            app.env.create(connection=connection)
    assert (app.ordered(), app.names(), app.env.armed()) == ([1], [], {})


def test_connection_to_another_database_is_refused_before_anything_is_written(
    app: Application, tmp_path: Path, make_env: MakeEnv
) -> None:
    other = make_env(database_url=f"sqlite:///{tmp_path / 'other.db'}")
    with application(other) as theirs, theirs.engine.begin() as connection:
        theirs.order(connection)
        with pytest.raises(WrongDatabaseError, match="another database than the scheduler's"):
            app.env.create(connection=connection)
    assert (other.scheduler.list().items, app.names()) == ([], [])


def test_connection_to_a_database_without_our_tables_is_refused(app: Application) -> None:
    for url in ("sqlite://", *([] if app.env.runtime.database.dialect.name == "sqlite" else [_bare(app)])):
        engine = sa.create_engine(url)
        with engine.connect() as connection, pytest.raises(WrongDatabaseError, match="no tables of rqsched"):
            app.env.create(connection=connection)
        engine.dispose()


def _bare(app: Application) -> str:
    return sa.make_url(app.env.runtime.database.url).set(database="postgres").render_as_string(hide_password=False)


def test_connection_in_autocommit_is_refused(app: Application) -> None:
    engine = app.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(InvalidTypeError, match="autocommit"):
        app.env.create(connection=connection)
    assert app.names() == []


def test_what_is_no_transaction_is_refused(app: Application) -> None:
    with app.engine.connect() as connection, pytest.raises(InvalidTypeError, match="both given"):
        app.env.create().pause(connection=connection, session=app.session())
    for wrong, words in ((app.engine, "Engine is not a SQLAlchemy Session"), (7, "int is not")):
        with pytest.raises(InvalidTypeError, match=words):
            app.env.create("other", session=wrong)
    with pytest.raises(InvalidTypeError, match="Engine is not a SQLAlchemy Connection"):
        app.env.create("other", connection=app.engine)


def test_purge_in_a_transaction_is_refused(app: Application) -> None:
    schedule = app.env.create()
    with app.engine.connect() as connection, pytest.raises(InvalidInputError, match="transaction of its own"):
        schedule.delete(purge=True, connection=connection)
    assert schedule.refresh().status == "active"


def test_settings_of_the_callers_connection_stay_as_they_are(app: Application) -> None:
    if app.env.runtime.database.dialect.name == "sqlite":
        shown = [f"PRAGMA {name}" for name in ("busy_timeout", "synchronous", "foreign_keys")]
    else:
        limits = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        shown = [f"SHOW {name}" for name in (*limits, "timezone", "transaction_isolation")]

    def settings(connection: sa.Connection) -> list[Any]:
        return [connection.exec_driver_sql(statement).scalar_one() for statement in shown]

    with app.engine.begin() as connection:
        before = settings(connection)
        app.env.create(connection=connection).trigger(connection=connection)
        assert settings(connection) == before
    with app.engine.connect() as connection:
        assert settings(connection) == before


@contextmanager
def impatient(app: Application) -> Iterator[sa.Engine]:
    """An engine that waits a second for a lock."""
    args = {"timeout": 1} if app.env.runtime.database.dialect.name == "sqlite" else {"options": "-c lock_timeout=1s"}
    engine = sa.create_engine(app.env.runtime.database.url, connect_args=args)
    yield engine
    engine.dispose()


def test_conflict_says_to_repeat_and_nothing_is_repeated_inside(app: Application) -> None:
    schedule = app.env.create()
    with impatient(app) as other, app.engine.begin() as holder:
        schedule.pause(connection=holder)
        with other.connect() as connection:
            with pytest.raises(TransactionConflictError, match="repeat it from its beginning") as raised:
                schedule.trigger(connection=connection)
            connection.rollback()
    assert isinstance(raised.value, ConflictError)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.reason) == (str(raised.value), raised.value.reason)
    assert again.code == "transaction_conflict"
    with app.engine.begin() as connection:
        assert schedule.resume(connection=connection).trigger(connection=connection).outcome == "triggered"


def test_transaction_that_read_before_another_wrote_is_a_conflict_on_sqlite(make_env: MakeEnv, sqlite_url: str) -> None:
    env = make_env(database_url=sqlite_url)
    with application(env) as app:
        sa.event.listen(app.engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        sa.event.listen(app.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        app.engine.dispose()
        with app.engine.connect() as connection:
            connection.execute(sa.select(orders)).all()
            app.env.create("first")
            with pytest.raises(TransactionConflictError, match="locked"):
                app.env.create(connection=connection)
            connection.rollback()
            app.env.create(connection=connection)
            connection.commit()
        assert app.linked() == ["first", "report"]
