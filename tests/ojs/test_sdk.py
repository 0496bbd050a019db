"""The requests of Open Job Spec's Python SDK, as its published source sends them.

The SDK is not on the package index, so these are its bodies, headers and the fields it reads, in our own words. Its 0.5
asks for the standard's media type and parses nothing but `application/json`: a program sets that header itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.openjobspec import MEDIA_TYPE, REPORT, Ojs
from tests.support.web import Web

STATES = {"scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded"}


def read_job(fields: dict[str, Any]) -> dict[str, Any]:
    """Read a job as the SDK does, which needs three fields and has defaults for the others."""
    kinds = {"args": list, "meta": dict, "tags": list, "attempt": int, "max_attempts": int, "priority": int}
    assert (type(fields["id"]), type(fields["type"])) == (str, str)
    assert fields["state"] in STATES
    assert [name for name, kind in kinds.items() if not isinstance(fields.get(name, kind()), kind)] == []
    for name in ("created_at", "enqueued_at", "started_at", "completed_at", "scheduled_at"):
        if fields.get(name) is not None:
            assert datetime.fromisoformat(fields[name]).tzinfo is not None
    return fields


class Sdk:
    """Sends the SDK's requests, with the media type that it can read."""

    def __init__(self, web: Web) -> None:
        self.ojs = Ojs(web)

    def __call__(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"content-type": MEDIA_TYPE, "accept": "application/json", "OJS-Version": "1.0"}
        answer = self.ojs.web(method, f"/ojs{path}", body, headers=headers)
        assert answer.status_code < 300, answer.text
        assert answer.headers["content-type"] == "application/json", "else the SDK drops what was answered"
        found: dict[str, Any] = answer.json()
        return found

    def fetch(self) -> list[dict[str, Any]]:
        body = {"queues": ["default"], "count": 1, "visibility_timeout_ms": 30_000, "worker_id": "w"}
        return [read_job(job) for job in self("POST", "/v1/workers/fetch", body)["jobs"]]


@pytest.fixture
def sdk(web: Web) -> Sdk:
    return Sdk(web)


def test_a_client_registers_lists_and_removes_a_cron_job(sdk: Sdk) -> None:
    sdk("POST", "/v1/cron", REPORT)
    listed = sdk("GET", "/v1/cron?limit=50&offset=0")
    assert [one["name"] for one in listed["cron_jobs"]] == [REPORT["name"]]
    sdk("DELETE", f"/v1/cron/{REPORT['name']}")
    assert sdk("GET", "/v1/cron?limit=50&offset=0")["cron_jobs"] == []
    assert sdk("GET", "/manifest")["specversion"] == "1.0"
    assert sdk("GET", "/v1/health")["status"] == "ok"


def test_a_worker_fetches_extends_and_completes_a_job(sdk: Sdk) -> None:
    sdk("POST", "/v1/cron", REPORT)
    assert sdk.fetch() == []
    sdk.ojs.advance_and_dispatch()
    (job,) = sdk.fetch()
    assert (job["type"], job["state"], job["attempt"]) == (REPORT["type"], "active", 1)
    beat = sdk("POST", "/v1/workers/heartbeat", {"worker_id": "w", "active_jobs": [job["id"]]})
    assert (beat["state"], beat["jobs_extended"]) == ("running", [job["id"]])
    sdk("POST", "/v1/workers/ack", {"job_id": job["id"], "result": {"pages": 3}})
    done = read_job(sdk("GET", f"/v1/jobs/{job['id']}")["job"])
    assert (done["state"], done["result"]) == ("completed", {"pages": 3})


def test_a_job_cancelled_while_a_worker_executes_it_is_read_whole(sdk: Sdk) -> None:
    sdk("POST", "/v1/cron", {**REPORT, "args": ["eu"], "meta": {"team": "a"}, "options": {"queue": "default"}})
    sdk.ojs.advance_and_dispatch()
    (job,) = sdk.fetch()
    cancelled = read_job(sdk("DELETE", f"/v1/jobs/{job['id']}")["job"])
    assert (cancelled["state"], cancelled["previous_state"]) == ("cancelled", "active")
    assert [cancelled[name] for name in ("args", "meta", "attempt")] == [
        job[name] for name in ("args", "meta", "attempt")
    ]
    beat = sdk("POST", "/v1/workers/heartbeat", {"worker_id": "w", "active_jobs": [job["id"]]})
    assert (beat["state"], beat["jobs_extended"]) == ("running", []), "the SDK's worker reads nothing else"


def test_a_job_that_fails_for_good_is_listed_retried_and_removed_as_a_dead_letter(sdk: Sdk) -> None:
    sdk("POST", "/v1/cron", {**REPORT, "options": {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}})
    sdk.ojs.advance_and_dispatch()
    (job,) = sdk.fetch()
    error = {"code": "handler_error", "message": "no printer", "retryable": True, "details": {"error_class": "OSError"}}
    sdk("POST", "/v1/workers/nack", {"job_id": job["id"], "error": error})
    assert [read_job(one)["id"] for one in sdk("GET", "/v1/dead-letter?limit=50&offset=0")["jobs"]] == [job["id"]]
    assert read_job(sdk("POST", f"/v1/dead-letter/{job['id']}/retry")["job"])["id"] == job["id"]
