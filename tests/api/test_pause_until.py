"""A pause that ends by itself: the time, the continuation, and operations that end or change it earlier."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from rqsched import Cron, Every, Once
from rqsched.errors import InvalidInputError, InvalidSpecError, ScheduleStateError
from rqsched.features.bulk.api import Bulk
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, last, occurrences, statuses, types

UNTIL = NOON + 35 * MINUTE


def test_schedule_fires_again_from_the_end_of_its_pause_on(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))

    schedule.pause("maintenance", until=UNTIL)

    assert (schedule.status, schedule.resume_at, schedule.resume_mode) == ("paused", UNTIL, "next")
    assert last(schedule, "Paused") == {
        "reason": "maintenance", "paused_at": "2026-01-15T12:00:00Z", "until": "2026-01-15T12:35:00Z",
        "on_resume": "next",
    }  # fmt: skip
    assert any_env.run_due(35 * MINUTE - SECOND) == []
    assert any_env.run_due(SECOND) == []
    assert schedule.refresh().status == "active"
    assert (schedule.resume_at, schedule.resume_mode, schedule.paused_at) == (None, None, None)
    assert last(schedule, "Resumed") == {"next_fire_at": "2026-01-15T12:40:00Z", "until": "2026-01-15T12:35:00Z"}
    any_env.run_due(5 * MINUTE)
    assert occurrences(schedule) == [NOON + 40 * MINUTE]


CONTINUES = {
    "next, cron": (Cron("*/10 * * * *"), "next", NOON + 40 * MINUTE),
    "once, interval": (Every("10m"), "once", NOON + 30 * MINUTE),
    "once, nothing missed": (Cron("0 * * * *"), "once", NOON + HOUR),
    "from_now, interval": (Every("10m"), "from_now", NOON + 45 * MINUTE),
}


@pytest.mark.parametrize(("spec", "on_resume", "expected"), CONTINUES.values(), ids=CONTINUES.keys())
def test_schedule_continues_where_the_pause_said(env: Env, spec: Any, on_resume: str, expected: datetime) -> None:
    schedule = env.create(spec=spec)
    schedule.pause(until=UNTIL, on_resume=on_resume)

    env.advance(35 * MINUTE)
    assert env.recover().resumed == 1

    assert schedule.refresh().next_run_at == expected


def test_policy_at_the_call_counts_whatever_it_is_changed_to(env: Env) -> None:
    schedule = env.create(spec=Every("10m"), on_resume="once")
    schedule.pause(until=UNTIL)
    schedule.update(on_resume="next")

    env.advance(35 * MINUTE)
    env.recover()

    assert schedule.refresh().next_run_at == NOON + 30 * MINUTE


def test_what_was_due_since_the_end_is_handled_by_the_missed_policy_when_everything_was_down(env: Env) -> None:
    once = env.create("once", Cron("*/10 * * * *"))
    whole = env.create("all", Cron("*/10 * * * *"), missed="all", overlap="allow_all")
    for schedule in (once, whole):
        schedule.pause(until=UNTIL)

    env.run_due(2 * HOUR)

    assert occurrences(once) == [NOON + 40 * MINUTE]
    assert occurrences(whole) == [NOON + minutes * MINUTE for minutes in range(40, 121, 10)]


def test_no_occurrence_of_the_pause_fires_when_its_end_is_seen_late(env: Env) -> None:
    schedule = env.create(spec=Cron("*/10 * * * *"), missed="all", overlap="allow_all")
    schedule.pause(until=NOON + 10 * MINUTE)

    env.run_due(31 * MINUTE)

    assert occurrences(schedule) == [NOON + 20 * MINUTE, NOON + 30 * MINUTE]


def test_resume_by_hand_clears_the_end(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))
    schedule.pause(until=UNTIL)

    schedule.resume()
    assert (schedule.resume_at, schedule.resume_mode) == (None, None)
    schedule.pause()
    any_env.run_due(2 * HOUR)

    assert schedule.refresh().status == "paused"


def test_paused_schedule_gets_another_end_and_keeps_since_when(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))
    schedule.pause(reason="disk full")
    any_env.advance()

    schedule.pause(until=UNTIL)
    schedule.pause(until=NOON + HOUR, on_resume="from_now")

    assert (schedule.status_reason, schedule.paused_at, schedule.resume_at) == ("disk full", NOON, NOON + HOUR)
    assert schedule.resume_mode == "from_now"
    any_env.run_due(HOUR)
    assert (schedule.refresh().status, types(schedule)[1:]) == ("active", ["Paused", "Paused", "Paused", "Resumed"])


def test_runs_that_wait_start_when_the_pause_ends(env: Env) -> None:
    schedule = env.create(spec=Every("10m"), overlap="buffer_one")
    first = env.fire_next(schedule, 10 * MINUTE)
    env.fire_next(schedule, 10 * MINUTE)
    schedule.pause(until=NOON + 25 * MINUTE)
    env.execute(first)
    assert statuses(schedule) == ["succeeded", "buffered"]

    env.advance(5 * MINUTE)
    env.recover()

    assert statuses(schedule) == ["succeeded", "pending"]


@pytest.mark.parametrize("operation", ["delete", "restart"])
def test_end_of_a_pause_goes_with_its_schedule(env: Env, operation: str) -> None:
    schedule = env.create(spec=Every("10m"), max_runs=1)
    schedule.pause(until=UNTIL)
    if operation == "restart":
        schedule.trigger(force=True)
        assert schedule.refresh().status == "done"
        schedule.restart()
    else:
        schedule.delete()

    assert schedule.refresh().resume_at is None
    env.advance(HOUR)
    assert env.recover().resumed == 0


def test_spec_that_ended_during_the_pause_ends_the_schedule(env: Env) -> None:
    schedule = env.create(spec=Once(NOON + 10 * MINUTE))
    schedule.pause(until=UNTIL)

    env.advance(HOUR)
    env.recover()

    assert schedule.refresh().status == "done"


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "now": ({"until": NOON}, InvalidInputError, "until: 2026-01-15T12:00:00Z has passed; name a later time"),
    "naive": ({"until": NOON.replace(tzinfo=None)}, InvalidSpecError, "has no timezone"),
    "no instant": ({"until": "tomorrow"}, InvalidSpecError, "str is not a datetime"),
    "on_resume alone": ({"on_resume": "once"}, InvalidInputError, "add `until`"),
    "no such on_resume": ({"until": UNTIL, "on_resume": "twice"}, InvalidInputError, "'twice' is not one of next"),
}


@pytest.mark.parametrize(("given", "kind", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_end_is_refused_and_changes_nothing(
    env: Env, given: dict[str, Any], kind: type[Exception], says: str
) -> None:
    schedule = env.create()
    with pytest.raises(kind, match=says):
        schedule.pause(**given)
    assert (schedule.refresh().status, types(schedule)) == ("active", ["Created"])


def test_done_schedule_gets_no_end_of_a_pause(env: Env) -> None:
    schedule = env.create(spec=Every("10m"), max_runs=1)
    env.run_due(10 * MINUTE)
    with pytest.raises(ScheduleStateError):
        schedule.pause(until=NOON + HOUR)


def test_bulk_pauses_until_an_instant(env: Env) -> None:
    env.create("a"), env.create("b")

    rows = [row for done in env.scheduler.bulk.pause(until=UNTIL, on_resume="once") for row in done.items]

    assert [row.outcome for row in rows] == ["paused", "paused"]
    found = [env.scheduler.get(name) for name in ("a", "b")]
    assert {(one.resume_at, one.resume_mode) for one in found} == {(UNTIL, "once")}
    with pytest.raises(InvalidInputError, match="until: 2026-01-15T12:00:00Z has passed"):
        env.scheduler.bulk.pause(until=NOON)
    with pytest.raises(InvalidInputError, match="leave it out of resume"):
        Bulk.of("resume", until=UNTIL).require(NOON)


def test_preview_shows_what_fires_after_the_pause(env: Env) -> None:
    schedule = env.create(spec=Every("10m"))
    schedule.pause(until=UNTIL, on_resume="from_now")

    assert schedule.upcoming(2) == [NOON + 45 * MINUTE, NOON + 55 * MINUTE]
    assert schedule.pause(until=UNTIL, on_resume="once").upcoming(2) == [UNTIL, NOON + 40 * MINUTE]


def test_why_says_until_when_it_is_paused_and_what_fires_then(env: Env) -> None:
    schedule = env.create(spec=Every("10m"))
    schedule.pause("maintenance", until=UNTIL)
    env.advance(MINUTE)

    now, during = schedule.why(), schedule.why(NOON + 20 * MINUTE)
    after = schedule.why(NOON + 40 * MINUTE)

    text = "It has been paused since Thu 15 Jan 2026 at 12:00 UTC: maintenance. "
    text += "Its pause ends by itself on Thu 15 Jan 2026 at 12:35 UTC."
    assert (now.answer, now.text) == ("paused", text)
    assert (during.answer, during.text) == ("paused", text)
    assert after.answer == "fires"
    assert after.text == ("It is paused until Thu 15 Jan 2026 at 12:35 UTC. It fires on Thu 15 Jan 2026 at 12:40 UTC.")


def test_why_finds_the_grid_that_a_pause_from_now_has_begun(env: Env) -> None:
    schedule = env.create(spec=Every("10m"))
    schedule.pause(until=UNTIL, on_resume="from_now")
    env.run_due(36 * MINUTE)
    env.run_due(10 * MINUTE)
    schedule.update(spec=Every("1h"))

    assert schedule.why(NOON + 45 * MINUTE).answer == "ran"


def test_two_processes_that_see_the_end_at_once_resume_once(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))
    schedule.pause(until=UNTIL)
    any_env.advance(timedelta(minutes=36))

    found = [any_env.recover().resumed, any_env.recover().resumed]

    assert found == [1, 0]
    assert types(schedule).count("Resumed") == 1
