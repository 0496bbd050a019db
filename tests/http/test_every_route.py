"""Rules for every route of the document: roles, namespaces, and answers while a backend is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rqsched.http import Limits, Role
from tests.support.invariants import check_invariants
from tests.support.population import documented_operations, minimal_body, populate, request, shared_web, stored_contents
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer, ValkeyServer
from tests.support.sql import NO_PATIENCE
from tests.support.web import MakeWeb, Web

NATIVE, ONE = "/api/v1/schedules/", "/api/v1/schedules/{schedule_id}/"
JOBS, CRON = "/ojs/v1/workers/", "/ojs/v1/cron"
DURABLE = "/api/schedules"
PUBLIC = {"GET /healthz", "GET /readyz", "GET /ojs/manifest"}
"""Routes that need no token."""
SHARED = {"GET /metrics"}
"""Routes that belong to no namespace."""
READ = {
    f"GET {NATIVE}", f"GET {ONE}", f"GET {ONE}history/", f"GET {ONE}runs/", f"GET {ONE}runs/{{run}}/",
    f"GET {ONE}runs/{{run}}/targets/", "GET /api/v1/runs/{run_uid}/targets/",
    f"GET {ONE}upcoming/", f"GET {ONE}why/", f"GET {ONE}deliveries/",
    "GET /api/v1/runs/", "GET /api/v1/workflows/", "GET /api/v1/usage/", "GET /api/v1/load/",
    "GET /api/v1/limits/", "GET /api/v1/calendars/", "GET /api/v1/calendars/{name}/",
    "GET /api/v1/frozen/", "GET /api/v1/freeze/history/",
    "GET /api/v1/events/", "GET /api/v1/events/stream/", f"GET {ONE}history/stream/",
    "GET /api/v1/backfills/", "GET /api/v1/backfills/{uid}/",
    f"GET {CRON}", f"GET {CRON}/{{name}}", "GET /ojs/v1/health", "GET /ojs/v1/jobs/{job_id}",
    "GET /ojs/v1/dead-letter", "GET /ojs/v1/dead-letter/{dead_letter_id}",
    f"GET {DURABLE}", f"GET {DURABLE}/{{schedule_id}}", f"GET {DURABLE}/{{schedule_id}}/history",
    "GET /api/cluster/info", "GET /api/health",
}  # fmt: skip
BULK = {"POST /api/v1/bulk/{operation}/", "POST /api/v1/bulk/runs/{action}/"}
OPERATE = {
    *(f"POST {ONE}{name}/" for name in ("pause", "skip-next", "resume", "restart", "trigger", "backfill")),
    *(f"POST {ONE}runs/{{run}}/{name}/" for name in ("cancel", "terminate", "retry", "again")),
    "POST /api/v1/runs/retry/",
    "PUT /api/v1/limits/",
    *BULK,
    *(f"POST {JOBS}{name}" for name in ("fetch", "ack", "nack", "heartbeat")),
    f"PATCH {CRON}/{{name}}",
    "DELETE /ojs/v1/jobs/{job_id}",
    "POST /ojs/v1/dead-letter/{dead_letter_id}/retry",
    "POST /api/v1/backfills/{uid}/cancel/",
    *(f"POST {DURABLE}/{{schedule_id}}/{name}" for name in ("pause", "resume", "trigger", "backfill")),
}
ADMIN = {
    f"POST {NATIVE}", f"POST {NATIVE}batch-delete/", "POST /api/v1/sync/",
    "POST /api/v1/freeze/", "GET /api/v1/thaw/preview/", "POST /api/v1/thaw/",
    "GET /api/v1/namespace/", "DELETE /api/v1/namespace/",
    f"PUT {ONE}", f"PATCH {ONE}", f"DELETE {ONE}",
    "PUT /api/v1/calendars/{name}/", "DELETE /api/v1/calendars/{name}/",
    f"POST {CRON}", f"DELETE {CRON}/{{name}}",
    "DELETE /ojs/v1/dead-letter/{dead_letter_id}",
    f"POST {DURABLE}", f"PUT {DURABLE}/{{schedule_id}}", f"DELETE {DURABLE}/{{schedule_id}}",
}  # fmt: skip
NAMELESS = {f"PUT {ONE}", "PUT /api/v1/calendars/{name}/", *BULK}
"""Routes that look up nothing by the name in the path: they create the object, or act on all matches."""
NEEDED = {
    label: role
    for role, labels in ((Role.READ, READ | SHARED), (Role.OPERATE, OPERATE), (Role.ADMIN, ADMIN))
    for label in sorted(labels)
}
LIMITS = Limits(rate=0, failure_rate=0, stream_seconds=0.1)


def secret(name: str) -> str:
    return f"{name}-secret-of-this-test"


TOKENS = [{"name": role.name, "role": role.name.lower(), "token": secret(role.name)} for role in Role]
TENANT = {"name": "tenant", "role": "admin", "namespaces": ["tenant"], "token": secret("tenant")}


@pytest.fixture(scope="module")
def populated(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, valkey_server: ValkeyServer
) -> Iterator[tuple[Web, dict[str, str]]]:
    """One application with tokens and one of everything; these tests are refused, so that they may share it."""
    folder, tokens = tmp_path_factory.mktemp("routes"), json.dumps([*TOKENS, TENANT])
    with shared_web(folder, sqlite_template, valkey_server.url, LIMITS, tokens=tokens) as web:
        yield web, populate(web.acting_as(secret("ADMIN")))


def test_these_are_all_the_routes(populated: tuple[Web, dict[str, str]]) -> None:
    assert set(documented_operations(populated[0])) == PUBLIC | set(NEEDED)


@pytest.mark.parametrize("label", NEEDED)
def test_every_route_without_a_known_token_is_401(populated: tuple[Web, dict[str, str]], label: str) -> None:
    web, known = populated
    before = stored_contents(web)
    for headers in ({}, {"authorization": f"Bearer {secret('nobody')}"}, {"authorization": secret("ADMIN")}):
        answer = request(web, label, known, minimal_body(label, known), headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert stored_contents(web) == before


@pytest.mark.parametrize("label", [label for label, role in NEEDED.items() if role > Role.READ])
def test_a_lesser_role_is_forbidden_and_changes_nothing(populated: tuple[Web, dict[str, str]], label: str) -> None:
    web, known = populated
    before = stored_contents(web)
    for role in [role for role in Role if role < NEEDED[label]]:
        answer = request(web.acting_as(secret(role.name)), label, known, minimal_body(label, known))
        assert answer.status_code == 403, answer.text
    assert stored_contents(web) == before


@pytest.mark.parametrize("label", sorted(set(NEEDED) - SHARED))
def test_another_namespace_does_not_exist_for_a_tenant(populated: tuple[Web, dict[str, str]], label: str) -> None:
    web, known = populated
    tenant, before = web.acting_as(secret("tenant")), stored_contents(web)
    named, unknown = (
        request(tenant, label, known, minimal_body(label, known), headers={"X-Namespace": name})
        for name in ("default", "never-made")
    )
    assert (named.status_code, unknown.status_code) == (404, 404)
    assert without_id(named, "default") == without_id(unknown, "never-made")
    assert stored_contents(web) == before


def without_id(answer: httpx.Response, namespace: str) -> str:
    """Return the text of an answer without the request's id and namespace."""
    return answer.text.replace(answer.headers["x-request-id"], "").replace(namespace, "")


@pytest.mark.parametrize("label", [label for label in sorted(NEEDED) if "{" in label and label not in NAMELESS])
def test_an_id_of_another_namespace_is_not_found_in_ones_own(populated: tuple[Web, dict[str, str]], label: str) -> None:
    web, known = populated
    before = stored_contents(web)
    answer = request(web.acting_as(secret("tenant")), label, known, minimal_body(label, known))
    assert answer.status_code == 404, answer.text
    assert stored_contents(web) == before


WITHOUT_SQL = PUBLIC - {"GET /readyz"} | {"GET /metrics", "GET /api/cluster/info"}
"""Routes that answer without SQL."""
ASK_REDIS = {"GET /readyz", "GET /ojs/v1/health", "GET /api/health"}
"""Routes that report the outage of Redis. The others work in SQL, and Redis follows later."""


def in_order(web: Web) -> list[str]:
    """Every route, deletions last, and then those after which nothing can be started."""
    last = {"POST /api/v1/freeze/"}
    return sorted(documented_operations(web), key=lambda label: (label in last, "delete" in label.lower(), label))


@pytest.fixture
def outage(make_web: MakeWeb, own_postgres_url: str, own_valkey: ValkeyServer) -> tuple[Web, dict[str, str]]:
    """An application with one of everything, over a PostgreSQL and a Valkey of this test alone."""
    web = make_web(app={"limits": LIMITS}, database_url=own_postgres_url, redis_url=own_valkey.url)
    known = populate(web)
    web.env.runtime.database.patience = NO_PATIENCE
    return web, known


def asked(web: Web, label: str, known: dict[str, str]) -> httpx.Response:
    has_body = "requestBody" in documented_operations(web)[label]
    params = {"confirm": "default"} if label == "DELETE /api/v1/namespace/" else {}
    return request(web, label, known, minimal_body(label, known) if has_body else None, params=params)


def is_unavailable(answer: httpx.Response) -> bool:
    return answer.status_code == 503 and int(answer.headers["retry-after"]) > 0


@pytest.mark.broad
@pytest.mark.postgres
def test_while_sql_is_unavailable_every_route_is_503_with_retry_after(
    outage: tuple[Web, dict[str, str]], own_postgres: PostgresServer
) -> None:
    web, known = outage
    before = stored_contents(web)
    own_postgres.stop()
    answers: dict[str, Any] = {label: asked(web, label, known) for label in in_order(web)}
    assert {label for label, answer in answers.items() if not is_unavailable(answer)} == WITHOUT_SQL
    assert {label: answers[label].status_code for label in WITHOUT_SQL} == dict.fromkeys(WITHOUT_SQL, 200)
    frozen = web.post("/api/v1/freeze/", {"everything": True}).json()
    assert frozen["kept_in"] == ["redis"]
    assert web.get("/api/v1/frozen/").json()["items"][0] == frozen

    own_postgres.start()
    wait_until(lambda: web.get("/readyz").status_code == 200, what="the database to be back")
    assert stored_contents(web) == before
    check_invariants(web.env.runtime)


@pytest.mark.broad
@pytest.mark.postgres
def test_while_redis_is_unavailable_every_route_but_health_succeeds(
    outage: tuple[Web, dict[str, str]], own_valkey: ValkeyServer
) -> None:
    web, known = outage
    own_valkey.stop()
    answers = {label: asked(web, label, known) for label in in_order(web)}
    assert {label for label, answer in answers.items() if is_unavailable(answer)} == ASK_REDIS
    assert {label: answer.text for label, answer in answers.items() if answer.status_code == 500} == {}
    assert web.post("/api/v1/freeze/", {"everything": True}).json()["kept_in"] == ["sql"]
    assert is_unavailable(web.post("/api/v1/thaw/", {"everything": True}))

    own_valkey.start()
    wait_until(lambda: web.get("/readyz").status_code == 200, what="Redis to be back")
    web.env.recover()
    check_invariants(web.env.runtime)


def test_every_operation_parameter_and_field_says_what_it_means(populated: tuple[Web, dict[str, str]]) -> None:
    document = populated[0].get("/openapi.json").json()
    parts = {f"{label}: {one['name']}": one for label, operation in documented_operations(populated[0]).items()
             for one in operation.get("parameters", ())}  # fmt: skip
    parts |= documented_operations(populated[0])
    for name, schema in document["components"]["schemas"].items():
        parts |= {name: schema} | {f"{name}.{field}": said for field, said in schema.get("properties", {}).items()}
    assert [name for name, part in parts.items() if not part.get("description")] == []
