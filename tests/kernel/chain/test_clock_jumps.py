"""A clock that jumps, over a real Redis: a forward jump is bounded work, a backward one fires nothing twice."""

from __future__ import annotations

from rqsched.kernel.decide import audit
from tests.support.env import HOUR, MINUTE, SECOND, Env, events, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present


def dispatched(env: Env) -> int:
    """Dispatch until nothing is due, and return the number of links taken."""
    return sum(iter(env.dispatch, 0))


def test_a_jump_forward_fires_one_occurrence_and_counts_the_others(any_env: Env) -> None:
    schedule = any_env.create()

    any_env.advance(72 * HOUR)

    assert dispatched(any_env) == 1
    assert statuses(schedule) == ["pending"]
    [missed] = events(schedule, audit.MISSED)
    assert missed.payload["count"] == 72 * 60 - 1
    check_invariants(any_env.runtime)


def test_a_jump_forward_never_bursts_beyond_the_bound(env: Env) -> None:
    schedule = env.create(overlap="allow_all", missed="all", missed_limit=5)

    env.advance(72 * HOUR)
    dispatched(env)

    assert statuses(schedule) == ["pending"] * 5, "the newest five"
    assert env.state(schedule).missed_count == 72 * 60 - 5
    check_invariants(env.runtime)


def test_a_jump_backward_fires_nothing_until_the_time_is_there_again(any_env: Env) -> None:
    schedule = any_env.create(overlap="allow_all")
    any_env.run_next(schedule)
    due_at = present(any_env.state(schedule).due_at)

    any_env.advance(-HOUR)
    for _ in range(4):
        assert dispatched(any_env) == 0
        any_env.recover()
        any_env.advance(15 * MINUTE - SECOND)

    assert any_env.state(schedule).due_at == due_at
    assert statuses(schedule) == ["succeeded"]
    any_env.clock.set(due_at)
    dispatched(any_env)
    assert statuses(schedule) == ["succeeded", "pending"]
    check_invariants(any_env.runtime)


def test_a_link_that_is_delivered_after_a_jump_backward_waits_for_its_time(env: Env) -> None:
    """RQ's scheduler promoted it before the jump."""
    schedule = env.create()
    env.advance()
    link = env.transport.lease(now=env.clock.now(), lease=2 * SECOND, limit=1)

    env.advance(-HOUR)
    [early] = env.deliver(*link)

    assert (early.outcome, early.again_at) == ("early", env.state(schedule).due_at)
    assert statuses(schedule) == []


def test_pause_and_resume_on_a_clock_set_back_repeat_no_occurrence(env: Env) -> None:
    schedule = env.create(overlap="allow_all")
    env.run_next(schedule)
    env.run_next(schedule)

    env.advance(-90 * SECOND)
    schedule.pause()
    schedule.resume()
    for _ in range(3):
        env.advance(30 * SECOND)
        dispatched(env)

    assert statuses(schedule) == ["succeeded", "succeeded"], "12:01 and 12:02 have their outcome"
    env.advance()
    dispatched(env)
    assert statuses(schedule) == ["succeeded", "succeeded", "pending"]
    check_invariants(env.runtime, skew=90 * SECOND)
