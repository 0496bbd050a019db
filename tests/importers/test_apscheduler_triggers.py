"""Triggers of APScheduler 3 fire when the schedules do that they become: compared with the package's own."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import dateutil.tz  # type: ignore[import-untyped]
import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from rqsched.errors import InvalidInputError, InvalidSpecError
from rqsched.importers.apscheduler_triggers import OWN, Timing, timing_of
from rqsched.importers.unpickle import NotReadableError, made, told
from tests.importers.test_celery_times import timing_in, touched
from tests.support.rows import every_row

_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
MIDNIGHT = "When the clocks went forward, APScheduler may skip the next midnight; rqsched does not."
_STARTS = (datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 10, 22, 21, tzinfo=UTC), datetime(2027, 2, 26, tzinfo=UTC))
"""Before clocks go forward in the north, before they go back, and before the end of a February."""
_CRONS: tuple[dict[str, Any], ...] = (
    {"minute": "*/7"},
    {"hour": "*", "minute": 0},
    {"hour": 0},
    {"hour": "0,6", "minute": 30},
    {"day": 1},
    {"hour": 2, "minute": 30},
    {"hour": 2, "minute": "*/15"},
    {"hour": "1,2"},
    {"hour": "*/2"},
    {"hour": "1-5", "minute": "*/20"},
    {"hour": 1, "minute": 30},
    {"hour": "*/3", "minute": "15,45"},
    {"hour": "8-18/2", "day_of_week": "mon-fri"},
    {"hour": 9, "day_of_week": "6,wed"},
    {"hour": 9, "day_of_week": 0},
    {"hour": 9, "day_of_week": "*/2"},
    {"second": "*/10"},
    {"second": "5", "minute": "1-10/3"},
    {"day": "1,15", "hour": 4},
    {"day": 31},
    {"day": "*/10"},
    {"day": "20/5"},
    {"day": "last", "hour": 4},
    {"day": "2nd fri,1", "hour": 4},
    {"day": "last mon,5th tue", "hour": 4},
    {"day": "last,15", "month": "jan,jul"},
    {"month": "*/3"},
    {"month": "nov-dec", "day": "1-7", "day_of_week": "mon"},
    {"day": "8-14,22-28", "day_of_week": "mon,fri"},
    {"day": "2nd fri,3rd sun", "day_of_week": "4"},
    {"year": "2026-2027", "month": 3, "day": 29, "hour": "1-3"},
    {"week": "1-53", "day_of_week": "sun", "hour": 1},
    {"day_of_week": "0-6", "day": "1-31", "hour": 5},
)


def becomes(trigger: BaseTrigger, now: datetime, next_at: datetime | None = None) -> Timing:
    """Return the timing of a trigger that the package has pickled."""
    return timing_of(as_loaded(trigger), next_at, now)


def as_loaded(value: object) -> Any:
    """A value that was pickled, as the process that loads it tells it."""
    return json.loads(json.dumps(told(pickle.loads(pickle.dumps(value)), OWN)), object_hook=made)


def ours(timing: Timing, after: datetime, count: int = 20) -> list[datetime]:
    """The next occurrences of the schedule that a trigger becomes, that instant included."""
    spec = timing_in({"schedule_id": "t", "workflow": "shop.tasks.run", **timing.keys})
    return [*islice(spec.between(after, datetime(2200, 1, 1, tzinfo=UTC)), count)]


def theirs(trigger: BaseTrigger, after: datetime, count: int = 20) -> list[datetime]:
    """When APScheduler fires it next: each time counts from the one before, which was on time."""
    found, previous, now = list[datetime](), None, after
    while len(found) < count:
        at = trigger.get_next_fire_time(previous, now)
        if at is None:
            break
        previous = now = at
        found.append(at.astimezone(UTC))
    return found


def without_midnights(found: list[datetime], expected: list[datetime], zone: str, start: datetime) -> list[datetime]:
    """Without what APScheduler passes over: the first hour of a day, if the clocks went forward since it fired last."""

    def is_passed_over(at: datetime) -> bool:
        last = max((one for one in expected if one < at), default=start).astimezone(ZoneInfo(zone))
        here = at.astimezone(ZoneInfo(zone))
        return here.hour == 0 and (here.utcoffset() or timedelta()) > (last.utcoffset() or timedelta())

    return [at for at in found if at in expected or not is_passed_over(at)]


@pytest.mark.parametrize("zone", _ZONES)
def test_crons_fire_when_their_schedules_do_unless_it_is_said(zone: str) -> None:
    with every_row() as row:
        for fields in _CRONS:
            trigger = CronTrigger(**fields, timezone=zone)
            for start in _STARTS:
                timing = becomes(trigger, start)
                expected, found = theirs(trigger, start.astimezone(ZoneInfo(zone))), ours(timing, start)
                with row((fields, start, timing)):
                    left = without_midnights(found, expected, zone, start) if MIDNIGHT in timing.lost else found
                    is_said = any(told.startswith("When the clocks go ") for told in timing.lost)
                    assert left == expected[: len(left)] or (is_said and touched(left, expected, zone))


def test_what_differs_is_said_where_the_clocks_change() -> None:
    zone, spring, autumn = "America/New_York", datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 10, 31, tzinfo=UTC)
    later = CronTrigger(hour=2, minute=30, timezone=zone)
    assert (becomes(later, spring).lost, becomes(later, spring).keys["dst_gap"]) == ((), "shift")
    assert datetime(2026, 3, 8, 7, 30, tzinfo=UTC) in theirs(later, spring.astimezone(ZoneInfo(zone)))
    assert datetime(2026, 3, 8, 7, 30, tzinfo=UTC) in ours(becomes(later, spring), spring)
    for fields in ({"hour": 2, "minute": "*/15"}, {"hour": "1,2"}):
        assert becomes(CronTrigger(**fields, timezone=zone), spring).lost == (
            "When the clocks go forward over its times, APScheduler may skip some; rqsched runs each of them later.",
        )
    twice = CronTrigger(hour=1, minute=30, timezone=zone)
    assert (becomes(twice, autumn).lost, becomes(twice, autumn).keys["dst_fold"]) == ((), "both")
    night = {datetime(2026, 11, 1, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)}
    assert night <= {*theirs(twice, autumn.astimezone(ZoneInfo(zone)))}
    assert night <= {*ours(becomes(twice, autumn), autumn)}
    assert becomes(CronTrigger(minute=30, timezone=zone), autumn).lost == ()

    mondays = CronTrigger(day_of_week="mon", timezone=zone)
    assert becomes(mondays, spring).lost == (MIDNIGHT,)
    midnight = datetime(2026, 3, 9, 4, tzinfo=UTC)
    assert midnight not in theirs(mondays, spring.astimezone(ZoneInfo(zone)))
    assert midnight in ours(becomes(mondays, spring), spring)


def test_intervals_fire_from_their_next_time_on() -> None:
    now = datetime(2026, 10, 24, 23, 59, 7, tzinfo=UTC)
    with every_row() as row:
        for every in ({"seconds": 90}, {"minutes": 10}, {"hours": 5}, {"days": 2}, {"weeks": 1}):
            trigger = IntervalTrigger(**every, start_date=now + timedelta(minutes=3), timezone="Europe/Berlin")
            expected = theirs(trigger, now)
            with row(every):
                assert ours(becomes(trigger, now, expected[0]), now) == expected
                assert ours(becomes(trigger, now), now) == expected, "paused: from its start"
                assert ours(becomes(trigger, now, expected[1]), now) == [*expected[1:], expected[-1] + trigger.interval]


def test_ends_are_inclusive_as_those_of_apscheduler() -> None:
    now, zone = datetime(2026, 5, 4, 12, tzinfo=UTC), "Europe/Berlin"
    window = {"start_date": "2026-05-05 03:00:00", "end_date": "2026-05-07 03:00:00", "timezone": zone}
    with every_row() as row:
        for trigger in (CronTrigger(hour=3, **window), IntervalTrigger(days=1, **window)):
            with row(trigger):
                expected = theirs(trigger, now.astimezone(ZoneInfo(zone)))
                assert len(expected) == 3
                assert ours(becomes(trigger, now, expected[0]), now) == expected


def test_calendar_intervals_that_are_crons_fire_as_they_do() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    table: tuple[dict[str, Any], ...] = (
        {"days": 1, "hour": 2, "minute": 30},
        {"days": 7, "hour": 4},
        {"weeks": 1, "hour": 1, "minute": 30, "second": 5},
        {"months": 1, "start_date": date(2026, 1, 31)},
        {"months": 3, "hour": 4, "start_date": date(2026, 11, 15)},
        {"years": 1, "start_date": date(2026, 3, 29), "hour": 2, "minute": 30},
        {"days": 1, "start_date": date(2026, 3, 1), "end_date": date(2026, 3, 5), "hour": 23},
    )
    with every_row() as row:
        for fields in table:
            for zone in ("America/New_York", "Europe/Berlin"):
                trigger = CalendarIntervalTrigger(**{"start_date": date(2026, 1, 1), **fields}, timezone=zone)
                expected = theirs(trigger, now)
                with row((fields, zone)):
                    timing = becomes(trigger, now)
                    assert timing.keys["dst_gap"] == "skip"
                    assert ours(timing, datetime(2025, 12, 1, tzinfo=UTC)) == expected
                    assert timing.lost == ()


def test_date_fires_once() -> None:
    at = datetime(2026, 5, 4, 12, tzinfo=ZoneInfo("Asia/Kolkata"))
    assert ours(becomes(DateTrigger(at), at), datetime(2026, 1, 1, tzinfo=UTC)) == [at.astimezone(UTC)]


def test_jitter_is_kept() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert becomes(CronTrigger(hour=3, jitter=90, timezone="UTC"), now).keys["jitter"] == "PT1M30S"
    assert "jitter" not in becomes(CronTrigger(hour=3, timezone="UTC"), now).keys
    with pytest.raises(InvalidSpecError, match="more than 1 day"):
        becomes(IntervalTrigger(days=9, jitter=100_000), now)


def test_zones_are_read_by_their_names() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    zones: tuple[tuple[str | tzinfo, str], ...] = (
        (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (UTC, "UTC"),
        (ZoneInfo("Etc/UTC"), "UTC"),
        (timezone(timedelta(0)), "UTC"),
    )
    with every_row() as row:
        for zone, name in zones:
            with row(zone):
                timing = becomes(CronTrigger(hour=3, timezone=zone, start_date=now), now)
                assert (timing.keys["timezone"], timing.keys["start_at"]) == (name, "2026-05-04T12:00:00Z")
    with pytest.raises(NotReadableError, match=r"its time zone is a dateutil.tz.tz.tzfile, which has neither a name"):
        becomes(CronTrigger(hour=3, timezone=dateutil.tz.gettz("Europe/Berlin")), now)
    with pytest.raises(InvalidInputError, match=r"fixed offset of \+2 h"):
        becomes(CronTrigger(hour=3, timezone=timezone(timedelta(hours=2))), now)


class OfPytz(tzinfo):
    """A zone with its name where pytz has it, as releases of APScheduler before 3.11 keep it in their triggers."""

    zone = "America/New_York"

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=-5)

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None) -> None: ...


def test_pytz_zones_of_older_releases_are_read() -> None:
    now = datetime(2026, 1, 4, 12, tzinfo=UTC)
    trigger = CronTrigger(hour=3, timezone="Europe/Berlin", start_date=now.astimezone(OfPytz()))
    trigger.timezone = OfPytz()
    keys = becomes(trigger, now).keys
    assert (keys["timezone"], keys["start_at"]) == ("America/New_York", "2026-01-04T12:00:00Z")


def test_any_of_several_crons_is_a_spec_of_several_members() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    berlin, utc = {"timezone": "Europe/Berlin"}, {"timezone": "UTC"}
    first, later = DateTrigger(now + timedelta(minutes=5), "UTC"), DateTrigger(now + timedelta(days=5), "UTC")
    crons = CronTrigger(hour=9, **berlin), CronTrigger(day=13, **utc)
    table: dict[str, OrTrigger] = {
        "hours": OrTrigger([CronTrigger(hour=1, **utc), CronTrigger(hour=2, second="*/20", minute=5, **utc)]),
        "zones": OrTrigger([*crons]),
        "days that both name": OrTrigger([CronTrigger(day_of_week="mon", **utc), CronTrigger(day="13,4", **utc)]),
        "one in another": OrTrigger([OrTrigger([*crons]), CronTrigger(minute="7,9", hour=3, **utc)]),
        "a date that comes first": OrTrigger([*crons, first]),
        "a date that APScheduler never fires": OrTrigger([*crons, later]),
        "one": OrTrigger([CronTrigger(hour=4, **berlin)]),
        "an end": OrTrigger([CronTrigger(hour=h, end_date=now + timedelta(days=3), **utc) for h in (7, 19)]),
    }
    with every_row() as row:
        for name, trigger in table.items():
            with row(name):
                assert ours(becomes(trigger, now), now) == theirs(trigger, now)
    late = becomes(OrTrigger([CronTrigger(hour=h, jitter=30, **utc) for h in (1, 2)], jitter=10), now)
    assert late.keys["jitter"] == "PT40S"


def test_next_time_that_an_application_set_is_the_first_one() -> None:
    now, utc = datetime(2026, 5, 4, 12, tzinfo=UTC), {"timezone": "UTC"}
    in_ten_days = datetime(2026, 5, 14, 9, tzinfo=UTC)
    crons = CronTrigger(hour=9, **utc), OrTrigger([CronTrigger(hour=9, **utc), CronTrigger(hour=10, **utc)])
    with every_row() as row:
        for trigger in (
            *crons,
            IntervalTrigger(days=1, **utc),
            CalendarIntervalTrigger(days=1, hour=9, start_date="2026-05-01", **utc),
        ):
            timing = becomes(trigger, now, in_ten_days)
            with row(trigger):
                assert ours(timing, now)[0] == in_ten_days
                assert timing.lost == ()
        with row("jitter"):
            jittered = becomes(CronTrigger(hour=9, jitter=60, **utc), now, in_ten_days + timedelta(seconds=59))
            assert ours(jittered, now)[0] == in_ten_days
        with row("date"):
            date_trigger = DateTrigger(now + timedelta(days=1), "UTC")
            assert becomes(date_trigger, now, in_ten_days).keys == {"once": "2026-05-14T09:00:00Z"}
        with row("a time that its trigger does not name"):
            odd = becomes(CronTrigger(hour=9, **utc), now, in_ten_days + timedelta(hours=3))
            assert odd.lost == (
                "APScheduler fires it next at 2026-05-14T12:00:00Z, but by its trigger rqsched fires it at "
                "2026-05-15T09:00:00Z.",
            )


def test_triggers_that_no_spec_says_are_refused() -> None:
    now, utc = datetime(2026, 5, 4, 12, tzinfo=UTC), {"timezone": "UTC"}
    table: dict[str, BaseTrigger] = {
        "weeks of the year": CronTrigger(week="1-10", **utc),
        "both of its day fields": CronTrigger(day=13, day_of_week="fri", **utc),
        "on days that match either field": CronTrigger(day="last", day_of_week="fri", **utc),
        "with gaps between them": CronTrigger(year="2026,2028", **utc),
        "never fires": CronTrigger(month=2, day=30, **utc),
        "counts from each fire of the others": OrTrigger([CronTrigger(hour=1, **utc), IntervalTrigger(hours=1, **utc)]),
        "differ in start": OrTrigger([CronTrigger(hour=1, **utc), CronTrigger(hour=2, end_date=now, **utc)]),
        "only to the first of its triggers": OrTrigger([CronTrigger(hour=1, start_date=now + timedelta(1), **utc)]),
        "only the first one fires": OrTrigger([DateTrigger(now, "UTC"), DateTrigger(now + timedelta(1), "UTC")]),
        "names weeks of the year": OrTrigger([CronTrigger(hour=1, **utc), CronTrigger(week=3, **utc)]),
        "an AndTrigger": AndTrigger([CronTrigger(hour=1, **utc), CronTrigger(day_of_week=2, **utc)]),
        "at least one second": IntervalTrigger(seconds=0.5, **utc),
        "counts days or months": CalendarIntervalTrigger(days=2, **utc),
        "a way that no cron": CalendarIntervalTrigger(months=5, **utc),
        "make it an interval": CalendarIntervalTrigger(months=1, days=1, **utc),
    }
    with every_row() as row:
        for reason, trigger in table.items():
            with row(reason), pytest.raises(InvalidInputError, match=reason):
                becomes(trigger, now)


def test_trigger_with_more_expressions_than_anybody_writes_is_not_read() -> None:
    trigger = CronTrigger(hour=3, timezone="UTC")
    trigger.fields[0].expressions *= 1_000
    with pytest.raises(NotReadableError, match="more than 500 expressions"):
        becomes(trigger, datetime(2026, 5, 4, 12, tzinfo=UTC))


def test_what_is_no_trigger_of_apscheduler_is_not_read() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    with every_row() as row:
        for value in (None, "cron", now, as_loaded(Stranger())):
            with row(value), pytest.raises(NotReadableError, match="its trigger is a"):
                timing_of(value, None, now)


class Stranger:
    """A class of an application."""
