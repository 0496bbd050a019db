"""The comparison with other schedulers: its counts on logs made by hand, and the table of its committed results."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks.peers.count import Counted, Run, Window, count, percentile
from benchmarks.peers.page import PAGE, PART, RESULTS, newest, render
from benchmarks.peers.setups import SETUPS

LENGTH = 30.0


def counts(
    runs: Sequence[float | Run], phase: float = 0.0, length: float = LENGTH, down: tuple[float, float] | None = None
) -> Counted:
    """Count a window with due times every 5 s."""
    log: list[Run] = [run if isinstance(run, tuple) else (run, None) for run in runs]
    return count(Window(log, length, 5.0, phase, down))


def test_a_run_at_each_due_time_is_neither_lost_nor_doubled() -> None:
    found = counts([0.25, 5.5, 10.25, 15.25, 20.25, 25.25])

    assert (found.due, found.executed, found.lost, found.doubled) == (6, 6, 0, 0)
    assert found.late == [0.25, 0.5, 0.25, 0.25, 0.25, 0.25]


def test_a_due_time_without_a_run_is_lost() -> None:
    found = counts([0.1, 5.1, 20.1, 25.1])

    assert (found.due, found.executed, found.lost, found.doubled) == (6, 4, 2, 0)


def test_a_second_run_for_one_due_time_is_doubled() -> None:
    found = counts([0.1, 0.2, 5.1, 7.0, 10.1, 10.3, 15.1, 20.1, 25.1])

    assert (found.lost, found.doubled) == (0, 3)
    assert found.late == pytest.approx([0.1] * 6)


def test_a_run_after_a_short_gap_makes_up_for_one_missed_time() -> None:
    found = counts([0.1, 5.1, 15.1, 15.2, 20.1, 25.1])

    assert (found.lost, found.doubled) == (0, 0)


def test_a_run_makes_up_for_no_time_longer_ago_than_the_reach() -> None:
    found = counts([0.1, 10.1, 15.1, 20.1, 25.1, 25.2])

    assert (found.lost, found.doubled) == (1, 1)


def test_runs_after_an_outage_make_up_for_times_within_it() -> None:
    back = [46.0, 46.1, 46.2, 46.3, 46.4, 46.5, 46.6, 46.7, 50.1, 55.1]
    down = (6.0, 46.0)

    assert counts([0.1, 5.1, *back], length=60.0, down=down).lost == 0
    assert counts([0.1, 5.1, *back], length=60.0, down=down).doubled == 0
    assert counts([0.1, 5.1, 46.0, 50.1, 55.1], length=60.0, down=down).lost == 7


def test_a_job_that_knows_its_due_time_is_believed() -> None:
    runs: list[Run] = [(0.1, 0.0), (5.1, 5.0), (16.0, 10.0), (16.1, 15.0), (20.1, 20.0), (20.2, 20.0), (25.1, 25.0)]

    found = counts(runs)

    assert (found.lost, found.doubled) == (0, 1)
    assert found.late == pytest.approx([0.1, 0.1, 6.0, 1.1, 0.1, 0.1])


def test_runs_before_the_window_and_after_its_last_due_time_do_not_count() -> None:
    found = counts([-4.9, -4.8, 0.1, 5.1, 10.1, 15.1, 20.1, 25.1, 30.1, 30.2])

    assert (found.due, found.executed, found.doubled) == (6, 6, 0)


def test_due_times_follow_the_last_run_before_the_window() -> None:
    found = counts([-1.0, 4.0, 9.1, 14.2, 24.3, 29.4], phase=4.0)

    assert (found.due, found.lost, found.doubled) == (6, 1, 0)
    assert found.late == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_a_job_that_is_silent_at_the_end_is_not_back() -> None:
    assert counts([0.1, 5.1, 15.0]).is_back
    assert not counts([0.1, 5.1, 14.9]).is_back


def test_a_percentile_is_one_of_the_values() -> None:
    hundred = list(range(100, 0, -1))

    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50, 99)
    assert (percentile([3.0], 0.5), percentile([3.0], 0.99), percentile([], 0.5)) == (3.0, 3.0, None)


def test_the_page_has_the_table_of_the_newest_results() -> None:
    found = PART.search(PAGE.read_text())

    assert found is not None
    assert found[0] == f"{found[1]}{render(newest())}{found[2]}", "run python -m benchmarks.peers --table"


def test_the_results_are_small_and_have_every_setup() -> None:
    for path in RESULTS.glob("*.json"):
        assert path.stat().st_size < 200_000
        names = [(one["setup"]["name"], one["setup"]["variant"]) for one in json.loads(path.read_text())["setups"]]
        assert names == [(setup.name, setup.variant) for setup in SETUPS]
