"""A client of the Open Job Spec surface: registers cron jobs, fetches jobs, and checks every response."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx

from rqsched.kernel.decide.ids import uid_to_uuid
from tests.support.env import MINUTE, Env
from tests.support.web import Web

CRON = "/ojs/v1/cron"
WORKERS = "/ojs/v1/workers"
MEDIA_TYPE = "application/openjobspec+json"
REPORT = {"name": "daily-report", "cron": "* * * * *", "type": "report.generate"}
"""A cron job each minute. No process registers its type, so it waits for an external worker."""


@dataclass
class Ojs:
    """The surface as its clients speak to it, in its media type."""

    web: Web
    worker_id: str = "worker-1"

    @property
    def env(self) -> Env:
        return self.web.env

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {"content-type": MEDIA_TYPE, **options.pop("headers", {})}
        answer = self.web(method, path, body, headers=headers, **options)
        assert_common_headers(answer)
        return answer

    def register(self, **fields: Any) -> httpx.Response:
        return self("POST", CRON, {**REPORT, **fields})

    def registered(self, **fields: Any) -> dict[str, Any]:
        """Register or replace a cron job; returns it."""
        answer = self.register(**fields)
        assert answer.status_code in {200, 201}, answer.text
        found: dict[str, Any] = answer.json()["cron_job"]
        return found

    def cron(self, name: str = "daily-report") -> dict[str, Any]:
        answer = self("GET", f"{CRON}/{name}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["cron_job"]
        return found

    def patch(self, body: Any, name: str = "daily-report") -> httpx.Response:
        return self("PATCH", f"{CRON}/{name}", body)

    def patched(self, name: str = "daily-report", **fields: Any) -> dict[str, Any]:
        answer = self.patch(fields, name)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["cron_job"]
        return found

    def listed(self, **params: Any) -> dict[str, Any]:
        answer = self("GET", CRON, params=params)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def advance_and_dispatch(self, span: timedelta = MINUTE) -> None:
        """Move the clock, and let a dispatcher take the links that are then due."""
        self.env.advance(span)
        self.env.dispatch()

    def reach(self, instant: str) -> None:
        """Move the clock to an instant, and let a dispatcher take the links that are then due."""
        self.env.clock.set(datetime.fromisoformat(instant))
        self.env.dispatch()

    def fetch(self, *queues: str, count: int = 10, worker_id: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        named = {"queues": list(queues or ("default",)), "worker_id": worker_id or self.worker_id, "count": count}
        body = named | fields
        answer = self("POST", f"{WORKERS}/fetch", body)
        assert answer.status_code == 200, answer.text
        jobs: list[dict[str, Any]] = answer.json()["jobs"]
        return jobs

    def fetched(self, **options: Any) -> dict[str, Any]:
        """Claim the only waiting job."""
        (job,) = self.fetch(**options)
        return job

    def fetched_from(self, queue: str) -> dict[str, Any]:
        (job,) = self.fetch(queue)
        return job

    @staticmethod
    def job_id(uid: str) -> str:
        """The id of a run's job, as workers see it."""
        return uid_to_uuid(uid)

    def ack(self, job: dict[str, Any], **fields: Any) -> httpx.Response:
        return self("POST", f"{WORKERS}/ack", {"job_id": job["id"], **fields})

    def nack(self, job: dict[str, Any], **fields: Any) -> httpx.Response:
        error = {"type": "SmtpError", "message": "no answer"}
        return self("POST", f"{WORKERS}/nack", {"job_id": job["id"], "error": error, **fields})

    def heartbeat(self, *jobs: dict[str, Any], worker_id: str | None = None, **fields: Any) -> dict[str, Any]:
        body = {"worker_id": worker_id or self.worker_id, "active_jobs": [job["id"] for job in jobs], **fields}
        answer = self("POST", f"{WORKERS}/heartbeat", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self, job: dict[str, Any]) -> dict[str, Any]:
        answer = self("GET", f"/ojs/v1/jobs/{job['id']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["job"]
        return found


def assert_common_headers(answer: httpx.Response) -> None:
    """Check the headers of every response, errors and unknown routes included."""
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.headers["ojs-version"] == "1.0"
    assert answer.headers["x-request-id"]


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Expect an error with this status and code; returns it."""
    assert answer.status_code == status, answer.text
    assert_common_headers(answer)
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert error["retryable"] is (status in {429, 500, 503})
    assert error["request_id"] == answer.headers["x-request-id"]
    assert set(error) <= {"code", "message", "retryable", "details", "request_id"}
    return error
