"""Crons whose fields must all agree, as expressions of ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rqsched.errors import InvalidCronError, InvalidTimezoneError
from rqsched.importers.cron_fields import (
    HOURS,
    LAST,
    MINUTES,
    MONTHDAYS,
    MONTHS,
    WEEKDAYS,
    ClockChanges,
    CronFields,
    Position,
    fixed_offset,
    zone_name,
)
from tests.support.rows import every_row

_DAILY = CronFields([0], [3], MONTHDAYS, MONTHS, WEEKDAYS)
_JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def test_expression_is_the_shortest_usual_text() -> None:
    table = {
        "* * * * *": CronFields(MINUTES, HOURS, MONTHDAYS, MONTHS, WEEKDAYS),
        "*/15 9-17 * * mon-fri": CronFields([0, 15, 30, 45], range(9, 18), MONTHDAYS, MONTHS, range(1, 6)),
        "5-25/10 0-1,22-23 1,15 */3 *": CronFields([5, 15, 25], [22, 23, 0, 1], [1, 15], [1, 4, 7, 10], WEEKDAYS),
        "0 3 L * *": _DAILY._replace(monthdays=[], has_last_day=True),
        "0 3 1,L * *": _DAILY._replace(monthdays=[1], has_last_day=True),
        "0 3 * * fri#2,friL": _DAILY._replace(monthdays=[], positions=[Position(LAST, 5), Position(2, 5)]),
        "0 3 1 * fri#2": _DAILY._replace(monthdays=[1], positions=[Position(2, 5)]),
        "30 0 3 * * *": _DAILY._replace(seconds=[30]),
        "0 3 * * sun,sat": _DAILY._replace(weekdays=[0, 6]),
    }
    with every_row() as row:
        for expression, fields in table.items():
            with row(expression):
                assert fields.expression() == expression


def test_days_that_both_fields_name_become_places_in_the_month_where_they_are_whole_weeks() -> None:
    table = {
        "0 3 * * mon#1": _DAILY._replace(monthdays=range(1, 8), weekdays=[1]),
        "0 3 * * mon#1,tue#1,mon#3,tue#3": _DAILY._replace(monthdays=[*range(1, 8), *range(15, 22)], weekdays=[1, 2]),
        "0 3 * * fri#5": _DAILY._replace(monthdays=[29, 30, 31], weekdays=[5]),
        "0 3 * * fri#2": _DAILY._replace(monthdays=[], weekdays=[5], positions=[Position(2, 5), Position(2, 1)]),
    }
    with every_row() as row:
        for expression, fields in table.items():
            with row(expression):
                assert fields.expression() == expression


def test_days_that_no_cron_of_ours_names_are_refused() -> None:
    table = {
        "both of its day fields": _DAILY._replace(monthdays=[13], weekdays=[5]),
        "on days that match either field": _DAILY._replace(monthdays=[], has_last_day=True, weekdays=[5]),
        "no day matches both": _DAILY._replace(monthdays=[], weekdays=[5], positions=[Position(2, 1)]),
        "never fires": _DAILY._replace(monthdays=[30], months=[2]),
        "has no values": _DAILY._replace(hours=[]),
    }
    with every_row() as row:
        for reason, fields in table.items():
            with row(reason), pytest.raises(InvalidCronError, match=reason):
                fields.expression()


def test_zones_without_rules_are_refused_and_names_of_utc_are_one() -> None:
    assert {zone_name(name) for name in ("UTC", "GMT", "Etc/UTC", "Etc/GMT", "Zulu")} == {"UTC"}
    assert zone_name("Europe/Berlin") == "Europe/Berlin"
    assert fixed_offset(timedelta(0)) == "UTC"
    for refused in ("EST", "Etc/GMT+5", "local"):
        with pytest.raises(InvalidTimezoneError):
            zone_name(refused)
    with pytest.raises(InvalidTimezoneError, match=r"\+5\.5 h"):
        fixed_offset(timedelta(hours=5, minutes=30))


def test_changes_of_clocks_are_found_where_they_touch_the_expression() -> None:
    new_york = "America/New_York"
    table = {
        ("30 2 * * *", new_york): ClockChanges(skips=True, repeats=False, is_every_hour=False, go_forward=True),
        ("30 1 * * *", new_york): ClockChanges(skips=False, repeats=True, is_every_hour=False, go_forward=True),
        ("30 * * * *", new_york): ClockChanges(skips=True, repeats=True, is_every_hour=True, go_forward=True),
        ("30 12 * * *", new_york): ClockChanges(skips=False, repeats=False, is_every_hour=False, go_forward=True),
        ("30 2 * 7 *", new_york): ClockChanges(skips=False, repeats=False, is_every_hour=False, go_forward=True),
        ("30 2 * * *", "UTC"): ClockChanges(skips=False, repeats=False, is_every_hour=False, go_forward=False),
    }
    with every_row() as row:
        for (expression, zone), changes in table.items():
            with row((expression, zone)):
                assert ClockChanges.of(expression, zone, _JANUARY) == changes
