"""The charts of a schedule: shares, spreads with round axes, hours by the clock of a zone."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from rqsched.dashboard import charts
from rqsched.features.hours.decide import HourKey, Tally, bucket_of, hour_of

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
UTC_ZONE = ZoneInfo("UTC")


def took(*seconds: float) -> Tally:
    longest = timedelta(seconds=max(seconds))
    return Tally(len(seconds), longest, durations=Counter(bucket_of(timedelta(seconds=one)) for one in seconds))


def key(at: datetime, outcome: str = "succeeded", *, is_backfilled: bool = False) -> HourKey:
    return HourKey(hour_of(at), is_backfilled, outcome)


def test_an_hour_of_the_grid_is_one_of_the_zones_clock_and_shows_its_shares() -> None:
    found = {key(NOON): 3, key(NOON, "failed"): 1, key(NOON - timedelta(days=40)): 9}
    (cell,) = charts.grid(found, date(2026, 1, 15), ZoneInfo("America/New_York"))
    assert (cell.column, cell.row) == (charts.GRID_DAYS - 1, 7)
    assert cell.label == "Thu 15 Jan 07:00: 3 succeeded, 1 failed"
    assert [(tone, round(height, 2)) for tone, _, height in cell.parts] == [("bad", 0.25), ("ok", 0.75)]


def test_one_failure_among_a_thousand_runs_is_still_seen() -> None:
    (cell,) = charts.grid({key(NOON): 999, key(NOON, "lost"): 1}, date(2026, 1, 15), UTC_ZONE)
    assert cell.parts[0][0] == "bad"
    assert cell.parts[0][2] > 0.1


def test_hours_that_the_clocks_repeat_are_one() -> None:
    twice = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    (cell,) = charts.grid({key(at): 1 for at in twice}, date(2026, 10, 25), ZoneInfo("Europe/Berlin"))
    assert cell.label == "Sun 25 Oct 02:00: 2 succeeded"


def test_a_year_counts_the_runs_of_each_day_of_the_zone() -> None:
    late = datetime(2026, 1, 14, 23, tzinfo=UTC)
    days = charts.year(
        {key(late): 5, key(late, "lost"): 2, key(late, "cancelled"): 1}, date(2026, 1, 15), ZoneInfo("Asia/Tokyo")
    )
    assert [(day.day, day.succeeded, day.failed, day.others) for day in days if day.level] == [
        (date(2026, 1, 15), 5, 2, 1)
    ]


def test_a_spread_tells_of_each_hour_up_to_what_half_and_nearly_all_of_its_runs_took() -> None:
    found = {key(NOON): took(*[10.0] * 90), key(NOON, "failed"): took(*[40.0] * 10)}
    spread = charts.spread(found, hour_of(NOON) - 1, 3, 1, UTC_ZONE)
    assert spread is not None
    ((x, width, half, most, label),) = spread.bars
    assert x == pytest.approx(1000 / 3)
    assert x + width < 1000 * 2 / 3
    assert (half * spread.greatest, most * spread.greatest) == pytest.approx((10, 40))
    assert label == "Thu 15 Jan 12:00: half of the runs took at most 10.0 s, 95 % at most 40.0 s, of 100 runs"
    assert (spread.greatest, spread.first, spread.last) == (50.0, "Thu 15 Jan 11:00", "Thu 15 Jan 13:00")


@pytest.mark.parametrize(
    ("seconds", "greatest"),
    [(0.0004, 0.001), (0.03, 0.05), (1.5, 2), (40, 50), (70, 120), (3_000, 3_600), (100_000, 172_800)],
)
def test_the_axis_of_a_spread_ends_at_a_round_length(seconds: float, greatest: float) -> None:
    spread = charts.spread({key(NOON): took(seconds)}, hour_of(NOON), 1, 1, UTC_ZONE)
    assert spread is not None
    assert spread.greatest == pytest.approx(greatest)


def test_a_spread_is_of_live_runs_that_took_time() -> None:
    found = {key(NOON, is_backfilled=True): took(5.0), key(NOON): Tally(3)}
    assert charts.spread(found, hour_of(NOON), 1, 1, UTC_ZONE) is None
