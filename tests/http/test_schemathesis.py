"""Generated requests against the OpenAPI document: never a 5xx, and every answer as documented.

Bounded, and the same requests each time.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.errors import SchemathesisError
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.population import HEADERS, minimal_body, populate
from tests.support.sizes import sized
from tests.support.web import Web

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
EXAMPLES = sized(3, 8)
"""The number of examples for each operation and mode."""
SURFACES = {"native": "/api/v1/", "open-job-spec": "/ojs/", "durable-workflow": "/api/", "health": "/"}
"""Their prefixes, the most specific first."""
OPERATIONS = {"native": 20, "open-job-spec": 16, "durable-workflow": 12, "health": 3}
"""How many the document has at least; fewer would mean that something hides from these tests."""
REFUSED = {
    "POST /api/v1/schedules/{schedule_id}/restart/": 409,
    "POST /api/v1/schedules/{schedule_id}/runs/{run}/retry/": 409,
    "POST /api/v1/schedules/{schedule_id}/runs/{run}/again/": 409,
    "DELETE /api/v1/namespace/": 409,
}
"""Operations that a running schedule or a namespace that is not frozen refuses, with their status."""
FROM_THE_FIRST = {
    "GET /api/v1/events/stream/": {"since": "2000-01-01T00:00:00Z"},
    "GET /api/v1/schedules/{schedule_id}/history/stream/": {"after": "0"},
    "DELETE /api/v1/namespace/": {"confirm": "default"},
}
"""Parameters that start a stream with existing events, and a parameter that an operation requires."""


def faults_of(case: Any, answer: Any, *more: Any) -> dict[str, str]:
    """Return the faults of an answer, by check."""
    found = {}
    for check in [*CHECKS, *more]:
        try:
            case.validate_response(answer, checks=[check])
        except (AssertionError, BaseExceptionGroup) as error:
            found[f"{case.operation.label}: {check.__name__}"] = str(error)
    return found


def ask(web: Web, operation: Any, mode: GenerationMode) -> dict[str, str]:
    """Send generated requests, and return one example of each fault. Every second request names existing objects."""
    known, numbers, faults = populate(web), count(), dict[str, str]()
    more = [negative_data_rejection] if mode is GenerationMode.NEGATIVE else []

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate], deadline=None, derandomize=True,
              database=None, suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if next(numbers) % 2 == 0:
            case.path_parameters.update({name: known[name] for name in case.path_parameters})
            if isinstance(case.body, dict):
                case.body.update(minimal_body(operation.label, known))
            faults.update(faults_of(case, case.call(headers=HEADERS)))
        else:  # an unchanged negative request must be refused
            faults.update(faults_of(case, case.call(headers=HEADERS), *more))

    try:
        send()
    except (SchemathesisError, Unsatisfiable):  # nothing can be invalid about an operation without parameters
        assert mode is GenerationMode.NEGATIVE
    return faults


def operations_of(web: Web, surface: str) -> list[Any]:
    document = schemathesis.openapi.from_asgi("/openapi.json", web.app)
    found: list[Any] = [one.ok() for one in document.get_all_operations() if isinstance(one, Ok)]
    return [one for one in found if next(s for s, prefix in SURFACES.items() if one.path.startswith(prefix)) == surface]


@pytest.mark.parametrize("surface", SURFACES)
def test_every_operation_succeeds_as_documented(unlimited: Web, surface: str) -> None:
    for operation in operations_of(unlimited, surface):
        known = populate(unlimited)
        names = {name: value for name, value in known.items() if f"{{{name}}}" in operation.path}
        body = (
            {"body": minimal_body(operation.label, known), "media_type": "application/json"} if operation.body else {}
        )
        case = operation.Case(path_parameters=names, query=FROM_THE_FIRST.get(operation.label, {}), **body)
        answer = case.call(headers=HEADERS)
        expected = {REFUSED[operation.label]} if operation.label in REFUSED else {200, 201, 204}
        assert answer.status_code in expected, (operation.label, answer.text)
        assert faults_of(case, answer) == {}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("surface", SURFACES)
def test_responses_to_generated_requests_are_as_documented(unlimited: Web, surface: str, mode: GenerationMode) -> None:
    operations = operations_of(unlimited, surface)
    assert len(operations) >= OPERATIONS[surface]
    assert [faults for operation in operations if (faults := ask(unlimited, operation, mode))] == []
