"""A clock that jumps, over a real Redis: a forward jump is bounded work, a backward one fires nothing twice."""

from __future__ import annotations

from datetime import timedelta

from rqsched.core import audit
from tests.support.invariants import check_invariants
from tests.support.rig import MINUTE, SECOND, Rig, events, statuses

HOUR = timedelta(hours=1)


def dispatched(rig: Rig) -> int:
    """What dispatchers take until nothing is due."""
    return sum(iter(rig.dispatch, 0))


def test_a_jump_forward_fires_one_occurrence_and_counts_the_others(any_rig: Rig) -> None:
    schedule = any_rig.create()

    any_rig.advance(72 * HOUR)

    assert dispatched(any_rig) == 1
    assert statuses(schedule) == ["pending"]
    [missed] = events(schedule, audit.MISSED)
    assert missed.payload["count"] == 72 * 60 - 1
    check_invariants(any_rig.runtime)


def test_a_jump_forward_never_bursts_beyond_the_bound(rig: Rig) -> None:
    schedule = rig.create(overlap="allow_all", missed="all", catch_up_limit=5)

    rig.advance(72 * HOUR)
    dispatched(rig)

    assert statuses(schedule) == ["pending"] * 5, "the newest five"
    assert rig.state(schedule).missed_count == 72 * 60 - 5
    check_invariants(rig.runtime)


def test_a_jump_backward_fires_nothing_until_the_time_is_there_again(any_rig: Rig) -> None:
    schedule = any_rig.create(overlap="allow_all")
    any_rig.turn(schedule)
    due_at = any_rig.state(schedule).due_at
    assert due_at is not None

    any_rig.advance(-HOUR)
    for _ in range(4):
        assert dispatched(any_rig) == 0
        any_rig.recover()
        any_rig.advance(15 * MINUTE - SECOND)

    assert any_rig.state(schedule).due_at == due_at
    assert statuses(schedule) == ["succeeded"]
    any_rig.clock.set(due_at)
    dispatched(any_rig)
    assert statuses(schedule) == ["succeeded", "pending"]
    check_invariants(any_rig.runtime)


def test_a_link_that_is_delivered_after_a_jump_backward_waits_for_its_time(rig: Rig) -> None:
    """RQ's scheduler promoted it before the jump."""
    schedule = rig.create()
    rig.advance()
    link = rig.transport.lease(now=rig.clock.now(), lease=2 * SECOND, limit=1)

    rig.advance(-HOUR)
    [early] = rig.deliver(*link)

    assert (early.outcome, early.again_at) == ("early", rig.state(schedule).due_at)
    assert statuses(schedule) == []


def test_pause_and_resume_on_a_clock_set_back_repeat_no_occurrence(rig: Rig) -> None:
    schedule = rig.create(overlap="allow_all")
    rig.turn(schedule)
    rig.turn(schedule)

    rig.advance(-90 * SECOND)
    schedule.pause()
    schedule.resume()
    for _ in range(3):
        rig.advance(30 * SECOND)
        dispatched(rig)

    assert statuses(schedule) == ["succeeded", "succeeded"], "12:01 and 12:02 have their outcome"
    rig.advance()
    dispatched(rig)
    assert statuses(schedule) == ["succeeded", "succeeded", "pending"]
    check_invariants(rig.runtime, skew=90 * SECOND)
