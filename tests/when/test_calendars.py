"""Calendars in a spec: which texts are names, and that only contents that were given to a spec exclude anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rqsched.errors import InvalidIdError, InvalidSpecError
from rqsched.when.calendars import MAX_ENTRIES, Calendar, holding_since, require_entries, require_name
from rqsched.when.exclusion import MAX_NAMED, require_exclusions
from rqsched.when.spec import Cron, Spec
from rqsched.when.words import in_words

NOON = datetime(2026, 12, 24, 12, tzinfo=UTC)
DAY = timedelta(days=1)
XMAS = Calendar("xmas", ("2026-12-25/2026-12-26",), edit="1")


@pytest.mark.parametrize("name", ["holidays", "de.by-2026", "Saturdays", "Mon-Fry", "x" * 63, "a_b"])
def test_text_in_the_form_of_a_name_names_a_calendar(name: str) -> None:
    assert require_name(name) == name
    assert Spec("@daily", exclude=[name, "Sat"]).calendars == (name,)


@pytest.mark.parametrize(
    "name", ["", "Sat", "mon-FRI", "Sunday", "2026-12-25", "9to5", "a b", "a\n", "x" * 64, "*", "ä", 7, None, "a/b"]
)
def test_name_that_could_be_read_otherwise_or_forges_is_refused(name: Any) -> None:
    with pytest.raises(InvalidIdError, match="use a letter, then up to 62"):
        require_name(name)


def test_calendar_holds_neither_another_one_nor_too_much() -> None:
    with pytest.raises(InvalidSpecError, match="a calendar cannot contain a calendar"):
        require_entries(["2026-12-25", "holidays"])
    days = [f"{year}-01-{day:02}" for year in range(2000, 2000 + MAX_ENTRIES // 30) for day in range(1, 32)]
    with pytest.raises(InvalidSpecError, match=f"give at most {MAX_ENTRIES}"):
        require_entries(days)
    with pytest.raises(InvalidSpecError, match=f"more than {MAX_NAMED} calendars"):
        require_exclusions([f"c{number}" for number in range(MAX_NAMED + 1)])


def test_names_are_stored_under_a_key_of_their_own_which_older_processes_leave_alone() -> None:
    spec = Spec("0 9 * * *", exclude=["xmas", "Sat, Sun"])

    assert spec.to_json() | {"exclude": ["Sat, Sun"], "calendars": ["xmas"]} == spec.to_json()
    assert Spec.from_json(spec.to_json()) == spec
    assert Spec.from_stored({**spec.to_json(), "moons": ["full"]}).exclude == spec.exclude


def test_spec_without_the_contents_is_never_evaluated_as_if_nothing_was_excluded() -> None:
    spec = Spec("0 9 * * *", exclude=["xmas"])

    for ask in (
        lambda: spec.next_after(NOON),
        lambda: spec.count_between(NOON, NOON + DAY),
        lambda: spec.last_between(NOON, NOON + DAY, 1),
        lambda: [*spec.between(NOON, NOON + DAY)],
        lambda: spec.gaps_between(NOON, NOON + DAY),
        lambda: spec.is_all_excluded_after(NOON),
        lambda: spec.names(NOON),
    ):
        with pytest.raises(InvalidSpecError, match="names the calendar 'xmas', which does not exist"):
            ask()
    assert in_words(spec) == "at 09:00, every day, UTC, not as the calendar xmas says"


def test_contents_exclude_on_the_clocks_of_the_spec_and_change_nothing_that_is_compared() -> None:
    bare = Spec("0 9 * * *", exclude=["xmas", "Sun"], timezone="Asia/Tokyo")
    spec = bare.with_calendars([XMAS, Calendar("other", ("2026-12-28",))])

    assert spec.next_after(NOON) == datetime(2026, 12, 28, 0, tzinfo=UTC)  # Sunday is its own
    assert (spec, hash(spec), spec.to_json()) == (bare, hash(bare), bare.to_json())
    assert spec.excluded_by(datetime(2026, 12, 25, tzinfo=UTC)) == "xmas: 2026-12-25/2026-12-26"
    assert spec.excluded_by(datetime(2026, 12, 27, tzinfo=UTC)) == "Sun"
    assert spec.without([datetime(2026, 12, 28, 0, tzinfo=UTC)]).next_after(NOON) == datetime(2026, 12, 29, tzinfo=UTC)


def test_other_contents_of_the_same_text_are_another_answer() -> None:
    bare = Spec("0 9 * * *", exclude=["xmas"])
    moved = Calendar("xmas", ("2026-12-27",), edit="2")

    assert [bare.with_calendars([one]).next_after(NOON) for one in (XMAS, moved, XMAS)] == [
        datetime(2026, 12, day, 9, tzinfo=UTC) for day in (27, 25, 27)
    ]


def test_spec_and_calendar_may_take_every_minute_together() -> None:
    spec = Spec([Cron("0 9 * * *")], exclude=["work", "Sat, Sun"]).with_calendars([Calendar("work", ("Mon-Fri",))])

    assert spec.next_after(NOON) is None
    assert spec.is_all_excluded_after(NOON)
    assert spec.last_between(NOON - DAY, NOON + DAY, 5) == []
    assert spec.count_between(NOON - DAY, NOON + DAY).total == 0


def test_change_holds_since_the_first_one_that_a_schedule_was_not_planned_with() -> None:
    early, late = Calendar("a", (), edit="1", since=NOON), Calendar("b", (), edit="2", since=NOON + DAY)

    assert holding_since([early, late], None, NOON + 2 * DAY) == NOON
    assert holding_since([early, late], "1 0", NOON + 2 * DAY) == NOON + DAY
    assert holding_since([early, late], "1 2", NOON + 2 * DAY) == NOON + 2 * DAY
