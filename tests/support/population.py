"""A schedule, run, job and backfill for requests to refer to, and a minimal body for every operation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from redis import Redis

from rqsched.http import Limits, create_app
from rqsched.kernel.store.tables import metadata
from rqsched.testing import ManualClock
from tests.support.env import NOON, open_env
from tests.support.openjobspec import REPORT, Ojs
from tests.support.web import MINUTELY, Web, at

HEADERS = {"Host": "localhost", "X-Durable-Workflow-Control-Plane-Version": "2", "OJS-Version": "1.0"}
"""Without them the other surfaces refuse every request."""
PAST = {"start": "2026-01-15T12:00:00Z", "end": "2026-01-15T12:01:00Z"}
WORKER = {"queues": ["default"], "worker_id": "worker-1"}
ACTION = {"action": {"workflow_type": "note"}, "spec": {"intervals": [{"every": "PT1M"}]}}
BODIES: dict[str, dict[str, Any]] = {
    "PUT /api/v1/limits/": {"name": "shop", "number": 2},
    "POST /api/v1/schedules/": MINUTELY,
    "PUT /api/v1/schedules/{schedule_id}/": MINUTELY,
    "POST /api/v1/schedules/{schedule_id}/backfill/": PAST,
    "POST /api/v1/schedules/batch-delete/": {"ids": ["report"]},
    "POST /api/v1/sync/": {"schedules": [{"schedule_id": "synced", **MINUTELY}]},
    "POST /api/v1/runs/retry/": {"since": 3600},
    "PUT /api/v1/calendars/{name}/": {"exclude": ["2026-12-24"]},
    "POST /ojs/v1/cron": REPORT,
    "PATCH /ojs/v1/cron/{name}": {"enabled": False},
    "POST /ojs/v1/workers/fetch": WORKER,
    "POST /api/schedules": ACTION,
    "POST /api/schedules/{schedule_id}/backfill": {f"{name}_time": instant for name, instant in PAST.items()},
}
"""The minimal bodies, so that generated requests are not all refused."""
_DEEP = "[" * 100_000 + "]" * 100_000
_WHOLE = '{"schedule_id": "x", "workflow": "note", "interval": "1m", %s}'
MALFORMED: list[tuple[str, bytes]] = [
    ("nothing but a brace", b"{"),
    ("no JSON", b"schedule_id=x"),
    ("no UTF-8", b'{"schedule_id": "\xff"}'),
    ("UTF-16", '{"schedule_id": "x"}'.encode("utf-16")),
    ("NaN", (_WHOLE % '"kwargs": {"a": NaN}').encode()),
    ("Infinity", (_WHOLE % '"kwargs": {"a": -Infinity}').encode()),
    ("a number beyond a float", (_WHOLE % '"kwargs": {"a": 1e999}').encode()),
    ("duplicate keys", (_WHOLE % '"queue": "a", "queue": "b"').encode()),
    ("nested duplicate keys", (_WHOLE % '"kwargs": {"a": {"b": 1, "b": 2}}').encode()),
    ("a lone surrogate", (_WHOLE % r'"note": "\ud800"').encode()),
    ("a surrogate as key", (_WHOLE % r'"kwargs": {"\udfff": 1}').encode()),
    ("NUL", (_WHOLE % r'"note": "a\u0000b"').encode()),
    ("too deep for the parser", (_WHOLE % f'"args": {_DEEP}').encode()),
    ("too deep", (_WHOLE % ('"args": ' + "[" * 150 + "]" * 150)).encode()),
    ("endless digits", (_WHOLE % ('"max_runs": ' + "9" * 5000)).encode()),
    ("two documents", b"{} {}"),
]
"""Bodies that no honest caller sends."""


def populate(web: Web) -> dict[str, str]:
    """Create one of each, and return the path parameters that name them. Ends the freezes of earlier requests."""
    web.env.scheduler.thaw(everything=True)
    for freeze in web.env.scheduler.frozen():
        web.env.scheduler.thaw(namespace=freeze.namespace)
    web("PUT", at("report"), {**MINUTELY, "overlap": "allow_all"})
    web("PUT", at("limited"), {"workflow": "note", "interval": "365d", "limit": "shop", "limit_running": 2})
    ojs = Ojs(web)
    ojs.registered(enabled=True, overlap_policy="allow")
    kept = {"queue": "kept", "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}
    ojs.registered(name="kept", options=kept)
    ojs.advance_and_dispatch()
    dead = ojs.fetched_from("kept")
    ojs.nack(dead)
    run = web.post(at("report", "trigger/"), {"force": True}).json()["run"]
    backfill = web.post(at("report", "backfill/"), PAST).json()
    web.env.scheduler.calendars.set(REPORT["name"], ["2026-12-25"])
    return {
        "schedule_id": "report",
        "name": REPORT["name"],
        "run": str(run["number"]),
        "run_uid": run["uid"],
        "job_id": ojs.fetch(count=100)[0]["id"],
        "dead_letter_id": dead["id"],
        "uid": backfill["uid"],
        "operation": "resume",
        "action": "cancel",
    }


@contextmanager
def shared_web(folder: Path, template: Path, redis_url: str, limits: Limits, **settings: Any) -> Iterator[Web]:
    """An application with its own database and an empty Redis, for a module of tests that only read."""
    with Redis.from_url(redis_url) as redis:
        redis.flushall()  # a Redis that belongs to the database of an earlier test would be refused
    path = folder / "rqsched.db"
    shutil.copyfile(template, path)
    with open_env(ManualClock(NOON), database_url=f"sqlite:///{path}", redis_url=redis_url, **settings) as env:
        yield Web(create_app(env.scheduler, limits=limits), env)


def minimal_body(label: str, known: dict[str, str]) -> dict[str, Any]:
    if label.endswith(("/ack", "/nack")):
        return {"job_id": known["job_id"]}
    if label.endswith("/heartbeat"):
        return {"worker_id": WORKER["worker_id"], "active_jobs": [known["job_id"]]}
    return BODIES.get(label, {})


def request(web: Web, label: str, known: dict[str, str], body: Any = None, **options: Any) -> httpx.Response:
    """Send to a route of the OpenAPI document (`POST /api/v1/schedules/`) with the known path parameters."""
    method, _, path = label.partition(" ")
    return web(method, path.format(**known), body, **{**options, "headers": {**HEADERS, **options.get("headers", {})}})


def documented_operations(web: Web) -> dict[str, dict[str, Any]]:
    """Every operation of the OpenAPI document, by route."""
    paths = web.get("/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}": found for path, methods in paths.items() for method, found in methods.items()}


def stored_contents(web: Web) -> list[Any]:
    """Every row of SQL, and the name of every queue and job of RQ."""
    env = web.env
    tables = [sa.select(table) for table in metadata.sorted_tables]
    rows = env.runtime.database.read(lambda c: [sorted(map(repr, c.execute(table))) for table in tables])
    return [*rows, sorted(env.redis.keys("rq:*"))]
