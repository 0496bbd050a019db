"""Open Job Spec, the workers' side: fetch, ack, nack, heartbeat and looking a job up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.env import MINUTE, SECOND
from tests.support.openjobspec import WORKERS, Ojs, refused
from tests.support.rows import every_row
from tests.support.web import Web

UNKNOWN = "019501a2-3b4c-7d5e-8f6a-1b2c3d4e5f6a"


@pytest.fixture
def ojs(web: Web) -> Ojs:
    return Ojs(web)


def fired(ojs: Ojs, **fields: Any) -> None:
    """One job waits."""
    ojs.registered(**fields)
    ojs.advance_and_dispatch()


def test_a_fetch_without_waiting_jobs_returns_an_empty_array(ojs: Ojs) -> None:
    answer = ojs("POST", f"{WORKERS}/fetch", {"queues": ["default"], "worker_id": "w"})
    assert (answer.status_code, answer.json()) == (200, {"jobs": []})


def test_a_fetch_claims_one_job_unless_it_asks_for_more(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="allow")
    for _ in range(3):
        ojs.advance_and_dispatch()
    one = ojs("POST", f"{WORKERS}/fetch", {"queues": ["default"], "worker_id": "w"}).json()["jobs"]
    assert (len(one), len(ojs.fetch(count=10))) == (1, 2)


def test_a_job_can_be_read_from_waiting_to_its_end(ojs: Ojs) -> None:
    fired(ojs, args=["eu"], options={"queue": "reports"})
    job = ojs.fetched_from("reports")
    assert ojs.job(job) == job

    ended = ojs.ack(job, result={"rows": 7})

    assert ended.status_code == 200
    assert ended.json() == {
        "acknowledged": True,
        "id": job["id"],
        "job_id": job["id"],
        "state": "completed",
        "attempt": 1,
        "completed_at": "2026-01-15T12:01:00.000Z",
    }
    found = ojs.job(job)
    assert (found["state"], found["result"], found["args"]) == ("completed", {"rows": 7}, ["eu"])


def test_a_nack_is_retried_until_its_attempts_are_used_up(ojs: Ojs) -> None:
    fired(ojs, options={"retry": {"max_attempts": 2, "initial_interval": "PT30S"}})
    job = ojs.fetched()

    first = ojs.nack(job).json()
    assert (first["state"], first["next_attempt_at"]) == ("retryable", "2026-01-15T12:01:30.000Z")
    ojs.advance_and_dispatch(29 * SECOND)
    assert ojs.fetch() == []
    ojs.advance_and_dispatch(SECOND)
    again = ojs.fetched()
    last = ojs.nack(again).json()

    assert (again["id"], again["attempt"], again["error"]) == (job["id"], 2, {"message": "SmtpError: no answer"})
    assert again["meta"]["cron_triggered_at"] == job["meta"]["cron_triggered_at"]
    assert last["state"] == ojs.job(job)["state"] == "discarded"
    assert ojs.cron()["enabled"] is True, "a cron job goes on"


@pytest.mark.parametrize(
    ("error", "message"),
    [({"code": "timeout", "message": "late"}, "timeout: late"), ({"message": "late"}, "late"), ("late", "late"),
     (None, "failed"), ({}, "failed"), ([1], "[1]")],
    ids=["code", "message", "text", "none", "empty", "another shape"],
)  # fmt: skip
def test_the_message_of_an_error_of_any_form_is_kept(ojs: Ojs, error: Any, message: str) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.nack(job, error=error).status_code == 200
    assert ojs.job(job)["error"] == {"message": message}


def test_an_error_that_is_not_retryable_ends_the_job(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.nack(job, error={"message": "no such user", "retryable": False}).json()["state"] == "discarded"


def test_a_job_is_acknowledged_once(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.ack(job).status_code == 200
    for again in (ojs.ack(job), ojs.nack(job)):
        assert refused(again, 409, "duplicate")["details"] == {"state": "completed", "attempt": 1}


def test_a_job_nobody_fetched_cannot_be_acknowledged(ojs: Ojs) -> None:
    fired(ojs)
    job_id = ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)
    assert refused(ojs.ack({"id": job_id}), 409, "duplicate")["details"]["state"] == "available"


def test_a_job_of_rq_cannot_be_acknowledged_from_outside(ojs: Ojs) -> None:
    fired(ojs, type="note")
    job_id = ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)
    refused(ojs.ack({"id": job_id}), 409, "duplicate")


def test_a_job_without_heartbeat_for_ten_minutes_goes_to_another_worker(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    ojs.patched(enabled=False)

    ojs.env.advance(timedelta(minutes=10) - SECOND)
    ojs.env.recover()
    assert ojs.job(job)["state"] == "active"
    ojs.env.advance(SECOND)
    ojs.env.recover()
    refused(ojs.ack(job), 409, "duplicate")
    ojs.advance_and_dispatch(MINUTE)

    (again,) = ojs.fetch(worker_id="worker-2")
    assert (again["id"], again["attempt"]) == (job["id"], 2)
    for mine in ({"worker_id": "worker-1"}, {"attempt": 1}):
        refused(ojs.ack(job, **mine), 409, "duplicate")
    assert ojs.heartbeat(job)["jobs_to_cancel"] == [job["id"]]
    assert ojs.ack(again, worker_id="worker-2", attempt=2).status_code == 200


def test_a_heartbeat_keeps_jobs_active_and_returns_those_to_cancel(ojs: Ojs) -> None:
    ojs.registered(name="kept")
    ojs.registered(name="stopped", overlap_policy="cancel_previous")
    ojs.advance_and_dispatch()
    kept, stopped = sorted(ojs.fetch(), key=lambda job: job["meta"]["cron_name"])
    ojs.env.scheduler.get("stopped").runs().items[0].cancel()

    assert ojs.heartbeat(kept, stopped) == {
        "state": "running",
        "active_jobs": [kept["id"]],
        "jobs_to_cancel": [stopped["id"]],
        "server_time": "2026-01-15T12:01:00.000Z",
    }
    assert ojs.heartbeat()["jobs_to_cancel"] == []


FETCH: dict[str, Any] = {"queues": ["default"], "worker_id": "w"}
REFUSED: list[tuple[str, str, Any]] = [
    ("fetch nothing", "fetch", None),
    ("fetch a list", "fetch", []),
    ("fetch without queues", "fetch", {"worker_id": "w"}),
    ("fetch from no queue", "fetch", {**FETCH, "queues": []}),
    ("fetch from a text", "fetch", {**FETCH, "queues": "default"}),
    ("fetch from a strange queue", "fetch", {**FETCH, "queues": ["De fault"]}),
    ("fetch from a number", "fetch", {**FETCH, "queues": [1]}),
    ("fetch from too many", "fetch", {**FETCH, "queues": ["q"] * 101}),
    ("fetch as nobody", "fetch", {"queues": ["default"]}),
    ("fetch as a number", "fetch", {**FETCH, "worker_id": 7}),
    ("fetch as a novel", "fetch", {**FETCH, "worker_id": "x" * 256}),
    ("fetch none", "fetch", {**FETCH, "count": 0}),
    ("fetch too many", "fetch", {**FETCH, "count": 101}),
    ("fetch a truth", "fetch", {**FETCH, "count": True}),
    ("fetch a half", "fetch", {**FETCH, "count": 1.5}),
    ("ack nothing", "ack", {}),
    ("ack a number", "ack", {"job_id": 7}),
    ("ack no uuid", "ack", {"job_id": "nonsense"}),
    ("nack nothing", "nack", {"error": {"message": "x"}}),
    ("heartbeat of nobody", "heartbeat", {"active_jobs": []}),
    ("heartbeat of a text", "heartbeat", {"worker_id": "w", "active_jobs": "x"}),
    ("heartbeat of no uuid", "heartbeat", {"worker_id": "w", "active_jobs": ["x"]}),
]


def test_an_invalid_worker_request_is_refused(ojs: Ojs) -> None:
    fired(ojs)
    with every_row() as row:
        for name, path, body in REFUSED:
            with row(name):
                refused(ojs("POST", f"{WORKERS}/{path}", body), 400, "invalid_request")
    assert len(ojs.fetch()) == 1, "the job still waits"


def test_a_result_beyond_the_limit_is_refused_and_the_job_stays_active(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    refused(ojs.ack(job, result="x" * 300_000), 400, "invalid_request")
    assert ojs.ack(job).status_code == 200


@pytest.mark.parametrize("job_id", [UNKNOWN, "nonsense"], ids=["unknown", "no uuid"])
def test_a_job_that_does_not_exist_is_not_found(ojs: Ojs, job_id: str) -> None:
    refused(ojs("GET", f"/ojs/v1/jobs/{job_id}"), 404, "not_found")
    if job_id == UNKNOWN:
        refused(ojs.ack({"id": job_id}), 404, "not_found")
