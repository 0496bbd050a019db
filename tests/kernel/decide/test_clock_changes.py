"""Decisions at clock changes: a new schedule shifts gaps, a stored one keeps its choice, and warnings say so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rqsched.errors import InvalidSpecError
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.lifecycle import decide_create, decide_update
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.policy import MissedPolicy, Policies
from rqsched.when.spec import Cron, Every, Spec
from rqsched.when.words import clock_warnings, in_words
from tests.support.decisions import IDENTITY, active, event, fire, types
from tests.support.env import DAY, HOUR, NOON

SPRING = datetime(2026, 3, 7, 12, tzinfo=UTC)
GAP = datetime(2026, 3, 8, 7, 30, tzinfo=UTC)
NEW_YORK = "America/New_York"


def stored(schedule: Schedule) -> tuple[str | None, str | None]:
    return schedule.spec.dst_gap, schedule.spec.dst_fold


def test_a_reading_that_is_left_out_is_shifted_and_nothing_counts_as_skipped() -> None:
    nightly = active(Spec("30 2 * * *", NEW_YORK), now=SPRING)
    assert nightly.next_run_at == GAP
    change = fire(nightly)
    assert types(change) == ["Triggered"]
    assert (change.after.next_run_at, change.after.skipped_count) == (GAP + 23 * HOUR, 0)


def test_what_was_missed_over_a_change_counts_what_is_shifted() -> None:
    policies = Policies(missed=MissedPolicy.SKIP)
    for gap, missed in (("shift", 4), ("skip", 3)):
        nightly = active(Spec("30 2 * * *", NEW_YORK, dst_gap=gap), now=SPRING, policies=policies)
        assert event(fire(nightly, now=SPRING + 4 * DAY), "Missed")["count"] == missed


def test_a_new_schedule_shifts_and_fires_once_unless_it_says_otherwise() -> None:
    assert stored(active("30 2 * * *")) == stored(active(Every("1h"))) == ("shift", None)
    assert stored(active(Spec("30 2 * * *", dst_gap="skip", dst_fold="both"))) == ("skip", "both")
    said = define(None, {"dst_gap": "skip", "dst_fold": "first"}, workflow="report", spec="30 2 * * *")
    assert stored(decide_create(IDENTITY, said, now=NOON).after) == ("skip", None)
    unsaid = define(None, {"dst_gap": None}, workflow="report", spec="30 2 * * *")
    assert stored(decide_create(IDENTITY, unsaid, now=NOON).after) == ("shift", None)


def test_what_is_not_stored_yet_is_previewed_as_it_will_be_stored() -> None:
    unsaid = Spec("30 2 * * *", NEW_YORK)
    assert active(unsaid, now=SPRING).next_run_at == unsaid.next_after(SPRING) == GAP
    assert Cron("30 2 * * *", NEW_YORK).next_after(SPRING) == GAP
    assert clock_warnings(unsaid, SPRING) == clock_warnings(active(unsaid, now=SPRING).spec, SPRING)
    assert Spec.from_json(unsaid.to_json()).next_after(SPRING) == GAP
    assert replace(unsaid, end_at=NOON + 400 * DAY).next_after(SPRING) == GAP


@pytest.mark.parametrize("spec", ["30 2 * * *", "@every 40m"])
def test_a_declaration_that_does_not_say_it_never_changes_what_is_stored(spec: str) -> None:
    for before in (active(spec), active(Spec(spec, dst_gap="skip", dst_fold="both"))):
        again = define(None, {}, workflow="report", spec=spec)
        again = replace(again, policies=before.definition.policies)
        assert decide_update(before, again, now=NOON + HOUR).is_empty

        other = define(None, {}, workflow="report", spec="0 5 * * *")
        assert stored(decide_update(before, other, now=NOON).after) == stored(before)
        assert stored(decide_update(before, define(before.definition, {}, spec="0 5 * * *"), now=NOON).after) == stored(
            before
        )


def test_an_option_that_contradicts_its_new_spec_is_refused_and_so_are_other_words() -> None:
    spec = Spec("30 2 * * *", dst_gap="skip")
    assert define(None, {"dst_gap": "skip"}, spec=spec).parsed_spec == spec
    with pytest.raises(InvalidSpecError, match="differs from the one in the spec"):
        define(None, {"dst_gap": "shift"}, spec=spec)
    for name, value in (("dst_gap", "move"), ("dst_fold", "twice"), ("dst_gap", 7), ("dst_fold", ["both"])):
        with pytest.raises(InvalidSpecError, match="is not one of") as refused:
            define(None, {name: value}, spec="30 2 * * *")
        assert refused.value.field == name


@pytest.mark.parametrize(
    ("expression", "zone", "options", "told"),
    [
        ("30 2 * * *", NEW_YORK, {"dst_gap": "shift"},
         ["02:30 does not occur on 2027-03-14 in America/New_York; fires at 03:30 (dst_gap=shift)"]),
        ("30 2 * * *", NEW_YORK, {},
         ["02:30 does not occur on 2027-03-14 in America/New_York; fires at 03:30 (dst_gap=shift)"]),
        ("30 2 * * *", NEW_YORK, {"dst_gap": "skip"},
         ["02:30 does not occur on 2027-03-14 in America/New_York; does not fire (dst_gap=skip)"]),
        ("30 1 * * *", NEW_YORK, {},
         ["01:30 occurs twice on 2026-11-01 in America/New_York; fires the first time (dst_fold=first)"]),
        ("30 1 * * *", NEW_YORK, {"dst_fold": "both"},
         ["01:30 occurs twice on 2026-11-01 in America/New_York; fires both times (dst_fold=both)"]),
        ("30 1 * * *", NEW_YORK, {"exclude": "Sun"}, []),
        ("30 * * * *", NEW_YORK, {}, []),
        ("30 2 * * *", "UTC", {}, []),
        ("30 2 14 3 *", NEW_YORK, {"end_at": datetime(2027, 3, 1, tzinfo=UTC)}, []),
        ("15 2 * * SUN", "Australia/Lord_Howe", {"dst_gap": "shift"},
         ["02:15 does not occur on 2026-10-04 in Australia/Lord_Howe; fires at 02:45 (dst_gap=shift)"]),
    ],
)  # fmt: skip
def test_what_the_next_change_within_a_year_does_is_said(
    expression: str, zone: str, options: dict[str, object], told: list[str]
) -> None:
    spec = Spec(expression, zone, **options)  # type: ignore[arg-type]
    assert clock_warnings(spec, datetime(2026, 6, 1, tzinfo=UTC)) == told


def test_the_next_change_is_said_also_when_it_is_53_weeks_away() -> None:
    spec = Spec("30 2 * * *", NEW_YORK, dst_gap="shift")
    assert clock_warnings(spec, datetime(2026, 3, 8, 12, tzinfo=UTC))[:1] == [
        "02:30 does not occur on 2027-03-14 in America/New_York; fires at 03:30 (dst_gap=shift)"
    ]


def test_a_reading_over_midnight_is_said_with_its_day() -> None:
    spec = Spec("0 12 * * *", "Pacific/Apia", dst_gap="shift")
    assert clock_warnings(spec, datetime(2011, 12, 1, tzinfo=UTC))[0] == (
        "12:00 does not occur on 2011-12-30 in Pacific/Apia; fires at 12:00 on 2011-12-31 (dst_gap=shift)"
    )


def test_twice_is_said_in_words() -> None:
    told = in_words(Spec("30 1 * * *", dst_fold="both"))
    assert told == "at 01:30, every day, UTC, twice where the clock shows it twice"
