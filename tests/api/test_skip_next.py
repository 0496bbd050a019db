"""Skips on request: the occurrences, the deadline, who asked, and the outcome."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from rqsched import CommandContext, Cron, Every, Once
from rqsched.errors import InvalidInputError, ScheduleStateError, VersionConflictError
from rqsched.kernel.decide.model import changed
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.decide.schedule_repair import decide_retime
from tests.support.env import DAY, HOUR, MINUTE, NOON, SECOND, Env, events, last, occurrences, types
from tests.support.invariants import check_invariants

ANN = CommandContext(principal="ann", reason="the bank is closed")


def at(*hours: float) -> list[datetime]:
    return [NOON + hour * HOUR for hour in hours]


def skipped(env: Env, schedule: Any) -> list[datetime]:
    """The occurrences that are recorded as skipped on request."""
    found = (event.payload for event in events(schedule, "ScheduleTriggerSkipped"))
    return [datetime.fromisoformat(one["occurrence_time"]) for one in found if one["reason"] == "skip_next"]


def test_next_occurrences_are_skipped_and_what_follows_fires(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("0 * * * *"))

    schedule.skip_next(2, context=ANN)

    assert (schedule.skips, schedule.next_run_at) == (at(1, 2), NOON + 3 * HOUR)
    assert schedule.upcoming(2) == at(3, 4)
    assert last(schedule, "SkipsSet")["occurrences"] == ["2026-01-15T13:00:00Z", "2026-01-15T14:00:00Z"]
    for _ in range(4):
        any_env.run_due(HOUR)
    assert occurrences(schedule) == at(3, 4)
    assert skipped(any_env, schedule) == at(1, 2)
    assert (schedule.refresh().skips, schedule.skipped_count, schedule.last_skip_reason) == ([], 2, "skip_next")
    assert last(schedule, "TriggerSkipped") == {
        "reason": "skip_next", "skipped_trigger_count": 2, "last_skipped_at": "2026-01-15T15:00:00Z",
        "occurrence_time": "2026-01-15T14:00:00Z", "asked_at": "2026-01-15T12:00:00Z", "asked_by": "ann",
        "asked_reason": "the bank is closed",
    }  # fmt: skip
    check_invariants(any_env.runtime)


def test_call_sets_which_are_skipped_so_that_it_is_safe_to_repeat(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(2)
    version = schedule.version

    schedule.skip_next(2)

    assert (schedule.skips, schedule.version) == (at(1, 2), version)
    assert types(schedule) == ["Created", "SkipsSet"]
    assert schedule.skip_next(1).skips == at(1)
    assert schedule.skip_next(3).skips == at(1, 2, 3)
    assert (schedule.skip_next(0).skips, schedule.next_run_at) == ([], NOON + HOUR)
    env.run_due(HOUR)
    assert occurrences(schedule) == at(1)
    check_invariants(env.runtime)


def test_occurrence_inside_its_jitter_is_the_next_one_and_may_be_taken_back(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"), jitter=timedelta(minutes=30))
    due = schedule.due_at
    assert due is not None
    assert due > NOON + HOUR + SECOND
    env.advance(HOUR)

    assert schedule.skip_next().skips == at(1)
    assert schedule.skip_next().skips == at(1)
    assert (schedule.skip_next(0).skips, schedule.due_at) == ([], due)
    schedule.skip_next()
    env.run_due(HOUR + 30 * MINUTE)

    assert (occurrences(schedule), skipped(env, schedule)) == (at(2), at(1))
    check_invariants(env.runtime)


def test_what_is_due_already_is_not_the_next_one(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"), missed="all", overlap="allow_all")
    env.advance(HOUR + MINUTE)

    schedule.skip_next(2, context=ANN)
    env.run_due(4 * HOUR)

    assert (occurrences(schedule), skipped(env, schedule)) == (at(1, 4, 5), at(2, 3))
    check_invariants(env.runtime)


@pytest.mark.parametrize(("missed", "fires", "count"), [("fire_once", [1], 2), ("skip", [5], 2), ("all", [1, 4, 5], 0)])
def test_fire_over_several_missed_ones_neither_fires_nor_misses_what_was_skipped(
    env: Env, missed: str, fires: list[float], count: int
) -> None:
    schedule = env.create(spec=Cron("0 * * * *"), missed=missed, overlap="allow_all")
    env.advance(HOUR + MINUTE)
    schedule.skip_next(2)

    env.advance(4 * HOUR - MINUTE)
    env.scheduler.tick()

    assert (occurrences(schedule), skipped(env, schedule)) == (at(*fires), at(2, 3))
    assert schedule.refresh().missed_count == count
    check_invariants(env.runtime)


def test_one_who_asks_again_later_is_told_only_of_what_that_call_named(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(2, context=ANN)
    env.advance(HOUR)

    schedule.skip_next(2, reason="the disk is full", context=CommandContext(principal="bob"))
    env.run_due(3 * HOUR)

    told = [event.payload for event in events(schedule, "ScheduleTriggerSkipped")]
    assert [(one["asked_by"], one["asked_reason"]) for one in told] == [
        ("ann", "the bank is closed"),
        ("bob", "the disk is full"),
        ("bob", "the disk is full"),
    ]
    assert (skipped(env, schedule), occurrences(schedule)) == (at(1, 2, 3), at(4))


def test_change_of_the_timing_drops_those_that_are_no_occurrences_any_more(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(3, context=ANN)

    schedule.update(spec=Cron("0 */2 * * *"))

    assert (schedule.skips, schedule.next_run_at) == (at(2), NOON + 4 * HOUR)
    assert last(schedule, "SkipsSet") == {"occurrences": ["2026-01-15T14:00:00Z"], "reason": "timing_changed"}
    schedule.update(spec=Cron("0 * * * *"))
    assert (schedule.skips, schedule.upcoming(2)) == (at(2), at(1, 3))
    any_env.run_due(HOUR)
    any_env.run_due(2 * HOUR)
    assert (occurrences(schedule), skipped(any_env, schedule)) == (at(1, 3), at(2))
    check_invariants(any_env.runtime)


def test_declaration_and_exclusion_keep_and_drop_them_alike(env: Env) -> None:
    schedule = env.create(spec=Cron("0 9 * * *"))
    schedule.skip_next(2)

    env.scheduler.upsert("report", "note", Cron("0 9 * * *"), queue="high")
    assert len(schedule.refresh().skips) == 2
    schedule.update(exclude="2026-01-16")

    assert schedule.skips == [NOON + 2 * DAY - 3 * HOUR]
    assert schedule.next_run_at == NOON + 3 * DAY - 3 * HOUR


def test_pause_keeps_what_is_ahead_and_drops_what_it_outlasts(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(3)
    env.advance(HOUR + MINUTE)
    schedule.pause()
    assert skipped(env, schedule) == at(1)
    env.advance(HOUR)

    schedule.resume(on_resume="once")

    assert (schedule.skips, schedule.next_run_at) == (at(3), NOON + 4 * HOUR)
    env.run_due(2 * HOUR)
    assert (occurrences(schedule), skipped(env, schedule)) == (at(4), at(1, 3))
    check_invariants(env.runtime)


def test_paused_schedule_takes_them_back_and_names_none(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(3)
    schedule.pause()

    with pytest.raises(ScheduleStateError):
        schedule.skip_next()
    schedule.skip_next(0).resume()

    assert (schedule.skips, schedule.next_run_at) == ([], NOON + HOUR)


def test_resume_that_counts_from_now_drops_what_is_no_occurrence_then(env: Env) -> None:
    schedule = env.create(spec=Every("1h"))
    schedule.skip_next(2)
    schedule.pause()
    env.advance(10 * MINUTE)

    schedule.resume("from_now")

    assert (schedule.skips, schedule.next_run_at) == ([], NOON + 70 * MINUTE)


def test_skipped_occurrence_may_be_backfilled(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(2)
    env.advance(90 * MINUTE)

    before_the_fire = schedule.backfill(NOON + MINUTE, NOON + 90 * MINUTE, overlap=OverlapPolicy.ALLOW_ALL)
    env.run_due(2 * HOUR)
    after = schedule.backfill(NOON + MINUTE, NOON + 3 * HOUR, overlap=OverlapPolicy.ALLOW_ALL)

    assert [row.outcome for row in before_the_fire.rows] == ["started"]
    assert [row.occurrence_at for row in after.rows if row.outcome == "started"] == at(2)
    check_invariants(env.runtime)


def test_skipped_occurrence_that_a_backfill_ran_hides_none_that_was_missed(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    env.advance(2 * HOUR + MINUTE)
    schedule.skip_next()
    env.advance(HOUR)
    backfill = schedule.backfill(NOON + 3 * HOUR, NOON + 3 * HOUR + MINUTE, overlap=OverlapPolicy.ALLOW_ALL)

    env.advance(HOUR)
    env.scheduler.tick()

    assert [row.occurrence_at for row in backfill.rows] == at(3) == skipped(env, schedule)
    assert schedule.refresh().missed_count == 2, "those before and after it"
    check_invariants(env.runtime)


def test_skip_uses_up_none_of_max_runs(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"), max_runs=1)
    schedule.skip_next(2)
    env.run_due(2 * HOUR + MINUTE)
    assert (schedule.refresh().status, schedule.remaining_runs) == ("active", 1)

    env.run_due(HOUR)

    assert (schedule.refresh().status, occurrences(schedule), schedule.skips) == ("done", at(3), [])


def test_spec_whose_last_occurrences_are_skipped_ends_when_they_have_passed(any_env: Env) -> None:
    schedule = any_env.create(spec=Once(NOON + HOUR))

    schedule.skip_next(5, context=ANN)

    assert (schedule.status, schedule.skips, schedule.next_run_at) == ("active", at(1), None)
    assert schedule.why().text == (
        "It is skipped: ann asked for that on Thu 15 Jan 2026 at 12:00 UTC: the bank is closed."
    )
    check_invariants(any_env.runtime)
    any_env.advance(30 * MINUTE)
    any_env.recover()
    assert schedule.refresh().status == "active"
    any_env.advance(31 * MINUTE)
    any_env.recover()
    assert (schedule.refresh().status, schedule.status_reason) == ("done", "spec_ended")
    assert (occurrences(schedule), skipped(any_env, schedule)) == ([], at(1))
    check_invariants(any_env.runtime)


def test_spec_whose_last_occurrence_is_skipped_fires_it_when_that_is_taken_back(env: Env) -> None:
    schedule = env.create(spec=Once(NOON + HOUR))
    schedule.skip_next()

    schedule.skip_next(0)
    env.run_due(HOUR)

    assert occurrences(schedule) == at(1)


def test_success_is_expected_as_much_later_as_it_fires_later(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"), expect_success_within=timedelta(minutes=90))
    assert schedule.state.overdue_at == NOON + 90 * MINUTE

    schedule.skip_next(2)
    assert schedule.state.overdue_at == NOON + 210 * MINUTE
    schedule.skip_next(0)
    assert schedule.state.overdue_at == NOON + 90 * MINUTE
    schedule.skip_next(2)
    schedule.trigger()
    env.work()
    assert schedule.refresh().state.overdue_at == NOON + 210 * MINUTE
    env.advance(200 * MINUTE)
    assert env.recover().overdue == 0
    env.advance(11 * MINUTE)
    assert env.recover().overdue == 1


def test_delete_drops_them_and_the_id_begins_without(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(2)
    env.advance(HOUR + MINUTE)

    assert schedule.delete().skips == []
    assert skipped(env, schedule) == at(1)
    assert env.create(spec=Cron("0 * * * *")).skips == []


REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "from_completion": (Every("1h", from_completion=True), 1, InvalidInputError, r"use pause\(until=...\)"),
    "less than none": (Cron("0 * * * *"), -1, InvalidInputError, "from 0 to 100"),
    "too many": (Cron("0 * * * *"), 101, InvalidInputError, "from 0 to 100; pause it to skip more"),
    "no number": (Cron("0 * * * *"), True, InvalidInputError, "whole number"),
}


@pytest.mark.parametrize(("spec", "count", "kind", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_skipped_is_refused_and_changes_nothing(
    env: Env, spec: Any, count: Any, kind: type[Exception], says: str
) -> None:
    schedule = env.create(spec=spec)
    with pytest.raises(kind, match=says):
        schedule.skip_next(count)
    assert types(schedule) == ["Created"]


def test_schedule_that_only_drains_has_nothing_to_skip(env: Env) -> None:
    schedule = env.create(spec=[Once(NOON + HOUR), Once(NOON + 2 * HOUR)], overlap="buffer_one")
    env.tick(HOUR)
    env.tick(HOUR)
    with pytest.raises(InvalidInputError, match="no further occurrence"):
        schedule.skip_next()


def test_another_version_is_refused(env: Env) -> None:
    schedule = env.create()
    with pytest.raises(VersionConflictError):
        schedule.skip_next(if_version=7)


def test_why_says_who_asked_before_and_after(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    schedule.skip_next(1, context=ANN)
    told = "skipped: ann asked for that on Thu 15 Jan 2026 at 12:00 UTC: the bank is closed."

    ahead = schedule.why(NOON + HOUR)
    env.advance(90 * MINUTE)
    passed, newest = schedule.why(NOON + HOUR), schedule.why()
    env.run_due(HOUR)
    recorded = schedule.why(NOON + HOUR)

    assert (ahead.answer, ahead.text) == ("skipped", f"It is {told}")
    assert passed.text == newest.text == recorded.text == f"It was {told}"
    assert (recorded.by, recorded.reason, recorded.since) == ("ann", "the bank is closed", NOON)
    assert (ahead.event_sequence, recorded.event_sequence) == (None, 3)


def test_old_link_of_what_is_skipped_starts_nothing(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    old = f"sched-{schedule.uid}-n{schedule.position}-rc0"
    schedule.skip_next()
    env.advance(HOUR)

    env.deliver(old)

    assert occurrences(schedule) == []


def test_new_time_zone_rules_drop_what_has_moved(env: Env) -> None:
    schedule = env.create(spec=Cron("0 * * * *"))
    row = schedule.skip_next(2).state
    moved = row.skips and row.skips.replace("13:00:00Z", "13:30:00Z")
    change = decide_retime(changed(row, skips=moved), now=NOON, tzdata="2027a")

    assert change.after.skipped_at == at(2)
    assert change.after.next_run_at == NOON + HOUR
    assert change.events[0].payload == {
        "occurrences": ["2026-01-15T14:00:00Z"], "reason": "timezone_rules_changed",
    }  # fmt: skip
