"""Retries on request over HTTP: one run, and all that failed since an instant."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched.kernel.decide import audit
from tests.support.env import Env, events, newest
from tests.support.web import Web, at, problem

RETRY_FAILED = "/api/v1/runs/retry/"


def fail_once(env: Env, schedule_id: str = "report") -> str:
    """The next run of a schedule fails for good; returns its uid."""
    run = env.fail_next(env.scheduler.get(schedule_id))
    assert run.status == "failed"
    return run.uid


@pytest.fixture
def failed(any_web: Web) -> Web:
    """A schedule whose first run has failed."""
    any_web.create(retry={"max_retries": 0})
    fail_once(any_web.env)
    return any_web


def test_retry_returns_the_run_with_its_new_attempt(failed: Web) -> None:
    answer = failed.post(at(operation="runs/1/retry/"), {"reason": "repaired"})
    assert answer.status_code == 200
    run = answer.json()
    assert (run["status"], run["attempt"], run["asked_attempt"]) == ("pending", 2, 2)
    (event,) = events(failed.env.scheduler.get("report"), audit.RUN_RETRY_REQUESTED)
    assert event.payload["reason"] == "repaired"
    assert event.payload["command_context"]["source"] == "http"
    assert failed.post(at(operation="runs/1/retry/")).json()["attempt"] == 2
    failed.env.work()
    assert failed.get(at(operation="runs/1/")).json()["status"] == "succeeded"


def test_retry_of_a_run_that_succeeded_is_a_conflict(web: Web) -> None:
    web.create()
    web.env.run_next(web.env.scheduler.get("report"))
    found = problem(web.post(at(operation="runs/1/retry/")), 409, "invalid_run_state")
    assert "Trigger the schedule" in found["detail"]


def test_retry_of_what_failed_counts_and_lists_it(failed: Web) -> None:
    planned = failed.post(RETRY_FAILED, {"since": "1h", "dry_run": True}).json()
    assert (planned["matched"], planned["started"]) == (1, 0)
    assert planned["items"][0]["outcome"] == "would_retry"
    fail_once(failed.env)
    done = failed.post(RETRY_FAILED, {"since": "2026-01-15T00:00:00Z", "schedule_id": "report"}).json()
    assert [(done[name]) for name in ("matched", "started", "buffered", "skipped")] == [2, 1, 1, 0]
    failed.env.work()
    assert newest(failed.env.scheduler.get("report")).status == "succeeded"
    assert failed.post(RETRY_FAILED, {"since": 3600}).json()["matched"] == 0


BAD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a naive instant": {"since": "2026-01-15T00:00:00"},
    "no span": {"since": "soon"},
    "too many": {"since": "1h", "bound": 5_000},
    "an unknown field": {"since": "1h", "status": "cancelled"},
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_malformed_filters_are_refused(web: Web, body: dict[str, Any]) -> None:
    assert web.post(RETRY_FAILED, body).status_code == 422


def test_more_than_the_bound_is_refused_and_retries_none(failed: Web) -> None:
    fail_once(failed.env)
    problem(failed.post(RETRY_FAILED, {"since": "1h", "bound": 1}), 422, "invalid_limit")
    assert failed.post(RETRY_FAILED, {"since": "1h", "dry_run": True}).json()["matched"] == 2


def test_runs_of_another_namespace_are_left_alone(failed: Web) -> None:
    answer = failed.post(RETRY_FAILED, {"since": "1h"}, headers={"X-Namespace": "other"})
    assert answer.json()["matched"] == 0


@pytest.mark.parametrize("word", ["failed", "all"])
def test_backfill_with_rerun_retries_what_failed(failed: Web, word: str) -> None:
    failed.env.advance()
    body = {"start": "2026-01-15T12:00:00Z", "end": "2026-01-15T12:02:00Z", "rerun": word}
    backfill = at(operation="backfill/")
    planned = failed.post(backfill, {**body, "dry_run": True}).json()
    assert [row["reason"] for row in planned["rows"]][-1] == "rerun"
    done = failed.post(backfill, body).json()
    assert [(row["outcome"], row["reason"]) for row in done["rows"]][-1] == ("started", "rerun")
    assert failed.post(backfill, {**body, "rerun": "succeeded"}).status_code == 422
