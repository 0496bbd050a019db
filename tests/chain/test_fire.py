"""Firing links: what a delivered link does, whatever became of its schedule since it was armed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from redis.exceptions import RedisError

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.core import audit
from rqsched.core.ids import LinkId, derived_uid
from rqsched.errors import RedisUnavailableError
from rqsched.store import changes
from tests.chain.conftest import MakeRig
from tests.support.narrow import present
from tests.support.rig import MINUTE, SECOND, Rig, events, failing, link_id, newest, outcomes, run_job_id, statuses
from tests.support.servers import ValkeyServer


def rows(rig: Rig) -> tuple[object, ...]:
    """Everything SQL holds, to see that nothing was written."""
    tables = ("rqsched_schedules", "rqsched_runs", "rqsched_audit_events")
    return rig.runtime.database.read(
        lambda connection: tuple(
            tuple(connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2"))) for table in tables
        )
    )


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
    assert any_rig.armed()[link_id(schedule)] == present(after.next_run_at).timestamp()


def test_the_next_time_is_computed_from_the_nominal_time_not_from_the_fire(rig: Rig) -> None:
    schedule = rig.create(spec="*/5 * * * *")
    nominal = present(schedule.next_run_at)
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


@pytest.mark.parametrize("change", [paused, deleted, done])
def test_a_link_at_the_position_of_a_schedule_that_does_not_fire_writes_nothing(
    rig: Rig, change: Callable[[ScheduleHandle], None]
) -> None:
    schedule = rig.create()
    change(schedule)
    rig.advance(10 * MINUTE)
    before = rows(rig)
    current = rig.runtime.database.read(lambda connection: changes.find(connection, schedule.uid))
    assert current is not None

    assert outcomes(rig.deliver(LinkId(schedule.uid, current.n))) == ["stale"]

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


def test_an_outage_of_redis_is_not_recorded_as_a_failed_fire(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
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
def test_an_id_that_is_not_a_link_is_left(rig: Rig, text: str) -> None:
    (fired,) = rig.deliver(text)

    assert fired.outcome == "foreign"
