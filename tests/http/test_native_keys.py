"""Idempotency keys: a create or trigger that is sent again happens once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.support.web import MINUTELY, SCHEDULES, Web, at, problem

pytestmark = pytest.mark.every_database

KEY = {"Idempotency-Key": "order 66"}


def test_the_same_key_and_body_return_the_same_response(any_web: Web) -> None:
    body = {"schedule_id": "report", **MINUTELY, "jitter": 3}
    first, again = (any_web.post(SCHEDULES, body, headers=KEY) for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert len(any_web.get(at(operation="history/")).json()["items"]) == 1


def test_a_name_without_an_id_gets_the_same_id_under_the_same_key(web: Web) -> None:
    first, again = (web.post(SCHEDULES, {"name": "Daily report", **MINUTELY}, headers=KEY) for _ in range(2))
    assert first.json()["uid"] == again.json()["uid"]


@pytest.mark.parametrize(
    "change",
    [{"schedule_id": "other"}, {"interval": "2m"}, {"paused": True}, {"note": "x"}, {"labels": {"a": "b"}}],
    ids=["id", "timing", "paused", "note", "labels"],
)
def test_the_same_key_with_another_body_is_a_conflict(web: Web, change: dict[str, object]) -> None:
    body = {"schedule_id": "report", **MINUTELY}
    web.post(SCHEDULES, body, headers=KEY)
    problem(web.post(SCHEDULES, {**body, **change}, headers=KEY), 409, "idempotency_conflict")
    assert web.get(SCHEDULES, params={"total": "1"}).json()["total"] == 1


def test_a_key_belongs_to_its_namespace(web: Web) -> None:
    web.create()
    web.post(SCHEDULES, {"schedule_id": "a", **MINUTELY}, headers=KEY)
    elsewhere = web.post(SCHEDULES, {"schedule_id": "b", **MINUTELY}, headers={**KEY, "X-Namespace": "elsewhere"})
    assert elsewhere.status_code == 201


def test_a_key_returns_the_same_response_after_the_schedule_was_deleted(web: Web) -> None:
    body = {"schedule_id": "report", **MINUTELY}
    uid = web.post(SCHEDULES, body, headers=KEY).json()["uid"]
    web("DELETE", at())
    again = web.post(SCHEDULES, body, headers=KEY)
    assert (again.status_code, again.json()["uid"], again.json()["status"]) == (201, uid, "active")
    problem(web.get(at()), 404, "schedule_not_found")


def test_a_key_expires_after_a_day_and_after_a_purge(any_web: Web) -> None:
    web, body = any_web, {"schedule_id": "report", **MINUTELY}
    uids = [web.post(SCHEDULES, body, headers=KEY).json()["uid"]]
    web("DELETE", at())
    web.env.advance(timedelta(days=1))
    uids.append(web.post(SCHEDULES, body, headers=KEY).json()["uid"])
    web("DELETE", at(), params={"purge": "1"})
    uids.append(web.post(SCHEDULES, body, headers=KEY).json()["uid"])
    assert len(set(uids)) == 3


def test_a_refused_request_does_not_use_up_its_key(web: Web) -> None:
    problem(web.post(SCHEDULES, {"schedule_id": "report", "workflow": "nope", "interval": "1m"}, headers=KEY), 422,
            "unknown_workflow")  # fmt: skip
    assert web.post(SCHEDULES, {"schedule_id": "report", **MINUTELY}, headers=KEY).status_code == 201


def test_concurrent_requests_with_one_key_create_one_schedule(any_web: Web) -> None:
    body = {"schedule_id": "report", **MINUTELY}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: any_web.post(SCHEDULES, body, headers=KEY), range(16)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["uid"] for answer in answers}) == 1
    assert len(any_web.get(at(operation="history/")).json()["items"]) == 1


def test_a_trigger_with_a_key_starts_one_run(any_web: Web) -> None:
    any_web.create(overlap="allow_all")
    first, again = (any_web.post(at(operation="trigger/"), headers=KEY).json() for _ in range(2))
    assert first["run"]["uid"] == again["run"]["uid"]
    assert (
        any_web.post(at(operation="trigger/"), {"idempotency_key": "order 66"}).json()["run"]["uid"]
        == first["run"]["uid"]
    )
    assert any_web.post(at(operation="trigger/")).json()["run"]["uid"] != first["run"]["uid"]
    problem(any_web.post(at(operation="trigger/"), {"idempotency_key": "x"}, headers=KEY), 422, "invalid_input")
