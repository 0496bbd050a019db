"""Missed time: the passed occurrences that fire, those that are counted, and the cost of both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from types import FrameType
from typing import Any

import pytest

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.occurrences import classify_due, due_of, stored_due_of
from rqsched.kernel.decide.policy import Policies
from rqsched.when.spec import Cron, Every, Once, Spec, SpecLike
from tests.support.decisions import active, definition, event, fire, types
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND

ALLOW = {"overlap": "allow_all"}


def down(options: dict[str, Any], spec: SpecLike = "* * * * *", **fields: Any) -> Schedule:
    return active(spec, policies=Policies(**options, retry=ONCE), **fields)


def minutes(*instants: datetime) -> list[int]:
    return [(instant - NOON) // MINUTE for instant in instants]


@pytest.mark.parametrize(
    ("options", "fires", "missed"),
    [
        pytest.param({}, [1], (29, 2, 30), id="fire_once: the stored one"),
        pytest.param({"fire_within": 10 * MINUTE}, [21], (29, 1, 30), id="fire_once: the oldest in the window"),
        pytest.param({"fire_within": 29.5 * MINUTE}, [1], (29, 2, 30), id="fire_once: just inside the window"),
        pytest.param({"fire_within": 20 * SECOND}, [], (30, 1, 30), id="fire_once: none in the window"),
        pytest.param({"missed": "skip"}, [30], (29, 1, 30), id="skip: the newest, under a minute late"),
        pytest.param({"missed": "skip", "fire_within": 30 * SECOND}, [30], (29, 1, 30), id="skip: just inside"),
        pytest.param({"missed": "skip", "fire_within": 29 * SECOND}, [], (30, 1, 30), id="skip: too late"),
        pytest.param(ALLOW | {"missed": "all"}, [*range(1, 31)], None, id="all"),
        pytest.param(
            ALLOW | {"missed": "all", "missed_limit": 3},
            [28, 29, 30],
            (27, 1, 30),
            id="all: the newest up to the bound",
        ),
        pytest.param(
            ALLOW | {"missed": "all", "fire_within": 2 * MINUTE},
            [29, 30],
            (28, 1, 30),
            id="all: those in the window",
        ),
        pytest.param(
            ALLOW | {"missed": "all", "missed_limit": 1, "fire_within": HOUR}, [30], (29, 1, 30), id="all: both"
        ),
    ],
)
def test_the_policy_chooses_among_what_passed_and_counts_the_rest(
    options: dict[str, Any], fires: list[int], missed: tuple[int, int, int] | None
) -> None:
    change = fire(down(options), now=NOON + 30 * MINUTE + 30 * SECOND)
    started = [new.occurrence_at for new in change.new_runs]
    assert minutes(*started) == (fires if options.get("overlap") else fires[:1])
    assert change.after.next_run_at == NOON + 31 * MINUTE
    assert change.after.evaluated_to == NOON + 30 * MINUTE
    assert change.after.missed_count == (missed[0] if missed else 0)
    assert "ScheduleMissed" in [found.type for found in change.events] or missed is None
    if missed:
        payload = event(change, "Missed")
        first, last = (datetime.fromisoformat(payload[name]) for name in ("first", "last"))
        assert (payload["count"], *minutes(first, last)) == missed
        assert minutes(*map(datetime.fromisoformat, payload.get("fired", []))) == fires
        assert payload["policy"] == options.get("missed", "fire_once")


@pytest.mark.parametrize(
    ("options", "late", "starts"),
    [
        ({}, 59 * MINUTE, True),
        ({"missed": "skip"}, MINUTE, True),
        ({"missed": "skip"}, MINUTE + SECOND, False),
        ({"fire_within": 5 * MINUTE}, 5 * MINUTE, True),
        ({"fire_within": 5 * MINUTE}, 5 * MINUTE + SECOND, False),
    ],
    ids=str,
)
def test_a_single_late_occurrence_fires_within_the_window_only(
    options: dict[str, Any], late: timedelta, starts: bool
) -> None:
    change = fire(down(options, "@hourly"), now=NOON + HOUR + late)
    assert types(change) == (["Triggered"] if starts else ["Missed"])
    assert change.after.next_run_at == NOON + 2 * HOUR
    assert change.after.missed_count == (not starts)


def test_all_that_was_missed_runs_one_after_another_under_buffer_all() -> None:
    options = {"missed": "all", "overlap": "buffer_all", "missed_limit": 4}
    change = fire(down(options), now=NOON + 10 * MINUTE)
    assert [new.status.value for new in change.new_runs] == ["pending", "buffered", "buffered", "buffered"]
    assert [new.due_at for new in change.new_runs] == [NOON + k * MINUTE for k in (7, 8, 9, 10)]
    assert types(change) == ["Missed", "Triggered", "Buffered", "Buffered", "Buffered"]


def test_firing_all_that_was_missed_ends_with_max_runs_and_what_was_due_too_is_skipped() -> None:
    change = fire(down(ALLOW | {"missed": "all"}, max_runs=2), now=NOON + 10 * MINUTE)
    assert types(change) == ["Triggered", "Triggered", "Completed", *["TriggerSkipped"] * 8]
    assert change.after.last_skip_reason == "remaining_actions_exhausted"


def test_what_a_backfill_ran_is_not_missed() -> None:
    ran = [NOON + k * MINUTE for k in (1, 5, 6)]
    change = fire(down({}), now=NOON + 10 * MINUTE, ran=ran)
    assert (event(change, "Missed")["count"], change.new_runs) == (7, ())
    everything = fire(down({}), now=NOON + 3 * MINUTE, ran=[NOON + k * MINUTE for k in (1, 2, 3)])
    assert (everything.events, everything.after.missed_count) == ((), 0)


def passed_of(schedule: Schedule, now: datetime) -> list[datetime]:
    assert schedule.next_run_at is not None
    since = max(schedule.next_run_at, schedule.timing_changed_at)
    later = schedule.spec.between(since + timedelta(microseconds=1), now + timedelta(microseconds=1))
    return [schedule.next_run_at, *(nominal for nominal in later if due_of(schedule, nominal) <= now)]


def expected(schedule: Schedule, now: datetime) -> tuple[list[datetime], int]:
    """The fires and the number of missed ones, as the policies' docstrings say it."""
    policies, passed = schedule.policies, passed_of(schedule, now)
    window = policies.allowed_lateness
    fresh = [at for at in passed if window is None or now - stored_due_of(schedule, at) <= window]
    if policies.missed == "fire_once":
        fires = fresh[:1]
    elif policies.missed == "skip":
        fires = [at for at in fresh if at == passed[-1]]
    else:
        fires = [at for at in passed[-policies.missed_limit :] if at in fresh]
    return fires, len(passed) - len(fires)


SPECS: dict[str, SpecLike] = {
    "minutes": "* * * * *",
    "anchored": Every("7m"),
    "mixed": Spec(["*/10 * * * *", Every("25m", offset="3m"), Once(NOON + 42 * MINUTE)]),
    "sparse": Spec("5,7,50 * * * *", "America/New_York"),
    "ending": Spec("*/4 * * * *", end_at=NOON + HOUR),
}
JITTERS = {"exact": timedelta(0), "jitter": 90 * SECOND, "wide jitter": 24 * HOUR}
WINDOWS = {"any age": None, "window": 8 * MINUTE}
MISSED: dict[str, dict[str, Any]] = {
    "fire_once": {},
    "skip": {"missed": "skip"},
    "all": {"missed": "all", "overlap": "allow_all", "missed_limit": 5},
}


def survey_of(schedule: Schedule, now: datetime) -> tuple[list[datetime], int]:
    seen = classify_due(schedule, now)
    return list(seen.fires), seen.missed.count if seen.missed else 0


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("missed", MISSED)
def test_what_passed_is_sorted_out_as_the_policies_say(spec: str, jitter: str, window: str, missed: str) -> None:
    random = Random(f"{spec} {jitter} {window} {missed}")
    options = MISSED[missed] | {"fire_within": WINDOWS[window]}
    schedule = down(options, SPECS[spec], jitter=JITTERS[jitter])
    assert schedule.due_at is not None
    for _ in range(6):
        now = schedule.due_at + random.randrange(5400) * SECOND
        assert survey_of(schedule, now) == expected(schedule, now), now
        change = fire(schedule, now=now)
        last = passed_of(schedule, now)[-1]
        assert (change.after.evaluated_to, change.after.next_run_at) == (last, schedule.spec.next_after(last))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("missed", MISSED)
def test_an_occurrence_off_the_new_grid_fires_and_the_new_grid_counts_from_the_change(spec: str, missed: str) -> None:
    options = MISSED[missed]
    schedule = down(options, "*/3 * * * *")
    policies = schedule.policies
    change = lifecycle.decide_update(schedule, definition(SPECS[spec], policies=policies), now=NOON + 4 * MINUTE)
    updated = change.after
    assert (updated.next_run_at, updated.timing_changed_at) == (NOON + 3 * MINUTE, NOON + 4 * MINUTE)
    for late in (4, 5, 9, 30, 75):
        now = NOON + late * MINUTE
        assert survey_of(updated, now) == expected(updated, now)
        assert all(at <= NOON + 3 * MINUTE or at > NOON + 4 * MINUTE for at in passed_of(updated, now))


def test_a_new_timing_that_is_over_already_adds_nothing_to_what_was_due_before_it() -> None:
    over = Spec(Cron("* * * * *"), end_at=NOON + 7 * MINUTE)
    schedule = down({}, "*/3 * * * *")
    change = lifecycle.decide_update(schedule, definition(over, policies=schedule.policies), now=NOON + 10 * MINUTE)
    fired = fire(change.after, now=NOON + 11 * MINUTE)
    assert minutes(*(new.occurrence_at for new in fired.new_runs)) == [3]
    assert fired.after.next_run_at is None, "12:04 to 12:06 passed before the change"
    assert fired.after.missed_count == 2, "12:06 and 12:09, of the old timing"


def calls(work: Callable[[], object]) -> int:
    """How many Python functions are called."""
    count = 0

    def note(frame: FrameType, kind: str, argument: object) -> None:
        nonlocal count
        count += kind == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("missed", MISSED)
@pytest.mark.parametrize("jitter", ["exact", "jitter"])
def test_three_days_of_minutes_cost_no_more_than_an_hour(missed: str, jitter: str) -> None:
    """10 000 such schedules must not cost minutes of CPU, so the number of steps must not grow with the outage."""
    schedule = down(MISSED[missed], jitter=JITTERS[jitter])
    hour, days, month = (partial(fire, schedule, now=NOON + outage) for outage in (HOUR, 72 * HOUR, 30 * 24 * HOUR))
    month()
    assert calls(days) < calls(hour) + 40
    assert calls(month) < calls(hour) + 40
    assert calls(days) < 1_000


def test_an_outage_is_counted_exactly() -> None:
    change = fire(down({}), now=NOON + 72 * HOUR)
    payload = event(change, "Missed")
    assert (payload["count"], "count_capped" in payload) == (72 * 60 - 1, False)


def test_several_members_are_counted_up_to_a_thousand() -> None:
    change = fire(down({}, ["* * * * *", "30 12 * * *"]), now=NOON + 72 * HOUR)
    payload = event(change, "Missed")
    assert (payload["count"], payload["count_capped"]) == (1000, True)


def test_one_member_beyond_a_thousand_spares_walking_them_all() -> None:
    schedule = down({}, ["* * * * *", "30 12 * * *"])
    fire(schedule, now=NOON + 72 * HOUR)
    assert calls(lambda: fire(schedule, now=NOON + 72 * HOUR)) < 1_000


def test_a_clock_that_jumps_forward_starts_no_burst() -> None:
    change = fire(down(ALLOW | {"missed": "all"}), now=NOON + 365 * 24 * HOUR)
    assert len(change.new_runs) == 100


def retimed_by(schedule: Schedule, now: datetime) -> Schedule:
    return lifecycle.decide_update(schedule, definition("*/1 * * * *", policies=schedule.policies), now=now).after


def test_a_clock_that_jumps_back_fires_nothing_twice() -> None:
    schedule = fire(down({}), now=NOON + MINUTE).after
    assert retimed_by(schedule, NOON).next_run_at == NOON + 2 * MINUTE, "12:01 has its outcome"


def test_clock_that_is_behind_gives_no_second_outcome_to_what_a_change_of_timing_by_one_ahead_counted() -> None:
    schedule = retimed_by(down({}), NOON + 4 * MINUTE)
    assert (schedule.next_run_at, schedule.missed_count) == (NOON + MINUTE, 3), "12:01 keeps its fire"
    policies = schedule.policies
    again = lifecycle.decide_update(schedule, definition("* * * * *", policies=policies), now=NOON + 30 * SECOND).after
    assert (again.next_run_at, again.missed_count) == (NOON + MINUTE, 3)
    assert fire(again, now=NOON + MINUTE).after.next_run_at == NOON + 5 * MINUTE


def test_what_a_clock_ahead_changed_in_a_pause_hides_nothing_from_a_resume_by_one_behind() -> None:
    paused = lifecycle.decide_pause(down({}), now=NOON + SECOND).after
    timed = lifecycle.decide_update(paused, definition("*/2 * * * *"), now=NOON + 3 * MINUTE).after
    resumed = lifecycle.decide_resume(timed, (), now=NOON + 30 * SECOND).after
    assert resumed.next_run_at == NOON + 2 * MINUTE


def test_an_owner_takes_a_schedule_back_from_a_clock_that_was_plainly_wrong() -> None:
    schedule = fire(down({}), now=NOON + 600 * MINUTE).after
    resumed = retimed_by(schedule, NOON)
    assert resumed.next_run_at == NOON + MINUTE
    again = fire(resumed, now=NOON + MINUTE, ran=[NOON + MINUTE])
    assert (again.new_runs, again.after.next_run_at) == ((), NOON + 2 * MINUTE), "and still nothing runs twice"


def test_an_occurrence_that_a_resume_made_due_again_is_not_too_late() -> None:
    schedule = replace(down({"missed": "skip"}, "@hourly"), due_at=NOON + 100 * MINUTE)
    assert types(fire(schedule, now=NOON + 100 * MINUTE)) == ["Triggered"]
    assert types(fire(schedule, now=NOON + 102 * MINUTE)) == ["Missed"]
