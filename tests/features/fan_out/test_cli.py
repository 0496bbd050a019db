"""Runs with targets on the command line: `targets`, `run --follow` and `retry --failed-targets`."""

from __future__ import annotations

import re
import threading

import pytest

from rqsched import Every
from rqsched.api.run_handle import RunHandle
from rqsched.testing import execute_pending
from rqsched.workflows import make_workflow, registry
from tests.support.cli import Cli
from tests.support.narrow import present

BROKEN: set[str] = set()
DUE = ["c-1", "c-2", "c-3"]


def remind(customer: str) -> None:
    if customer in BROKEN:
        raise RuntimeError(f"{customer} is away")


@pytest.fixture
def run(cli: Cli) -> RunHandle:
    """A run of three targets, one of which failed; the workflow is mended by clearing BROKEN."""
    BROKEN.add("c-2")
    registry.add(make_workflow("cli-remind", remind, targets=lambda: DUE))
    found = present(cli.scheduler.create("nightly", "cli-remind", Every("1d")).trigger().run)
    execute_pending(cli.scheduler)
    return found.refresh()


def test_targets_are_listed_with_their_errors_and_counted(cli: Cli, run: RunHandle) -> None:
    answer = cli("run", "targets", run.uid)
    assert "RuntimeError: c-2 is away" in answer.out
    assert answer.out.splitlines()[-1] == "3 of 3 targets have ended: 1 failed, 2 succeeded."
    found = cli("run", "targets", "1", "--schedule", "nightly", "--status", "failed", "-o", "json").json
    assert [one["target_id"] for one in found["targets"]] == ["c-2"]
    assert (found["progress"]["failed"], found["progress"]["total"]) == (1, 3)


def test_targets_are_read_page_by_page(cli: Cli, run: RunHandle) -> None:
    first = cli("run", "targets", run.uid, "--limit", "2", "-o", "json").json
    rest = cli("run", "targets", run.uid, "--page-token", first["next_page_token"], "-o", "json").json
    assert [one["target_id"] for one in (*first["targets"], *rest["targets"])] == DUE


def test_a_run_shows_how_far_its_targets_are(cli: Cli, run: RunHandle) -> None:
    assert "3 of 3 targets have ended: 1 failed, 2 succeeded." in cli("run", "show", run.uid).out
    assert cli("run", "show", run.uid, "-o", "json").json["progress"]["counts"] == {"failed": 1, "succeeded": 2}


def test_failed_targets_alone_are_retried(cli: Cli, run: RunHandle) -> None:
    BROKEN.clear()
    assert cli("retry", run.uid, "--failed-targets", "--dry-run", "-o", "json").json["counts"] == {"would_retry": 1}
    assert cli("retry", run.uid, "--failed-targets", "-o", "json").json["counts"] == {"started": 1}
    execute_pending(cli.scheduler)
    assert run.refresh().target_counts == {"succeeded": 3}
    answer = cli("retry", run.uid, "--failed-targets", code=4)
    assert "None of its targets has failed" in answer.out
    cli("retry", "--failed", "--since", "1h", "--failed-targets", code=2)


def test_a_run_is_followed_with_a_bar_until_it_has_ended(
    cli: Cli, run: RunHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    BROKEN.clear()
    run.retry(failed_targets=True)
    other = threading.Timer(1.0, run.cancel)
    other.start()
    answer = cli("run", "show", run.uid, "--follow", "-o", "json")
    other.join()
    assert answer.json["status"] == "cancelled"
    assert "Targets of" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", answer.err)
