"""Reconcile: each thing that can be out of joint between SQL and Redis, and that one pass repairs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.chain.reconcile import Recovered, iter_batches
from rqsched.core import audit
from rqsched.core.policy import RetryPolicy
from rqsched.spec.members import Once
from rqsched.store.tables import runs
from rqsched.transport.transport import retry_of
from tests.chain.conftest import MakeRig
from tests.support.damage import HOUR, forget, pop, repaired, set_columns, settled
from tests.support.invariants import check_invariants
from tests.support.narrow import present, text
from tests.support.rig import MINUTE, SECOND, Rig, events, job_id, link_id, newest, run_job_id, statuses
from tests.support.servers import ValkeyServer


def test_a_pass_without_differences_does_nothing(any_rig: Rig) -> None:
    schedule = any_rig.create(overlap="buffer_all")
    any_rig.create("hourly", spec=HOUR)
    any_rig.occur(schedule)
    any_rig.occur(schedule)
    settled(any_rig)
    before = (any_rig.armed(), any_rig.queued(), any_rig.state(schedule))

    assert repaired(any_rig) == {}
    assert repaired(any_rig, deep=True) == {}

    assert (any_rig.armed(), any_rig.queued(), any_rig.state(schedule)) == before


def test_a_pass_over_an_empty_database_does_nothing(rig: Rig) -> None:
    assert asdict(rig.recover()) == asdict(Recovered())


def test_an_overdue_schedule_without_a_link_is_armed_after_the_grace(any_rig: Rig) -> None:
    schedule = any_rig.create()
    settled(any_rig)
    forget(any_rig, link_id(schedule))
    any_rig.advance(MINUTE + 4 * SECOND)
    assert repaired(any_rig) == {}, "a dispatcher may be at it"

    any_rig.advance(SECOND)
    assert repaired(any_rig) == {"links": 1}

    assert any_rig.queued("rqsched") == [link_id(schedule)]
    assert repaired(any_rig) == {}


def test_a_link_that_nobody_promotes_is_brought_to_the_list_after_the_grace(any_rig: Rig) -> None:
    """Plain workers whose scheduler died: the link is there, overdue, and a worker serves the list alone."""
    schedule = any_rig.create()
    settled(any_rig)
    any_rig.advance(MINUTE + 5 * SECOND)
    assert repaired(any_rig) == {}, "a dispatcher may be at it"

    any_rig.advance(timedelta(milliseconds=1))
    assert repaired(any_rig) == {"links": 1}

    assert any_rig.queued("rqsched") == [link_id(schedule)]
    assert any_rig.armed() == {}
    assert repaired(any_rig) == {}
    any_rig.work("rqsched")
    assert schedule.refresh().run_count == 1


def test_a_link_due_soon_that_is_missing_is_armed_before_it_is_late(rig: Rig) -> None:
    schedule = rig.create()
    settled(rig)
    forget(rig, link_id(schedule))
    rig.advance(29 * SECOND)
    assert repaired(rig) == {}

    rig.advance(SECOND)
    assert repaired(rig) == {"links": 1}

    assert rig.armed()[link_id(schedule)] == present(schedule.state.due_at).timestamp()


def test_a_link_due_later_is_verified_by_a_deep_pass_only(rig: Rig) -> None:
    schedule = rig.create(spec=HOUR)
    settled(rig)
    forget(rig, link_id(schedule))

    assert repaired(rig) == {}
    seen: list[int] = []
    assert repaired(rig, deep=True, progress=seen.append) == {"links": 1}

    assert sum(seen) == 1
    assert link_id(schedule) in rig.armed()


@pytest.mark.parametrize("status", ["paused", "deleted", "done"])
def test_a_schedule_that_does_not_fire_is_not_armed(rig: Rig, status: str) -> None:
    schedule = rig.create(max_runs=1)
    settled(rig)
    endings: dict[str, Callable[[], object]] = {
        "paused": schedule.pause,
        "deleted": schedule.delete,
        "done": schedule.trigger,
    }
    endings[status]()
    rig.redis.delete(rig.transport.scheduled_key)
    rig.advance(10 * MINUTE)

    assert "links" not in repaired(rig, deep=True)


def test_a_schedule_without_a_next_time_is_planned_again(any_rig: Rig) -> None:
    schedule = any_rig.create(spec="*/5 * * * *")
    settled(any_rig)
    nominal = schedule.next_run_at
    set_columns(any_rig, schedule, next_run_at=None, due_at=None)
    any_rig.advance(HOUR)

    assert repaired(any_rig)["next_times"] == 1

    after = any_rig.state(schedule)
    assert after.next_run_at == nominal, "what passed meanwhile is decided by the fire, not dropped here"
    assert events(schedule, audit.RECOVERED)
    any_rig.dispatch()
    assert newest(schedule).occurrence_at == nominal
    check_invariants(any_rig.runtime)


def test_a_schedule_whose_spec_is_over_is_done(rig: Rig) -> None:
    schedule = rig.create(spec=Once(rig.clock.now() + HOUR))
    settled(rig)
    rig.turn(schedule, HOUR)
    set_columns(rig, schedule, status="active", status_reason=None)

    rig.recover()

    assert rig.state(schedule).status == "done"


def test_a_schedule_that_waits_for_its_run_is_left_waiting(rig: Rig) -> None:
    schedule = rig.create(spec=Every("1m", from_completion=True))
    settled(rig)
    rig.occur(schedule)
    rig.advance(HOUR)

    counts = repaired(rig)

    assert "next_times" not in counts
    assert rig.state(schedule).awaiting_run_uid == newest(schedule).uid


def test_a_schedule_whose_awaited_run_has_ended_is_planned_again(any_rig: Rig) -> None:
    schedule = any_rig.create(spec=Every("1m", from_completion=True))
    settled(any_rig)
    run = any_rig.turn(schedule)
    set_columns(any_rig, schedule, next_run_at=None, due_at=None, awaiting_run_uid=run.uid)

    assert repaired(any_rig)["next_times"] == 1
    assert any_rig.state(schedule).next_run_at is not None


def test_a_pending_run_whose_job_is_gone_is_delivered_again_under_a_new_id(any_rig: Rig) -> None:
    schedule = any_rig.create(spec=HOUR)
    run = any_rig.occur(schedule, HOUR)
    settled(any_rig)
    lost = pop(any_rig)
    any_rig.advance(4 * SECOND)
    assert repaired(any_rig) == {}

    any_rig.advance(SECOND)
    assert repaired(any_rig) == {"deliveries": 1}

    assert run.refresh().state.delivery == 2
    assert any_rig.queued() == [run_job_id(run)]
    assert any_rig.queued() != [lost], "ids are never reused"
    any_rig.work()
    assert run.refresh().status == "succeeded"


def test_a_pending_run_still_on_its_queue_is_left_alone(rig: Rig) -> None:
    schedule = rig.create(spec=HOUR)
    rig.occur(schedule, HOUR)
    settled(rig)
    rig.advance(HOUR / 2)

    assert "deliveries" not in repaired(rig)


def test_a_delivery_replaced_by_the_next_one_executes_nothing(rig: Rig) -> None:
    """The worker was only slow: whoever starts first has it, the other one has nothing to do."""
    schedule = rig.create(spec=HOUR)
    rig.occur(schedule, HOUR)
    settled(rig)
    slow = pop(rig)
    rig.advance(5 * SECOND)
    rig.recover()
    rig.redis.rpush("rq:queue:default", slow)

    rig.work()

    assert len(rig.calls) == 1
    assert statuses(schedule) == ["succeeded"]


def test_a_run_that_a_full_pass_enqueues_beside_its_own_process_executes_once(any_rig: Rig) -> None:
    """Redis knows no database yet, and the pass runs between another dispatcher's commit and its pipeline."""
    schedule = any_rig.create(spec=HOUR)
    any_rig.advance(HOUR)
    committed = [fired.change for fired in any_rig.fire(schedule) if fired.change is not None]
    any_rig.redis.flushall()

    assert any_rig.recover().deliveries == 1
    any_rig.transport.follow(committed, now=any_rig.clock.now())

    run = newest(schedule)
    assert any_rig.queued() == [str(job_id(run.state, delivery=2)), str(job_id(run.state, delivery=1))]
    any_rig.work()
    assert statuses(schedule) == ["succeeded"]
    assert len(any_rig.calls) == 1


def test_an_external_run_is_not_delivered_to_rq(rig: Rig) -> None:
    schedule = rig.create(executor="external", runs="anything", spec=HOUR)
    rig.occur(schedule, HOUR)
    settled(rig)
    rig.advance(HOUR / 2)

    assert "deliveries" not in repaired(rig)
    assert rig.queued() == []


def test_a_retry_whose_link_is_gone_is_armed_again(any_rig: Rig) -> None:
    any_rig.register("fail", lambda: 1 / 0)
    schedule = any_rig.create(runs="fail", spec=HOUR, retry=RetryPolicy(max_retries=1, base=MINUTE))
    settled(any_rig)
    run = any_rig.turn(schedule, HOUR)
    forget(any_rig, retry_of(run.state).id)
    any_rig.advance(MINUTE)

    assert repaired(any_rig) == {"retries": 1}

    any_rig.dispatch()
    assert (run.refresh().status, run.attempt) == ("pending", 2)


def test_a_waiting_run_with_nothing_ahead_is_drained(any_rig: Rig) -> None:
    schedule = any_rig.create(overlap="buffer_all", spec=HOUR)
    any_rig.occur(schedule, HOUR)
    schedule.trigger()
    settled(any_rig)
    gone = sa.update(runs).where(runs.c.schedule_uid == schedule.uid, runs.c.status == "pending")
    any_rig.runtime.database.transact(lambda connection: connection.execute(gone.values(status="succeeded")))
    any_rig.redis.delete("rq:queue:default")

    assert repaired(any_rig) == {"drained": 1}

    assert statuses(schedule) == ["succeeded", "pending"]
    assert any_rig.queued() == [run_job_id(newest(schedule))]
    assert repaired(any_rig) == {}


def test_after_a_flush_everything_is_armed_again_at_once(any_rig: Rig) -> None:
    any_rig.register("fail", lambda: 1 / 0)
    soon, later = any_rig.create("soon"), any_rig.create("later", spec=HOUR)
    waiting = any_rig.create("waiting")
    flaky = any_rig.create("flaky", runs="fail", retry=RetryPolicy(base=HOUR, max_retries=1))
    settled(any_rig)
    run = any_rig.turn(flaky)
    any_rig.fire(waiting.refresh())
    links = {link_id(s.refresh()) for s in (soon, later, waiting, flaky)}
    any_rig.redis.flushall()

    counts = repaired(any_rig)

    assert counts == {"links": 4, "retries": 1, "deliveries": 1}
    retry = str(retry_of(run.state).id)
    assert {*any_rig.armed(), *any_rig.queued("rqsched")} == links | {retry}
    assert any_rig.queued() == [run_job_id(newest(waiting))]
    assert repaired(any_rig, deep=True) == {}
    check_invariants(any_rig.runtime)


def test_redis_learns_the_database_id_only_when_everything_is_armed(
    make_rig: MakeRig, own_valkey: ValkeyServer
) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    schedule = rig.create(spec=HOUR)
    settled(rig)
    rig.redis.flushall()

    whole = iter_batches(rig.runtime)
    next(whole)
    own_valkey.kill()
    list(whole)
    own_valkey.start()

    assert not rig.runtime.is_known_to_redis()
    assert repaired(rig) == {"links": 1}
    assert link_id(schedule) in rig.armed()


def test_a_flush_within_a_full_pass_starts_another(rig: Rig) -> None:
    schedule = rig.create(spec=HOUR)
    settled(rig)
    rig.redis.flushall()

    whole = iter_batches(rig.runtime)
    while link_id(schedule) not in rig.armed():
        next(whole)
    rig.redis.flushall()
    list(whole)

    assert not rig.runtime.is_known_to_redis()
    assert repaired(rig) == {"links": 1}
    assert link_id(schedule) in rig.armed()
    assert rig.runtime.is_known_to_redis()


def test_a_full_pass_leaves_only_the_database_id_and_telemetry(rig: Rig) -> None:
    rig.redis.flushall()

    rig.recover()

    assert {text(key) for key in rig.redis.keys("*")} == {rig.transport.database_id_key, "rqsched:tally:rqsched"}
