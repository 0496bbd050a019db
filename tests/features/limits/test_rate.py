"""The rate of a group: pure, for every order of grants and claims, whatever the clocks of processes say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqsched.features.limits.decide import Bounds, Waiting, decide_grants
from rqsched.kernel.decide.limit_options import MAX_NUMBER, MAX_STARTS, Rate

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PERIOD = 10


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(["grant", "claim", "wait"]), st.integers(0, 7), st.integers(-6, 6)), max_size=80
    ),
)
def test_no_window_holds_more_starts_than_the_rate_says(number: int, steps: list[tuple[str, int, int]]) -> None:
    """The rule of `features.limits.store`: a grant counts the granted runs, then the starts since its own clock's `now
    - T`."""
    rate, now = Rate(number, PERIOD), NOON
    granted: list[Waiting] = []
    started: list[datetime] = []
    joined = 0
    for step, which, skew in steps:
        clock = now + skew * SECOND
        if step == "wait":
            now += which * SECOND
        elif step == "claim" and granted:
            one = granted.pop(which % len(granted))
            started.append(max(clock, one.granted_at or clock))
        elif step == "grant":
            line = [Waiting(f"w{joined + at}", now, joined + at) for at in range(which)]
            joined += which
            starts = sum(at > clock - rate.period for at in started)
            free = Bounds(rate=rate).most_unclaimed(0, starts)
            grants = decide_grants(free, running=0, unclaimed=granted, line=line, now=clock)
            granted = [one for one in granted if one.uid not in grants.passed]
            granted += [one._replace(granted_at=clock) for one in line if one.uid in grants.given]
    started.sort()
    for first, last in zip(started, started[number:], strict=False):
        assert last - first >= rate.period


@given(st.integers(1, MAX_STARTS), st.integers(1, 31 * 86_400))
def test_text_of_a_rate_is_read_as_that_rate(number: int, seconds: int) -> None:
    rate = Rate(number, seconds)
    assert Rate.parse("limit_rate", str(rate)) == rate
    assert Rate.parse("limit_rate", f"{number}/{seconds}s") == rate


@pytest.mark.parametrize(
    ("text", "canonical", "window"),
    [
        ("100/minute", "100/min", "minute"),
        ("7/sec", "7/s", "second"),
        ("7/second", "7/s", "second"),
        ("60/60s", "60/min", "minute"),
        ("9/hour", "9/h", "hour"),
        ("9/PT1H30M", "9/90min", "90 min"),
        ("9/1h30m", "9/90min", "90 min"),
        ("3/d", "3/day", "day"),
        ("3/48h", "3/2d", "2 days"),
    ],
)
def test_rate_has_one_text(text: str, canonical: str, window: str) -> None:
    rate = Rate.parse("limit_rate", text)
    assert (str(rate), rate.window) == (canonical, window)


def test_bounds_are_the_narrower_of_number_and_rate() -> None:
    both = Bounds(5, Rate(3, 60))
    assert [both.most_unclaimed(*one) for one in ((0, 0), (4, 0), (0, 2), (6, 5))] == [3, 1, 1, -2]
    assert Bounds(5).most_unclaimed(1, 9) == 4
    wide = Bounds(rate=Rate(MAX_STARTS, 86_400))
    assert [wide.most_unclaimed(0, one) for one in (0, MAX_STARTS - 1)] == [MAX_NUMBER, 1]
    assert str(both) == "5 may run at once and 3 may start in any minute"
