"""A schedule after another over HTTP, and in the other surfaces: declared, refused, changed and shown."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched import After
from tests.support.client import client_of
from tests.support.durable_workflow import PATH, VERSION, detail
from tests.support.env import MINUTE, ONCE
from tests.support.web import SCHEDULES, Web, at


@pytest.fixture
def nightly(web: Web) -> Any:
    return web.env.create("nightly", retry=ONCE)


def body(**fields: Any) -> dict[str, Any]:
    return {"schedule_id": "report", "workflow": "note", **fields}


@pytest.mark.parametrize("timing", [
    {"after": "nightly", "on": "failure"}, {"spec": {"after": {"schedule": "nightly", "on": "failure"}}},
])  # fmt: skip
@pytest.mark.usefixtures("nightly")
def test_it_is_declared_by_two_fields_or_a_spec(web: Web, timing: dict[str, Any]) -> None:
    answer = web.post(SCHEDULES, body(**timing))
    assert answer.status_code == 201
    shown = answer.json()
    assert shown["spec"] == {"after": {"schedule": "nightly", "on": "failure"}}
    assert (shown["timing_in_words"], shown["next_run_at"]) == ("after each failure of nightly", None)
    assert web.get(at(operation="upcoming/")).json()["items"] == []
    changed = web("PATCH", at(), {"after": "nightly"})
    assert (changed.status_code, changed.json()["timing_in_words"]) == (200, "after each success of nightly")
    assert web("PATCH", at(), {"cron": "0 2 * * *"}).json()["next_run_at"] is not None


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize(("refused", "field"), [
    ({"after": "elsewhere"}, "after"), ({"after": "report"}, "after"), ({"on": "success"}, "after"),
    ({"after": "nightly", "on": "noon"}, "on"), ({"after": "nightly", "cron": "0 2 * * *"}, "after"),
    ({"after": "nightly", "start_at": "2026-02-01T00:00:00Z"}, "start_at"),
    ({"after": "nightly", "exclude": "Sat"}, "exclude"), ({"after": "nightly", "jitter": "30s"}, "jitter"),
    ({"spec": {"after": "nightly"}}, "after"), ({"spec": {"after": {"schedule": 7}}}, "after"),
])  # fmt: skip
def test_what_is_refused_is_named(web: Web, refused: dict[str, Any], field: str) -> None:
    answer = web.post(SCHEDULES, body(**refused))
    assert answer.status_code == 422, answer.text
    assert field in answer.text


def test_a_run_says_what_it_came_after_and_the_client_shows_it(web: Web, nightly: Any) -> None:
    client = client_of(web)
    made = client.create("report", "note", After("nightly"))
    upstream = web.env.run_next(nightly)
    (run,) = made.runs().items
    assert (run.kind, run.upstream_run_uid, run.upstream_schedule_id) == ("after", upstream.uid, "nightly")
    assert web.get(at(operation="why/")).json()["answer"] in {"ran", "waits"}
    nightly.delete()
    assert web.get(at()).json()["warnings"] == ["it comes after nightly, which is not there any more"]


def test_durable_workflow_shows_it_and_cannot_make_it(control_plane: Web) -> None:
    env = control_plane.env
    nightly = env.create("nightly", retry=ONCE)
    env.create("invoices", After("nightly"))
    env.run_next(nightly)
    shown = detail(control_plane)
    assert (shown["spec"]["cron_expressions"], shown["next_fire"]) == ([], None)
    given = {"schedule_id": "x", "spec": {"after": {"schedule": "nightly"}}, "action": {"workflow_type": "note"}}
    refused = control_plane.post(PATH, given, headers=VERSION)
    assert refused.status_code == 422


def test_open_job_spec_lists_it(web: Web, nightly: Any) -> None:
    web.env.create("report", After("nightly"))
    web.env.run_next(nightly, MINUTE)
    listed = {one["name"]: one for one in web.get("/ojs/v1/cron").json()["crons"]}
    assert listed["report"]["x_specs"] == {"after": {"schedule": "nightly", "on": "success"}}
