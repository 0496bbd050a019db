"""Periodic tasks of Celery beat run when the schedules do that they become: compared with Celery's own schedules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import schedule
from django_celery_beat.tzcrontab import TzAwareCrontab

from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers.celery_tasks import Clocked, Crontab, Interval, PeriodicTask, When
from rqsched.importers.source import SourceEntry
from rqsched.kernel.decide.define import define
from rqsched.timing import unfold
from rqsched.when.spec import Spec
from tests.support.rows import every_row

_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
_STARTS = (datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 10, 22, 21, tzinfo=UTC), datetime(2027, 2, 26, tzinfo=UTC))
"""Before clocks go forward in the north, before they go back, and before the end of a February."""
_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_CRONTABS = (
    ("0", "*", "*", "*", "*"),
    ("*/7", "*", "*", "*", "*"),
    ("30", "2", "*", "*", "*"),
    ("*/15", "2", "*", "*", "*"),
    ("0", "*/2", "*", "*", "*"),
    ("0", "1,2", "*", "*", "*"),
    ("*/20", "1-5", "*", "*", "*"),
    ("30", "1", "*", "*", "*"),
    ("15,45", "*/3", "*", "*", "*"),
    ("0", "22-2", "*", "*", "*"),
    ("0", "22-4/2", "*", "*", "*"),
    ("0", "8-18/2", "mon-fri", "*", "*"),
    ("0", "9", "sunday,wed", "*", "*"),
    ("0", "9", "fri-mon", "*", "*"),
    ("0", "9", "*/2", "*", "*"),
    ("5", "4", "*", "1,15", "*"),
    ("5", "4", "*", "31", "*"),
    ("5", "4", "*", "*/10", "*"),
    ("5", "4", "*", "28-3", "*"),
    ("5", "4", "*", "29", "2"),
    ("5", "4", "*", "1", "*/3"),
    ("5", "4", "*", "1", "jan,jul"),
    ("5", "4", "*", "*", "nov-feb"),
    ("5", "4", "mon", "1-7", "*"),
    ("5", "4", "mon,fri", "8-14,22-28", "*"),
    ("5", "4", "5", "29-31", "*"),
    ("59", "23", "*", "*", "12"),
)


@pytest.fixture(scope="module")
def celery() -> Celery:
    return Celery("times", set_as_current=False)


def becomes(when: When, now: datetime, **others: Any) -> SourceEntry:
    """Convert a periodic task with this schedule."""
    task = PeriodicTask("t", "shop.tasks.run", when, [], {}, {}, is_enabled=True)._replace(**others)
    return task.becomes(now, "UTC")


def ours(entry: SourceEntry, after: datetime, count: int = 20) -> list[datetime]:
    """The next occurrences of the schedule that an entry becomes."""
    assert entry.entry is not None, entry.lost
    found = timing_in(entry.entry).between(after + timedelta(microseconds=1), datetime(2200, 1, 1, tzinfo=UTC))
    return [*islice(found, count)]


def timing_in(entry: Mapping[str, Any]) -> Spec:
    """Return the timing of the schedule that an entry declares, with its options for clock changes only."""
    declared = declaration_of(entry)
    spec, options = unfold(declared.spec, declared.options)
    return define(None, {"dst_gap": "skip", **options}, workflow="t", spec=spec, defaults={}).parsed_spec


def theirs(due: Any, after: datetime, count: int = 20) -> list[datetime]:
    """When Celery runs it next: each time counts from the one before, which ran on time."""
    found = list[datetime]()
    at = after
    for _ in range(count):
        due.nowfun = lambda at=at: at
        at = at.astimezone(UTC) + due.remaining_estimate(at)
        found.append(at)
        at = at.astimezone(getattr(due, "tz", None) or UTC)
    return found


def touched(found: list[datetime], expected: list[datetime], zone: str) -> bool:
    """Whether they differ only within three hours of a change of clocks."""
    last = min(found[-1], expected[-1])
    different = {at for at in {*found} ^ {*expected} if at <= last}
    around = (timedelta(hours=-3), timedelta(hours=3))
    return all(len({(at + span).astimezone(ZoneInfo(zone)).utcoffset() for span in around}) == 2 for at in different)


@pytest.mark.parametrize("zone", _ZONES)
def test_crontabs_run_when_their_schedules_do_unless_it_is_said(celery: Celery, zone: str) -> None:
    with every_row() as row:
        for fields in _CRONTABS:
            crontab = dict(zip(_FIELDS, fields, strict=True))
            real = TzAwareCrontab(**crontab, tz=ZoneInfo(zone), app=celery)
            for start in _STARTS:
                entry = becomes(Crontab(**crontab, timezone=zone), start)
                expected, found = theirs(real, start.astimezone(ZoneInfo(zone))), ours(entry, start)
                with row((fields, start, entry.lost)):
                    is_said = any(told.startswith("When the clocks") for told in entry.lost)
                    assert found == expected or (is_said and touched(found, expected, zone))


def test_interval_whose_last_run_lies_ahead_waits_until_it_is_over() -> None:
    """RedBeat's users write entries like this to begin later."""
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    later = becomes(Interval(timedelta(days=1)), now, last_run_at=now + timedelta(days=9))
    assert ours(later, now)[0] == now + timedelta(days=10)


def test_what_differs_is_said_where_the_clocks_change(celery: Celery) -> None:
    zone, spring, autumn = "America/New_York", datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 10, 31, tzinfo=UTC)
    at_half_past = becomes(Crontab("30", "2", "*", "*", "*", zone), spring)
    assert at_half_past.lost == ()
    assert (at_half_past.entry or {})["dst_gap"] == "shift"
    real = TzAwareCrontab(minute="30", hour="2", tz=ZoneInfo(zone), app=celery)
    assert datetime(2026, 3, 8, 7, 30, tzinfo=UTC) in theirs(real, spring.astimezone(ZoneInfo(zone)))
    assert datetime(2026, 3, 8, 7, 30, tzinfo=UTC) in ours(at_half_past, spring)

    quarters = becomes(Crontab("*/15", "2", "*", "*", "*", zone), spring)
    assert quarters.lost == (
        "When the clocks go forward over several of its times, Celery runs one of them; rqsched runs each.",
    )
    real = TzAwareCrontab(minute="*/15", hour="2", tz=ZoneInfo(zone), app=celery)
    first, night = datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 3, 8, 12, tzinfo=UTC)
    assert [at for at in theirs(real, spring.astimezone(ZoneInfo(zone))) if first <= at < night] == [first]
    assert [at for at in ours(quarters, spring) if first <= at < night] == [
        first + quarter * timedelta(minutes=15) for quarter in range(4)
    ]

    hourly = becomes(Crontab("0", "*", "*", "*", "*", zone), autumn)
    assert hourly.lost == ("When the clocks go back, Celery runs nothing in the repeated hour; rqsched does.",)
    assert becomes(Crontab("0", "4", "*", "*", "*", zone), autumn).lost == ()


def test_intervals_run_when_their_schedules_do(celery: Celery) -> None:
    last = datetime(2026, 3, 28, 23, 59, 7, 123456, tzinfo=UTC)
    with every_row() as row:
        for every in (timedelta(seconds=1.5), timedelta(minutes=10), timedelta(hours=5), timedelta(days=2)):
            entry = becomes(Interval(every), last + timedelta(milliseconds=1), last_run_at=last)
            with row(every):
                assert ours(entry, last) == theirs(schedule(every, app=celery), last)
                assert entry.next_at == last + every


def test_relative_intervals_run_at_the_resolution_of_their_length(celery: Celery) -> None:
    last = datetime(2026, 5, 4, 11, 40, 7, tzinfo=UTC)
    with every_row() as row:
        for every in (timedelta(seconds=90), timedelta(minutes=10), timedelta(hours=5), timedelta(hours=30)):
            entry = becomes(Interval(every, is_rounded=True), last, last_run_at=last)
            with row(every):
                assert ours(entry, last) == theirs(schedule(every, relative=True, app=celery), last)


def test_start_delays_what_would_run_before_it() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    start_at, hour = now + timedelta(days=1, minutes=7), timedelta(hours=1)
    interval = becomes(Interval(hour), now, start_at=start_at)
    assert ours(interval, now, 2) == [start_at, start_at + hour]
    ran = becomes(Interval(hour), now, start_at=start_at, last_run_at=now)
    assert ours(ran, now, 2) == [start_at, start_at + hour]
    crontab = becomes(Crontab("0", "*", "*", "*", "*", "UTC"), now, start_at=start_at)
    assert ours(crontab, now, 1) == [now + timedelta(days=1, hours=1)]
    assert crontab.next_at == now + timedelta(days=1, hours=1)


def test_expiry_is_the_end_and_what_has_expired_is_refused() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    ends = becomes(Crontab("0", "*", "*", "*", "*", "UTC"), now, end_at=now + timedelta(hours=2))
    assert ours(ends, now) == [now + timedelta(hours=1)]
    assert becomes(Interval(timedelta(hours=1)), now, end_at=now).lost == (
        "It cannot become a schedule: it expired at 2026-05-04T12:00:00Z.",
    )


def test_one_off_runs_once_and_never_when_it_has_run() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    hourly = Crontab("0", "*", "*", "*", "*", "UTC")
    once = becomes(hourly, now, is_one_off=True)
    assert once.entry is not None
    assert once.entry["max_runs"] == 1
    assert becomes(hourly, now, is_one_off=True, run_count=1).lost == (
        "It cannot become a schedule: it is a one-off task that has run already.",
    )


def test_clocked_task_that_may_run_any_moment_stays_where_it_is() -> None:
    now, minutes = datetime(2026, 5, 4, 12, tzinfo=UTC), timedelta(minutes=1)
    clocked = {after: becomes(Clocked(now + after * minutes), now) for after in (-6, -4, 0, 1, 2)}
    assert [after for after, entry in clocked.items() if entry.entry is not None] == [-6, 2]
    assert clocked[2].next_at == now + 2 * minutes
    assert "run this again in a few minutes" in clocked[0].lost[0]
    disabled = becomes(Clocked(now - 6 * minutes), now, is_enabled=False)
    assert (disabled.entry or {})["once"] == "2026-05-04T11:54:00Z"


def test_next_time_that_may_have_been_used_already_is_not_told() -> None:
    now, minute = datetime(2026, 5, 4, 12, tzinfo=UTC), timedelta(minutes=1)
    told = [becomes(Interval(minute), now, last_run_at=now - minutes * minute).next_at for minutes in (0, 1, 5, 7)]
    assert told == [now + minute, None, None, now - 6 * minute], "beat writes what it ran every three minutes"


def test_crontabs_that_celery_does_not_read_are_refused() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    table = {
        "its day_of_week has '7'": ("0", "0", "*", "*", "7"),
        "its minute has '60'": ("60", "0", "*", "*", "*"),
        "its hour has '5/2'": ("0", "5/2", "*", "*", "*"),
        "its hour has '*/0'": ("0", "*/0", "*", "*", "*"),
        "its hour has ''": ("0", "1,,2", "*", "*", "*"),
        "its month_of_year has 'smarch'": ("0", "0", "*", "smarch", "*"),
        "its minute names 75": ([0, 75], "0", "*", "*", "*"),
        "its minute is a NoneType": (None, "0", "*", "*", "*"),
        "both of its day fields": ("0", "0", "13", "*", "fri"),
        "never fires": ("0", "0", "30", "2", "*"),
    }
    with every_row() as row:
        for reason, fields in table.items():
            entry = becomes(Crontab(*fields, timezone="UTC"), now)
            with row(reason):
                assert entry.entry is None
                assert reason in entry.lost[0]


def test_arguments_that_celery_decodes_to_more_than_json_are_refused() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    dated = [{"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}]
    table: dict[str, dict[str, Any]] = {
        "an argument is a datetime": {"args": [{"deep": dated}]},
        "not a list and an object": {"args": {"a": 1}},
        "characters, which is the limit": {"kwargs": {"a": "x" * 300_000}},
    }
    with every_row() as row:
        for reason, given in table.items():
            entry = becomes(Interval(timedelta(hours=1)), now, **given)
            with row(reason):
                assert entry.entry is None
                assert reason in entry.lost[0]


def test_how_a_message_is_sent_is_told_where_it_is_lost() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    options = {"queue": "high", "priority": 3, "expires": "60 s", "headers": {"a": 1}, "exchange": "x"}
    sent = becomes(Interval(timedelta(hours=1)), now, options=options)
    assert (sent.entry or {})["queue"] == "high"
    assert [told.partition(" ")[2].split()[0] for told in sent.lost] == ["priority", "expires", "exchange", "headers"]
    odd = becomes(Interval(timedelta(hours=1)), now, options={"queue": "über"})
    assert "queue" not in (odd.entry or {"queue": ""})
    assert odd.lost[0].startswith("Its queue is left out")


def test_housekeeping_of_celery_and_what_has_no_length_are_refused() -> None:
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert becomes(Crontab("0", "4", "*", "*", "*", None), now, task="celery.backend_cleanup").entry is None
    assert "at least one second" in becomes(Interval(timedelta(milliseconds=1)), now).lost[0]
    far = becomes(Interval(timedelta.max), now, last_run_at=now)
    assert far.entry is None
    assert "its interval is too long" in far.lost[0]
