"""The OpenAPI document as other programs read it: plain names, examples that its schemas allow, and codes of errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from rqsched.http.examples import VALUES
from tests.support.population import documented_operations
from tests.support.web import Web, require_documented


@pytest.fixture
def document(web: Web) -> dict[str, Any]:
    found: dict[str, Any] = web.get("/openapi.json").json()
    return found


def repeated(names: list[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def test_names_of_schemas_are_plain_and_none_stands_for_two(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert len(schemas) > 100
    assert [name for name in schemas if not re.fullmatch("[A-Za-z]+", name)] == []
    assert repeated([schema["title"] for schema in schemas.values()]) == []


def test_each_operation_has_an_id_of_its_own_and_a_summary(web: Web) -> None:
    operations = documented_operations(web)
    ids = [operation["operationId"] for operation in operations.values()]
    assert repeated(ids) == []
    assert [one for one in ids if not re.fullmatch("[a-z]+(_[a-z]+)*", one)] == []
    assert [label for label, operation in operations.items() if not operation["summary"]] == []


def bodies(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the content of the body of the request, and of each answer that is no error."""
    for one in (operation.get("requestBody", {}), *(operation["responses"][s] for s in successes(operation))):
        yield from one.get("content", {}).values()


def successes(operation: dict[str, Any]) -> list[str]:
    return [status for status in operation["responses"] if status < "300"]


def test_each_body_has_an_example_that_its_schema_allows(web: Web, document: dict[str, Any]) -> None:
    found = 0
    for label, operation in documented_operations(web).items():
        for content in bodies(operation):
            jsonschema_rs.validate(content["schema"] | {"components": document["components"]}, content["example"])
            assert content["example"] not in ({}, None), label
            found += 1
    assert found > 100


def test_values_of_examples_are_those_of_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    fields = {name for schema in schemas.values() for name in schema.get("properties", {})}
    of_schemas = {f"{owner}.{name}" for owner, schema in schemas.items() for name in schema.get("properties", {})}
    assert VALUES.keys() - fields - of_schemas - schemas.keys() == set()


def test_each_error_of_an_operation_lists_its_codes(web: Web) -> None:
    for label, operation in documented_operations(web).items():
        errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert {"400", "413"} <= errors.keys(), label
        for status, answer in errors.items():
            codes = answer.get("x-error-codes") or ["unavailable"] * (label == "GET /readyz")
            assert codes, (label, status)
            assert repeated(codes) == [], (label, status)


def test_error_without_its_code_in_the_document_fails_a_test(web: Web) -> None:
    web.create()
    answers = web.app.openapi()["paths"]["/api/v1/schedules/{schedule_id}/"]["get"]["responses"]
    assert answers["404"]["x-error-codes"] == ["namespace_not_found", "schedule_not_found"]
    assert web.get("/api/v1/schedules/nope/").status_code == 404
    refused = httpx.Response(
        404, json={"code": "lost"}, request=httpx.Request("GET", "http://x/api/v1/schedules/nope/")
    )
    with pytest.raises(AssertionError, match="lost"):
        require_documented(web.app, refused)
