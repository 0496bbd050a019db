"""Reconcile: each thing that can be out of joint between SQL and Redis, and that one pass repairs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.kernel.chain.reconcile.passes import iter_batches
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store.tables import runs
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.transport import retry_of
from rqsched.when.members import Once
from tests.support.damage import forget, pop, repaired, set_columns, settled
from tests.support.env import HOUR, MINUTE, SECOND, Env, MakeEnv, events, job_id, link_id, newest, run_job_id, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present, text
from tests.support.servers import ValkeyServer


def test_a_pass_without_differences_does_nothing(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    any_env.create("hourly", spec=HOUR)
    any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    settled(any_env)
    before = (any_env.armed(), any_env.queued(), any_env.state(schedule))

    assert repaired(any_env) == {}
    assert repaired(any_env, deep=True) == {}

    assert (any_env.armed(), any_env.queued(), any_env.state(schedule)) == before


def test_a_pass_over_an_empty_database_does_nothing(env: Env) -> None:
    assert asdict(env.recover()) == asdict(Recovered())


def test_a_late_schedule_without_a_link_is_armed_after_the_grace(any_env: Env) -> None:
    schedule = any_env.create()
    settled(any_env)
    forget(any_env, link_id(schedule))
    any_env.advance(MINUTE + 4 * SECOND)
    assert repaired(any_env) == {}, "a dispatcher may be at it"

    any_env.advance(SECOND)
    assert repaired(any_env) == {"links": 1}

    assert any_env.queued("rqsched") == [link_id(schedule)]
    assert repaired(any_env) == {}


def test_a_link_that_nobody_promotes_is_brought_to_the_list_after_the_grace(any_env: Env) -> None:
    """The scheduler of plain workers died: the link is late in the set, and the workers only serve the list."""
    schedule = any_env.create()
    settled(any_env)
    any_env.advance(MINUTE + 5 * SECOND)
    assert repaired(any_env) == {}, "a dispatcher may be at it"

    any_env.advance(timedelta(milliseconds=1))
    assert repaired(any_env) == {"links": 1}

    assert any_env.queued("rqsched") == [link_id(schedule)]
    assert any_env.armed() == {}
    assert repaired(any_env) == {}
    any_env.work("rqsched")
    assert schedule.refresh().run_count == 1


def test_a_link_that_was_armed_for_a_time_that_sql_has_lost_fires_after_a_pass(any_env: Env) -> None:
    """A backup was restored beside the same Redis, where an update to a far occurrence had armed this position."""
    schedule = any_env.create()
    settled(any_env)
    any_env.transport.put_back({link_id(schedule): any_env.clock.now() + timedelta(days=38)})

    any_env.advance(29 * SECOND)
    assert repaired(any_env) == {}, "not due soon"
    any_env.advance(SECOND)
    assert repaired(any_env) == {"links": 1}

    assert any_env.armed() == {link_id(schedule): present(schedule.state.due_at).timestamp()}
    assert repaired(any_env) == {}


def test_a_link_due_soon_that_is_missing_is_armed_before_it_is_late(env: Env) -> None:
    schedule = env.create()
    settled(env)
    forget(env, link_id(schedule))
    env.advance(29 * SECOND)
    assert repaired(env) == {}

    env.advance(SECOND)
    assert repaired(env) == {"links": 1}

    assert env.armed()[link_id(schedule)] == present(schedule.state.due_at).timestamp()


def test_a_link_due_later_is_verified_by_a_deep_pass_only(env: Env) -> None:
    schedule = env.create(spec=HOUR)
    settled(env)
    forget(env, link_id(schedule))

    assert repaired(env) == {}
    seen: list[int] = []
    assert repaired(env, deep=True, progress=seen.append) == {"links": 1}

    assert sum(seen) == 1
    assert link_id(schedule) in env.armed()


@pytest.mark.parametrize("status", ["paused", "deleted", "done"])
def test_a_schedule_that_does_not_fire_is_not_armed(env: Env, status: str) -> None:
    schedule = env.create(max_runs=1)
    settled(env)
    endings: dict[str, Callable[[], object]] = {
        "paused": schedule.pause,
        "deleted": schedule.delete,
        "done": schedule.trigger,
    }
    endings[status]()
    env.redis.delete(env.transport.scheduled_key)
    env.advance(10 * MINUTE)

    assert "links" not in repaired(env, deep=True)


def test_a_schedule_without_a_next_time_is_planned_again(any_env: Env) -> None:
    schedule = any_env.create(spec="*/5 * * * *")
    settled(any_env)
    nominal = schedule.next_run_at
    set_columns(any_env, schedule, next_run_at=None, due_at=None)
    any_env.advance(HOUR)

    assert repaired(any_env)["next_times"] == 1

    after = any_env.state(schedule)
    assert after.next_run_at == nominal, "what passed meanwhile is decided by the fire, not dropped here"
    assert events(schedule, audit.RECOVERED)
    any_env.dispatch()
    assert newest(schedule).occurrence_at == nominal
    check_invariants(any_env.runtime)


def test_a_schedule_whose_spec_is_over_is_done(env: Env) -> None:
    schedule = env.create(spec=Once(env.clock.now() + HOUR))
    settled(env)
    env.run_next(schedule, HOUR)
    set_columns(env, schedule, status="active", status_reason=None)

    env.recover()

    assert env.state(schedule).status == "done"


def test_a_schedule_that_waits_for_its_run_is_left_waiting(env: Env) -> None:
    schedule = env.create(spec=Every("1m", from_completion=True))
    settled(env)
    env.fire_next(schedule)
    env.advance(HOUR)

    counts = repaired(env)

    assert "next_times" not in counts
    assert env.state(schedule).awaiting_run_uid == newest(schedule).uid


def test_a_schedule_whose_awaited_run_has_ended_is_planned_again(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("1m", from_completion=True))
    settled(any_env)
    run = any_env.run_next(schedule)
    set_columns(any_env, schedule, next_run_at=None, due_at=None, awaiting_run_uid=run.uid)

    assert repaired(any_env)["next_times"] == 1
    assert any_env.state(schedule).next_run_at is not None


def test_a_pending_run_whose_job_is_gone_is_delivered_again_under_a_new_id(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR)
    run = any_env.fire_next(schedule, HOUR)
    settled(any_env)
    lost = pop(any_env)
    any_env.advance(4 * SECOND)
    assert repaired(any_env) == {}

    any_env.advance(SECOND)
    assert repaired(any_env) == {"deliveries": 1}

    assert run.refresh().state.delivery == 2
    assert any_env.queued() == [run_job_id(run)]
    assert any_env.queued() != [lost], "ids are never reused"
    any_env.work()
    assert run.refresh().status == "succeeded"


def test_a_pending_run_still_on_its_queue_is_left_alone(env: Env) -> None:
    schedule = env.create(spec=HOUR)
    env.fire_next(schedule, HOUR)
    settled(env)
    env.advance(HOUR / 2)

    assert "deliveries" not in repaired(env)


def test_a_delivery_replaced_by_the_next_one_executes_nothing(env: Env) -> None:
    """The worker was only slow. The first delivery to start claims the run, and the other has nothing to do."""
    schedule = env.create(spec=HOUR)
    env.fire_next(schedule, HOUR)
    settled(env)
    slow = pop(env)
    env.advance(5 * SECOND)
    env.recover()
    env.redis.rpush("rq:queue:default", slow)

    env.work()

    assert len(env.calls) == 1
    assert statuses(schedule) == ["succeeded"]


def test_a_run_that_a_full_pass_enqueues_beside_its_own_process_executes_once(any_env: Env) -> None:
    """Redis names no database yet, and the pass runs between another dispatcher's commit and its pipeline."""
    schedule = any_env.create(spec=HOUR)
    any_env.advance(HOUR)
    committed = [fired.change for fired in any_env.deliver(schedule) if fired.change is not None]
    any_env.redis.flushall()

    assert any_env.recover().deliveries == 1
    any_env.transport.follow(committed, now=any_env.clock.now())

    run = newest(schedule)
    assert any_env.queued() == [str(job_id(run.state, delivery=2)), str(job_id(run.state, delivery=1))]
    any_env.work()
    assert statuses(schedule) == ["succeeded"]
    assert len(any_env.calls) == 1


def test_an_external_run_is_not_delivered_to_rq(env: Env) -> None:
    schedule = env.create(executor="external", workflow="anything", spec=HOUR)
    env.fire_next(schedule, HOUR)
    settled(env)
    env.advance(HOUR / 2)

    assert "deliveries" not in repaired(env)
    assert env.queued() == []


def test_a_retry_whose_link_is_gone_is_armed_again(any_env: Env) -> None:
    any_env.register("fail", lambda: 1 / 0)
    schedule = any_env.create(workflow="fail", spec=HOUR, retry=RetryPolicy(max_retries=1, base=MINUTE))
    settled(any_env)
    run = any_env.run_next(schedule, HOUR)
    forget(any_env, retry_of(run.state).id)
    any_env.advance(MINUTE)

    assert repaired(any_env) == {"retries": 1}

    any_env.dispatch()
    assert (run.refresh().status, run.attempt) == ("pending", 2)


def test_a_waiting_run_with_nothing_ahead_is_drained(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all", spec=HOUR)
    any_env.fire_next(schedule, HOUR)
    schedule.trigger()
    settled(any_env)
    gone = sa.update(runs).where(runs.c.schedule_uid == schedule.uid, runs.c.status == "pending")
    any_env.runtime.database.transact(lambda connection: connection.execute(gone.values(status="succeeded")))
    any_env.redis.delete("rq:queue:default")

    assert repaired(any_env) == {"drained": 1}

    assert statuses(schedule) == ["succeeded", "pending"]
    assert any_env.queued() == [run_job_id(newest(schedule))]
    assert repaired(any_env) == {}


def test_after_a_flush_everything_is_armed_again_at_once(any_env: Env) -> None:
    any_env.register("fail", lambda: 1 / 0)
    soon, later = any_env.create("soon"), any_env.create("later", spec=HOUR)
    waiting = any_env.create("waiting")
    flaky = any_env.create("flaky", workflow="fail", retry=RetryPolicy(base=HOUR, max_retries=1))
    settled(any_env)
    run = any_env.run_next(flaky)
    any_env.deliver(waiting.refresh())
    links = {link_id(s.refresh()) for s in (soon, later, waiting, flaky)}
    any_env.redis.flushall()

    counts = repaired(any_env)

    assert counts == {"links": 4, "retries": 1, "deliveries": 1}
    retry = str(retry_of(run.state).id)
    assert {*any_env.armed(), *any_env.queued("rqsched")} == links | {retry}
    assert any_env.queued() == [run_job_id(newest(waiting))]
    assert repaired(any_env, deep=True) == {}
    check_invariants(any_env.runtime)


def test_redis_learns_the_database_id_only_when_everything_is_armed(
    make_env: MakeEnv, own_valkey: ValkeyServer
) -> None:
    env = make_env(redis_url=own_valkey.url)
    schedule = env.create(spec=HOUR)
    settled(env)
    env.redis.flushall()

    whole = iter_batches(env.runtime)
    next(whole)
    own_valkey.kill()
    list(whole)
    own_valkey.start()

    assert not env.runtime.ownership.is_known_to_redis()
    assert repaired(env) == {"links": 1}
    assert link_id(schedule) in env.armed()


def test_a_flush_within_a_full_pass_starts_another(env: Env) -> None:
    schedule = env.create(spec=HOUR)
    settled(env)
    env.redis.flushall()

    whole = iter_batches(env.runtime)
    while link_id(schedule) not in env.armed():
        next(whole)
    env.redis.flushall()
    list(whole)

    assert not env.runtime.ownership.is_known_to_redis()
    assert repaired(env) == {"links": 1}
    assert link_id(schedule) in env.armed()
    assert env.runtime.ownership.is_known_to_redis()


def test_a_full_pass_leaves_only_the_database_id_its_mark_and_telemetry(env: Env) -> None:
    env.redis.flushall()

    env.recover()

    marks = redis_keys.marks("rqsched", env.runtime.ownership.database_id())
    left = {env.transport.database_id_key, marks, "rqsched:tally:rqsched"}
    assert {text(key) for key in env.redis.keys("*")} == left
