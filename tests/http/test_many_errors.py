"""A body with many errors gets the first of them and a count, and costs no more than reading it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rqsched.http.errors import MOST_ERRORS
from rqsched.http.native import requests
from tests.support.web import MINUTELY, SCHEDULES, Web, at, problem

UNKNOWN = {f"k{number}": 1 for number in range(70_000)}
ONCE = {"schedule_id": "x", "once": [1] * 900}
HOSTILE: dict[str, tuple[type[BaseModel], Any]] = {
    "unknown fields": (requests.CreateRequest, UNKNOWN),
    "unknown fields of a part": (requests.CreateRequest, {"retry": UNKNOWN}),
    "labels": (requests.UpdateRequest, {"labels": UNKNOWN}),
    "environments": (requests.UpdateRequest, {"environments": [1] * 400_000}),
    "instants": (requests.UpdateRequest, {"once": [1] * 400_000}),
    "crons": (requests.UpdateRequest, {"cron": [1] * 400_000}),
    "events": (requests.UpdateRequest, {"notifications": {"webhook": "x", "events": [1] * 400_000}}),
    "ids": (requests.BatchDeleteRequest, {"ids": [None] * 150_000}),
    "ids that are kept": (requests.SyncRequest, {"schedules": [], "keep": [1] * 20_000}),
    "declarations": (requests.SyncRequest, {"schedules": [ONCE] * 500}),
    "declarations with unknown fields": (requests.SyncRequest, {"schedules": [{"a": 1, "b": 1}] * 500}),
}


@pytest.mark.parametrize(("model", "body"), HOSTILE.values(), ids=HOSTILE)
def test_a_body_is_refused_before_it_has_many_errors(model: type[BaseModel], body: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() <= 1_001


def test_the_first_errors_are_listed_and_the_others_counted(web: Web) -> None:
    found = problem(web.post(SCHEDULES, UNKNOWN), 422, "invalid_input")
    assert [one["field"] for one in found["errors"]] == list(UNKNOWN)[:MOST_ERRORS]
    assert found["detail"].endswith(f" ({len(UNKNOWN) - MOST_ERRORS} more errors are not listed)")

    found = problem(web.post(SCHEDULES, {"retry": UNKNOWN}), 422, "invalid_input")
    assert found["errors"][0]["field"] == "retry.k0"

    wrong = {"schedules": [{"schedule_id": "x", **MINUTELY, "once": [1] * 50}], "keep": [1] * 30}
    found = problem(web.post("/api/v1/sync/", wrong), 422, "invalid_input")
    assert (len(found["errors"]), found["detail"].partition(" (")[2]) == (20, "31 more errors are not listed)")


def test_few_errors_are_all_listed(web: Web) -> None:
    wrong = {f"unknown{number}": 1 for number in range(MOST_ERRORS - 1)} | {"max_runs": 0}
    found = problem(web("PUT", at(), wrong), 422, "invalid_input")
    assert {one["field"] for one in found["errors"]} == set(wrong)
    assert "not listed" not in found["detail"]


def test_a_long_name_is_not_sent_back_whole(web: Web) -> None:
    assert len(web.post(SCHEDULES, {"x" * 500_000: 1}).content) < 2_000
