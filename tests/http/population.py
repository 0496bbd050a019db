"""One of everything there is, and for every operation of the three surfaces the least body it takes."""

from __future__ import annotations

from typing import Any

from tests.http.openjobspec import REPORT, Ojs
from tests.http.web import MINUTELY, Web, at

HEADERS = {"X-Durable-Workflow-Control-Plane-Version": "2", "OJS-Version": "1.0"}
"""Else the other surfaces would refuse everything before they look at it."""
PAST = {"start": "2026-01-15T12:00:00Z", "end": "2026-01-15T12:01:00Z"}
WORKER = {"queues": ["default"], "worker_id": "worker-1"}
ACTION = {"action": {"workflow_type": "note"}, "spec": {"intervals": [{"every": "PT1M"}]}}
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/v1/schedules/": MINUTELY,
    "PUT /api/v1/schedules/{schedule_id}/": MINUTELY,
    "POST /api/v1/schedules/{schedule_id}/backfill/": PAST,
    "POST /api/v1/schedules/batch-delete/": {"ids": ["report"]},
    "POST /ojs/v1/cron": REPORT,
    "PATCH /ojs/v1/cron/{name}": {"enabled": False},
    "POST /ojs/v1/workers/fetch": WORKER,
    "POST /ojs/v1/workers/heartbeat": WORKER,
    "POST /api/schedules": ACTION,
    "POST /api/schedules/{schedule_id}/backfill": {f"{name}_time": instant for name, instant in PAST.items()},
}
"""What a body needs at least; else nothing that is generated would be taken."""


def seeded(web: Web) -> dict[str, str]:
    """Put one of everything there; gives the path parameters that name them."""
    web("PUT", at("report"), {**MINUTELY, "overlap": "allow_all"})
    ojs = Ojs(web)
    ojs.registered(enabled=True, overlap_policy="allow")
    ojs.pass_()
    run = web.post(at("report", "trigger/"), {"force": True}).json()["run"]
    backfill = web.post(at("report", "backfill/"), PAST).json()
    return {
        "schedule_id": "report",
        "name": REPORT["name"],
        "run": str(run["number"]),
        "job_id": ojs.fetch(count=100)[0]["id"],
        "uid": backfill["uid"],
    }


def body_of(label: str, known: dict[str, str]) -> dict[str, Any]:
    ends_job = label.endswith(("/ack", "/nack"))
    return BODIES.get(label, {"job_id": known["job_id"]} if ends_job else {})
