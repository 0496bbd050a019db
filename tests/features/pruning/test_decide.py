"""Retention and pruning: pure decisions about marks of runs and events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rqsched.errors import InvalidPolicyError
from rqsched.features.pruning.decide import (
    Edges,
    Oldest,
    RunMark,
    choose_runs,
    edges_of,
    first_kept_event,
    pruned_to,
    with_slack,
)
from rqsched.kernel.decide.model import RunKind, RunStatus, Schedule
from rqsched.kernel.decide.retention import Retention
from tests.support.decisions import active
from tests.support.env import DAY, NOON

SCHEDULE = replace(active(), run_number=100, event_sequence=2_000, evaluated_to=NOON)


def mark(number: int, days_ago: float = 50, status: str = "failed", **fields: Any) -> RunMark:
    """A run that ended so long ago."""
    at = NOON - days_ago * DAY
    made = RunMark(f"run-{number}", number, RunKind.SCHEDULED, RunStatus(status), at, at, at, False, False)
    return made._replace(**fields)


def edges(text: str, schedule: Schedule = SCHEDULE) -> Edges:
    return edges_of(schedule, Retention.parse(text), oldest_in_count=None, now=NOON)


def gone(*runs: RunMark, retention: str = "10d", succeeded_later: bool = True, **fields: Any) -> list[int]:
    """The numbers of those that go."""
    schedule = replace(SCHEDULE, **fields)
    chosen = choose_runs(schedule, runs, edges(retention, schedule), succeeded_later=succeeded_later)
    return [run.number for run in chosen]


SAID = {
    "an age": ("90d", timedelta(days=90), None),
    "weeks": ("2w", timedelta(days=14), None),
    "ISO 8601": ("P1DT12H", timedelta(hours=36), None),
    "a number": ("1000", None, 1_000),
    "both with a comma": ("1000,90d", timedelta(days=90), 1_000),
    "both with a blank": (" 90d  1000 ", timedelta(days=90), 1_000),
    "everything": ("0", None, None),
}


@pytest.mark.parametrize(("text", "age", "runs"), SAID.values(), ids=SAID)
def test_a_retention_is_read_and_written_back(text: str, age: timedelta | None, runs: int | None) -> None:
    read = Retention.parse(text)
    assert (read.age, read.runs) == (age, runs)
    assert Retention.parse(str(read)) == read


@pytest.mark.parametrize("text", ["", "d", "90", "1h", "23h", "90d 80d", "5 6", "0d", "-1", "0 90d", "1e3", "P1M", "x"])
def test_a_retention_that_says_nothing_clear_is_refused(text: str) -> None:
    if text == "90":
        assert Retention.parse(text).runs == 90
        return
    with pytest.raises(InvalidPolicyError, match="retention"):
        Retention.parse(text)


def test_what_ended_before_the_age_goes_and_younger_runs_stay() -> None:
    assert gone(mark(1, 11), mark(2, 10.5), mark(3, 9.5)) == [1, 2]


def test_runs_beyond_the_number_go_however_young_beyond_a_day() -> None:
    assert gone(mark(90, 2), mark(91, 2), mark(92, 2), retention="9") == [90, 91]
    assert gone(mark(90, 0.9), retention="9") == [], "what ended within a day stays"


KEPT: dict[str, tuple[RunMark, dict[str, Any]]] = {
    "the last run": (mark(100), {}),
    "the newest started one": (mark(5), {"last_run_uid": "run-5"}),
    "the awaited one": (mark(5), {"awaiting_run_uid": "run-5"}),
    "an open one": (mark(5, status="running", ended_at=None), {}),
    "one that waits": (mark(5, status="buffered", ended_at=None), {}),
    "one with open targets": (mark(5, status="succeeded", has_open_targets=True), {}),
    "one of an occurrence to come": (mark(5, occurrence_at=NOON), {"evaluated_to": NOON - DAY}),
}


@pytest.mark.parametrize(("run", "fields"), KEPT.values(), ids=KEPT)
def test_what_somebody_may_still_need_stays(run: RunMark, fields: dict[str, Any]) -> None:
    assert gone(mark(4), run, **fields) == [4]


def test_the_last_success_stays_until_there_is_a_later_one() -> None:
    runs = [mark(1, status="succeeded"), mark(2, status="succeeded"), mark(3)]
    assert gone(*runs, succeeded_later=False) == [1, 3]
    assert gone(*runs, succeeded_later=True) == [1, 2, 3]


def test_a_manual_run_of_an_instant_to_come_may_go_and_moves_nothing() -> None:
    manual = mark(5, kind=RunKind.MANUAL, occurrence_at=NOON)
    assert gone(manual, evaluated_to=NOON - DAY) == [5]
    assert pruned_to([manual]) is None
    assert pruned_to([mark(1, 30), mark(2, 40), manual]) == NOON - 30 * DAY


def test_events_go_from_the_first_on_up_to_one_that_stays() -> None:
    events = [(1, NOON - 50 * DAY), (2, NOON - 5 * DAY), (3, NOON - 50 * DAY)]
    assert first_kept_event(events, edges("10d")) == 2, "a gap would be left"
    assert first_kept_event(events[:1], edges("10d")) == 2
    assert first_kept_event([], edges("10d")) == 0


def test_of_events_ten_for_each_run_stay_at_most() -> None:
    events = [(sequence, NOON - 2 * DAY) for sequence in range(1895, 1905)]
    assert first_kept_event(events, edges("10")) == 1901
    assert first_kept_event([(1, NOON)], edges("10")) == 1, "what was recorded within a day stays"


def test_a_schedule_is_worth_a_transaction_when_it_keeps_a_twentieth_too_much() -> None:
    def may_go(text: str, first: int, days_ago: float) -> bool:
        oldest = Oldest("uid", "{}", 100, 0, first, NOON - days_ago * DAY, None, None, None)
        return oldest.may_go(with_slack(Retention.parse(text)), NOON)

    assert [may_go("20d", 1, days) for days in (20.9, 21.1)] == [False, True]
    assert [may_go("40", first, 5) for first in (59, 58)] == [False, True]
    assert not may_go("0", 1, 500)


def test_nothing_is_beyond_a_retention_of_everything() -> None:
    assert gone(mark(1, 10_000), retention="0") == []
    assert first_kept_event([(1, NOON - 10_000 * DAY)], edges("0")) == 1


def test_events_before_a_given_instant_go_also_young_ones_but_no_later_one() -> None:
    events = [(1, NOON - 50 * DAY), (2, NOON - DAY / 24), (3, NOON), (4, NOON - DAY)]
    for kept in ("0", "90d", "1"):
        assert first_kept_event(events, edges(kept)._replace(events=NOON)) == 3
