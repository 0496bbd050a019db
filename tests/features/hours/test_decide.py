"""Hours of runs: the hour of a run, its counters, and quantiles of buckets."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rqsched.features.hours.decide import (
    BOUNDS,
    EndedRun,
    HourKey,
    Tally,
    bucket_of,
    hour_of,
    instant_of_hour,
    quantile,
    tally,
)
from tests.support.env import DAY
from tests.support.narrow import present

AT = datetime(2026, 1, 15, 12, 30, tzinfo=UTC)
RUN = EndedRun(1, "scheduled", "succeeded", 1, AT, AT, AT + timedelta(seconds=2), AT + timedelta(seconds=32))


def only(run: EndedRun) -> tuple[HourKey, Tally]:
    ((key, found),) = tally([run]).items()
    return key, found


def test_an_hour_is_numbered_from_1970_and_begins_where_it_says() -> None:
    assert hour_of(datetime(1970, 1, 1, 0, 59, 59, 999_999, tzinfo=UTC)) == 0
    assert hour_of(datetime(1969, 12, 31, 23, 59, tzinfo=UTC)) == -1
    assert instant_of_hour(hour_of(AT)) == datetime(2026, 1, 15, 12, tzinfo=UTC)


def test_a_live_run_belongs_to_the_hour_of_its_end() -> None:
    key, found = only(RUN._replace(ended_at=AT + timedelta(hours=5)))
    assert key == (hour_of(AT) + 5, False, "succeeded")
    assert found.longest == timedelta(hours=5, seconds=-2)


def test_a_backfilled_run_belongs_to_the_hour_of_its_occurrence_and_waited_for_nobody() -> None:
    key, found = only(RUN._replace(kind="backfill", occurrence_at=AT - timedelta(days=30)))
    assert key == (hour_of(AT) - 720, True, "succeeded")
    assert (found.waits.total(), found.durations.total()) == (0, 1)


def test_a_run_waits_from_its_due_time_to_its_start_and_takes_from_there_to_its_end() -> None:
    _, found = only(RUN)
    assert found.waits == {bucket_of(timedelta(seconds=2)): 1}
    assert found.durations == {bucket_of(timedelta(seconds=30)): 1}


@pytest.mark.parametrize(
    ("run", "counts"),
    [
        pytest.param(RUN._replace(attempt=2), (0, 1), id="a retry was not due then"),
        pytest.param(RUN._replace(due_at=None), (0, 1), id="without a due time"),
        pytest.param(RUN._replace(started_at=None), (0, 0), id="one that never began"),
    ],
)
def test_what_is_not_known_is_not_counted(run: EndedRun, counts: tuple[int, int]) -> None:
    _, found = only(run)
    assert (found.count, found.waits.total(), found.durations.total()) == (1, *counts)


def test_a_clock_that_was_set_back_makes_the_shortest_span() -> None:
    _, found = only(RUN._replace(ended_at=AT - timedelta(hours=1)))
    assert (found.durations, found.longest) == ({0: 1}, timedelta(0))


def test_buckets_are_a_quarter_longer_each_from_a_millisecond_to_months() -> None:
    assert BOUNDS[:4] == (1_000, 1_259, 1_585, 1_995)
    assert BOUNDS[30] == 1_000_000
    assert timedelta(microseconds=BOUNDS[-1]) > timedelta(days=115)
    assert bucket_of(timedelta(seconds=1)) == 30
    assert bucket_of(timedelta(seconds=1, microseconds=1)) == 31
    assert bucket_of(timedelta(days=400)) == len(BOUNDS)


def test_runs_are_counted_apart_by_outcome_and_taken_out_again() -> None:
    found = tally([RUN, RUN, RUN._replace(status="failed")])
    assert {key.outcome: one.count for key, one in found.items()} == {"succeeded": 2, "failed": 1}
    total = found[HourKey(hour_of(AT), False, "succeeded")]
    total.take_out(tally([RUN])[HourKey(hour_of(AT), False, "succeeded")])
    assert total == replace(only(RUN)[1])
    total.take_out(total)
    total.take_out(only(RUN)[1])
    assert (total.count, total.waits.total(), total.durations.total()) == (0, 0, 0)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_quantile_of_buckets_is_not_below_that_of_the_spans_and_at_most_a_quarter_above(share: float) -> None:
    seconds = [0.01 * 1.01**n for n in range(1_000)]
    buckets = Tally()
    for one in seconds:
        buckets.durations[bucket_of(timedelta(seconds=one))] += 1
    least = seconds[int(share * 1_000) - 1]
    assert least <= present(quantile(buckets.durations, share, timedelta(seconds=seconds[-1]))) <= 1.26 * least


@pytest.mark.parametrize("span", [timedelta(seconds=1), timedelta(seconds=1.003)])
def test_runs_that_all_took_as_long_took_so_long(span: timedelta) -> None:
    for share in (0.5, 0.95):
        assert quantile({bucket_of(span): 40}, share, span) == span.total_seconds()


def test_a_quantile_of_nothing_is_none_and_of_the_longest_bucket_the_longest_span() -> None:
    assert quantile({}, 0.5, timedelta(0)) is None
    assert quantile({len(BOUNDS): 3}, 0.5, 200 * DAY) == 200 * 86_400
