"""Batches of links: one guilty schedule harms no other, and one that somebody holds is passed over."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import LinkId
from rqsched.kernel.store import changes
from tests.support.damage import set_columns
from tests.support.env import (
    SECOND,
    Env,
    events,
    link_id,
    newest,
    outcomes,
    run_job_id,
    statuses,
    waiting_for_retry,
)
from tests.support.narrow import present
from tests.support.sql import wait_for_a_lock

UNKNOWN = '{"overlap":"unheard-of"}'
"""Policies that are read and not evaluated, as after a downgrade that does not know one."""


def test_a_poisoned_schedule_harms_no_other_in_its_batch(any_env: Env) -> None:
    sound = [any_env.create(f"sound-{i}") for i in range(4)]
    guilty = any_env.create("guilty")
    set_columns(any_env, guilty, policies=UNKNOWN)
    any_env.advance()

    fired = any_env.deliver(sound[0], sound[1], guilty, sound[2], sound[3])

    assert sorted(outcomes(fired)) == ["failed", "fired", "fired", "fired", "fired"]
    assert [statuses(schedule) for schedule in sound] == [["pending"]] * 4
    assert len(any_env.queued()) == 4
    assert not any(events(schedule, audit.FIRE_FAILED) for schedule in sound)


def test_a_fire_that_fails_is_recorded_and_tried_again_after_a_growing_backoff(env: Env) -> None:
    schedule = env.create()
    nominal = schedule.next_run_at
    set_columns(env, schedule, policies=UNKNOWN)
    env.advance()

    waits = []
    for _ in range(3):
        env.deliver(schedule.refresh())
        waits.append(present(env.state(schedule).due_at) - env.clock.now())
        env.clock.set(present(schedule.state.due_at))

    failures = [event.payload for event in events(schedule, audit.FIRE_FAILED)]
    assert [failure["fire_failures"] for failure in failures] == [1, 2, 3]
    assert all("unheard-of" in failure["error"] for failure in failures)
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND]
    assert env.state(schedule).next_run_at == nominal, "the occurrence is still owed"
    assert link_id(schedule) in env.armed()


def test_a_repaired_schedule_fires_the_occurrence_it_owes(env: Env) -> None:
    schedule = env.create()
    nominal, sound = schedule.next_run_at, schedule.state.definition.policies
    set_columns(env, schedule, policies=UNKNOWN)
    env.advance()
    env.deliver(schedule)
    set_columns(env, schedule, policies=sound)
    env.advance(SECOND)

    assert outcomes(env.deliver(schedule.refresh())) == ["fired"]

    assert newest(schedule).occurrence_at == nominal
    assert env.state(schedule).fire_failures == 0


def test_several_positions_of_one_schedule_in_a_batch_fire_the_current_one(env: Env) -> None:
    schedule = env.create()
    env.fire_next(schedule)
    env.work()
    env.advance()
    current = env.state(schedule).n

    fired = env.deliver(*(LinkId(schedule.uid, n) for n in range(current + 1)))

    assert {result.id: result.outcome for result in fired} == {
        **{str(LinkId(schedule.uid, n)): "stale" for n in range(current)},
        link_id(schedule): "fired",
    }
    assert statuses(schedule) == ["succeeded", "pending"]


def test_a_batch_of_many_schedules_is_fired_whole(any_env: Env) -> None:
    many = [any_env.create(f"s{i}") for i in range(40)]
    any_env.advance()

    assert outcomes(any_env.deliver(*many)) == ["fired"] * 40

    assert len(any_env.queued()) == 40
    assert [any_env.state(schedule).n for schedule in many] == [1] * 40


def test_a_retry_link_and_the_main_link_of_one_schedule_share_a_batch(any_env: Env) -> None:
    schedule, retry = waiting_for_retry(any_env)
    any_env.advance()

    fired = any_env.deliver(link_id(schedule.refresh()), retry)

    assert sorted(outcomes(fired)) == ["fired", "fired"]
    run = newest(schedule)
    assert (run.number, run.attempt, run.status) == (1, 2, "pending")
    assert any_env.queued() == [run_job_id(run)]
    assert any_env.state(schedule).last_skip_reason == "overlap_policy_skip", "the retry is unfinished: it is seen"


def test_a_poisoned_schedules_retry_link_is_not_dropped_with_its_fire(env: Env) -> None:
    schedule, retry = waiting_for_retry(env)
    set_columns(env, schedule, policies=UNKNOWN)
    env.advance()

    fired = {result.id: result for result in env.deliver(link_id(schedule.refresh()), retry)}

    assert fired[str(retry)].again_at is not None
    assert outcomes(env.deliver(retry)) == ["fired"]


@pytest.mark.postgres
def test_the_link_of_a_locked_schedule_is_put_back_for_a_moment(postgres_env: Env) -> None:
    held, free = postgres_env.create("held"), postgres_env.create("free")
    postgres_env.advance()
    with postgres_env.runtime.database.engine.begin() as other:
        changes.lock_one(other, held.uid)

        assert postgres_env.dispatch() == 2

        assert statuses(free) == ["pending"]
        assert statuses(held) == []
        assert postgres_env.armed()[link_id(held)] == pytest.approx(
            postgres_env.clock.now().timestamp() + 0.05, abs=0.001
        )
    postgres_env.advance(timedelta(milliseconds=50))

    postgres_env.dispatch()

    assert statuses(held) == ["pending"]


@pytest.mark.postgres
def test_a_link_under_a_plain_worker_waits_for_the_lock(postgres_env: Env) -> None:
    schedule = postgres_env.create()
    postgres_env.advance()
    fired: list[str] = []
    with postgres_env.runtime.database.engine.begin() as other:
        changes.lock_one(other, schedule.uid)
        thread = threading.Thread(target=lambda: fired.extend(outcomes(postgres_env.deliver(schedule))))
        thread.start()
        wait_for_a_lock(postgres_env.runtime.database)
        assert fired == []
    thread.join(60)

    assert fired == ["fired"]
