"""Batches of links: one guilty schedule harms no other, and one that somebody holds is passed over."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.core import audit
from rqsched.core.ids import LinkId
from rqsched.store import changes
from rqsched.store.tables import schedules
from tests.chain.conftest import MakeRig
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.rig import SECOND, Rig, events, failing, link_id, newest, outcomes, run_job_id, statuses


def poison(rig: Rig, schedule: ScheduleHandle) -> None:
    """Its row can be read but not be evaluated, as after a downgrade that does not know its policy."""
    broken = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(policies='{"overlap":"unheard-of"}')
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
        waits.append(present(rig.state(schedule).due_at) - rig.clock.now())
        rig.clock.set(present(schedule.state.due_at))

    failures = [event.payload for event in events(schedule, audit.FIRE_FAILED)]
    assert [failure["fire_failures"] for failure in failures] == [1, 2, 3]
    assert all("unheard-of" in failure["error"] for failure in failures)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND]
    assert rig.state(schedule).next_run_at == nominal, "the occurrence is still owed"
    assert link_id(schedule) in rig.armed()


def test_a_repaired_schedule_fires_the_occurrence_it_owes(rig: Rig) -> None:
    schedule = rig.create()
    nominal, sound = schedule.next_run_at, schedule.state.definition.policies
    poison(rig, schedule)
    rig.advance()
    rig.fire(schedule)
    repair = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(policies=sound)
    rig.runtime.database.transact(lambda connection: connection.execute(repair))
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


@pytest.fixture
def pg_rig(make_rig: MakeRig, postgres_url: str) -> Rig:
    return make_rig(database_url=postgres_url)


@pytest.mark.postgres
def test_the_link_of_a_locked_schedule_is_put_back_for_a_moment(pg_rig: Rig) -> None:
    held, free = pg_rig.create("held"), pg_rig.create("free")
    pg_rig.advance()
    with pg_rig.runtime.database.engine.begin() as other:
        changes.lock_one(other, held.uid)

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
        changes.lock_one(other, schedule.uid)
        thread = threading.Thread(target=lambda: fired.extend(outcomes(pg_rig.fire(schedule))))
        thread.start()
        wait_until(lambda: waiting_for_locks(pg_rig) == 1)
        assert fired == []
    thread.join(10)

    assert fired == ["fired"]
