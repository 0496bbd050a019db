"""Decisions about excluded occurrences: no run, no skip and no miss, and one event for a stretch."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from rqsched.errors import InvalidSpecError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import Schedule, ScheduleStatus, changed, dump_spec
from rqsched.kernel.decide.occurrences import due_of
from rqsched.kernel.decide.policy import MissedPolicy, Policies
from rqsched.kernel.decide.schedule_repair import decide_replan
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.when.spec import Cron, Every, Once, Spec
from rqsched.when.steps import MOST_STEPS, Steps, bounded
from tests.support.decisions import (
    HEAVY,
    IDENTITY,
    MORNING,
    WINDOWS,
    active,
    definition,
    event,
    fire,
    holding,
    run,
    types,
)
from tests.support.env import DAY, HOUR, MINUTE, NOON
from tests.support.narrow import present

WORKDAYS = Spec("0 9 * * *", exclude="Sat, Sun")
FRIDAY = NOON + DAY - 3 * HOUR
MONDAY = FRIDAY + 3 * DAY


def on_friday() -> Schedule:
    """At noon of Friday; its next occurrence is Monday's."""
    return fire(active(WORKDAYS)).after


def test_the_next_time_is_after_the_stretch_and_its_fire_records_it_once() -> None:
    friday = on_friday()
    assert (friday.last_run_at, friday.next_run_at) == (FRIDAY, MONDAY)

    change = fire(friday)

    assert types(change) == ["Excluded", "Triggered"]
    assert event(change, "Excluded") == {
        "count": 2, "first": (FRIDAY + DAY).isoformat().replace("+00:00", "Z"),
        "last": (FRIDAY + 2 * DAY).isoformat().replace("+00:00", "Z"),
    }  # fmt: skip
    assert (change.after.skipped_count, change.after.missed_count) == (0, 0)
    assert "Excluded" not in types(fire(change.after))


def test_what_was_missed_around_a_stretch_counts_without_what_is_excluded() -> None:
    change = fire(on_friday(), now=MONDAY + 10 * DAY)

    missed, excluded = event(change, "Missed"), event(change, "Excluded")
    assert (missed["count"], excluded["count"]) == (8, 4)
    assert change.after.missed_count == 8


def test_what_was_due_before_a_stretch_fires_in_it_when_nothing_lived() -> None:
    thursday = active(WORKDAYS)
    change = fire(thursday, now=FRIDAY + DAY)
    assert [one.occurrence_at for one in change.new_runs] == [FRIDAY]


@pytest.mark.parametrize("stop", [lifecycle.decide_pause, lifecycle.decide_delete])
def test_what_is_excluded_up_to_a_stop_is_recorded_by_it(stop: object) -> None:
    assert callable(stop)
    change = stop(on_friday(), now=FRIDAY + 1.5 * DAY)
    assert event(change, "Excluded")["count"] == 1


def test_changing_what_is_excluded_moves_the_next_time_but_not_what_is_due() -> None:
    friday = on_friday()
    spoken = define(friday.definition, {"exclude": ["Sat, Sun", "2026-01-19"]})
    assert lifecycle.decide_update(friday, spoken, now=FRIDAY + HOUR).after.next_run_at == MONDAY + DAY

    late = lifecycle.decide_update(friday, spoken, now=MONDAY + HOUR)
    assert late.after.next_run_at == MONDAY
    assert fire(late.after, now=MONDAY + HOUR).new_runs[0].occurrence_at == MONDAY


def test_jitter_does_not_delay_into_a_stretch() -> None:
    for minute in range(60):
        spec = Spec(f"{minute} 23 * * *", exclude="Sat, Sun")
        schedule = active(spec, jitter=DAY)
        nominal = FRIDAY.replace(hour=23, minute=minute)
        assert nominal <= due_of(schedule, nominal) < FRIDAY.replace(hour=0) + DAY


def test_an_interval_from_completion_goes_on_with_its_next_step_after_the_stretch() -> None:
    schedule = active(Spec(Every("45m", from_completion=True), exclude="Thu 12:50-18:00"))
    assert schedule.next_run_at == NOON + 45 * MINUTE
    started = fire(schedule)
    one = replace(started.new_runs[0], started_at=NOON + 45 * MINUTE)

    change = decide_settle(started.after, [one], one, AttemptResult(AttemptOutcome.SUCCEEDED), now=NOON + 50 * MINUTE)

    assert change.after.next_run_at == NOON + 50 * MINUTE + 7 * 45 * MINUTE
    assert "Excluded" not in types(change)


@pytest.mark.parametrize(
    "spec",
    [Spec("0 9 * * SAT", exclude="Sat, Sun"), Spec(Once(NOON + DAY), exclude="2026-01-16")],
    ids=["weekly", "once"],
)
def test_a_timing_of_which_nothing_is_left_is_refused_at_create_and_at_update(spec: Spec) -> None:
    with pytest.raises(InvalidSpecError, match="covers every occurrence") as refused:
        lifecycle.decide_create(IDENTITY, definition(spec), now=NOON)
    assert refused.value.field == "exclude"
    with pytest.raises(InvalidSpecError, match="covers every occurrence"):
        lifecycle.decide_update(active(), definition(spec), now=NOON)
    with pytest.raises(InvalidSpecError, match="covers every occurrence"):
        lifecycle.require_future(spec, ("default", "a"), NOON)


def test_a_schedule_of_which_nothing_is_left_later_stays_active_until_an_occurrence_is() -> None:
    """The schedule fires on workdays that are a 29 February. After 2032 there is none within ten years."""
    leap = active(Spec("0 9 29 2 *", exclude="Mon-Fri"), now=datetime(2026, 1, 1, tzinfo=NOON.tzinfo))
    sunday = leap.next_run_at
    assert sunday is not None
    assert sunday.date().isoformat() == "2032-02-29"

    waiting = fire(leap).after
    assert (waiting.status, waiting.next_run_at) == (ScheduleStatus.ACTIVE, None)
    assert decide_replan(waiting, None, now=sunday + HOUR).is_empty

    later = decide_replan(waiting, None, now=sunday + DAY).after
    assert (later.next_run_at, later.evaluated_to) == (None, sunday + DAY)
    then = decide_replan(later, None, now=sunday + 3653 * DAY).after
    assert then.next_run_at is not None
    assert then.next_run_at.year == 2048


def excluding(spec: Spec, *exclude: str) -> Schedule:
    """Return a schedule that has come to exclude this much; no owner's operation accepts that."""
    before = active(spec)
    return changed(before, definition=changed(before.definition, spec=dump_spec(replace(spec, exclude=exclude))))


def test_a_fire_that_finds_no_next_time_in_its_steps_leaves_the_schedule_active_for_the_next_look() -> None:
    heavy = excluding(Spec(HEAVY, "Europe/Berlin"), MORNING)
    with bounded(Steps(None)) as steps:
        change = fire(heavy, now=present(heavy.next_run_at) + DAY)
    assert steps.taken < 5 * MOST_STEPS
    waiting = change.after
    assert (waiting.status, waiting.next_run_at) == (ScheduleStatus.ACTIVE, None)
    assert event(change, "Excluded")["count"] > 0

    freed = changed(waiting, definition=changed(waiting.definition, spec=dump_spec(Spec(HEAVY, "Europe/Berlin"))))
    assert present(decide_replan(freed, None, now=NOON + 2 * DAY).after.next_run_at) > NOON


@pytest.mark.parametrize("first", [420, 1_380], ids=["from month to month", "after an outage of years"])
def test_looks_that_reach_less_far_than_a_stretch_find_what_comes_after_it(first: int) -> None:
    """Half of each hour is excluded, and four years pass until the interval has drifted out of it.

    The first look is so late that the second or third finds the time: each takes 100 000 steps.
    """
    halves = [f"Mon-Sun {hour:02}:00-{hour:02}:30" for hour in range(24)]
    anchor = datetime(2026, 1, 1, tzinfo=NOON.tzinfo) + timedelta(milliseconds=first)  # not cached by the other case
    beside = Every(timedelta(hours=1, milliseconds=50), anchor=anchor)
    heavy = excluding(Spec(beside), *halves)
    unasked = Spec(beside, exclude=halves)  # a spec remembers its last answer
    with bounded(Steps(None)) as steps:
        following = unasked.next_after(NOON)
    assert steps.taken > MOST_STEPS
    waiting = changed(heavy, next_run_at=None, due_at=None)

    for look in range(60):
        waiting = decide_replan(waiting, None, now=NOON + (first + 30 * look) * DAY).after
        if waiting.next_run_at is not None:
            break

    assert waiting.next_run_at == following


def test_a_dead_schedule_whose_next_time_takes_too_many_steps_can_be_restarted() -> None:
    heavy = changed(excluding(Spec(HEAVY, "Europe/Berlin"), MORNING), status=ScheduleStatus.DEAD, next_run_at=None)
    assert lifecycle.decide_restart(heavy, [], now=NOON).after.status is ScheduleStatus.ACTIVE


def test_what_passed_in_ten_years_is_counted_as_far_as_the_steps_reach() -> None:
    spec = Spec([Cron("* * * * *", "Asia/Tokyo"), Every("7m")], "Europe/Berlin")
    heavy = excluding(spec, *WINDOWS[:480])
    with bounded(Steps(None)) as steps:
        change = fire(heavy, now=NOON + 3650 * DAY)
    assert steps.taken < 5 * MOST_STEPS
    missed, excluded = event(change, "Missed"), event(change, "Excluded")
    assert (missed["count_capped"], excluded["count_capped"]) == (True, True)
    assert min(missed["count"], excluded["count"]) > 100
    assert present(change.after.next_run_at) > NOON + 3650 * DAY


def test_an_update_keeps_what_is_excluded_unless_it_names_it() -> None:
    before = define(None, {"exclude": "Sat, Sun"}, workflow="report", spec="0 9 * * *")

    def excluded(spec: object = None, **options: object) -> tuple[str, ...]:
        return define(before, options, spec=spec).parsed_spec.exclude  # type: ignore[arg-type]

    assert before.parsed_spec.exclude == ("Sat, Sun",)
    assert excluded(jitter=5) == excluded("0 8 * * *") == excluded(timezone="Europe/Berlin") == ("Sat, Sun",)
    assert excluded(Spec(Cron("0 8 * * *"), "Europe/Berlin")) == ("Sat, Sun",)
    assert excluded(Spec("0 8 * * *", exclude="Fri")) == excluded(exclude=["Fri"]) == ("Fri",)
    assert excluded("0 8 * * *", exclude=["Fri"]) == ("Fri",)
    assert excluded(exclude=()) == excluded(exclude=None) == excluded("0 8 * * *", exclude=[]) == ()


def test_an_option_that_contradicts_its_spec_is_refused() -> None:
    spec = Spec("0 9 * * *", exclude="Sat, Sun")
    assert define(None, {"exclude": "Sun,Sat"}, spec=spec).spec == dump_spec(spec)
    with pytest.raises(InvalidSpecError, match="differs from the one in the spec"):
        define(None, {"exclude": "Fri"}, spec=spec)


def test_the_spec_of_a_schedule_without_exclusions_is_stored_as_before() -> None:
    assert "exclude" not in definition().spec
    assert active().spec.exclusion is None


def test_a_skipping_policy_counts_no_excluded_occurrence() -> None:
    skipping = fire(active(WORKDAYS, policies=Policies(missed=MissedPolicy.SKIP))).after
    change = fire(holding(skipping, run(1)), run(1), now=MONDAY + timedelta(minutes=10))
    assert types(change) == ["Excluded", "Missed"] or types(change) == ["Excluded", "TriggerSkipped"]
    assert change.after.missed_count + change.after.skipped_count == 1
