"""backfill: rows, counts, dry run, going on."""

from __future__ import annotations

import pytest

from rqsched import Cron
from rqsched.api.schedule_handle import ScheduleHandle
from tests.support.cli import HELLO, Cli

RANGE = ["--start", "2025-01-01T00:00:00Z", "--end", "2025-01-01T03:00:00Z"]


@pytest.fixture
def handle(cli: Cli) -> ScheduleHandle:
    return cli.scheduler.create("a", HELLO, Cron("0 * * * *"), overlap="allow_all")


def test_a_backfill_prints_one_row_per_occurrence(cli: Cli, handle: ScheduleHandle) -> None:
    answer = cli("backfill", "a", *RANGE, "-o", "json").json
    assert (answer["outcome"], answer["fires_attempted"], answer["counts"]) == ("backfill_started", 3, {"started": 3})
    assert answer["results"][0] == {
        "occurrence_time": "2025-01-01T00:00:00Z",
        "instance_id": "schedule:a:backfill:2025-01-01T00:00:00Z",
        "outcome": "started",
        "reason": None,
    }
    assert handle.refresh().run_count == 3


def test_the_same_backfill_again_starts_nothing(cli: Cli, handle: ScheduleHandle) -> None:
    cli("backfill", "a", *RANGE)
    again = cli("backfill", "a", *RANGE, "-o", "jsonl").lines
    assert [row["outcome"] for row in again] == ["already_run"] * 3
    assert handle.refresh().run_count == 3


def test_a_dry_run_prints_what_would_start_and_writes_nothing(cli: Cli, handle: ScheduleHandle) -> None:
    answer = cli("backfill", "a", *RANGE, "--dry-run", "-o", "json").json
    assert (answer["outcome"], answer["counts"]) == ("dry_run", {"would_start": 3})
    assert len(handle.refresh().history()) == 1


def test_a_backfill_prints_a_table_and_a_summary(cli: Cli, handle: ScheduleHandle) -> None:
    lines = cli("backfill", "a", *RANGE, "--overlap", "skip").out.splitlines()
    assert lines[1].split()[:2] == ["2025-01-01T00:00:00Z", "started"]
    assert lines[-1] == "Backfill of a: 1 started, 2 buffered."


def test_a_long_table_is_cut_and_says_so(cli: Cli, handle: ScheduleHandle) -> None:
    lines = cli("backfill", "a", RANGE[0], RANGE[1], "--end", "2025-01-04T00:00:00Z").out.splitlines()
    assert lines[-2:] == ["... and 52 more; --output jsonl shows all.", "Backfill of a: 72 started."]


def test_a_backfill_that_uses_up_max_runs_says_why_it_stopped(cli: Cli) -> None:
    cli.scheduler.create("few", HELLO, Cron("0 * * * *"), overlap="allow_all", max_runs=2)
    answer = cli("backfill", "few", *RANGE)
    assert "remaining_actions_exhausted" in answer.err
    assert "2 started" in answer.out
