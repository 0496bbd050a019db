"""A schedule whose timing only a newer release knows: a process of this one leaves it alone, and shows it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import NewerReleaseError
from rqsched.kernel.decide.delays import FIRST_OFFER
from rqsched.kernel.decide.payload import dumps, loads
from rqsched.kernel.store import metadata
from tests.support.damage import repaired, set_columns, settled
from tests.support.env import DAY, HOUR, MINUTE, SECOND, Env, link_id, newest, outcomes, statuses, types
from tests.support.invariants import check_invariants
from tests.support.narrow import present


def set_moon(env: Env, schedule: ScheduleHandle, moon: str | None) -> None:
    """Write a key that this release does not know; None: as a process of the newer release sees it."""
    spec = loads(env.state(schedule).definition.spec)
    spec = {name: value for name, value in spec.items() if name != "moon"} | ({"moon": moon} if moon else {})
    set_columns(env, schedule, spec=dumps(spec))


def test_its_link_comes_again_until_a_process_of_that_release_takes_it(any_env: Env) -> None:
    schedule, other = any_env.create(), any_env.create("other")
    settled(any_env)
    set_moon(any_env, schedule, "full")
    before, due_at = any_env.state(schedule), present(any_env.state(schedule).due_at)
    any_env.advance()

    assert any_env.dispatch() == 2

    assert (any_env.state(schedule), statuses(other)) == (before, ["pending"])
    assert any_env.armed()[link_id(schedule)] == (due_at + FIRST_OFFER).timestamp()
    any_env.advance(10 * SECOND)
    (fired,) = any_env.deliver(link_id(schedule))
    assert (fired.outcome, fired.again_at) == ("newer", due_at + 10 * SECOND + FIRST_OFFER + 10 * SECOND)

    set_moon(any_env, schedule, None)
    assert outcomes(any_env.deliver(link_id(schedule))) == ["fired"]
    assert newest(schedule).occurrence_at == due_at
    check_invariants(any_env.runtime)


def test_a_pass_arms_it_and_changes_nothing(any_env: Env) -> None:
    schedule, paused = any_env.create(), any_env.create("paused", jitter="5m")
    paused.pause(until=any_env.clock.now() + MINUTE)
    settled(any_env)
    for one in (schedule, paused):
        set_moon(any_env, one, "full")
    before = any_env.state(schedule), any_env.state(paused)
    any_env.advance(HOUR)
    assert any_env.tick(timedelta(0)) == []

    for options in ({}, {"deep": True}):
        any_env.recover(**options)

    assert (any_env.state(schedule), any_env.state(paused)) == before
    assert link_id(schedule) in [*any_env.armed(), *any_env.queued("rqsched")]
    for one in (schedule, paused):
        set_moon(any_env, one, None)
    assert repaired(any_env)["resumed"] == 1
    check_invariants(any_env.runtime)


def test_new_timezone_rules_are_applied_to_it_by_a_process_that_knows_it(env: Env) -> None:
    schedule = env.create()
    set_moon(env, schedule, "full")
    set_columns(env, schedule, tzdata="2020a")
    env.runtime.database.transact(lambda connection: metadata.set_value(connection, "tzdata", "2020a"))
    assert "retimed" not in repaired(env)
    assert env.state(schedule).tzdata == "2020a"

    set_moon(env, schedule, None)
    assert repaired(env)["retimed"] == 1


def test_many_of_them_do_not_keep_a_tick_from_the_others(env: Env) -> None:
    for number in range(3):
        set_moon(env, env.create(f"newer-{number}"), "full")
    env.advance(SECOND)
    known = env.create("known")
    env.advance(MINUTE)

    env.scheduler.tick(limit=2)

    assert statuses(known) == ["pending"]


def test_it_is_shown_and_its_change_is_refused(env: Env) -> None:
    schedule = env.create(expect_duration="1s")
    schedule.trigger()
    asked = env.clock.now() - HOUR
    set_moon(env, schedule, "full")
    env.advance(DAY)

    told = "of a newer release (spec: unknown key 'moon')"
    assert told in schedule.describe().timing
    assert told in schedule.describe().timing_in_words
    assert [one.schedule_id for one in env.scheduler.list().items] == [schedule.schedule_id]
    assert (schedule.upcoming(5), schedule.why().answer) == ([env.state(schedule).due_at], "newer_release")
    assert schedule.why(asked).text.endswith("whose processes fire it; ask one of them.")

    history = types(schedule)
    with pytest.raises(NewerReleaseError, match="Ask a process of the newer release"):
        schedule.update(labels={"team": "a"})
    with pytest.raises(NewerReleaseError):
        schedule.update(spec="0 3 * * *")
    with pytest.raises(NewerReleaseError):
        schedule.backfill(env.clock.now() - HOUR, env.clock.now())
    assert types(schedule) == history

    schedule.trigger()  # operations that need no timing continue
    schedule.pause()
    schedule.delete()
