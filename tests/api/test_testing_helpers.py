"""The test tools for applications: fixtures that pytest finds by itself, and helpers without sleeps."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from rq import Queue

from rqsched import Cron, Declaration, Every, current_run
from rqsched.api.scheduler import Scheduler
from rqsched.errors import ConfigError, InvalidInputError, RunCancelled, ScheduleNotFoundError
from rqsched.features.declarations.declarations import of_process
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.metadata import DATABASE_ID, find_value
from rqsched.kernel.store.tables import database_metadata, metadata
from rqsched.testing import (
    ManualClock,
    assert_has_schedule,
    empty_scheduler,
    execute_pending,
    run_due,
    run_schedule,
    running,
)
from tests.support.env import MINUTE, NOON, Env, MakeEnv, module_level, newest, statuses

pytest_plugins = ["pytester"]


def test_the_shipped_fixtures_work_without_any_configuration(
    rqsched_scheduler: Scheduler, rqsched_clock: ManualClock
) -> None:
    schedule = rqsched_scheduler.create("greet", "tests.support.env.module_level", Cron("0 9 * * *"), args=["you"])

    rqsched_clock.advance(timedelta(hours=9))
    rows = run_due(rqsched_scheduler)

    assert [row["outcome"] for row in rows] == ["triggered"]
    assert schedule.runs().items[0].result == "hello you"


def test_each_test_gets_an_empty_scheduler(rqsched_scheduler: Scheduler) -> None:
    assert rqsched_scheduler.list().items == []
    assert rqsched_scheduler.runtime.transport.redis.dbsize() == 0


def test_function_of_a_workflow_is_called_with_a_made_up_run_and_no_server() -> None:
    def report() -> tuple[str, int, str]:
        run = current_run()
        run.checkpoint()
        return run.instance_id, run.attempt, run.labels["team"]

    with running(occurrence=NOON, attempt=2, schedule_id="nightly", labels={"team": "billing"}):
        found = report()

    assert found == ("schedule:nightly:2026-01-15T12:00:00Z", 2, "billing")
    with pytest.raises(LookupError):
        report()


def test_later_attempt_of_a_made_up_run_has_a_later_fence() -> None:
    with running(occurrence=NOON) as first, running(occurrence=NOON, attempt=2) as second:
        assert (first.fence < second.fence, first.started_at < second.started_at) == (True, True)


def test_tables_that_are_copied_for_a_test_have_an_id_of_their_own(
    rqsched_scheduler: Scheduler, request: pytest.FixtureRequest
) -> None:
    with closing(Database(f"sqlite:///{request.getfixturevalue('_rqsched_template')}")) as template:
        of_template = template.read(lambda connection: find_value(connection, DATABASE_ID))

    assert of_template not in {None, rqsched_scheduler.runtime.ownership.database_id()}


def test_made_up_run_can_be_cancelled() -> None:
    def cancelled() -> None:
        raise RunCancelled("by a person")

    with running(checkpoint=cancelled) as run, pytest.raises(RunCancelled):
        run.checkpoint()


@pytest.mark.parametrize("given", [{"occurrence": datetime(2026, 1, 1)}, {"atempt": 2}])  # noqa: DTZ001 - a naive one
def test_made_up_run_refuses_a_naive_time_and_an_unknown_field(given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"naive|atempt"), running(**given):
        pass


APPLICATION = """
from datetime import timedelta
from rqsched import Every, workflow
from rqsched.testing import assert_has_schedule, run_schedule, run_due

done = []

@workflow("tidy-up")
def tidy_up(room):
    done.append(room)

def test_a_users_schedule(rqsched_scheduler, rqsched_clock):
    rqsched_scheduler.create("tidy", tidy_up, Every("1h"), args=["kitchen"])
    assert_has_schedule(rqsched_scheduler, "tidy", workflow="tidy-up", spec=Every("1h"), status="active")
    rqsched_clock.advance(timedelta(hours=1))
    run_due(rqsched_scheduler)
    assert run_schedule(rqsched_scheduler, "tidy").status == "succeeded"
    assert done == ["kitchen", "kitchen"]
"""


def test_a_users_own_test_file_passes_with_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(APPLICATION)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")  # in process it would take modules from ours
    result.assert_outcomes(passed=1)


ON_ITS_OWN_DATABASE = """
from datetime import UTC, datetime, timedelta
import pytest
import sqlalchemy as sa
from rqsched import Cron, workflow
from rqsched.testing import run_due

@workflow
def tidy_up(): ...

def test_it_fires_by_a_clock_that_is_set(rqsched_application_scheduler, rqsched_clock, rqsched_database_url):
    used = rqsched_application_scheduler
    rqsched_clock.set(datetime(2027, 1, 1, 2, tzinfo=UTC))
    with sa.create_engine(rqsched_database_url.replace("postgresql:", "postgresql+psycopg:")).begin() as own:
        own.execute(sa.text("CREATE TABLE orders (id INTEGER)"))
        used.create("order-1", tidy_up, Cron("0 4 * * *"), session=own)
    rqsched_clock.advance(timedelta(hours=3))
    assert [row["outcome"] for row in run_due(used)] == ["triggered"]
    assert used.get("order-1").runs().items[0].status == "succeeded"

def test_it_is_empty_again(rqsched_application_scheduler, rqsched_scheduler):
    assert rqsched_application_scheduler.list().items == rqsched_scheduler.list().items == []
    assert rqsched_application_scheduler.runtime.now().year == 2026
"""


def tables_of(url: str) -> set[str]:
    with closing(Database(url)) as database:
        return set(database.read(lambda connection: sa.inspect(connection).get_table_names()))


@pytest.mark.broad
def test_a_fixture_works_on_the_applications_own_database_and_leaves_nothing_there(
    pytester: pytest.Pytester, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", empty_database_url)
    pytester.makepyfile(ON_ITS_OWN_DATABASE)

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=2)
    assert tables_of(empty_database_url) == {"orders"}


def test_tables_that_were_there_stay_with_the_named_values_of_their_database(database_url: str, redis_url: str) -> None:
    clock = ManualClock(NOON)
    with closing(Database(database_url)) as database:
        before = database.read(lambda connection: connection.execute(sa.select(database_metadata)).all())

        with suppress(ZeroDivisionError), empty_scheduler(database_url, redis_url=redis_url, clock=clock) as scheduler:
            scheduler.create("greet", "tests.support.env.module_level", Every("1h"), args=["you"])
            scheduler.recover()
            raise ZeroDivisionError("a test that fails")

        assert database.read(lambda connection: connection.execute(sa.select(database_metadata)).all()) == before
        assert [table for table in metadata.sorted_tables if has_rows(database, table)] == [database_metadata]


def test_what_the_application_declares_is_synced_in_tests_and_what_tests_declare_is_not_kept(
    rqsched_scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = {name: Declaration(name, "tests.support.env.module_level", Every("1h")) for name in ("ours", "own")}
    monkeypatch.setitem(of_process._declared, "ours", declared["ours"])
    rqsched_scheduler.declarations.add(declared["own"])

    assert rqsched_scheduler.sync().created[-2:] == ["ours", "own"]
    assert declared["ours"] in of_process.all()
    assert declared["own"] not in of_process.all()


def has_rows(database: Database, table: sa.Table) -> bool:
    return database.read(lambda connection: connection.execute(sa.select(table).limit(1)).first()) is not None


def test_a_database_that_holds_schedules_is_refused_and_keeps_them(any_env: Env, redis_url: str) -> None:
    any_env.create("precious")
    url = str(any_env.scheduler.settings.database_url)

    with (
        pytest.raises(ConfigError, match=r"rqsched_\w+ of the test's database holds rows"),
        empty_scheduler(url, redis_url=redis_url, clock=any_env.clock),
    ):
        pass

    assert any_env.scheduler.get("precious").status == "active"
    assert len(any_env.armed()) == 1


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(NOON)
    assert clock.now() == clock.now() == NOON
    assert clock.advance(MINUTE) == NOON + MINUTE == clock.now()
    clock.set(datetime.fromisoformat("2026-01-15T14:00+02:00"))
    assert (clock.now(), clock.now().tzinfo) == (NOON, UTC)


def test_a_manual_clock_refuses_naive_times() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    for refuse in (lambda: ManualClock(naive), lambda: ManualClock(NOON).set(naive)):
        with pytest.raises(ValueError, match="naive"):
            refuse()


def test_execute_pending_runs_what_the_runs_start_and_counts_it(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    for _ in range(3):
        any_env.tick()
    assert statuses(schedule) == ["pending", "buffered", "buffered"]

    assert execute_pending(any_env.scheduler) == 3

    assert statuses(schedule) == ["succeeded"] * 3
    assert execute_pending(any_env.scheduler) == 0


def test_a_process_that_executed_runs_keeps_its_signal_handlers(
    rqsched_scheduler: Scheduler, rqsched_clock: ManualClock
) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    rqsched_scheduler.create("greet", "tests.support.env.module_level", Every("1h"), args=["you"])
    rqsched_clock.advance(timedelta(hours=1))
    assert [row["outcome"] for row in run_due(rqsched_scheduler)] == ["triggered"]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_execute_pending_may_be_limited_to_some_queues(env: Env) -> None:
    high, low = env.create("high", queue="high"), env.create("low", queue="low")
    env.tick()
    execute_pending(env.scheduler, "high")
    assert (statuses(high), statuses(low)) == (["succeeded"], ["pending"])


def test_execute_pending_serves_named_connections_and_serializers(
    make_env: MakeEnv, sqlite_url: str, redis_url: str
) -> None:
    env = make_env(
        database_url=sqlite_url,
        connections={"eu": redis_url.replace("/0", "/1")},
        queue_serializers={"legacy": "json"},
    )
    schedules = [env.create("a", connection="eu"), env.create("b", queue="legacy"), env.create("c")]
    env.tick()
    assert execute_pending(env.scheduler) == 3
    assert [statuses(schedule) for schedule in schedules] == [["succeeded"]] * 3


def test_execute_pending_executes_the_applications_own_jobs_too(env: Env) -> None:
    job = Queue("default", connection=env.redis).enqueue(module_level, "me")
    assert execute_pending(env.scheduler) == 1
    assert job.return_value(refresh=True) == "hello me"


def test_an_async_test_executes_async_workflows_too(env: Env) -> None:
    async def region() -> str:
        await asyncio.sleep(0)
        return f"{current_run().schedule_id} in the loop of its own"

    async def failing() -> None:
        raise ValueError("as the test wants it")

    env.register("region", region)
    env.register("failing", failing)
    schedules = [env.create("async", workflow="region"), env.create("plain"), env.create("bad", workflow="failing")]

    async def test() -> list[Any]:
        env.run_due()
        return [newest(schedule) for schedule in schedules]

    awaited, plain, bad = asyncio.run(test())

    assert (awaited.status, awaited.result) == ("succeeded", "async in the loop of its own")
    assert plain.status == "succeeded"
    assert (bad.status, bad.error.splitlines()[0]) == ("retrying", "ValueError: as the test wants it")
    assert "workflows.py" not in bad.error, "the traceback begins at the workflow"


def test_run_schedule_returns_the_ended_run(any_env: Env) -> None:
    any_env.create()
    assert run_schedule(any_env.scheduler, "report").result == 1
    any_env.failing = True
    run = run_schedule(any_env.scheduler, "report")
    assert run.status == "retrying"
    assert run.error is not None
    assert "as the test wants it" in run.error
    with pytest.raises(InvalidInputError, match="overlap_policy_skip"):
        run_schedule(any_env.scheduler, "report")
    with pytest.raises(ScheduleNotFoundError):
        run_schedule(any_env.scheduler, "nobody")


def test_assert_has_schedule_returns_it_or_says_what_differs(env: Env) -> None:
    env.create("tidy", Every("1h"))
    scheduler = env.scheduler

    assert assert_has_schedule(scheduler, "tidy", workflow="note", spec=Every("1h"), status="active").run_count == 0

    differences: dict[str, dict[str, Any]] = {
        "schedule 'dusty' does not exist; existing schedules: 'tidy'": {"schedule_id": "dusty"},
        "runs 'note', not 'other'": {"workflow": "other"},
        "is active, not paused": {"status": "paused"},
        "is 'every 1h', not 'every 2h'": {"spec": Every("2h")},
    }
    for message, wanted in differences.items():
        given = {"schedule_id": "tidy", **wanted}
        with pytest.raises(AssertionError, match=message):
            assert_has_schedule(scheduler, **given)
