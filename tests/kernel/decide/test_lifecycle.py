"""All operations of an owner: the changes, the kept values, and that no due occurrence vanishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rqsched.errors import InvalidSpecError, ScheduleStateError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.lifecycle import (
    decide_create,
    decide_delete,
    decide_pause,
    decide_restart,
    decide_resume,
    decide_update,
)
from rqsched.kernel.decide.model import Change, Definition, Run, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import MissedPolicy, OnResume, OverlapPolicy, Policies
from rqsched.kernel.decide.runs_on_request import Trigger, decide_backfill, decide_trigger
from rqsched.kernel.decide.schedule_repair import decide_retime
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.when.spec import Cron, Every, Once, Spec, SpecLike
from tests.support.decisions import IDENTITY, active, definition, ended, event, fire, holding, overlapping, run, types
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND

RUN_UID = "01KF0000000000000000000999"
DELAYED = Spec(Every("5m", from_completion=True))


def again(schedule: Schedule, spec: SpecLike, **fields: Any) -> Definition:
    """A definition like the schedule's with another spec."""
    return definition(spec, policies=schedule.policies, **fields)


@pytest.mark.parametrize("paused", [False, True], ids=["active", "paused"])
@pytest.mark.parametrize("spec", ["@hourly", Every("5m"), DELAYED, Once(NOON - HOUR), Cron("@every 1h")], ids=str)
def test_schedule_created_alike_is_what_creating_it_would_have_made(spec: SpecLike, paused: bool) -> None:
    other = lifecycle.Identity("01KF0000000000000000000998", "elsewhere", "other")
    said: dict[str, Any] = {"now": NOON, "paused": paused, "note": "why", "tzdata": "2026a"}
    declared = definition(spec, max_runs=3)
    made = decide_create(IDENTITY, declared, **said, operation=IDENTITY.uid)
    assert lifecycle.is_shared(declared)
    assert lifecycle.created_alike(made, other, declared, other.uid) == decide_create(
        other, declared, **said, operation=other.uid
    )


@pytest.mark.parametrize("paused", [False, True], ids=["active", "paused"])
@pytest.mark.parametrize("spec", ["@hourly", Every("5m"), Once(NOON - HOUR)], ids=str)
def test_schedule_created_alike_with_other_arguments_is_what_creating_it_would_have_made(
    spec: SpecLike, paused: bool
) -> None:
    other = lifecycle.Identity("01KF0000000000000000000998", "elsewhere", "other")
    context = CommandContext(principal="ada")
    said: dict[str, Any] = {"now": NOON, "paused": paused, "tzdata": "2026a", "context": context}
    declared = definition(spec, queue="high", action='{"args":["eu"],"kwargs":{"retries":1}}')
    action = '{"args":["us"],"kwargs":{}}'
    made = decide_create(IDENTITY, declared, **said, operation=IDENTITY.uid)

    alike = lifecycle.created_alike(made, other, replace(declared, action=action), other.uid)

    assert alike == decide_create(other, replace(declared, action=action), **said, operation=other.uid)
    assert made == decide_create(IDENTITY, declared, **said, operation=IDENTITY.uid), "the first one is as it was"


def test_definition_with_jitter_is_not_shared() -> None:
    assert not lifecycle.is_shared(definition("@hourly", jitter=MINUTE))


def test_a_new_schedule_has_its_next_time_and_its_first_event() -> None:
    change = decide_create(IDENTITY, definition("@hourly", action='{"args":["eu"],"kwargs":{}}'), now=NOON)
    after = change.after
    assert change.before is None
    assert (after.status, after.n, after.version, after.event_sequence) == (ScheduleStatus.ACTIVE, 0, 1, 1)
    assert (after.next_run_at, after.due_at, after.evaluated_to) == (NOON + HOUR, NOON + HOUR, NOON)
    assert event(change, "Created") == {
        "spec": {"cron_expressions": ["@hourly"], "timezone": "UTC", "dst_gap": "shift"},
        "action": {"workflow": "report", "args": ["eu"], "kwargs": {}},
        "overlap_policy": "skip",
        "next_fire_at": "2026-01-15T13:00:00Z",
    }


def test_an_interval_counts_from_its_registration() -> None:
    schedule = active(Every("25m"), now=NOON + 7 * SECOND)
    assert schedule.next_run_at == NOON + 25 * MINUTE + 7 * SECOND


def test_a_schedule_may_begin_paused_and_then_has_no_next_time() -> None:
    change = decide_create(IDENTITY, definition(), now=NOON, paused=True)
    assert (change.after.status, change.after.next_run_at, change.after.paused_at) == ("paused", None, NOON)
    assert types(change) == ["Created", "Paused"]
    assert event(change, "Created")["next_fire_at"] is None


def test_a_spec_that_is_over_makes_a_schedule_done_at_once_where_it_is_not_refused() -> None:
    assert types(decide_create(IDENTITY, definition(Once(NOON)), now=NOON)) == ["Created", "Completed"]
    with pytest.raises(InvalidSpecError, match="no occurrence after"):
        lifecycle.require_future(Spec(Once(NOON)), ("default", "a"), NOON)
    lifecycle.require_future(Spec(Once(NOON + SECOND)), ("default", "a"), NOON)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("@hourly", "@hourly"),
        (Every("25m"), Every("25m")),
        ("@every 25m", "@every 25m"),
        (Spec(["0 3 * * *", Every("25m")]), Spec([Every("25m"), "0 3 * * *"])),
        (DELAYED, DELAYED),
    ],
    ids=["cron", "interval", "@every", "mixed", "from completion"],
)
def test_declaring_the_same_again_changes_nothing_and_keeps_the_anchor(spec: SpecLike, same: SpecLike) -> None:
    schedule = active(spec)
    assert decide_update(schedule, again(schedule, same), now=NOON + 7 * MINUTE).is_empty


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"queue": "low"}, "queue"),
        ({"action": '{"args":[1],"kwargs":{}}'}, "action"),
        ({"policies": Policies(overlap=OverlapPolicy.ALLOW_ALL, retry=ONCE)}, "policies"),
        ({"labels": '{"a":"b"}'}, "labels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_of_anything_but_timing_leaves_the_next_time_alone(fields: dict[str, Any], name: str) -> None:
    schedule = active(Every("25m"))
    change = decide_update(schedule, definition(Every("25m"), **fields), now=NOON + MINUTE)
    assert event(change, "Updated")["changed_fields"] == [name]
    assert (change.after.next_run_at, change.after.n) == (schedule.next_run_at, schedule.n)
    assert (change.after.version, change.after.timing_changed_at) == (2, NOON)


def test_a_change_of_timing_sets_the_next_time_anew_and_makes_older_links_stale() -> None:
    schedule = active("@hourly")
    change = decide_update(schedule, again(schedule, "*/20 * * * *"), now=NOON + MINUTE)
    assert (change.after.next_run_at, change.after.n) == (NOON + 20 * MINUTE, 1)
    assert change.after.timing_changed_at == NOON + MINUTE
    payload = event(change, "Updated")
    assert (payload["changed_fields"], payload["next_fire_at"]) == (["spec"], "2026-01-15T12:20:00Z")


def test_a_note_is_a_change() -> None:
    change = decide_update(active(), definition(), now=NOON, note="moved")
    assert (change.after.note, event(change, "Updated")["changed_fields"]) == ("moved", ["note"])
    assert decide_update(change.after, definition(), now=NOON, note="moved").is_empty
    assert decide_update(change.after, definition(), now=NOON).is_empty


def test_another_jitter_moves_the_due_time_of_the_same_occurrence() -> None:
    schedule = active("@hourly")
    change = decide_update(schedule, again(schedule, "@hourly", jitter=10 * MINUTE), now=NOON + MINUTE)
    assert change.after.next_run_at == NOON + HOUR
    assert change.after.due_at is not None
    assert NOON + HOUR < change.after.due_at < NOON + HOUR + 10 * MINUTE
    assert change.after.n == 1


SURVIVES: dict[str, Callable[[Schedule, datetime], Change]] = {
    "another timing": lambda s, now: decide_update(s, again(s, "30 3 * * *"), now=now),
    "a timing that ended": lambda s, now: decide_update(s, again(s, Once(NOON)), now=now),
    "another jitter": lambda s, now: decide_update(s, again(s, "@hourly", jitter=5 * MINUTE), now=now),
    "another queue": lambda s, now: decide_update(s, again(s, "@hourly", queue="low"), now=now),
    "a kept next time": lambda s, now: decide_update(s, again(s, "30 3 * * *"), now=now, keep_next=True),
    "new timezone rules": lambda s, now: decide_retime(s, now=now, tzdata="2027a"),
    "a trigger": lambda s, now: decide_trigger(s, [], Trigger(RUN_UID), now=now)[0],
    "a refused trigger": lambda s, now: decide_trigger(holding(s, run(1)), [run(1)], Trigger(RUN_UID), now=now)[0],
    "a run's end": lambda s, now: decide_settle(
        holding(s, run(1)), [run(1)], run(1), AttemptResult(AttemptOutcome.FAILED), now=now
    ),
    "a backfill": lambda s, now: fill(s, [NOON - HOUR], now=now)[0],
}


@pytest.mark.parametrize("late", [timedelta(0), 40 * SECOND, 59 * MINUTE], ids=["just due", "late", "very late"])
@pytest.mark.parametrize("operation", SURVIVES)
def test_an_occurrence_already_due_survives(operation: str, late: timedelta) -> None:
    schedule = active("@hourly")
    change = SURVIVES[operation](schedule, NOON + HOUR + late)
    assert (change.after.next_run_at, change.after.due_at) == (NOON + HOUR, NOON + HOUR)
    fired = fire(change.after, now=NOON + HOUR + late)
    assert fired.after.evaluated_to == NOON + HOUR
    assert "ScheduleMissed" not in [found.type for found in (*change.events, *fired.events)]


@pytest.mark.parametrize("operation", SURVIVES)
def test_an_occurrence_inside_its_jitter_window_survives(operation: str) -> None:
    schedule = active("@hourly", jitter=10 * MINUTE)
    assert schedule.due_at is not None
    assert schedule.due_at > NOON + HOUR + SECOND
    change = SURVIVES[operation](schedule, NOON + HOUR + SECOND)
    assert change.after.next_run_at == NOON + HOUR
    assert change.after.due_at == schedule.due_at


def test_a_timing_that_fires_sooner_does_not_overtake_an_occurrence_inside_its_jitter_window() -> None:
    schedule = active("@hourly", jitter=30 * MINUTE)
    change = decide_update(schedule, again(schedule, "* * * * *", jitter=30 * MINUTE), now=NOON + HOUR + SECOND)
    assert change.after.next_run_at == NOON + HOUR
    assert change.after.due_at is not None
    assert change.after.due_at < NOON + HOUR + MINUTE
    assert types(fire(change.after, now=NOON + HOUR + 59 * SECOND)) == ["Triggered"]


def test_what_else_passed_before_an_update_is_missed() -> None:
    schedule = active("*/10 * * * *")
    change = decide_update(schedule, again(schedule, "30 3 * * *"), now=NOON + HOUR + MINUTE)
    assert types(change) == ["Missed", "Updated"]
    missed = event(change, "Missed")
    assert (missed["count"], missed["first"], missed["last"]) == (5, "2026-01-15T12:20:00Z", "2026-01-15T13:00:00Z")
    assert (change.after.missed_count, change.after.next_run_at) == (5, NOON + 10 * MINUTE)
    assert types(fire(change.after, now=NOON + HOUR + 2 * MINUTE)) == ["Triggered"]


def test_the_occurrence_kept_over_an_update_is_the_one_the_policy_would_fire() -> None:
    schedule = active("*/10 * * * *", policies=Policies(missed=MissedPolicy.SKIP))
    change = decide_update(schedule, again(schedule, "30 3 * * *"), now=NOON + HOUR + 5 * SECOND)
    missed = event(change, "Missed")
    assert (missed["count"], missed["first"], missed["fired"]) == (5, "2026-01-15T12:10:00Z", ["2026-01-15T13:00:00Z"])
    assert change.after.next_run_at == NOON + HOUR
    assert types(fire(change.after, now=NOON + HOUR + 6 * SECOND)) == ["Triggered"]


def test_a_second_update_does_not_miss_the_same_again() -> None:
    schedule = active("*/10 * * * *")
    once = decide_update(schedule, again(schedule, "*/7 * * * *"), now=NOON + HOUR + MINUTE).after
    twice = decide_update(once, again(schedule, "30 3 * * *"), now=NOON + HOUR + 2 * MINUTE)
    assert types(twice) == ["Updated"]
    assert twice.after.missed_count == 5


def test_a_re_registration_may_keep_the_next_time() -> None:
    schedule = active("@hourly")
    change = decide_update(schedule, again(schedule, "*/20 * * * *"), now=NOON + MINUTE, keep_next=True)
    assert (change.after.next_run_at, change.after.n) == (NOON + HOUR, schedule.n)
    fired = fire(change.after)
    assert (types(fired), fired.after.next_run_at) == (["Triggered"], NOON + HOUR + 20 * MINUTE)


def test_a_timing_that_is_over_ends_the_schedule() -> None:
    schedule = active("@hourly")
    assert types(decide_update(schedule, again(schedule, Once(NOON)), now=NOON + MINUTE)) == ["Updated", "Completed"]


@pytest.mark.parametrize(
    ("before", "started", "after", "remaining"),
    [
        pytest.param(5, 2, 10, 8, id="raised"),
        pytest.param(5, 2, 3, 1, id="lowered"),
        pytest.param(5, 2, None, None, id="without bound"),
        pytest.param(None, 2, 5, 3, id="bounded later"),
    ],
)
def test_what_remains_follows_max_runs(
    before: int | None, started: int, after: int | None, remaining: int | None
) -> None:
    schedule = active(policies=Policies(overlap=OverlapPolicy.ALLOW_ALL), max_runs=before)
    for _ in range(started):
        schedule = fire(schedule).after
    change = decide_update(schedule, again(schedule, "@hourly", max_runs=after), now=NOON + 3 * HOUR)
    assert change.after.remaining == remaining
    assert change.after.is_active


def test_max_runs_below_what_has_started_ends_the_schedule() -> None:
    schedule = fire(active(policies=Policies(overlap=OverlapPolicy.ALLOW_ALL), max_runs=5)).after
    change = decide_update(schedule, again(schedule, "@hourly", max_runs=1), now=NOON + HOUR + MINUTE)
    assert types(change) == ["Updated", "Completed"]
    assert change.after.remaining == 0


def test_what_remains_after_max_runs_was_lowered_and_raised_again_is_what_has_not_started() -> None:
    schedule = active(policies=Policies(overlap=OverlapPolicy.ALLOW_ALL), max_runs=5)
    for _ in range(4):
        schedule = fire(schedule).after
    for max_runs, remaining in ((2, 0), (10, 6)):
        schedule = decide_update(schedule, again(schedule, "@hourly", max_runs=max_runs), now=NOON + 5 * HOUR).after
        assert schedule.remaining == remaining


def test_a_paused_schedule_is_updated_and_stays_paused() -> None:
    paused = decide_pause(active(), now=NOON).after
    change = decide_update(paused, again(paused, "*/20 * * * *"), now=NOON + MINUTE)
    assert (change.after.status, change.after.next_run_at) == (ScheduleStatus.PAUSED, None)
    assert decide_resume(change.after, [], now=NOON + MINUTE).after.next_run_at == NOON + 20 * MINUTE


def test_an_update_away_from_completion_sets_the_next_time() -> None:
    waiting = replace(active(DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    change = decide_update(waiting, again(waiting, "@hourly"), now=NOON + MINUTE)
    assert (change.after.next_run_at, change.after.awaiting_run_uid) == (NOON + HOUR, None)


def test_new_timezone_rules_move_a_next_time_that_is_not_due() -> None:
    moved = replace(active("@hourly"), next_run_at=NOON + 90 * MINUTE, due_at=NOON + 90 * MINUTE)
    change = decide_retime(moved, now=NOON + MINUTE, tzdata="2027a")
    assert (change.after.next_run_at, change.after.tzdata, change.after.n) == (NOON + HOUR, "2027a", 1)
    assert event(change, "Recovered")["next_fire_at"] == "2026-01-15T13:00:00Z"
    assert types(decide_retime(change.after, now=NOON + MINUTE, tzdata="2027b")) == []


def test_a_paused_schedule_has_no_next_time_and_its_links_are_stale() -> None:
    change = decide_pause(active(), now=NOON + MINUTE, note="moving", context=CommandContext(principal="ops"))
    after = change.after
    assert (after.status, after.next_run_at, after.due_at, after.n) == (ScheduleStatus.PAUSED, None, None, 1)
    assert (after.note, after.status_reason, after.version) == ("moving", "moving", 2)
    assert event(change, "Paused") == {
        "reason": "moving",
        "paused_at": "2026-01-15T12:01:00Z",
        "command_context": {"principal": "ops"},
    }


@pytest.mark.parametrize(
    ("stop", "reason"), [(decide_pause, "disabled"), (decide_delete, "deleted")], ids=["pause", "delete"]
)
def test_stopping_writes_off_what_is_already_due(stop: Callable[..., Change], reason: str) -> None:
    schedule = active("*/10 * * * *", jitter=MINUTE)
    change = stop(schedule, now=NOON + 30 * MINUTE)
    skipped, missed = event(change, "TriggerSkipped"), event(change, "Missed")
    assert (skipped["reason"], skipped["occurrence_time"]) == (reason, "2026-01-15T12:10:00Z")
    assert (missed["count"], missed["policy"]) == (2, reason)
    assert (missed["first"], missed["last"]) == ("2026-01-15T12:20:00Z", "2026-01-15T12:30:00Z")
    assert (change.after.skipped_count, change.after.missed_count) == (1, 2)
    assert types(stop(schedule, now=NOON + 9 * MINUTE)) == [types(change)[-1]]


def test_a_trigger_that_uses_up_max_runs_writes_off_what_is_already_due() -> None:
    change = decide_trigger(active("@hourly", max_runs=1), [], Trigger(RUN_UID), now=NOON + HOUR)[0]
    assert types(change) == ["Triggered", "TriggerSkipped", "Completed"]
    assert event(change, "TriggerSkipped")["reason"] == "remaining_actions_exhausted"


def test_a_reading_the_clock_skipped_is_recorded_before_a_pause() -> None:
    spring = datetime(2026, 3, 8, tzinfo=UTC)
    schedule = active(Spec("30 2 * * *", "America/New_York", dst_gap="skip"), now=spring)
    change = decide_pause(schedule, now=spring + 12 * HOUR)
    assert event(change, "TriggerSkipped")["reason"] == "dst_skip"
    assert types(change) == ["TriggerSkipped", "Paused"]


@pytest.mark.parametrize(
    ("spec", "on_resume", "passed", "following"),
    [
        pytest.param("@hourly", "next", None, NOON + 6 * HOUR, id="cron, next"),
        pytest.param("@hourly", "once", NOON + 5 * HOUR, NOON + 6 * HOUR, id="cron, once"),
        pytest.param("@hourly", "from_now", None, NOON + 6 * HOUR, id="cron, from now"),
        pytest.param(Every("40m"), "next", None, NOON + 320 * MINUTE + 40 * MINUTE, id="interval, next on its grid"),
        pytest.param(Every("40m"), "once", NOON + 320 * MINUTE, NOON + 360 * MINUTE, id="interval, once"),
        pytest.param(Every("40m"), "from_now", None, NOON + 330 * MINUTE + 40 * MINUTE, id="interval, from now"),
        pytest.param("@every 40m", "from_now", None, NOON + 330 * MINUTE + 40 * MINUTE, id="@every, from now"),
        pytest.param(Every("40m", offset="0s"), "from_now", None, NOON + 6 * HOUR, id="aligned, from now"),
        pytest.param("0 0 * * *", "once", None, NOON + 12 * HOUR, id="nothing missed, once"),
        pytest.param(DELAYED, "next", None, NOON + 335 * MINUTE, id="from completion, next"),
        pytest.param(DELAYED, "once", NOON + 5 * MINUTE, None, id="from completion, once"),
    ],
)
@pytest.mark.parametrize("given", ["by the call", "by the schedule"])
def test_a_schedule_resumes_where_on_resume_says(
    spec: SpecLike, on_resume: str, passed: datetime | None, following: datetime | None, given: str
) -> None:
    policies = Policies(on_resume=OnResume(on_resume if given == "by the schedule" else "next"), retry=ONCE)
    paused = decide_pause(active(spec, policies=policies), now=NOON + MINUTE).after
    now = NOON + 330 * MINUTE
    mode = OnResume(on_resume) if given == "by the call" else None
    change = decide_resume(paused, [], now=now, on_resume=mode)
    after = change.after
    assert (after.status, after.n, after.paused_at) == (ScheduleStatus.ACTIVE, paused.n + 1, None)
    if passed is not None:
        assert (after.next_run_at, after.due_at) == (passed, now)
        fired = fire(after)
        assert (types(fired), fired.new_runs[0].occurrence_at) == (["Triggered"], passed)
        after = fired.after
    assert after.next_run_at == following


def test_a_resume_once_fires_whatever_the_window_says() -> None:
    policies = Policies(missed=MissedPolicy.SKIP, on_resume=OnResume.ONCE)
    paused = decide_pause(active(policies=policies), now=NOON + MINUTE).after
    assert types(fire(decide_resume(paused, [], now=NOON + 90 * MINUTE).after)) == ["Triggered"]


def test_a_resume_once_finds_what_passed_after_an_occurrence_that_the_pause_wrote_off() -> None:
    paused = decide_pause(active("*/10 * * * *"), now=NOON + 10 * MINUTE).after
    resumed = decide_resume(paused, [], now=NOON + 15 * MINUTE, on_resume=OnResume.ONCE).after
    assert resumed.next_run_at == NOON + 20 * MINUTE
    later = decide_resume(paused, [], now=NOON + 25 * MINUTE, on_resume=OnResume.ONCE).after
    assert later.next_run_at == NOON + 20 * MINUTE
    assert later.due_at == NOON + 25 * MINUTE


def test_a_resume_once_knows_only_the_timing_of_the_time() -> None:
    paused = decide_pause(active("*/30 * * * *"), now=NOON + MINUTE).after
    updated = decide_update(paused, again(paused, "0 2 * * *"), now=NOON + 10 * MINUTE).after
    assert decide_resume(updated, [], now=NOON + HOUR, on_resume=OnResume.ONCE).after.next_run_at == NOON + 14 * HOUR
    late = decide_update(paused, again(paused, "0 2 * * *"), now=NOON + 40 * MINUTE).after
    assert decide_resume(late, [], now=NOON + HOUR, on_resume=OnResume.ONCE).after.next_run_at == NOON + 30 * MINUTE


def test_a_resume_once_fires_no_instant_from_before_its_timing_existed() -> None:
    paused = decide_pause(active("0 2 * * *"), now=NOON + MINUTE).after
    updated = decide_update(paused, again(paused, "*/30 * * * *"), now=NOON + 40 * MINUTE).after
    assert decide_resume(updated, [], now=NOON + 50 * MINUTE, on_resume=OnResume.ONCE).after.next_run_at == NOON + HOUR
    assert (
        decide_resume(updated, [], now=NOON + 70 * MINUTE, on_resume=OnResume.ONCE).after.due_at == NOON + 70 * MINUTE
    )


def test_a_schedule_that_began_paused_may_fire_what_passed_since() -> None:
    paused = decide_create(IDENTITY, definition(), now=NOON, paused=True).after
    assert decide_resume(paused, [], now=NOON + 90 * MINUTE, on_resume=OnResume.ONCE).after.next_run_at == NOON + HOUR


def test_what_passed_while_paused_is_not_missed() -> None:
    paused = decide_pause(active("* * * * *"), now=NOON + SECOND).after
    resumed = decide_resume(paused, [], now=NOON + 5 * HOUR + SECOND).after
    assert types(fire(resumed)) == ["Triggered"]


def test_a_schedule_from_completion_resumes_behind_the_run_that_still_runs() -> None:
    waiting = replace(active(DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    paused = decide_pause(waiting, now=NOON).after
    assert paused.awaiting_run_uid is None
    assert decide_resume(paused, [run(1)], now=NOON + MINUTE).after.awaiting_run_uid == run(1).uid
    assert decide_resume(paused, [], now=NOON + MINUTE).after.next_run_at == NOON + 6 * MINUTE


def test_a_spec_that_ended_while_paused_ends_the_schedule_at_its_resume() -> None:
    paused = decide_pause(active(Once(NOON + HOUR)), now=NOON).after
    assert types(decide_resume(paused, [], now=NOON + 2 * HOUR)) == ["Resumed", "Completed"]
    assert types(decide_resume(paused, [], now=NOON + 2 * HOUR, on_resume=OnResume.ONCE)) == ["Resumed"]


@pytest.mark.parametrize("status", ["done", "dead"])
def test_a_restart_begins_from_zero_at_a_new_position(status: str) -> None:
    over = replace(
        active(Every("25m"), max_runs=3),
        status=ScheduleStatus(status),
        next_run_at=None,
        due_at=None,
        n=9,
        run_number=7,
        run_count=3,
        remaining=0,
        error_count=4,
        consecutive_failures=2,
        skipped_count=1,
        missed_count=5,
        success_count=1,
        last_error="boom",
    )
    change = decide_restart(over, [], now=NOON + HOUR)
    after = change.after
    assert (after.status, after.n, after.next_run_at) == (ScheduleStatus.ACTIVE, 10, NOON + 75 * MINUTE)
    assert (after.remaining, after.run_count, after.run_number) == (3, 0, 7)
    counters = (after.error_count, after.consecutive_failures, after.skipped_count, after.missed_count)
    assert (*counters, after.success_count, after.last_error) == (0, 0, 0, 0, 0, None)
    assert event(change, "Resumed")["reason"] == "restart"
    assert types(fire(after)) == ["Triggered"]


def test_a_restart_needs_an_occurrence_to_come() -> None:
    over = replace(active(Once(NOON + HOUR)), status=ScheduleStatus.DONE)
    with pytest.raises(ScheduleStateError, match="update it"):
        decide_restart(over, [], now=NOON + 2 * HOUR)


def test_a_deleted_schedule_keeps_its_history_and_drops_what_waits() -> None:
    runs = [run(1), run(2, "buffered"), run(3, "buffered", "backfill")]
    change = decide_delete(holding(active(), *runs), now=NOON + MINUTE, reason="obsolete")
    assert (change.after.status, change.after.deleted_at) == (ScheduleStatus.DELETED, NOON + MINUTE)
    assert (change.drops_buffer, change.drops_retries) == (True, True)
    payload = {"reason": "obsolete", "deleted_at": "2026-01-15T12:01:00Z", "dropped_buffered": 2}
    assert event(change, "Deleted") == payload


OPERATIONS: dict[str, Callable[[Schedule], Change]] = {
    "pause": lambda s: decide_pause(s, now=NOON),
    "resume": lambda s: decide_resume(s, [], now=NOON),
    "restart": lambda s: decide_restart(s, [], now=NOON),
    "delete": lambda s: decide_delete(s, now=NOON),
    "update": lambda s: decide_update(s, again(s, "*/20 * * * *"), now=NOON),
}
ALLOWED = {
    "pause": {"active"},
    "resume": {"paused"},
    "restart": {"done", "dead"},
    "delete": {"active", "paused", "done", "dead"},
    "update": {"active", "paused", "done", "dead"},
}


@pytest.mark.parametrize("status", [status.value for status in ScheduleStatus])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_applies_to_its_statuses_only(operation: str, status: str) -> None:
    schedule = replace(active(), status=ScheduleStatus(status))
    if status in ALLOWED[operation]:
        assert not OPERATIONS[operation](schedule).is_empty
        return
    with pytest.raises(ScheduleStateError) as refused:
        OPERATIONS[operation](schedule)
    assert (refused.value.operation, refused.value.status) == (operation, status)


def test_a_trigger_starts_a_run_now_and_never_moves_the_grid() -> None:
    schedule = active()
    change, outcome = decide_trigger(schedule, [], Trigger(RUN_UID, idempotency_key="k"), now=NOON + 7 * MINUTE)
    (started,) = change.new_runs
    assert outcome.outcome == "triggered"
    assert (started.kind, started.uid, started.idempotency_key) == (RunKind.MANUAL, RUN_UID, "k")
    assert started.instance_id == f"schedule:nightly:manual:{RUN_UID.lower()}"
    assert (started.occurrence_at, started.due_at) == (NOON + 7 * MINUTE, NOON + 7 * MINUTE)
    assert (change.after.next_run_at, change.after.n) == (schedule.next_run_at, schedule.n)
    assert change.after.operation == RUN_UID


@pytest.mark.parametrize(
    ("status", "forced", "reason"),
    [
        ("active", False, None),
        ("paused", False, "status_not_triggerable"),
        ("paused", True, None),
        ("done", True, "status_not_triggerable"),
        ("dead", True, "status_not_triggerable"),
        ("deleted", True, "status_not_triggerable"),
    ],
)
def test_a_trigger_is_refused_by_status_as_a_recorded_skip(status: str, forced: bool, reason: str | None) -> None:
    schedule = replace(active(), status=ScheduleStatus(status))
    change, outcome = decide_trigger(schedule, [], Trigger(RUN_UID, is_forced=forced), now=NOON)
    assert outcome.reason == reason
    assert (change.after.last_skip_reason, len(change.new_runs)) == (reason, reason is None)


def test_a_trigger_of_an_exhausted_schedule_says_so() -> None:
    exhausted = fire(active(max_runs=1)).after
    change, outcome = decide_trigger(exhausted, [], Trigger(RUN_UID), now=NOON + HOUR)
    assert outcome.reason == "remaining_actions_exhausted"
    assert event(change, "TriggerSkipped")["reason"] == "remaining_actions_exhausted"


def test_a_trigger_that_cancels_the_awaited_run_is_awaited_instead() -> None:
    waiting = replace(active(DELAYED), next_run_at=None, due_at=None, awaiting_run_uid=run(1).uid)
    request = Trigger(RUN_UID, overlap=OverlapPolicy.CANCEL_OTHER)
    change = decide_trigger(waiting, [run(1)], request, now=NOON)[0]
    assert ended(change) == {1: "cancelled"}
    assert change.after.awaiting_run_uid == RUN_UID


PAST = [NOON - k * HOUR for k in (4, 3, 2, 1)]


def fill(schedule: Schedule, occurrences: list[datetime], *runs: Run, now: datetime = NOON, **options: Any) -> Any:
    options = {"ran": frozenset(), **options}
    return decide_backfill(schedule, runs, occurrences, now=now, backfill_uid=RUN_UID, **options)


def test_a_backfill_under_skip_runs_one_after_another() -> None:
    change, rows = fill(active(), PAST)
    assert [new.status.value for new in change.new_runs] == ["pending", "buffered", "buffered", "buffered"]
    assert [row.outcome for row in rows] == ["started", "buffered", "buffered", "buffered"]
    assert (change.after.backfill_unfinished, change.after.backfill_waiting, change.after.buffer_depth) == (1, 3, 0)
    (first, second, *_) = change.new_runs
    succeeded = AttemptResult(AttemptOutcome.SUCCEEDED)
    ended_one = decide_settle(change.after, [first, second], first, succeeded, now=NOON + MINUTE)
    assert ended(ended_one) == {1: "succeeded", 2: "pending"}


@pytest.mark.parametrize("policy", ["allow_all", "buffer_one", "buffer_all"])
def test_buffering_has_no_meaning_in_a_backfill(policy: str) -> None:
    change, rows = fill(overlapping(policy), PAST)
    assert [new.status.value for new in change.new_runs] == ["pending"] * 4
    assert [row.outcome for row in rows] == ["started"] * 4
    assert {new.overlap for new in change.new_runs} == {"allow_all"}


def test_a_backfill_that_cancels_leaves_the_newest() -> None:
    change, _ = fill(active(), PAST, overlap=OverlapPolicy.CANCEL_OTHER)
    assert [new.status.value for new in change.new_runs] == ["cancelled", "cancelled", "cancelled", "pending"]
    assert (change.after.backfill_unfinished, change.after.backfill_waiting) == (1, 0)


def test_a_backfilled_run_is_named_for_its_canonical_time() -> None:
    change, rows = fill(active(jitter=10 * MINUTE), PAST[:1])
    (started,) = change.new_runs
    assert (started.kind, started.backfill_uid, started.is_override) == (RunKind.BACKFILL, RUN_UID, True)
    assert started.instance_id == rows[0].instance_id == "schedule:nightly:backfill:2026-01-15T08:00:00Z"
    assert (started.occurrence_at, started.due_at) == (PAST[0], PAST[0])


def test_occurrences_that_have_a_run_are_reported_and_not_run_again() -> None:
    change, rows = fill(active(), PAST, ran=frozenset(PAST[:3]))
    assert [row.outcome for row in rows] == ["already_run"] * 3 + ["started"]
    assert len(change.new_runs) == 1


def test_a_backfill_works_while_paused() -> None:
    change, _ = fill(decide_pause(active(), now=NOON).after, PAST)
    assert [new.status.value for new in change.new_runs][:2] == ["pending", "buffered"]
    assert change.after.status is ScheduleStatus.PAUSED


def test_a_backfill_ends_where_max_runs_does() -> None:
    change, rows = fill(overlapping("allow_all", max_runs=2), PAST)
    assert [(row.outcome, row.reason) for row in rows] == [
        ("started", None),
        ("started", None),
        ("skipped", "remaining_actions_exhausted"),
    ]
    assert (change.after.status, change.after.remaining) == (ScheduleStatus.DONE, 0)


def test_a_waiting_backfill_is_dropped_when_max_runs_is_used_up() -> None:
    change, rows = fill(active(max_runs=1), PAST)
    assert [row.outcome for row in rows] == ["started", "skipped", "skipped", "skipped"]
    assert {row.reason for row in rows[1:]} == {"remaining_actions_exhausted"}
    assert types(change) == ["Triggered", "Completed"]
    assert event(change, "Completed")["dropped_buffered"] == 3
    assert (change.after.remaining, change.after.backfill_waiting) == (0, 0)


def test_a_backfill_of_a_schedule_that_is_done_respects_what_remains() -> None:
    over = fire(active(Once(NOON + HOUR), max_runs=2)).after
    assert (over.status, over.remaining) == (ScheduleStatus.DONE, 1)
    change, _ = fill(over, PAST, now=NOON + 2 * HOUR)
    assert [new.status.value for new in change.new_runs][:2] == ["pending", "buffered"]
    assert (change.after.remaining, change.drops_buffer, change.after.backfill_waiting) == (0, True, 0)
    assert event(change, "Completed")["dropped_buffered"] == 3


def test_a_backfill_of_a_deleted_schedule_runs_nothing() -> None:
    change, rows = fill(decide_delete(active(), now=NOON).after, PAST)
    assert [(row.outcome, row.reason) for row in rows] == [("skipped", "status_not_triggerable")]
    assert change.is_empty


def test_a_live_occurrence_fires_while_a_backfill_runs() -> None:
    change, _ = fill(active(), PAST)
    fired = fire(change.after, *change.new_runs)
    assert [new.status for new in fired.new_runs] == [RunStatus.PENDING]
