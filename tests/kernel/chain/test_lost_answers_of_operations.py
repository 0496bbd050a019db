"""Operations after a lost answer to COMMIT: each is applied once, published to Redis, and notified once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rqsched import Declaration
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.backfill.chain import BackfillRange, cancel, iterate, open_backfill
from rqsched.features.notifications.watching import find_overdue
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import new_uid
from tests.support.env import HOUR, MINUTE, ONCE, Env, block, link_id, newest, run_job_id, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import SilentDatabase

pytestmark = pytest.mark.postgres


@pytest.fixture
def env(postgres_env: Env) -> Env:
    return postgres_env


@pytest.fixture
def told(env: Env) -> list[str]:
    return env.told()


def recorded(schedule: ScheduleHandle) -> list[str]:
    return [one.event_type for one in schedule.history()]


@pytest.mark.parametrize(
    ("operate", "event"),
    [
        (lambda schedule: schedule.pause(), audit.PAUSED),
        (lambda schedule: schedule.update(memo={"team": "billing"}), audit.UPDATED),
        (lambda schedule: schedule.delete(), audit.DELETED),
    ],
    ids=["pause", "update", "delete"],
)
def test_operation_is_recorded_and_told_once(
    env: Env, silent: SilentDatabase, told: list[str], operate: Callable[[ScheduleHandle], object], event: str
) -> None:
    schedule = env.create()
    silent.lose()

    operate(schedule)

    assert recorded(schedule).count(event) == told.count(event) == 1
    check_invariants(env.runtime)


@pytest.mark.parametrize("key", [None, "order-7"])
def test_create_makes_one_schedule_whose_link_is_armed(
    env: Env, silent: SilentDatabase, told: list[str], key: str | None
) -> None:
    silent.lose()

    schedule = env.create(idempotency_key=key)

    assert told == [audit.CREATED]
    assert list(env.armed()) == [link_id(schedule)]
    check_invariants(env.runtime)


@pytest.mark.parametrize("key", [None, "order-7"])
def test_schedule_that_was_paused_before_its_create_is_repeated_is_that_of_the_create(
    env: Env, silent: SilentDatabase, key: str | None
) -> None:
    silent.lose(meanwhile=lambda: env.scheduler.get("report").pause())

    schedule = env.create(idempotency_key=key)

    assert schedule.status == "paused"
    assert recorded(schedule) == [audit.CREATED, audit.PAUSED]
    assert [one.uid for one in env.scheduler.list().items] == [schedule.uid]
    check_invariants(env.runtime)


def test_sync_of_a_schedule_that_was_paused_meanwhile_creates_each_once(
    env: Env, silent: SilentDatabase, told: list[str]
) -> None:
    wanted = [Declaration(name, "note", MINUTE) for name in ("first", "second")]
    silent.lose(meanwhile=lambda: env.scheduler.get("first").pause())

    assert env.scheduler.sync(wanted).created == ["first", "second"]
    assert env.scheduler.get("first").status == "paused"
    assert told.count(audit.CREATED) == 2
    check_invariants(env.runtime)


def test_upsert_that_creates_says_so(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    silent.lose()

    assert env.scheduler.upsert("report", "note", MINUTE)[1] == "created"
    assert told == [audit.CREATED]


def test_resume_enqueues_the_run_that_waits(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    schedule = env.create(overlap="buffer_all")
    first = present(schedule.trigger().run)
    schedule.trigger()
    schedule.pause()
    first.cancel()
    assert statuses(schedule) == ["cancelled", "buffered"]
    silent.lose()

    schedule.resume()

    assert env.queued() == [run_job_id(newest(schedule))]
    assert told.count(audit.RESUMED) == 1
    check_invariants(env.runtime)


def test_retry_of_a_blocked_run_is_recorded_once(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    schedule = env.create()
    run = block(env.runtime, present(schedule.trigger().run))
    delivery = run.state.delivery
    silent.lose()

    assert run.retry().state.delivery == delivery + 1
    assert recorded(schedule).count(audit.RUN_RETRY_REQUESTED) == told.count(audit.RUN_RETRY_REQUESTED) == 1
    check_invariants(env.runtime)


def test_run_that_is_run_again_is_copied_once(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    schedule = env.create()
    run = env.run_next(schedule)
    silent.lose()

    copy = run.run_again()

    assert env.queued() == [run_job_id(copy)]
    assert recorded(schedule).count(audit.RUN_COPIED) == told.count(audit.RUN_COPIED) == 1
    check_invariants(env.runtime)


def test_copy_that_has_ended_before_its_request_is_repeated_is_not_made_twice(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create()
    run = env.run_next(schedule)
    silent.lose(meanwhile=lambda: env.execute(newest(schedule)))

    assert run.run_again().copied_from == run.uid
    assert statuses(schedule) == ["succeeded", "succeeded"]
    check_invariants(env.runtime)


def test_retry_whose_attempt_has_ended_before_it_is_repeated_is_not_made_twice(
    env: Env, silent: SilentDatabase
) -> None:
    def fail() -> None:
        raise ValueError("not today")

    def execute_again() -> None:
        with pytest.raises(ValueError, match="not today"):
            env.execute(newest(schedule))

    env.register("fail", fail)
    schedule = env.create(workflow="fail", retry=ONCE)
    run = env.run_next(schedule)
    silent.lose(meanwhile=execute_again)

    run.retry()

    assert (run.refresh().status, run.attempt, env.queued()) == ("failed", 2, [])
    assert recorded(schedule).count(audit.RUN_RETRY_REQUESTED) == 1
    check_invariants(env.runtime)


def test_chunk_of_a_backfill_is_reported(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create(overlap="allow_all")
    now = env.advance(HOUR)
    opened = open_backfill(env.runtime, schedule.state, BackfillRange(now - 3 * MINUTE, now), new_uid(now))
    silent.lose()

    [(backfill, rows)] = iterate(env.runtime, opened)

    assert (backfill.status, backfill.started) == ("done", 3)
    assert [row.outcome for row in rows] == ["started"] * 3
    assert len(env.queued()) == 3
    check_invariants(env.runtime)


def test_stop_of_a_backfill_is_told_once(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    schedule = env.create()
    now = env.advance(HOUR)
    opened = open_backfill(env.runtime, schedule.state, BackfillRange(now - 3 * MINUTE, now), new_uid(now))
    silent.lose()

    assert cancel(env.runtime, opened.uid).status == "stopped"
    assert told.count(audit.BACKFILL_STOPPED) == 1
    check_invariants(env.runtime)


def test_purge_withdraws_the_jobs_of_runs_that_wait(env: Env, silent: SilentDatabase) -> None:
    schedule = env.create()
    env.fire_next(schedule)
    schedule.delete()
    assert len(env.queued()) == 1
    silent.lose()

    env.scheduler.newest("report").delete(purge=True)

    assert env.queued() == []


def test_repair_is_counted_and_told_once(env: Env, silent: SilentDatabase, told: list[str]) -> None:
    schedule = env.create(spec=24 * HOUR, expect_success_within=HOUR)
    env.advance(2 * HOUR)
    silent.lose()

    [recovered] = find_overdue(env.runtime)

    assert (recovered.overdue, recovered.failed) == (1, 0)
    assert told.count(audit.OVERDUE) == recorded(schedule).count(audit.OVERDUE) == 1
    check_invariants(env.runtime)
