"""Recurrence rules of whole days, compared with dateutil, which icalendar brings."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from dateutil.rrule import rrulestr  # type: ignore[import-untyped]
from icalendar.prop import vRecur

from rqsched.features.calendars.recurrence_rule import RecurrenceRule
from rqsched.when.steps import Steps

RULES = (
    "FREQ=DAILY;INTERVAL=13",
    "FREQ=DAILY;COUNT=40;BYMONTH=2,11;BYDAY=MO,SU",
    "FREQ=DAILY;BYMONTHDAY=-1,13;BYDAY=FR",
    "FREQ=WEEKLY",
    "FREQ=WEEKLY;INTERVAL=3;WKST=SU;BYDAY=SA,SU,MO",
    "FREQ=WEEKLY;INTERVAL=2;WKST=TH;BYDAY=TU,FR;BYSETPOS=-1",
    "FREQ=WEEKLY;UNTIL=20290615T120000;BYMONTH=6",
    "FREQ=MONTHLY",
    "FREQ=MONTHLY;INTERVAL=5;BYDAY=-1FR",
    "FREQ=MONTHLY;BYDAY=2TU,4TU",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1,1",
    "FREQ=MONTHLY;BYMONTHDAY=31,-31;COUNT=9",
    "FREQ=YEARLY",
    "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
    "FREQ=YEARLY;BYDAY=-1MO,20MO",
    "FREQ=YEARLY;BYYEARDAY=1,-1,200",
    "FREQ=YEARLY;BYWEEKNO=1,20,-1;WKST=SU;BYDAY=WE",
    "FREQ=YEARLY;BYMONTH=1,10;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=MO;COUNT=11",
    "FREQ=YEARLY;BYMONTHDAY=-15,1,-14;BYSETPOS=2,1",
)


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("first", [date(2007, 3, 31), date(2024, 2, 29), date(2026, 11, 28)], ids=str)
def test_rule_names_the_days_that_dateutil_names(text: str, first: date) -> None:
    start, end = date(2025, 1, 1), date(2031, 6, 1)
    named = rrulestr(text, dtstart=datetime.combine(first, datetime.min.time()))
    expected = [at.date() for at in named.between(_midnight(start), _midnight(end), inc=True)]

    assert [*_rule(text, first).between(start, end, lambda: None)] == expected


@pytest.mark.parametrize("text", [text for text in RULES if "COUNT" not in text])
def test_rule_takes_no_more_steps_from_the_year_one_on(text: str) -> None:
    start, end = date(2025, 1, 1), date(2031, 6, 1)
    taken = []
    for year in (1, 2020):
        steps = Steps(None)
        list(_rule(text, date(year, 1, 1)).between(start, end, steps.spend))
        taken.append(steps.taken)
    assert taken[0] <= taken[1] + 400


@pytest.mark.parametrize("text", ["FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"])
def test_rule_that_never_matches_ends_with_the_range(text: str) -> None:
    steps = list[None]()
    end = date(2026, 1, 1) + timedelta(days=2_000)

    assert not [*_rule(text, date(2026, 1, 1)).between(date(2026, 1, 1), end, lambda: steps.append(None))]
    assert len(steps) < 5_000


def _midnight(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time())


def _rule(text: str, first: date) -> RecurrenceRule:
    return RecurrenceRule(vRecur.from_ical(text), first)
