"""`rqsched retry`: named runs, and all that failed since an instant."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.decide import audit
from rqsched.testing import execute_pending
from tests.support.cli import BOOM, Cli
from tests.support.env import events
from tests.support.narrow import present

ONE_HOUR = ("--failed", "--since", "1h")


@pytest.fixture
def handle(cli: Cli) -> ScheduleHandle:
    """Two runs that failed."""
    handle = cli.scheduler.create("a", BOOM, Every("1h"), retry=RetryPolicy(0))
    for _ in range(2):
        handle.trigger()
        execute_pending(cli.scheduler)
    return handle


def runs(handle: ScheduleHandle) -> list[RunHandle]:
    return list(reversed(handle.runs().items))


def test_dry_run_shows_and_counts_what_would_be_retried(cli: Cli, handle: ScheduleHandle) -> None:
    answer = cli("retry", *ONE_HOUR, "--dry-run")
    assert answer.out.splitlines()[-1] == "Dry run: 2 would_retry."
    assert runs(handle)[0].instance_id in answer.out
    assert {run.status for run in runs(handle)} == {"failed"}


def test_all_that_failed_is_retried_with_who_and_why(cli: Cli, handle: ScheduleHandle) -> None:
    report = cli("retry", *ONE_HOUR, "--schedule", "a", "--reason", "repaired", "-o", "json").json
    assert report["counts"] == {"started": 1, "buffered": 1}
    assert [row["run_uid"] for row in report["results"]] == [run.uid for run in runs(handle)]
    contexts = [event.payload["command_context"] for event in events(handle, audit.RUN_RETRY_REQUESTED)]
    assert [(found["source"], found["reason"]) for found in contexts] == [("cli", "repaired")] * 2
    assert cli("retry", *ONE_HOUR).out.splitlines()[-1] == "Retried: no runs."


def test_named_runs_are_retried_by_uid_number_or_instance_id(cli: Cli, handle: ScheduleHandle) -> None:
    first, second = runs(handle)
    planned = cli("retry", first.uid, "--dry-run", "-o", "json").json
    assert (planned["outcome"], planned["counts"]) == ("dry_run", {"would_retry": 1})
    assert cli("retry", first.uid).out.splitlines()[-1] == "Retried: 1 started."
    assert cli("retry", "2", "--schedule", "a").out.splitlines()[-1] == "Retried: 1 buffered."
    assert cli("retry", second.instance_id, "--schedule", "a").out.splitlines()[-1] == "Retried: 1 buffered."
    assert [run.attempt for run in runs(handle)] == [2, 2]


def test_run_that_cannot_be_retried_is_exit_code_4_and_the_others_are(cli: Cli, handle: ScheduleHandle) -> None:
    first, second = runs(handle)
    running = present(handle.trigger().run)
    for words in (["--dry-run"], []):
        answer = cli("retry", first.uid, running.uid, "--output", "jsonl", *words, code=4)
        assert [row["outcome"] for row in answer.lines][1] == "skipped"
        assert "cancel it first" in answer.lines[1]["reason"]
    assert (first.refresh().attempt, second.refresh().attempt) == (2, 1)


def test_wrong_usage_says_what_to_write(cli: Cli, handle: ScheduleHandle) -> None:
    uid = runs(handle)[0].uid
    for words, hint in (
        ([], "give --failed --since 1h"),
        ([uid, *ONE_HOUR], "give --failed --since 1h"),
        (["--failed"], "--since: is missing"),
        (["--failed", "--since", "yesterday"], "is not a valid instant"),
        ([uid, "--since", "1h"], "need --failed"),
        ([*ONE_HOUR, "--bound", "1"], "more than 1 runs"),
    ):
        assert hint in cli("retry", *words, code=2).err
    assert {run.attempt for run in runs(handle)} == {1}


@pytest.mark.parametrize("word", ["failed", "all"])
def test_backfill_with_rerun_retries_what_failed(cli: Cli, word: str) -> None:
    past = cli.past(hours=3)
    handle = past.create("b", BOOM, Every("1h"), retry=RetryPolicy(0))
    due_at = handle.upcoming(1)[0]
    past.tick(now=due_at)
    execute_pending(past)
    words = ["backfill", "b", "--start", due_at.isoformat(), "--end", (due_at + timedelta(minutes=2)).isoformat()]
    assert cli(*words, "--rerun", word, "--dry-run", "-o", "jsonl").lines[-1]["reason"] == "rerun"
    row = cli(*words, "--rerun", word, "-o", "jsonl").lines[-1]
    assert (row["reason"], handle.runs().items[-1].attempt) == ("rerun", 2)
    assert "--rerun" in cli(*words, "--rerun", "succeeded", code=2).err
