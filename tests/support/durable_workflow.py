"""Durable Workflow's control plane as its clients use it: over plain HTTP, and through its own Python SDK."""

from __future__ import annotations

from typing import Any

import httpx
from durable_workflow import Client
from durable_workflow.client import ScheduleAction, ScheduleSpec

from tests.support.web import Web

PATH = "/api/schedules"
VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2"}
HOURLY = ScheduleSpec(cron_expressions=["0 * * * *"], timezone="UTC")
NOTE = ScheduleAction(workflow_type="note", task_queue="high", input=["nightly", 7], run_timeout_seconds=60)


def asked_by_clients(web: Web) -> Web:
    """An application whose workers have shown their workflows, asked with the header of every client."""
    web.env.runtime.record_workflows()
    web.headers.update(VERSION)
    return web


def created(web: Web, schedule_id: str = "invoices", **fields: Any) -> httpx.Response:
    """Create an hourly schedule; returns the response."""
    body = {
        "schedule_id": schedule_id,
        "spec": {"cron_expressions": ["0 * * * *"], "timezone": "UTC"},
        "action": {"workflow_type": "note", "task_queue": "high", "input": ["nightly"]},
        **fields,
    }
    return web.post(PATH, body)


def detail(web: Web, schedule_id: str = "invoices") -> dict[str, Any]:
    answer = web.get(f"{PATH}/{schedule_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    """Expect a refusal with this status and reason; returns its body."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert body["reason"] == reason
    assert body["message"]
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


async def create(client: Client, schedule_id: str | None = "invoices", **options: Any) -> Any:
    """The SDK creates an hourly schedule."""
    return await client.create_schedule(**{"schedule_id": schedule_id, "spec": HOURLY, "action": NOTE, **options})
