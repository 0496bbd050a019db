"""The trigger of a schedule without open runs: two statements on PostgreSQL, and else as ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import ScheduleNotFoundError
from rqsched.kernel.decide.audit import TRIGGERED
from rqsched.kernel.store.tables import deliveries
from tests.support.env import Env, MakeEnv, newest, run_job_id, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import silent_database, statements, wait_for_a_lock

pytestmark = pytest.mark.postgres


@pytest.fixture
def env(postgres_env: Env) -> Env:
    return postgres_env


@pytest.fixture
def schedule(env: Env) -> ScheduleHandle:
    return env.create()


def trigger_after(env: Env, schedule: ScheduleHandle, act: Callable[[], object]) -> str:
    """Trigger the schedule, and act between its two statements; returns the outcome."""
    waiting = [act]

    def before(word: str) -> None:
        if word == "WITH" and waiting:
            waiting.pop()()

    with statements(env.runtime, before) as found:
        outcome = schedule.trigger().outcome
    assert found[0] == "SELECT"
    assert not waiting
    return outcome


def test_trigger_that_nothing_disturbs_takes_two_statements(env: Env, schedule: ScheduleHandle) -> None:
    env.runtime.prepare()
    with statements(env.runtime) as found:
        run = present(schedule.trigger().run)

    assert found == ["SELECT", "WITH"]
    assert env.queued() == [run_job_id(run)]
    check_invariants(env.runtime)


def test_schedule_that_runs_takes_a_transaction_and_its_policy_decides(env: Env, schedule: ScheduleHandle) -> None:
    schedule.trigger()

    assert schedule.trigger().outcome == "skipped"
    assert schedule.trigger("buffer_one").outcome == "buffered"
    assert schedule.trigger("allow_all").outcome == "triggered"
    assert schedule.trigger("buffer_one").outcome == "buffer_full"
    assert statuses(schedule) == ["pending", "buffered", "pending"]
    check_invariants(env.runtime)


def test_schedule_that_has_got_a_run_meanwhile_starts_no_other(env: Env, schedule: ScheduleHandle) -> None:
    assert trigger_after(env, schedule, schedule.trigger) == "skipped"
    assert statuses(schedule) == ["pending"]
    check_invariants(env.runtime)


def test_run_that_began_and_ended_meanwhile_is_counted(env: Env, schedule: ScheduleHandle) -> None:
    def run_once() -> None:
        env.execute(present(schedule.trigger().run))

    assert trigger_after(env, schedule, run_once) == "triggered"
    assert env.state(schedule).run_count == 2
    assert env.state(schedule).success_count == 1
    check_invariants(env.runtime)


def test_schedule_that_was_paused_meanwhile_is_not_triggered(env: Env, schedule: ScheduleHandle) -> None:
    assert trigger_after(env, schedule, schedule.pause) == "skipped"
    assert statuses(schedule) == []


def test_schedule_that_was_deleted_meanwhile_is_not_found(env: Env, schedule: ScheduleHandle) -> None:
    with pytest.raises(ScheduleNotFoundError):
        trigger_after(env, schedule, lambda: env.scheduler.get(schedule.schedule_id).delete())


def test_trigger_after_an_update_is_of_what_was_updated(env: Env, schedule: ScheduleHandle) -> None:
    env.register("other", lambda: None)

    assert trigger_after(env, schedule, lambda: schedule.update(workflow="other")) == "triggered"
    assert newest(schedule).workflow == "other"


def test_trigger_with_the_key_of_a_run_that_has_ended_returns_that_run(env: Env, schedule: ScheduleHandle) -> None:
    first = present(schedule.trigger(idempotency_key="order-7").run)
    env.execute(first)

    again = present(schedule.trigger(idempotency_key="order-7").run)

    assert again.uid == first.uid
    assert env.state(schedule).run_count == 1
    check_invariants(env.runtime)


def test_trigger_that_somebody_is_told_of_records_the_notification(make_env: MakeEnv, postgres_url: str) -> None:
    env = make_env(database_url=postgres_url, webhook_secret="s" * 32)
    told = {"webhook": "http://127.0.0.1:9/told", "events": ["ScheduleTriggered"]}
    env.create("told", notifications=told).trigger()

    found = env.runtime.database.read(lambda c: c.execute(sa.select(deliveries.c.event_type)).scalars().all())

    assert found == ["ScheduleTriggered"]
    check_invariants(env.runtime)


def test_trigger_of_a_schedule_that_another_transaction_holds_waits_for_it_and_sees_what_it_did(
    env: Env, schedule: ScheduleHandle
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with env.runtime.database.engine.begin() as other:
            present(schedule.trigger(connection=other).run)
            triggering = threads.submit(schedule.trigger)
            wait_for_a_lock(env.runtime.database)
        assert triggering.result().outcome == "skipped"
    assert statuses(schedule) == ["pending"]
    check_invariants(env.runtime)


@pytest.mark.parametrize("is_over", [False, True], ids=["that runs", "that has ended"])
def test_trigger_whose_answer_was_lost_starts_one_run(env: Env, schedule: ScheduleHandle, is_over: bool) -> None:
    database = silent_database(env.runtime)
    database.lose()
    if is_over:
        database.lose(meanwhile=lambda: env.execute(newest(schedule)))
    told = env.told()

    result = schedule.trigger()

    run = newest(schedule)
    assert (result.outcome, present(result.run).uid) == ("triggered", run.uid)
    if is_over:
        assert run.status == "succeeded"
    else:
        assert (run.status, env.queued(), told) == ("pending", [run_job_id(run)], [TRIGGERED])
    assert statuses(schedule) == [run.status]
    assert env.state(schedule).run_count == 1
    check_invariants(env.runtime)
