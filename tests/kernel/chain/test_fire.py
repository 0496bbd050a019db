"""Firing links: the effect of a delivered link, in each state that its schedule reached since it was armed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from redis.exceptions import RedisError

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import RedisUnavailableError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import LinkId, derived_uid
from rqsched.kernel.store import changes
from tests.support.env import (
    MINUTE,
    SECOND,
    Env,
    MakeEnv,
    events,
    link_id,
    newest,
    outcomes,
    run_job_id,
    statuses,
    waiting_for_retry,
)
from tests.support.narrow import present
from tests.support.servers import ValkeyServer


def rows(env: Env) -> tuple[object, ...]:
    """Everything SQL holds, to see that nothing was written."""
    tables = ("rqsched_schedules", "rqsched_runs", "rqsched_audit_events")
    return env.runtime.database.read(
        lambda connection: tuple(
            tuple(connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2"))) for table in tables
        )
    )


def test_a_due_link_starts_a_run_and_arms_its_successor(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.advance()

    fired = any_env.deliver(schedule)

    assert outcomes(fired) == ["fired"]
    run = newest(schedule)
    assert (run.status, run.occurrence_at) == ("pending", any_env.clock.now())
    assert any_env.queued() == [run_job_id(run)]
    after = any_env.state(schedule)
    assert (after.n, after.next_run_at) == (1, any_env.clock.now() + MINUTE)
    assert any_env.armed()[link_id(schedule)] == present(after.next_run_at).timestamp()


def test_the_next_time_is_computed_from_the_nominal_time_not_from_the_fire(env: Env) -> None:
    schedule = env.create(spec="*/5 * * * *")
    nominal = present(schedule.next_run_at)
    env.advance(nominal - env.clock.now() + timedelta(seconds=47))

    env.deliver(schedule)

    assert newest(schedule).occurrence_at == nominal
    assert env.state(schedule).next_run_at == nominal + 5 * MINUTE


def test_an_early_link_waits_for_its_time(any_env: Env) -> None:
    schedule = any_env.create()
    due_at = schedule.state.due_at
    any_env.advance(MINUTE - timedelta(microseconds=1))
    before = rows(any_env)

    (fired,) = any_env.deliver(schedule)

    assert (fired.outcome, fired.again_at) == ("early", due_at)
    assert rows(any_env) == before


def test_a_link_delivered_twice_fires_once(any_env: Env) -> None:
    schedule = any_env.create()
    link = link_id(schedule)
    any_env.advance()
    any_env.deliver(link)
    before = rows(any_env)

    assert outcomes(any_env.deliver(link)) == ["stale"]

    assert rows(any_env) == before
    assert len(any_env.queued()) == 1


def test_a_link_delivered_twice_in_one_batch_fires_once(env: Env) -> None:
    schedule = env.create()
    env.advance()

    assert outcomes(env.deliver(link_id(schedule), link_id(schedule))) == ["fired"]
    assert statuses(schedule) == ["pending"]


def paused(schedule: ScheduleHandle) -> None:
    schedule.pause()


def resumed(schedule: ScheduleHandle) -> None:
    schedule.pause()
    schedule.resume()


def updated(schedule: ScheduleHandle) -> None:
    schedule.update(spec=timedelta(hours=1))


def deleted(schedule: ScheduleHandle) -> None:
    schedule.delete()


def done(schedule: ScheduleHandle) -> None:
    schedule.update(max_runs=1)
    schedule.trigger()


@pytest.mark.parametrize("change", [paused, resumed, updated, deleted, done])
def test_a_link_from_before_a_change_writes_nothing(env: Env, change: Callable[[ScheduleHandle], None]) -> None:
    schedule = env.create()
    link = link_id(schedule)
    change(schedule)
    env.advance(10 * MINUTE)
    before = rows(env)

    assert outcomes(env.deliver(link)) == ["stale"]

    assert rows(env) == before


@pytest.mark.parametrize("change", [paused, deleted, done])
def test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing(
    env: Env, change: Callable[[ScheduleHandle], None]
) -> None:
    schedule = env.create()
    change(schedule)
    env.advance(10 * MINUTE)
    before = rows(env)
    current = present(env.runtime.database.read(lambda connection: changes.find(connection, schedule.uid)))

    assert outcomes(env.deliver(LinkId(schedule.uid, current.n))) == ["stale"]

    assert rows(env) == before


def test_a_link_from_before_a_recreation_starts_nothing_of_the_new_schedule(any_env: Env) -> None:
    old = any_env.create()
    link = link_id(old)
    old.delete()
    new = any_env.create()
    any_env.advance(10 * MINUTE)

    assert outcomes(any_env.deliver(link)) == ["stale"]

    assert statuses(new) == []
    assert any_env.state(new).n == 0


@pytest.mark.parametrize("n", [-1, 1, 7], ids=["older", "next", "never armed"])
def test_a_link_of_another_position_writes_nothing(env: Env, n: int) -> None:
    schedule = env.create()
    env.fire_next(schedule)
    env.advance(10 * MINUTE)
    before = rows(env)

    position = env.state(schedule).n + n
    assert outcomes(env.deliver(LinkId(schedule.uid, position))) == ["stale"]

    assert rows(env) == before


def test_a_stale_link_arms_the_current_one_where_it_is_missing(any_env: Env) -> None:
    """A crash between the commit and the pipeline heals on the next delivery of the same link."""
    schedule = any_env.create()
    link = link_id(schedule)
    any_env.fire_next(schedule)
    run_job, current = any_env.queued(), link_id(schedule.refresh())
    any_env.redis.flushall()

    assert outcomes(any_env.deliver(link)) == ["stale"]

    assert list(any_env.armed()) == [current]
    assert any_env.queued() == run_job


def test_a_stale_link_of_a_paused_schedule_enqueues_its_runs_and_arms_nothing(env: Env) -> None:
    schedule = env.create()
    link = link_id(schedule)
    run = env.fire_next(schedule)
    schedule.pause()
    env.redis.flushall()

    env.deliver(link)

    assert env.armed() == {}
    assert env.queued() == [run_job_id(run)]


def test_a_stale_retry_link_enqueues_the_attempt_it_made(env: Env) -> None:
    schedule, retry = waiting_for_retry(env)
    env.advance()
    env.deliver(retry)
    queued = env.queued()
    env.redis.delete("rq:queue:default", f"rq:job:{queued[0]}")

    assert outcomes(env.deliver(retry)) == ["stale"]

    assert env.queued() == queued == [run_job_id(newest(schedule))]


def test_what_was_committed_while_redis_was_away_follows_at_the_next_delivery(
    make_env: MakeEnv, own_valkey: ValkeyServer
) -> None:
    env = make_env(redis_url=own_valkey.url)
    schedule = env.create()
    link = link_id(schedule)
    env.advance()
    own_valkey.kill()
    with pytest.raises(RedisUnavailableError):
        env.deliver(link)
    assert statuses(schedule) == ["pending"], "SQL first: it has happened"
    own_valkey.start()

    assert outcomes(env.deliver(link)) == ["stale"]

    assert env.queued() == [run_job_id(newest(schedule))]
    assert list(env.armed()) == [link_id(schedule.refresh())]


def test_an_outage_of_redis_is_not_recorded_as_a_failed_fire(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    some = [env.create(f"s{i}") for i in range(3)]
    env.advance()
    own_valkey.kill()

    with pytest.raises(RedisUnavailableError):
        env.deliver(*some)

    assert [env.state(schedule).fire_failures for schedule in some] == [0, 0, 0]
    assert all(not events(schedule, audit.FIRE_FAILED) for schedule in some)


def test_an_operation_succeeds_while_redis_is_away(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    own_valkey.kill()
    with pytest.raises(RedisError):
        env.redis.ping()

    schedule = env.create()
    schedule.trigger()
    schedule.pause()
    schedule.resume()

    own_valkey.start()
    assert env.recover().links == 1
    assert list(env.armed()) == [link_id(schedule.refresh())]


def test_a_link_of_another_database_is_left(any_env: Env) -> None:
    stranger = LinkId(derived_uid(any_env.clock.now(), "elsewhere"), 3)
    before = rows(any_env)

    (fired,) = any_env.deliver(stranger)

    assert (fired.outcome, fired.again_at) == ("foreign", any_env.clock.now() + 15 * SECOND)
    assert rows(any_env) == before


def test_a_link_of_a_purged_schedule_is_dropped(env: Env) -> None:
    """The control queue belongs to this database, so no other one needs the link."""
    env.recover()
    schedule = env.create()
    link = link_id(schedule)
    schedule.delete(purge=True)

    (fired,) = env.deliver(link)

    assert (fired.outcome, fired.again_at) == ("stale", None)


@pytest.mark.parametrize("text", ["report", "sched-short-n1-rc0", "run-x-a1-d1", ""])
def test_an_id_that_is_not_a_link_is_left(env: Env, text: str) -> None:
    (fired,) = env.deliver(text)

    assert fired.outcome == "foreign"
