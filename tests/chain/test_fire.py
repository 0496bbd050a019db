"""Firing links: what a delivered link does, whatever became of its schedule since it was armed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from redis.exceptions import RedisError
from rq.job import JobStatus

from rqsched import audit, store
from rqsched.errors import RedisUnavailableError
from rqsched.handles import ScheduleHandle
from rqsched.ids import LinkId, RetryLinkId, derived_uid
from rqsched.policy import RetryPolicy
from rqsched.tables import schedules
from tests.chain.conftest import MakeRig
from tests.chain.rig import (
    MINUTE,
    SECOND,
    Rig,
    events,
    link_id,
    newest,
    outcomes,
    run_job_id,
    statuses,
)
from tests.processes import wait_until
from tests.servers import ValkeyServer


def rows(rig: Rig) -> tuple[object, ...]:
    """Everything SQL holds, to see that nothing was written."""
    tables = ("rqsched_schedules", "rqsched_runs", "rqsched_audit_events")
    return rig.runtime.database.read(
        lambda connection: tuple(
            tuple(connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2"))) for table in tables
        )
    )


# ---- on time


def test_a_due_link_starts_a_run_and_arms_its_successor(any_rig: Rig) -> None:
    schedule = any_rig.create()
    any_rig.advance()

    fired = any_rig.fire(schedule)

    assert outcomes(fired) == ["fired"]
    run = newest(schedule)
    assert (run.status, run.occurrence_at) == ("pending", any_rig.clock.now())
    assert any_rig.queued() == [run_job_id(run)]
    after = any_rig.state(schedule)
    assert (after.n, after.next_run_at) == (1, any_rig.clock.now() + MINUTE)
    assert any_rig.armed()[link_id(schedule)] == after.next_run_at.timestamp()


def test_the_successors_time_comes_from_the_nominal_time_not_from_the_fire(rig: Rig) -> None:
    schedule = rig.create(spec="*/5 * * * *")
    nominal = schedule.next_run_at
    rig.advance(nominal - rig.clock.now() + timedelta(seconds=47))

    rig.fire(schedule)

    assert newest(schedule).occurrence_at == nominal
    assert rig.state(schedule).next_run_at == nominal + 5 * MINUTE


def test_an_early_link_waits_for_its_time(any_rig: Rig) -> None:
    schedule = any_rig.create()
    due_at = schedule.state.due_at
    any_rig.advance(MINUTE - timedelta(microseconds=1))
    before = rows(any_rig)

    (fired,) = any_rig.fire(schedule)

    assert (fired.outcome, fired.again_at) == ("early", due_at)
    assert rows(any_rig) == before


# ---- delivered twice, late, or after things changed


def test_a_link_delivered_twice_fires_once(any_rig: Rig) -> None:
    schedule = any_rig.create()
    link = link_id(schedule)
    any_rig.advance()
    any_rig.deliver(link)
    before = rows(any_rig)

    assert outcomes(any_rig.deliver(link)) == ["stale"]

    assert rows(any_rig) == before
    assert len(any_rig.queued()) == 1


def test_a_link_delivered_twice_in_one_batch_fires_once(rig: Rig) -> None:
    schedule = rig.create()
    rig.advance()

    assert outcomes(rig.deliver(link_id(schedule), link_id(schedule))) == ["fired"]
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
def test_a_link_from_before_a_change_writes_nothing(rig: Rig, change: Callable[[ScheduleHandle], None]) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    change(schedule)
    rig.advance(10 * MINUTE)
    before = rows(rig)

    assert outcomes(rig.deliver(link)) == ["stale"]

    assert rows(rig) == before


def test_a_link_from_before_a_recreation_starts_nothing_of_the_new_schedule(any_rig: Rig) -> None:
    old = any_rig.create()
    link = link_id(old)
    old.delete()
    new = any_rig.create()
    any_rig.advance(10 * MINUTE)

    assert outcomes(any_rig.deliver(link)) == ["stale"]

    assert statuses(new) == []
    assert any_rig.state(new).n == 0


@pytest.mark.parametrize("n", [-1, 1, 7], ids=["older", "next", "never armed"])
def test_a_link_of_another_position_writes_nothing(rig: Rig, n: int) -> None:
    schedule = rig.create()
    rig.occur(schedule)
    rig.advance(10 * MINUTE)
    before = rows(rig)

    position = rig.state(schedule).n + n
    assert outcomes(rig.deliver(LinkId(schedule.uid, position))) == ["stale"]

    assert rows(rig) == before


# ---- healing


def test_a_stale_link_arms_the_current_one_where_it_is_missing(any_rig: Rig) -> None:
    """A crash between the commit and the pipeline heals on the next delivery of the same link."""
    schedule = any_rig.create()
    link = link_id(schedule)
    any_rig.occur(schedule)
    run_job, current = any_rig.queued(), link_id(schedule.refresh())
    any_rig.redis.flushall()

    assert outcomes(any_rig.deliver(link)) == ["stale"]

    assert list(any_rig.armed()) == [current]
    assert any_rig.queued() == run_job


def test_a_stale_link_of_a_paused_schedule_enqueues_its_runs_and_arms_nothing(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    run = rig.occur(schedule)
    schedule.pause()
    rig.redis.flushall()

    rig.deliver(link)

    assert rig.armed() == {}
    assert rig.queued() == [run_job_id(run)]


def test_a_stale_retry_link_enqueues_the_attempt_it_made(rig: Rig) -> None:
    schedule, retry = failing(rig)
    rig.advance()
    rig.deliver(retry)
    queued = rig.queued()
    rig.redis.delete("rq:queue:default", f"rq:job:{queued[0]}")

    assert outcomes(rig.deliver(retry)) == ["stale"]

    assert rig.queued() == queued == [run_job_id(newest(schedule))]


def test_what_was_committed_while_redis_was_away_follows_at_the_next_delivery(
    make_rig: MakeRig, own_valkey: ValkeyServer
) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance()
    own_valkey.kill()
    with pytest.raises(RedisUnavailableError):
        rig.deliver(link)
    assert statuses(schedule) == ["pending"], "SQL first: it has happened"
    own_valkey.start()

    assert outcomes(rig.deliver(link)) == ["stale"]

    assert rig.queued() == [run_job_id(newest(schedule))]
    assert list(rig.armed()) == [link_id(schedule.refresh())]


def test_an_outage_of_redis_is_no_schedules_fault(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    some = [rig.create(f"s{i}") for i in range(3)]
    rig.advance()
    own_valkey.kill()

    with pytest.raises(RedisUnavailableError):
        rig.fire(*some)

    assert [rig.state(schedule).fire_failures for schedule in some] == [0, 0, 0]
    assert all(not events(schedule, audit.FIRE_FAILED) for schedule in some)


def test_an_operation_succeeds_while_redis_is_away(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    own_valkey.kill()
    with pytest.raises(RedisError):
        rig.redis.ping()

    schedule = rig.create()
    schedule.trigger()
    schedule.pause()
    schedule.resume()

    own_valkey.start()
    assert rig.recover().links == 1
    assert list(rig.armed()) == [link_id(schedule.refresh())]


# ---- links that are none of ours


def test_a_link_of_another_database_is_left(any_rig: Rig) -> None:
    stranger = LinkId(derived_uid(any_rig.clock.now(), "elsewhere"), 3)
    before = rows(any_rig)

    (fired,) = any_rig.deliver(stranger)

    assert (fired.outcome, fired.again_at) == ("foreign", any_rig.clock.now() + 15 * SECOND)
    assert rows(any_rig) == before


def test_a_link_of_a_purged_schedule_is_dropped(rig: Rig) -> None:
    """The control queue is known to be this database's, so nobody else misses it."""
    rig.recover()
    schedule = rig.create()
    link = link_id(schedule)
    schedule.delete(purge=True)

    (fired,) = rig.deliver(link)

    assert (fired.outcome, fired.again_at) == ("stale", None)


@pytest.mark.parametrize("text", ["report", "sched-short-n1-rc0", "run-x-a1-d1", ""])
def test_an_id_that_names_no_link_is_left(rig: Rig, text: str) -> None:
    (fired,) = rig.deliver(text)

    assert fired.outcome == "foreign"


# ---- batches


def poison(rig: Rig, schedule: ScheduleHandle) -> None:
    """Its row can be read but not be evaluated, as after a downgrade that does not know its policy."""
    policies = schedule.state.definition.policies.replace('"skip"', '"unheard-of"')
    broken = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(policies=policies)
    rig.runtime.database.transact(lambda connection: connection.execute(broken))


def test_a_poisoned_schedule_harms_no_other_in_its_batch(any_rig: Rig) -> None:
    sound = [any_rig.create(f"sound-{i}") for i in range(4)]
    guilty = any_rig.create("guilty")
    poison(any_rig, guilty)
    any_rig.advance()

    fired = any_rig.fire(sound[0], sound[1], guilty, sound[2], sound[3])

    assert sorted(outcomes(fired)) == ["failed", "fired", "fired", "fired", "fired"]
    assert [statuses(schedule) for schedule in sound] == [["pending"]] * 4
    assert len(any_rig.queued()) == 4
    assert not any(events(schedule, audit.FIRE_FAILED) for schedule in sound)


def test_a_fire_that_fails_is_recorded_and_tried_again_after_a_growing_backoff(rig: Rig) -> None:
    schedule = rig.create()
    nominal = schedule.next_run_at
    poison(rig, schedule)
    rig.advance()

    waits = []
    for _ in range(3):
        rig.fire(schedule.refresh())
        waits.append(rig.state(schedule).due_at - rig.clock.now())
        rig.clock.set(schedule.state.due_at)

    failures = [event.payload for event in events(schedule, audit.FIRE_FAILED)]
    assert [failure["fire_failures"] for failure in failures] == [1, 2, 3]
    assert all("unheard-of" in failure["error"] for failure in failures)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND]
    assert rig.state(schedule).next_run_at == nominal, "the occurrence is still owed"
    assert link_id(schedule) in rig.armed()


def test_a_mended_schedule_fires_the_occurrence_it_owes(rig: Rig) -> None:
    schedule = rig.create()
    nominal, sound = schedule.next_run_at, schedule.state.definition.policies
    poison(rig, schedule)
    rig.advance()
    rig.fire(schedule)
    mend = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(policies=sound)
    rig.runtime.database.transact(lambda connection: connection.execute(mend))
    rig.advance(SECOND)

    assert outcomes(rig.fire(schedule.refresh())) == ["fired"]

    assert newest(schedule).occurrence_at == nominal
    assert rig.state(schedule).fire_failures == 0


def test_several_positions_of_one_schedule_in_a_batch_fire_the_current_one(rig: Rig) -> None:
    schedule = rig.create()
    rig.occur(schedule)
    rig.work()
    rig.advance()
    current = rig.state(schedule).n

    fired = rig.deliver(*(LinkId(schedule.uid, n) for n in range(current + 1)))

    assert {result.id: result.outcome for result in fired} == {
        **{str(LinkId(schedule.uid, n)): "stale" for n in range(current)},
        link_id(schedule): "fired",
    }
    assert statuses(schedule) == ["succeeded", "pending"]


def test_a_batch_of_many_schedules_is_fired_whole(any_rig: Rig) -> None:
    many = [any_rig.create(f"s{i}") for i in range(40)]
    any_rig.advance()

    assert outcomes(any_rig.fire(*many)) == ["fired"] * 40

    assert len(any_rig.queued()) == 40
    assert [any_rig.state(schedule).n for schedule in many] == [1] * 40


def failing(rig: Rig) -> tuple[ScheduleHandle, RetryLinkId]:
    """A schedule whose first run failed and waits for its retry a minute later."""

    def fail() -> None:
        raise ValueError("not today")

    rig.register("fail", fail)
    schedule = rig.create(runs="fail", retry=RetryPolicy(base=MINUTE))
    run = rig.turn(schedule)
    assert run.status == "retrying"
    return schedule, RetryLinkId(schedule.uid, run.number, run.attempt)


def test_a_retry_link_and_the_main_link_of_one_schedule_share_a_batch(any_rig: Rig) -> None:
    schedule, retry = failing(any_rig)
    any_rig.advance()

    fired = any_rig.deliver(link_id(schedule.refresh()), retry)

    assert sorted(outcomes(fired)) == ["fired", "fired"]
    run = newest(schedule)
    assert (run.number, run.attempt, run.status) == (1, 2, "pending")
    assert any_rig.queued() == [run_job_id(run)]
    assert any_rig.state(schedule).last_skip_reason == "overlap_policy_skip", "the retry is unfinished: it is seen"


def test_a_poisoned_schedules_retry_link_is_not_dropped_with_its_fire(rig: Rig) -> None:
    schedule, retry = failing(rig)
    poison(rig, schedule)
    rig.advance()

    fired = {result.id: result for result in rig.deliver(link_id(schedule.refresh()), retry)}

    assert fired[str(retry)].again_at is not None
    assert outcomes(rig.deliver(retry)) == ["fired"]


# ---- somebody else holds the schedule


@pytest.fixture
def pg_rig(make_rig: MakeRig, postgres_url: str) -> Rig:
    return make_rig(database_url=postgres_url)


@pytest.mark.postgres
def test_a_schedule_that_somebody_holds_is_skipped_for_a_moment(pg_rig: Rig) -> None:
    held, free = pg_rig.create("held"), pg_rig.create("free")
    pg_rig.advance()
    with pg_rig.runtime.database.engine.begin() as other:
        store.lock_one(other, held.uid)

        assert pg_rig.dispatch() == 2

        assert statuses(free) == ["pending"]
        assert statuses(held) == []
        assert pg_rig.armed()[link_id(held)] == pytest.approx(pg_rig.clock.now().timestamp() + 0.05, abs=0.001)
    pg_rig.advance(timedelta(milliseconds=50))

    pg_rig.dispatch()

    assert statuses(held) == ["pending"]


def waiting_for_locks(rig: Rig) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return int(rig.runtime.database.read(lambda connection: connection.execute(sa.text(query)).scalar_one()))


@pytest.mark.postgres
def test_a_link_under_a_plain_worker_waits_for_the_lock(pg_rig: Rig) -> None:
    schedule = pg_rig.create()
    pg_rig.advance()
    fired: list[str] = []
    with pg_rig.runtime.database.engine.begin() as other:
        store.lock_one(other, schedule.uid)
        thread = threading.Thread(target=lambda: fired.extend(outcomes(pg_rig.fire(schedule))))
        thread.start()
        wait_until(lambda: waiting_for_locks(pg_rig) == 1)
        assert fired == []
    thread.join(10)

    assert fired == ["fired"]


# ---- under a plain `rq worker`


def test_a_link_performed_by_rq_fires_and_is_forgotten(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance()
    rig.recover()  # its first pass after a flush puts the due link on the list
    rig.redis.zrem(rig.transport.scheduled_key, link)
    rig.recover(deep=True)
    assert rig.queued("rqsched") == [link]

    rig.work("rqsched")

    assert statuses(schedule) == ["pending"]
    assert not rig.redis.exists(f"rq:job:{link}")


def write(rig: Rig, *statements: str) -> None:
    rig.runtime.database.transact(lambda connection: [connection.execute(sa.text(text)) for text in statements])


def enqueue(rig: Rig, link: str) -> None:
    """RQ's scheduler has promoted the link."""
    rig.redis.zrem(rig.transport.scheduled_key, link)
    job = rig.job(link)
    rig.transport.control.enqueue_job(job)


def test_rq_performs_an_early_link_again_and_never_early(rig: Rig) -> None:
    """RQ cuts times to whole seconds, and its host's clock may be ahead."""
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance(MINUTE - timedelta(seconds=1.5))
    enqueue(rig, link)

    rig.work("rqsched")

    assert statuses(schedule) == []
    job = rig.job(link)
    assert job.get_status() is JobStatus.SCHEDULED
    assert link in rig.armed(), "RQ has put it back for itself"
    rig.advance(timedelta(seconds=1.5))
    enqueue(rig, link)
    rig.work("rqsched")
    assert statuses(schedule) == ["pending"]


def test_rq_leaves_a_link_of_another_database_for_its_owner(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    write(rig, "DELETE FROM rqsched_audit_events", "DELETE FROM rqsched_schedules")
    enqueue(rig, link)

    rig.work("rqsched")

    assert link in rig.armed()


def test_a_link_whose_fire_meets_an_outage_of_sql_is_performed_again_by_rq(make_rig: MakeRig) -> None:
    rig = make_rig()
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance()
    enqueue(rig, link)
    write(rig, "ALTER TABLE rqsched_schedules RENAME TO gone")

    rig.work("rqsched")

    assert rig.job(link).retries_left == 59
    assert link in rig.armed()
