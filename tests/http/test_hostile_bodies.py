"""Every body that no honest caller sends, at every route that takes one: 4xx, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rqsched.http import Limits
from tests.support.population import (
    MALFORMED,
    documented_operations,
    minimal_body,
    populate,
    request,
    shared_web,
    stored_contents,
)
from tests.support.servers import ValkeyServer
from tests.support.web import Web

ROUTES = [
    *(f"POST /api/v1/schedules/{path}" for path in ("", "batch-delete/")),
    *(f"{method} /api/v1/schedules/{{schedule_id}}/" for method in ("PUT", "PATCH")),
    *(
        f"POST /api/v1/schedules/{{schedule_id}}/{name}/"
        for name in ("pause", "resume", "restart", "skip-next", "trigger", "backfill")
    ),
    *(
        f"POST /api/v1/schedules/{{schedule_id}}/runs/{{run}}/{name}/"
        for name in ("cancel", "terminate", "retry", "again")
    ),
    "POST /api/v1/runs/retry/",
    "POST /api/v1/backfills/{uid}/cancel/",
    "POST /api/v1/bulk/{operation}/",
    "POST /api/v1/bulk/runs/{action}/",
    "POST /api/v1/sync/",
    "PUT /api/v1/calendars/{name}/",
    "POST /api/v1/freeze/",
    "PUT /api/v1/limits/",
    "POST /api/v1/thaw/",
    "POST /ojs/v1/cron",
    "PATCH /ojs/v1/cron/{name}",
    *(f"POST /ojs/v1/workers/{name}" for name in ("fetch", "ack", "nack", "heartbeat")),
    "POST /api/schedules",
    "PUT /api/schedules/{schedule_id}",
    *(f"POST /api/schedules/{{schedule_id}}/{name}" for name in ("pause", "resume", "trigger", "backfill")),
]
NO_OBJECT = [b"[]", b'"x"', b"3", b"true", b"[{}]"]
HUGE = b'{"x": "' + b"y" * 2**20 + b'"}'


@pytest.fixture(scope="module")
def populated(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, valkey_server: ValkeyServer
) -> Iterator[tuple[Web, dict[str, str]]]:
    """One application with one of everything for all of these tests, for none of them writes."""
    folder = tmp_path_factory.mktemp("hostile")
    with shared_web(folder, sqlite_template, valkey_server.url, Limits(rate=0)) as web:
        yield web, populate(web)


class Route:
    """One route, and all that is behind it."""

    def __init__(self, web: Web, known: dict[str, str], label: str) -> None:
        self.web, self.known, self.label = web, known, label
        self.before = stored_contents(web)

    def refuses(self, statuses: set[int], body: Any = None, content: bytes | None = None) -> None:
        answer = request(self.web, self.label, self.known, body, content=content)
        assert answer.status_code in statuses, (body, content, answer.text)

    def has_written_nothing(self) -> bool:
        return stored_contents(self.web) == self.before


@pytest.fixture(params=ROUTES)
def route(populated: tuple[Web, dict[str, str]], request: pytest.FixtureRequest) -> Route:
    return Route(*populated, request.param)


def bodies(web: Web) -> dict[str, dict[str, Any]]:
    """The schema of every body in the document, by route."""
    return {
        label: operation["requestBody"]["content"]["application/json"]["schema"]
        for label, operation in documented_operations(web).items()
        if "requestBody" in operation
    }


def test_these_are_all_the_routes_that_take_a_body(populated: tuple[Web, dict[str, str]]) -> None:
    assert set(bodies(populated[0])) == set(ROUTES)


def test_a_malformed_non_object_or_huge_body_is_refused(route: Route) -> None:
    for _, content in MALFORMED:
        route.refuses({400}, content=content)
    for content in NO_OBJECT:
        route.refuses({400, 422}, content=content)
    route.refuses({413}, content=HUGE)
    assert route.has_written_nothing()


VALUES = {"boolean": True, "number": 1.5, "string": "\u202e", "array": [[]], "object": {"a": [None]}}


def types_of(schema: dict[str, Any], components: dict[str, Any]) -> set[str]:
    """The JSON types a schema takes; all of them when it does not say."""
    if "$ref" in schema:
        return types_of(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return {kind for part in schema["anyOf"] for kind in types_of(part, components)}
    return {schema["type"]} if "type" in schema else set(VALUES)


def wrong_fields(schema: dict[str, Any], components: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field with each value of a type it does not take."""
    if "anyOf" in schema:
        (schema,) = (part for part in schema["anyOf"] if "$ref" in part)
    body = components[schema["$ref"].rpartition("/")[2]]
    for name, field_schema in body["properties"].items():
        taken = types_of(field_schema, components)
        yield from ((name, value) for kind, value in VALUES.items() if kind not in taken)


def test_a_field_of_another_type_is_refused(route: Route) -> None:
    document = route.web.get("/openapi.json").json()
    wrong = list(wrong_fields(bodies(route.web)[route.label], document["components"]["schemas"]))
    assert len(wrong) >= 3
    for name, value in wrong:
        route.refuses({400, 422}, body={**minimal_body(route.label, route.known), name: value})
    assert route.has_written_nothing()
