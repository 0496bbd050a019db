"""Refusals of Open Job Spec: error shapes, headers, versions, tenants, hostile bodies, lost backends."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import httpx
import pytest

from rqsched.http import Limits
from tests.support.openjobspec import CRON, MEDIA_TYPE, REPORT, WORKERS, Ojs, refused
from tests.support.processes import wait_until
from tests.support.rows import every_row
from tests.support.servers import PostgresServer, ValkeyServer
from tests.support.sql import NO_PATIENCE
from tests.support.web import MakeWeb, Web

UNKNOWN = "019501a2-3b4c-7d5e-8f6a-1b2c3d4e5f6a"

TOKEN = "a-secret-of-twenty-four-chars"


def raw(ojs: Ojs, content: bytes | str, *, method: str = "POST", path: str = CRON) -> httpx.Response:
    return ojs(method, path, content=content)


REFUSALS = [
    ("GET", "/ojs", 404, "not_found"),
    ("GET", "/ojs/v1/nothing", 404, "not_found"),
    ("GET", "/ojs/v2/cron", 404, "not_found"),
    ("PUT", CRON, 405, "x_method_not_allowed"),
    ("POST", f"{CRON}/daily-report", 405, "x_method_not_allowed"),
    ("POST", "/ojs/v1/jobs", 422, "unsupported"),
    ("POST", "/ojs/v1/jobs/batch", 422, "unsupported"),
    ("POST", f"/ojs/v1/jobs/{UNKNOWN}/activate", 422, "unsupported"),
    ("GET", f"/ojs/v1/jobs/{UNKNOWN}/progress", 422, "unsupported"),
    ("POST", "/ojs/v1/workers/progress", 422, "unsupported"),
    ("GET", "/ojs/v1/queues", 422, "unsupported"),
    ("GET", "/ojs/v1/queues/default/stats", 422, "unsupported"),
    ("POST", "/ojs/v1/queues/default/pause", 422, "unsupported"),
    ("POST", "/ojs/v1/queues/default/resume", 422, "unsupported"),
    ("POST", "/ojs/v1/workflows", 422, "unsupported"),
    ("DELETE", f"/ojs/v1/workflows/{UNKNOWN}", 422, "unsupported"),
    ("GET", "/ojs/v1/schemas", 422, "unsupported"),
    ("DELETE", "/ojs/v1/schemas/urn:ojs:schema:report.generate", 422, "unsupported"),
    ("GET", f"{CRON}/missing", 404, "not_found"),
    ("DELETE", f"{CRON}/missing", 404, "not_found"),
    ("GET", f"{CRON}/Not%20A%20Name", 404, "not_found"),
    ("GET", f"{CRON}/%00", 400, "invalid_request"),
]


def test_every_error_has_the_specs_form_and_headers(ojs: Ojs) -> None:
    with every_row() as row:
        for method, path, status, code in REFUSALS:
            with row(f"{method} {path}"):
                refused(ojs(method, path), status, code)


def test_a_request_id_is_echoed(ojs: Ojs) -> None:
    for path in (CRON, "/ojs/v1/nothing"):
        assert ojs("GET", path, headers={"X-Request-Id": "req-7"}).headers["x-request-id"] == "req-7"


@pytest.mark.parametrize("media_type", [MEDIA_TYPE, "application/json", f"{MEDIA_TYPE}; charset=utf-8"])
def test_a_body_is_read_in_either_media_type(ojs: Ojs, media_type: str) -> None:
    assert ojs("POST", CRON, REPORT, headers={"content-type": media_type}).status_code == 201


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json"])
def test_a_body_in_another_media_type_is_refused_and_writes_nothing(ojs: Ojs, media_type: str) -> None:
    refused(ojs("POST", CRON, REPORT, headers={"content-type": media_type}), 400, "invalid_request")
    assert ojs.listed()["count"] == 0


def test_a_body_without_a_media_type_is_read(ojs: Ojs) -> None:
    assert ojs("POST", CRON, REPORT, headers={"content-type": ""}).status_code == 201


ACCEPTED = [
    ("application/json", "application/json"),
    ("application/json;q=0.9, application/json", "application/json"),
    (f"application/json, {MEDIA_TYPE}", MEDIA_TYPE),
    ("application/json, */*", MEDIA_TYPE),
    ("text/html", MEDIA_TYPE),
    ("", MEDIA_TYPE),
]


@pytest.mark.parametrize(("accept", "media_type"), ACCEPTED)
def test_an_answer_has_the_specs_media_type_unless_only_json_is_accepted(
    ojs: Ojs, accept: str, media_type: str
) -> None:
    for path in (CRON, f"{CRON}/missing", "/ojs/v1/nothing", "/ojs/manifest"):
        assert ojs.web("GET", path, headers={"accept": accept}).headers["content-type"] == media_type, path


@pytest.mark.parametrize("version", ["1.0", "1"])
def test_this_version_is_served(ojs: Ojs, version: str) -> None:
    assert ojs("GET", CRON, headers={"OJS-Version": version}).status_code == 200


@pytest.mark.parametrize("version", ["2.0", "0.9", "", "one"])
def test_another_version_is_unsupported_and_writes_nothing(ojs: Ojs, version: str) -> None:
    refused(ojs("POST", CRON, REPORT, headers={"OJS-Version": version}), 422, "unsupported")
    assert ojs.listed()["count"] == 0


def test_the_manifest_says_what_is_implemented(ojs: Ojs) -> None:
    found = ojs("GET", "/ojs/manifest").json()
    assert (found["ojs_version"], found["specversion"], found["capabilities"]["cron_jobs"]) == ("1.0", "1.0", True)
    assert found["implementation"]["name"] == "rqsched"
    assert (found["conformance_level"], found["capabilities"]["dead_letter"]) == (None, True)
    assert found["x_chapters"]["12 Dead letter"] == found["x_chapters"]["10 Workers"] == "served"
    assert found["x_chapters"]["14 Workflows"] == "not served"


def test_health_is_ok_while_the_backends_answer(ojs: Ojs) -> None:
    answer = ojs("GET", "/ojs/v1/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_a_request_beyond_the_rate_is_429_with_retry_after(make_web: MakeWeb) -> None:
    ojs = Ojs(make_web(app={"limits": Limits(rate=0.001, burst=1)}))
    ojs("GET", CRON)
    answer = ojs("GET", CRON)
    refused(answer, 429, "rate_limited")
    assert int(answer.headers["retry-after"]) >= 1


def test_cron_jobs_of_another_namespace_are_not_visible(make_web: MakeWeb) -> None:
    entries = [
        {"name": name, "token": f"{TOKEN}-{name}", "role": "admin", "namespaces": [name]} for name in ("red", "blue")
    ]
    web = make_web(tokens=json.dumps(entries))
    red, blue = (Ojs(web.acting_as(f"{TOKEN}-{name}")) for name in ("red", "blue"))
    red.registered()
    red.advance_and_dispatch()

    assert blue.listed()["count"] == 0
    assert blue.fetch() == []
    for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
        refused(blue(method, f"{CRON}/daily-report", body), 404, "not_found")
    refused(blue("GET", CRON, headers={"X-Namespace": "red"}), 404, "not_found")

    job = red.fetched()
    refused(blue("GET", f"/ojs/v1/jobs/{job['id']}"), 404, "not_found")
    refused(blue.ack(job), 404, "not_found")
    assert blue.heartbeat(job)["jobs_extended"] == []
    refused(blue("DELETE", f"/ojs/v1/jobs/{job['id']}"), 404, "not_found")
    assert red.ack(job).status_code == 200


def test_the_same_name_is_free_in_every_namespace(ojs: Ojs) -> None:
    ojs.registered()
    other = Ojs(Web(ojs.web.app, ojs.web.env, {"X-Namespace": "tenant"}))
    assert other.register().status_code == 201
    assert (ojs.listed()["count"], other.listed()["count"]) == (1, 1)


DEEP = 100_000
MALFORMED: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("no JSON", b"{"),
    ("two values", b"{} {}"),
    ("no UTF-8", b'{"name": "\xff"}'),
    ("NaN", b'{"name": "a", "cron": "@daily", "type": "a", "args": [NaN]}'),
    ("infinity", b'{"name": "a", "cron": "@daily", "type": "a", "args": [-Infinity]}'),
    ("beyond a float", b'{"name": "a", "cron": "@daily", "type": "a", "args": [1e999]}'),
    ("beyond 64 bits", b'{"name": "a", "cron": "@daily", "type": "a", "args": [1' + b"0" * 400 + b"]}"),
    ("lone surrogate", b'{"name": "a", "cron": "@daily", "type": "a", "args": ["\\ud800"]}'),
    ("NUL", b'{"name": "a", "cron": "@daily", "type": "a", "args": ["\\u0000"]}'),
    ("NUL in a key", b'{"name": "a", "cron": "@daily", "type": "a", "meta": {"\\u0000": 1}}'),
    ("the same key twice", b'{"name": "a", "cron": "@daily", "type": "a", "name": "b"}'),
    ("deep arrays", b'{"name": "a", "cron": "@daily", "type": "a", "args": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ("deep objects", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    ("deeper than payloads may be", b'{"name": "a", "cron": "@daily", "type": "a", "args": '
     + b"[" * 80 + b"]" * 80 + b"}"),
    ("array", b"[]"),
    ("text", b'"daily-report"'),
    ("number", b"7"),
    ("null", b"null"),
]  # fmt: skip


def test_a_malformed_body_is_refused_everywhere_and_writes_nothing(ojs: Ojs) -> None:
    ojs.registered()
    before = ojs.cron()
    routes = (("POST", CRON), ("PATCH", f"{CRON}/daily-report"), ("POST", f"{WORKERS}/fetch"))

    with every_row() as row:
        for (name, content), (method, path) in product(MALFORMED, routes):
            with row(f"{name}, {method} {path}"):
                refused(raw(ojs, content, method=method, path=path), 400, "invalid_request")
                assert ojs.cron() == before
                assert ojs.listed()["count"] == 1


def test_a_body_beyond_the_limit_is_refused_without_reading_it(ojs: Ojs) -> None:
    refused(raw(ojs, b'{"name": "' + b"x" * 2**21), 413, "x_too_large")
    assert ojs.listed()["count"] == 0


WRONG: list[Any] = [None, True, 0, -1, 1.5, 2**70, "", "x" * 5_000, "\u202e", [], [[]], {}, {"a": None}]
FIELDS = ["name", "cron", "expression", "timezone", "type", "args", "options", "job_template", "meta",
          "overlap_policy", "enabled", "description"]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_no_value_of_any_field_makes_the_server_fail(ojs: Ojs, field: str) -> None:
    for value in WRONG:
        answer = ojs.register(**{field: value})
        assert answer.status_code in {200, 201, 400}, (value, answer.text)
        if answer.status_code == 400:
            refused(answer, 400, "invalid_request")


@pytest.mark.parametrize("field", ["queue", "timeout", "timeout_ms", "retry", "priority", "tags", "meta"])
def test_no_value_of_any_option_makes_the_server_fail(ojs: Ojs, field: str) -> None:
    for value in WRONG:
        assert ojs.register(options={field: value}).status_code in {200, 201, 400}, value
    for value in WRONG:
        for name in ("max_attempts", "initial_interval", "backoff_coefficient", "max_interval_ms"):
            answer = ojs.register(options={"retry": {name: value}})
            assert answer.status_code in {200, 201, 400}, (name, value)


@pytest.fixture
def outage(make_web: MakeWeb, own_postgres_url: str, own_valkey: ValkeyServer) -> Ojs:
    """The surface over a PostgreSQL and a Valkey of this test alone."""
    web = make_web(database_url=own_postgres_url, redis_url=own_valkey.url)
    web.env.runtime.database.patience = NO_PATIENCE
    return Ojs(web)


def test_an_unavailable_database_is_503_and_nothing_is_lost(outage: Ojs, own_postgres: PostgresServer) -> None:
    outage.registered()
    own_postgres.stop()
    requests = [
        outage.register(name="other"),
        outage("GET", CRON),
        outage.patch({"enabled": False}),
        outage("DELETE", f"{CRON}/daily-report"),
        outage("POST", f"{WORKERS}/fetch", {"queues": ["default"], "worker_id": "w"}),
        outage("GET", "/ojs/v1/health"),
    ]
    for answer in requests:
        refused(answer, 503, "backend_error")
        assert int(answer.headers["retry-after"]) >= 1

    own_postgres.start()
    wait_until(lambda: outage("GET", CRON).status_code == 200, what="the database to be back")
    assert (outage.listed()["count"], outage.cron()["enabled"]) == (1, True)


def test_a_registration_while_redis_is_unavailable_fires_when_it_is_back(outage: Ojs, own_valkey: ValkeyServer) -> None:
    own_valkey.stop()
    assert outage.register().status_code == 201
    answer = outage("GET", "/ojs/v1/health")
    refused(answer, 503, "backend_error")
    assert int(answer.headers["retry-after"]) >= 1

    own_valkey.start()
    wait_until(lambda: outage("GET", "/ojs/v1/health").status_code == 200, what="Redis to be back")
    outage.env.recover()
    outage.advance_and_dispatch()
    assert len(outage.fetch()) == 1
