"""Jitter delays each occurrence by its own, repeatable share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rqsched.errors import InvalidDurationError
from rqsched.kernel.decide.delays import jittered

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOURS = [NOON + timedelta(hours=n) for n in range(1000)]


def delays(jitter: timedelta, gap: timedelta | None, uid: str = "01J") -> list[timedelta]:
    return [jittered(uid, at, jitter, gap) - at for at in HOURS]


def test_the_due_time_of_an_occurrence_never_changes() -> None:
    """A pinned value: another hash, or Python's own, would move every stored due time."""
    assert jittered("01J", NOON, timedelta(seconds=30), None) == datetime(2026, 1, 1, 12, 0, 8, 625896, tzinfo=UTC)


def test_delays_fill_the_jitter_evenly() -> None:
    found = delays(timedelta(seconds=30), timedelta(hours=1))
    assert timedelta(0) <= min(found) < timedelta(seconds=1)
    assert timedelta(seconds=29) < max(found) < timedelta(seconds=30)
    assert abs(sum(found, timedelta(0)) / len(found) - timedelta(seconds=15)) < timedelta(seconds=1)


def test_a_jitter_wider_than_the_gap_is_scaled_not_cut() -> None:
    found = delays(timedelta(hours=5), timedelta(hours=1))
    assert max(found) < timedelta(hours=1)
    assert sum(delay > timedelta(minutes=55) for delay in found) < len(found) / 8


def test_due_times_never_reach_the_next_nominal_time_by_rounding() -> None:
    assert set(delays(timedelta(seconds=9), timedelta(microseconds=1))) == {timedelta(0)}


def test_schedules_of_one_instant_are_spread() -> None:
    assert len({jittered(f"uid-{n}", NOON, timedelta(minutes=1), None) for n in range(100)}) == 100


def test_without_jitter_an_occurrence_is_due_at_its_nominal_time() -> None:
    assert jittered("01J", NOON, timedelta(0), None) == NOON


def test_the_zone_an_instant_is_written_in_does_not_move_its_due_time() -> None:
    shifted = NOON.astimezone(tz=None)
    assert jittered("01J", shifted, timedelta(minutes=1), None) == jittered("01J", NOON, timedelta(minutes=1), None)


def test_a_negative_jitter_is_refused() -> None:
    with pytest.raises(InvalidDurationError, match="negative"):
        jittered("01J", NOON, timedelta(seconds=-1), None)
