"""A tick fires due schedules in this process, in order, with a row per outcome. One failing schedule stops no other."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from rqsched import RetryPolicy
from rqsched.errors import InvalidInputError, InvalidLimitError
from tests.support.damage import set_columns
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, last, newest, statuses, types
from tests.support.narrow import present

NONSENSE = "{}"
"""A timing that no release wrote. Unknown timings of a newer release are left to it."""
"""A specification that nobody can evaluate."""


def test_a_tick_with_nothing_due_returns_no_row(any_env: Env) -> None:
    any_env.create()
    assert any_env.scheduler.tick() == []


def test_a_row_says_what_was_triggered(any_env: Env) -> None:
    schedule = any_env.create()

    assert any_env.tick(MINUTE + 5 * SECOND) == [
        {
            "schedule_id": "report",
            "instance_id": "schedule:report:2026-01-15T12:01:00Z",
            "outcome": "triggered",
            "run_id": newest(schedule).uid,
            "occurrence_time": "2026-01-15T12:01:00Z",
            "last_fired_at": "2026-01-15T12:01:05Z",
            "next_fire_at": "2026-01-15T12:02:00Z",
        }
    ]


def test_a_row_says_why_nothing_was_started(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.tick()

    (row,) = any_env.tick()

    assert (row["outcome"], row["reason"], row["instance_id"]) == ("skipped", "overlap_policy_skip", None)
    assert statuses(schedule) == ["pending"]


def test_rows_of_a_buffer_say_buffered_and_buffer_full(any_env: Env) -> None:
    any_env.create(overlap="buffer_one")
    outcomes = [any_env.tick()[0]["outcome"] for _ in range(3)]
    assert outcomes == ["triggered", "buffered", "buffer_full"]


def test_what_is_due_fires_in_order_up_to_the_limit(any_env: Env) -> None:
    for position, name in enumerate("hcfaebdg"):
        any_env.create(name, timedelta(minutes=8 - position))
    any_env.advance(HOUR)

    assert [row["schedule_id"] for row in any_env.scheduler.tick(limit=6)] == [*"gdbeaf"]
    assert [row["schedule_id"] for row in any_env.scheduler.tick()] == [*"ch"]
    assert any_env.scheduler.tick() == []


def test_a_tick_takes_another_time(any_env: Env) -> None:
    schedule = any_env.create()

    (row,) = any_env.scheduler.tick(now=NOON + 10 * MINUTE)

    assert (row["occurrence_time"], row["last_fired_at"]) == ("2026-01-15T12:01:00Z", "2026-01-15T12:10:00Z")
    assert schedule.refresh().next_run_at == NOON + 11 * MINUTE
    assert any_env.clock.now() == NOON


def test_after_an_outage_one_run_starts_for_the_late_occurrence_and_the_cadence_continues(any_env: Env) -> None:
    schedule = any_env.create()

    rows = any_env.tick(10 * MINUTE + SECOND)

    assert [row["occurrence_time"] for row in rows] == ["2026-01-15T12:01:00Z"]
    assert schedule.refresh().next_run_at == NOON + 11 * MINUTE
    assert (last(schedule, "Missed")["count"], schedule.missed_count) == (9, 9)


def test_one_failing_schedule_stops_no_other_and_backs_off(any_env: Env) -> None:
    good, bad = any_env.create("good"), any_env.create("bad")
    set_columns(any_env, bad, spec=NONSENSE)

    rows = any_env.tick()

    assert {row["schedule_id"]: row.get("outcome") for row in rows} == {"good": "triggered", "bad": None}
    error = next(row for row in rows if row["schedule_id"] == "bad")
    assert error["instance_id"] is None
    assert "is empty" in error["error"]
    assert statuses(good) == ["pending"]
    assert types(bad) == ["Created", "FireFailed"]
    due_at = present(bad.refresh().due_at)
    assert due_at > any_env.clock.now(), "it is tried again, but not in a tight loop"


def test_a_schedule_that_is_repaired_fires_what_was_due(any_env: Env) -> None:
    schedule = any_env.create(spec="* * * * *")
    whole = schedule.state.definition.spec
    set_columns(any_env, schedule, spec=NONSENSE)
    any_env.tick()
    set_columns(any_env, schedule, spec=whole)

    any_env.run_due(2 * SECOND)

    assert newest(schedule).occurrence_at == NOON + MINUTE
    assert schedule.refresh().state.fire_failures == 0


def test_a_tick_fires_due_retry_links(any_env: Env) -> None:
    any_env.failing = True
    schedule = any_env.create(spec=HOUR, retry=RetryPolicy(max_retries=1, base=30 * SECOND))
    any_env.run_due(HOUR)
    assert statuses(schedule) == ["retrying"]
    any_env.failing = False

    any_env.run_due(29 * SECOND)
    assert statuses(schedule) == ["retrying"]
    any_env.run_due(SECOND)

    assert (statuses(schedule), newest(schedule).attempt) == (["succeeded"], 2)


def test_a_tick_refuses_a_naive_time_and_a_wrong_limit(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="naive"):
        env.scheduler.tick(now=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    for limit in (0, 10_001):
        with pytest.raises(InvalidLimitError):
            env.scheduler.tick(limit=limit)
