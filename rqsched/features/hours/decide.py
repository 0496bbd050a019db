"""Hours of runs: how many runs ended in an hour, with which outcomes, delays and durations. Pure.

A live run belongs to the hour of its end. A backfilled run belongs to the hour of its occurrence, because it completes
the statistics of that past hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rqsched.kernel.decide.model import RunKind

HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_A_DECADE = 10
BOUNDS = tuple(round(1_000 * 10 ** (place / _A_DECADE)) for place in range(10 * _A_DECADE + 1))
"""The upper bounds of the buckets for durations, in microseconds: ten for each power of ten, from 1 ms to 115 days.

Rows store the index of a bound, so the bounds must never change. One more bucket has the longer durations.
"""


class EndedRun(NamedTuple):
    """The facts about an ended run that are counted."""

    number: int
    """Its number within the schedule."""
    kind: str
    """The origin of the run."""
    status: str
    """How it ended."""
    attempt: int
    """Its last attempt."""
    occurrence_at: datetime
    """Its nominal time."""
    due_at: datetime | None
    """The planned start."""
    started_at: datetime | None
    """When its last attempt began; None if none began."""
    ended_at: datetime
    """When it ended."""


A_DAY = 24
"""The number of hours in a day in UTC."""


class HourKey(NamedTuple):
    """The key of the runs that are counted together."""

    hour: int
    """The hour as a number of whole hours since 1970, UTC. A day has the number of its first hour."""
    is_backfilled: bool
    """Whether a backfill created the runs."""
    outcome: str
    """How they ended."""


@dataclass
class Tally:
    """The figures of the runs that are counted together."""

    count: int = 0
    """The number of runs."""
    longest: timedelta = timedelta(0)
    """The longest duration. It stays even if its run is subtracted (`take_out`)."""
    waits: Counter[int] = field(default_factory=Counter)
    """For each bucket, the number of live runs whose first attempt began with this delay after the due time."""
    durations: Counter[int] = field(default_factory=Counter)
    """For each bucket, the number of runs with this duration, from the start of the last attempt to the end."""

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.longest = max(self.longest, other.longest)
        self.waits.update(other.waits)
        self.durations.update(other.durations)

    def take_out(self, other: Tally) -> None:
        """Subtract the counts of another tally; no count falls below 0."""
        self.count = max(self.count - other.count, 0)
        self.waits -= other.waits
        self.durations -= other.durations


def hour_of(at: datetime) -> int:
    """Return the hour in which an instant lies, as in `HourKey.hour`."""
    return (at - _EPOCH) // HOUR


def instant_of_hour(hour: int) -> datetime:
    """Return the instant at which an hour begins."""
    return _EPOCH + hour * HOUR


def bucket_of(span: timedelta) -> int:
    """Return the bucket of a duration. A negative duration, after a correction of a clock, is in the first bucket."""
    return bisect_left(BOUNDS, span // _MICROSECOND)


def tally(runs: Iterable[EndedRun]) -> dict[HourKey, Tally]:
    """Count ended runs by hour, origin and outcome."""
    found: defaultdict[HourKey, Tally] = defaultdict(Tally)
    for run in runs:
        is_backfilled = run.kind == RunKind.BACKFILL
        at = run.occurrence_at if is_backfilled else run.ended_at
        found[HourKey(hour_of(at), is_backfilled, run.status)].add(_tally_of(run, is_backfilled=is_backfilled))
    return found


def _tally_of(run: EndedRun, *, is_backfilled: bool) -> Tally:
    if run.started_at is None:
        return Tally(1)
    took = run.ended_at - run.started_at
    found = Tally(1, max(took, timedelta(0)), durations=Counter([bucket_of(took)]))
    # Count only first attempts of live runs, because retries and backfilled runs start late by design.
    if run.attempt == 1 and run.due_at is not None and not is_backfilled:
        found.waits[bucket_of(run.started_at - run.due_at)] += 1
    return found


def by_day(found: Mapping[HourKey, Tally]) -> dict[HourKey, Tally]:
    """Add up the tallies of the hours of each day."""
    days: defaultdict[HourKey, Tally] = defaultdict(Tally)
    for key, one in found.items():
        days[key._replace(hour=day_of(key.hour))].add(one)
    return days


def day_of(hour: int) -> int:
    """Return the first hour of the day, in UTC, in which an hour lies."""
    return hour // A_DAY * A_DAY


def quantile(buckets: Mapping[int, int], share: float, longest: timedelta) -> float | None:
    """Return the seconds that a share of the counted durations does not exceed; None if no duration is counted.

    The result is the bound of a bucket, or `longest` (the longest duration) if that is less. It exceeds the exact
    quantile by at most 26 %.
    """
    total = sum(buckets.values())
    if not total:
        return None
    rank, counted = share * total, 0
    for place in sorted(buckets):
        counted += buckets[place]
        if counted >= rank and place < len(BOUNDS):
            return min(BOUNDS[place] / 1_000_000, longest.total_seconds())
    return longest.total_seconds()
