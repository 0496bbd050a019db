"""Rules for every request: its id, its size, its rate, its headers, and the form of every error."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from rqsched.errors import ConfigError, RedisUnavailableError, SchemaError
from rqsched.http import Limits, create_app
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, one_token, problem

SECURITY = ["x-content-type-options", "x-frame-options", "referrer-policy", "content-security-policy", "cache-control"]
ANSWERS = ["/healthz", SCHEDULES, "/api/v1/nope/", "/nope", "/openapi.json"]


@pytest.mark.parametrize("path", ANSWERS)
def test_every_response_has_security_headers_and_a_request_id(web: Web, path: str) -> None:
    answer = web.get(path)
    assert [name for name in SECURITY if name not in answer.headers] == []
    assert len(answer.headers["x-request-id"]) == 32
    assert "access-control-allow-origin" not in web.get(path, headers={"origin": "http://x.example"}).headers


@pytest.mark.parametrize(("given", "is_kept"), [("abc-1", True), ("x" * 129, False), ("a b", False), ("<b>", False)])
def test_a_callers_request_id_is_kept_when_it_is_harmless(web: Web, given: str, is_kept: bool) -> None:
    assert (web.get("/healthz", headers={"X-Request-Id": given}).headers["x-request-id"] == given) is is_kept


def test_a_body_beyond_the_limit_is_refused_with_or_without_content_length(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(body_bytes=1000)})
    problem(web.post(SCHEDULES, {"x": "y" * 1000}), 413, "too_large")

    async def chunks() -> Any:
        for _ in range(20):
            yield b"x" * 100

    chunked: Any = chunks()
    problem(web.post(SCHEDULES, content=chunked), 413, "too_large")
    assert web.post(SCHEDULES, {"schedule_id": "a", **MINUTELY}).status_code == 201


def test_a_principal_beyond_its_rate_is_429_with_retry_after(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(rate=0.001, burst=2)})
    assert [web.get(SCHEDULES).status_code for _ in range(3)] == [200, 200, 429]
    answer = web.get(SCHEDULES)
    problem(answer, 429, "rate_limited")
    assert int(answer.headers["retry-after"]) > 100
    assert web.get("/healthz").status_code == 200


def test_each_token_has_a_rate_of_its_own(make_web: MakeWeb) -> None:
    secrets = {"red": "a-secret-of-the-red-one", "blue": "a-secret-of-the-blue-one"}
    tokens = [{"name": name, "role": "read", "token": secret} for name, secret in secrets.items()]
    web = make_web(tokens=json.dumps(tokens), app={"limits": Limits(rate=0.001, burst=1)})
    red, blue = (web.acting_as(secret) for secret in secrets.values())
    assert [red.get(SCHEDULES).status_code, red.get(SCHEDULES).status_code] == [200, 429]
    assert blue.get(SCHEDULES).status_code == 200
    assert red.get("/ojs/v1/cron").status_code == red.get("/api/health").status_code == 429


def test_the_rate_may_be_unlimited(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(rate=0, burst=1)})
    assert [web.get(SCHEDULES).status_code for _ in range(3)] == [200, 200, 200]


def test_a_wrong_method_is_405_with_the_allowed_ones(web: Web) -> None:
    answer = web("PUT", SCHEDULES, MINUTELY)
    problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


BREAKS: list[tuple[Exception, int, str]] = [
    (RedisUnavailableError("Redis does not answer."), 503, "redis_unavailable"),
    (SchemaError("run upgrade"), 503, "schema_error"),
    (ConfigError("SECRET"), 500, "internal_error"),
    (ZeroDivisionError("SECRET"), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), BREAKS, ids=[type(error).__name__ for error, _, _ in BREAKS])
def test_an_unexpected_error_is_logged_and_reveals_no_details(
    web: Web, caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str
) -> None:
    @web.app.get("/api/v1/broken/")
    def broken() -> None:
        raise error

    with caplog.at_level(logging.ERROR):
        answer = web.get("/api/v1/broken/")
    found = problem(answer, status, code)
    assert "SECRET" not in answer.text
    assert ("retry-after" in answer.headers) is (status == 503)
    assert found["request_id"] in caplog.text
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["request_failed"]


def test_it_can_be_mounted_in_another_application(web: Web) -> None:
    outer = FastAPI()
    outer.mount("/jobs", create_app(web.env.scheduler))
    mounted = Web(outer, web.env)
    answer = mounted.post("/jobs/api/v1/schedules", {"schedule_id": "report", **MINUTELY})
    assert answer.status_code == 201
    assert mounted.get(answer.headers["location"]).json()["id"] == "report"
    problem(mounted.get("/jobs/api/v1/nope"), 404, "not_found")
    assert mounted.get("/jobs/openapi.json").json()["servers"] == [{"url": "/jobs"}]
    assert "/jobs/schedules" in mounted.get("/jobs/").text


def test_applications_of_one_process_share_routes_and_nothing_else(make_web: MakeWeb, tmp_path: Path) -> None:
    secret = "a-secret-of-the-strict-one"
    one = make_web(app={"limits": Limits(rate=0)})
    other = make_web(
        database_url=f"sqlite:///{tmp_path}/other.db",
        tokens=one_token(secret, name="red"),
        app={"limits": Limits(rate=0.001, burst=2, body_bytes=1000)},
    )
    one.create("here")
    assert [web.get(SCHEDULES).status_code for web in (one, other, one)] == [200, 401, 200]
    assert other.acting_as(secret).get(SCHEDULES).json()["items"] == []
    assert other.acting_as(secret).post(SCHEDULES, {"x": "y" * 1000}).status_code == 413
    assert [other.acting_as(secret).get(SCHEDULES).status_code for _ in range(2)] == [200, 429]
    assert [item["id"] for item in one.get(SCHEDULES).json()["items"]] == ["here"]
    documents = [web.get("/openapi.json").json()["paths"][SCHEDULES]["get"] for web in (one, other)]
    assert [document["security"] for document in documents] == [[], [{"HTTPBearer": []}]]
    shared = {id(route) for route in one.app.router.routes} & {id(route) for route in other.app.router.routes}
    assert len(shared) >= 4, "each application builds the routes anew: 100 ms"


def test_a_browser_can_show_the_document(web: Web) -> None:
    page = web.get("/docs")
    assert page.status_code == 200
    assert "style-src" in page.headers["content-security-policy"]
    assert at("{schedule_id}") in web.get("/openapi.json").json()["paths"]
