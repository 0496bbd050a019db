"""Open Job Spec, the workers' side: fetch, ack, nack, heartbeat and looking a job up."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from rqsched.kernel.decide.audit import RUN_RETRYING, Event
from rqsched.kernel.decide.model import Change, RunStatus
from rqsched.ojs.responses import Job, state_of
from tests.support.env import MINUTE, SECOND
from tests.support.openjobspec import WORKERS, Ojs, refused
from tests.support.rows import every_row
from tests.support.web import MakeWeb

UNKNOWN = "019501a2-3b4c-7d5e-8f6a-1b2c3d4e5f6a"


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


def test_a_fetch_for_more_than_a_hundred_claims_a_hundred(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="allow")
    handle = ojs.env.scheduler.get("daily-report")
    for _ in range(101):
        handle.trigger()
    assert [len(ojs.fetch(count=500)) for _ in range(3)] == [100, 1, 0], "a worker with 500 slots gets them in turn"


@pytest.mark.parametrize("status", RunStatus)
def test_every_status_of_a_run_is_a_state_of_a_job(ojs: Ojs, status: RunStatus) -> None:
    fired(ojs)
    run = ojs.env.scheduler.get("daily-report").runs().items[0]
    shown = get_args(get_type_hints(Job)["state"])
    assert state_of(replace(run.state, status=status)) in shown


def test_a_job_can_be_read_from_waiting_to_its_end(ojs: Ojs) -> None:
    fired(ojs, args=["eu"], options={"queue": "reports"})
    job = ojs.fetched_from("reports")
    assert ojs.job(job) == job
    assert (job["state"], job["attempt"], job["tags"], job["timeout_ms"]) == ("active", 1, [], 600_000)

    ended = ojs.ack(job, result={"rows": 7})

    assert ended.status_code == 200
    assert ended.json() == {
        "acknowledged": True,
        "job_id": job["id"],
        "state": "completed",
        "completed_at": "2026-01-15T12:01:00.000Z",
    }
    found = ojs.job(job)
    assert (found["state"], found["result"], found["args"]) == ("completed", {"rows": 7}, ["eu"])


def test_a_nack_is_retried_until_its_attempts_are_used_up(ojs: Ojs) -> None:
    fired(ojs, options={"retry": {"max_attempts": 2, "initial_interval": "PT30S", "jitter": False}})
    job = ojs.fetched()

    first = ojs.nack(job).json()
    assert first == {
        "job_id": job["id"],
        "state": "retryable",
        "attempt": 1,
        "max_attempts": 2,
        "next_attempt_at": "2026-01-15T12:01:30.000Z",
    }
    waiting = ojs.job(job)
    assert (waiting["state"], waiting["attempt"], waiting["next_attempt_at"]) == (
        "retryable", 1, "2026-01-15T12:01:30.000Z",
    )  # fmt: skip
    ojs.advance_and_dispatch(29 * SECOND)
    assert ojs.fetch() == []
    ojs.advance_and_dispatch(SECOND)
    again = ojs.fetched()
    last = ojs.nack(again).json()

    error = {"type": "SmtpError", "message": "no answer"}
    assert (again["id"], again["attempt"], again["error"]) == (job["id"], 2, error)
    assert again["meta"]["cron_triggered_at"] == job["meta"]["cron_triggered_at"]
    assert last == {
        "job_id": job["id"],
        "state": "discarded",
        "attempt": 2,
        "max_attempts": 2,
        "discarded_at": "2026-01-15T12:01:30.000Z",
    }
    ended = ojs.job(job)
    assert (ended["state"], ended["discarded_at"]) == ("discarded", "2026-01-15T12:01:30.000Z")
    assert ended["errors"] == [
        {**error, "attempt": 1, "occurred_at": "2026-01-15T12:01:00.000Z"},
        {**error, "attempt": 2, "occurred_at": "2026-01-15T12:01:30.000Z"},
    ]
    assert ojs.cron()["enabled"] is True, "a cron job goes on"


def test_the_answer_to_a_nack_is_of_its_attempt_when_another_worker_has_the_next_one_already(ojs: Ojs) -> None:
    fired(ojs, options={"retry": {"max_attempts": 2, "initial_interval": "PT1S", "jitter": False}})
    job = ojs.fetched()
    claimed: list[dict[str, Any]] = []

    def claim_next(_: Change, event: Event) -> None:
        if event.type == RUN_RETRYING:
            ojs.advance_and_dispatch(SECOND)
            claimed.append(ojs.fetched())

    ojs.env.scheduler.runtime.subscribers.append(claim_next)
    answer = ojs.nack(job).json()
    assert [one["attempt"] for one in claimed] == [2]
    assert (answer["state"], answer["attempt"], answer["next_attempt_at"]) == (
        "retryable", 1, "2026-01-15T12:01:01.000Z",
    )  # fmt: skip


def test_a_job_has_no_attempt_before_its_first_execution(ojs: Ojs) -> None:
    fired(ojs, options={"retry": {"initial_interval": "PT1S", "jitter": False}})
    job = {"id": ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)}
    assert (ojs.job(job)["state"], ojs.job(job)["attempt"]) == ("available", 0)
    ojs.nack(ojs.fetched())
    ojs.advance_and_dispatch(SECOND)
    assert (ojs.job(job)["state"], ojs.job(job)["attempt"]) == ("available", 1)


@pytest.mark.parametrize(
    ("error", "kept"),
    [({"code": "timeout", "message": "late"}, None),
     ({"code": "handler_error", "message": "x", "retryable": True, "details": {"class": "E", "at": [1, None]}}, None),
     ({"message": "late"}, None), ("late", {"message": "late"}), (None, {"message": "failed"}), ({}, None),
     ([1], {"message": "[1]"}), ({"code": [7], "message": {"a": 1}}, None)],
    ids=["code", "as the spec has it", "message", "text", "none", "empty", "another shape", "strange values"],
)  # fmt: skip
def test_an_error_of_any_form_is_kept_as_it_was_sent(ojs: Ojs, error: Any, kept: Any) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.nack(job, error=error).status_code == 200
    assert ojs.job(job)["error"] == (error if kept is None else kept)


def test_an_error_too_large_to_keep_is_cut(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    error = {"code": "handler_error", "message": "x" * 100_000, "retryable": True, "details": {"trace": "y" * 100_000}}
    assert ojs.nack(job, error=error).json()["state"] == "retryable"
    assert ojs.job(job)["error"] == {
        "code": "handler_error", "message": "x" * 2_000, "retryable": True, "x_cut": True,
    }  # fmt: skip


FINAL = ["validation.payload_invalid", "auth.*"]


@pytest.mark.parametrize(
    ("error", "state"),
    [({"type": "validation.payload_invalid"}, "discarded"), ({"type": "auth.token_expired"}, "discarded"),
     ({"code": "auth.forbidden"}, "discarded"), ({"code": "auth"}, "retryable"),
     ({"type": "external.auth.failure"}, "retryable"), ({"code": "DISCARD"}, "discarded"),
     ({"code": "FAIL", "retryable": True}, "discarded"), ({"code": "RETRY"}, "retryable")],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) and "retryable" not in value else None,
)  # fmt: skip
def test_an_error_of_a_type_that_is_not_retryable_ends_the_job(ojs: Ojs, error: dict[str, Any], state: str) -> None:
    fired(ojs, options={"retry": {"non_retryable_errors": FINAL}})
    job = ojs.fetched()
    assert ojs.nack(job, error={"message": "x", **error}).json()["state"] == state


def test_jitter_spreads_retries_from_a_half_to_one_and_a_half_of_the_delay_and_never_beyond_the_cap(ojs: Ojs) -> None:
    retry = {"initial_interval": "PT100S", "max_interval": "PT120S"}
    ojs.registered(overlap_policy="allow", options={"retry": retry})
    for _ in range(20):
        ojs.advance_and_dispatch()
    waits = []
    for job in ojs.fetch(count=20):
        next_at = datetime.fromisoformat(ojs.nack(job).json()["next_attempt_at"])
        waits.append((next_at - ojs.env.clock.now()).total_seconds())
    assert all(50 <= wait <= 120 for wait in waits)
    assert min(waits) < 80
    assert max(waits) > 100


def test_an_error_that_is_not_retryable_ends_the_job(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.nack(job, error={"message": "no such user", "retryable": False}).json()["state"] == "discarded"


def not_active(answer: httpx.Response, job_id: str, state: str, attempt: int) -> None:
    """Expect that a job's end was refused because of its state."""
    details = {"job_id": job_id, "current_state": state, "expected_state": "active", "attempt": attempt}
    assert refused(answer, 409, "invalid_request")["details"] == details


def test_a_job_is_acknowledged_once(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    assert ojs.ack(job).status_code == 200
    for again in (ojs.ack(job), ojs.nack(job)):
        not_active(again, job["id"], "completed", 1)


def test_a_job_nobody_fetched_cannot_be_acknowledged(ojs: Ojs) -> None:
    fired(ojs)
    job_id = ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)
    not_active(ojs.ack({"id": job_id}), job_id, "available", 0)


def test_a_job_of_rq_cannot_be_acknowledged_from_outside(ojs: Ojs) -> None:
    fired(ojs, type="note")
    job_id = ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)
    refused(ojs.ack({"id": job_id}), 409, "invalid_request")


def test_a_job_without_heartbeat_for_ten_minutes_goes_to_another_worker(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    ojs.patched(enabled=False)

    ojs.env.advance(timedelta(minutes=10) - SECOND)
    ojs.env.recover()
    assert ojs.job(job)["state"] == "active"
    ojs.env.advance(SECOND)
    ojs.env.recover()
    not_active(ojs.ack(job), job["id"], "retryable", 1)
    ojs.advance_and_dispatch(MINUTE)

    (again,) = ojs.fetch(worker_id="worker-2")
    assert (again["id"], again["attempt"], again["error"]["code"]) == (job["id"], 2, "x_lost")
    for mine in ({"worker_id": "worker-1"}, {"attempt": 1}):
        not_active(ojs.ack(job, **mine), job["id"], "active", 2)
    assert ojs.heartbeat(job)["x_jobs_cancelled"] == [job["id"]]
    assert ojs.ack(again, worker_id="worker-2", attempt=2).status_code == 200


@pytest.mark.parametrize("by", ["fetch", "heartbeat"])
def test_a_worker_holds_a_job_as_long_as_its_request_says(ojs: Ojs, by: str) -> None:
    fired(ojs)
    ojs.patched(enabled=False)
    if by == "fetch":
        (job,) = ojs.fetch(visibility_timeout_ms=30_000)
    else:
        job = ojs.fetched()
        ojs.env.advance(9 * MINUTE)
        assert ojs.heartbeat(job, visibility_timeout_ms=30_000)["jobs_extended"] == [job["id"]]

    ojs.env.advance(29 * SECOND)
    ojs.env.recover()
    assert ojs.job(job)["state"] == "active"
    ojs.env.advance(SECOND)
    ojs.env.recover()
    assert ojs.job(job)["state"] == "retryable"


def test_a_longer_visibility_than_the_usual_one_is_honoured_too(ojs: Ojs) -> None:
    fired(ojs)
    ojs.patched(enabled=False)
    (job,) = ojs.fetch(visibility_timeout_ms=3_600_000)
    ojs.env.advance(timedelta(minutes=59))
    ojs.env.recover()
    assert ojs.job(job)["state"] == "active"


def test_the_usual_visibility_is_a_setting(make_web: MakeWeb) -> None:
    ojs = Ojs(make_web(ojs_visibility=20))
    fired(ojs)
    ojs.patched(enabled=False)
    job = ojs.fetched()
    ojs.env.advance(20 * SECOND)
    ojs.env.recover()
    assert ojs.job(job)["state"] == "retryable"


def test_a_heartbeat_keeps_jobs_active_and_tells_those_to_cancel(ojs: Ojs) -> None:
    ojs.registered(name="kept")
    ojs.registered(name="stopped", overlap_policy="cancel_previous")
    ojs.advance_and_dispatch()
    kept, stopped = sorted(ojs.fetch(), key=lambda job: job["meta"]["cron_name"])
    ojs.env.scheduler.get("stopped").runs().items[0].cancel()

    assert ojs.heartbeat(kept, stopped) == {
        "state": "running",
        "jobs_extended": [kept["id"]],
        "x_jobs_cancelled": [stopped["id"]],
        "server_time": "2026-01-15T12:01:00.000Z",
    }
    assert ojs.heartbeat()["x_jobs_cancelled"] == []


def test_a_worker_need_not_name_itself(ojs: Ojs) -> None:
    fired(ojs)
    (job,) = ojs("POST", f"{WORKERS}/fetch", {"queues": ["default"]}).json()["jobs"]
    assert ojs.heartbeat(job)["jobs_extended"] == [job["id"]]
    assert ojs.ack(job, worker_id="any").status_code == 200


def test_queues_are_tried_in_the_order_given(ojs: Ojs) -> None:
    for name, priority in (("low", 9), ("middle", 5), ("high", 0)):
        ojs.registered(name=name, options={"queue": name, "priority": priority})
    ojs.advance_and_dispatch()
    order = [ojs.fetch("high", "low", "middle", count=1)[0]["queue"] for _ in range(2)]
    assert [*order, ojs.fetch("high", "low", "middle", count=1)[0]["queue"]] == ["high", "low", "middle"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [({"timeout_ms": 1500}, 1500), ({"timeout": 90}, 90_000), ({}, 600_000)],
    ids=["milliseconds", "seconds", "none"],
)
def test_a_job_says_its_timeout_in_milliseconds(ojs: Ojs, options: dict[str, Any], seen: int) -> None:
    fired(ojs, options=options)
    assert ojs.fetched()["timeout_ms"] == seen


def test_a_job_is_cancelled_before_or_while_it_is_executed(ojs: Ojs) -> None:
    fired(ojs)
    job = {"id": ojs.job_id(ojs.env.scheduler.get("daily-report").runs().items[0].uid)}
    cancelled = ojs("DELETE", f"/ojs/v1/jobs/{job['id']}")
    assert cancelled.status_code == 200
    assert cancelled.json()["job"] == ojs.job(job) | {"previous_state": "available"}, "the whole job"
    shown = cancelled.json()["job"]
    assert (shown["state"], shown["cancelled_at"]) == ("cancelled", "2026-01-15T12:01:00.000Z")
    assert (ojs.fetch(), shown["attempt"]) == ([], 0)

    ojs.advance_and_dispatch()
    held = ojs.fetched()
    assert ojs("DELETE", f"/ojs/v1/jobs/{held['id']}").json()["job"]["previous_state"] == "active"
    assert ojs.heartbeat(held)["x_jobs_cancelled"] == [held["id"]]
    not_active(ojs.ack(held), held["id"], "cancelled", 1)


def test_a_job_that_has_ended_cannot_be_cancelled(ojs: Ojs) -> None:
    fired(ojs)
    job = ojs.fetched()
    ojs.ack(job)
    error = refused(ojs("DELETE", f"/ojs/v1/jobs/{job['id']}"), 409, "invalid_request")
    assert error["details"] == {"job_id": job["id"], "current_state": "completed"}
    refused(ojs("DELETE", f"/ojs/v1/jobs/{UNKNOWN}"), 404, "not_found")


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
    ("fetch for an instant", "fetch", {**FETCH, "visibility_timeout_ms": 999}),
    ("fetch for days", "fetch", {**FETCH, "visibility_timeout_ms": 86_400_001}),
    ("fetch for a text", "fetch", {**FETCH, "visibility_timeout_ms": "30000"}),
    ("fetch as a number", "fetch", {**FETCH, "worker_id": 7}),
    ("fetch as a novel", "fetch", {**FETCH, "worker_id": "x" * 256}),
    ("fetch none", "fetch", {**FETCH, "count": 0}),
    ("fetch a truth", "fetch", {**FETCH, "count": True}),
    ("fetch a half", "fetch", {**FETCH, "count": 1.5}),
    ("ack nothing", "ack", {}),
    ("ack a number", "ack", {"job_id": 7}),
    ("ack no uuid", "ack", {"job_id": "nonsense"}),
    ("nack nothing", "nack", {"error": {"message": "x"}}),
    ("heartbeat of nobody", "heartbeat", {"active_jobs": []}),
    ("heartbeat of a text", "heartbeat", {"worker_id": "w", "active_jobs": "x"}),
    ("heartbeat for an instant", "heartbeat", {"worker_id": "w", "visibility_timeout_ms": 0}),
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
