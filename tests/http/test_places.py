"""`H` over HTTP: the native surface takes it, Open Job Spec and Durable Workflow refuse it and show numbers."""

from __future__ import annotations

from rqsched import Spec
from tests.support.openjobspec import Ojs
from tests.support.population import ACTION, HEADERS
from tests.support.web import SCHEDULES, Web, at


def test_http_takes_h_and_a_spec_that_is_sent_again_under_another_id_gets_another_place(web: Web) -> None:
    made = web.post(SCHEDULES, {"schedule_id": "a", "workflow": "note", "cron": "H H * * *"}).json()
    numbers = Spec("H H * * *").placed_for("default", "a").primary_cron
    assert made["spec"]["crons"] == [{"expression": numbers, "written": "H H * * *"}]
    again = web("PUT", at("a"), {"workflow": "note", "spec": made["spec"]})
    assert (again.status_code, again.json()["version"]) == (200, made["version"])
    other = web("PUT", at("b"), {"workflow": "note", "spec": made["spec"]}).json()
    assert other["spec"]["crons"][0]["expression"] == Spec("H H * * *").placed_for("default", "b").primary_cron
    assert web("PATCH", at("a"), {"timezone": "Europe/Berlin"}).json()["spec"]["crons"][0]["written"] == "H H * * *"


def test_open_job_spec_refuses_h_and_shows_the_numbers_of_others(web: Web) -> None:
    ojs = Ojs(web)
    refused = ojs.register(cron="H * * * *")
    assert (refused.status_code, "H is refused here" in refused.text) == (400, True)
    handle = web.env.create("daily-report", "H * * * *")
    assert ojs("GET", "/ojs/v1/cron/daily-report").json()["cron"]["cron"] == handle.spec.primary_cron
    assert "H is refused here" in ojs.patch({"cron": "H 2 * * *"}).text
    assert web.env.scheduler.get("daily-report").spec == handle.spec


def test_durable_workflow_refuses_h_and_shows_the_numbers_of_others(web: Web) -> None:
    body = {"schedule_id": "a", **ACTION, "spec": {"cron_expressions": ["H * * * *"]}}
    refused = web.post("/api/schedules", body, headers=HEADERS)
    assert (refused.status_code, "H is refused here" in refused.text) == (422, True)
    handle = web.env.create("a", "H * * * *")
    shown = web.get("/api/schedules/a", headers=HEADERS).json()
    assert shown["spec"]["cron_expressions"] == [handle.spec.primary_cron]
