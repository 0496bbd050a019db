"""Every surface shows a schedule whose timing only a newer release knows, and none changes it."""

from __future__ import annotations

from rqsched.kernel.decide.payload import dumps, loads
from tests.support.damage import set_columns
from tests.support.env import DAY, Env
from tests.support.pages import Pages

KEY = "of a newer release (spec: unknown key 'moon')"


def create(env: Env) -> None:
    handle = env.create(spec="0 9 * * *", description="the report")
    set_columns(env, handle, spec=dumps(loads(env.state(handle).definition.spec) | {"moon": "full"}))
    handle.trigger()


def test_http_shows_it_and_answers_409_to_a_change(pages: Pages) -> None:
    create(pages.env)
    web = pages.web
    name = pages.env.scheduler.list().items[0].schedule_id
    path = f"/api/v1/schedules/{name}"
    assert KEY in web.get(path).json()["timing"]
    assert web.get(path).json()["spec"]["moon"] == "full"
    listed_at = "/api/v1/schedules/", "/api/schedules", "/ojs/v1/cron", f"/ojs/v1/cron/{name}", f"{path}/upcoming/"
    for listed in listed_at:
        answer = web.get(listed, headers={"X-Durable-Workflow-Control-Plane-Version": "2"})
        assert answer.status_code == 200, (listed, answer.text)
    for body in ({"labels": {"team": "a"}}, {"cron": "0 3 * * *"}, {"spec": {"cron_expressions": ["0 3 * * *"]}}):
        refused = web("PATCH", path, body)
        assert (refused.status_code, refused.json()["code"]) == (409, "newer_release"), refused.text


def test_pages_show_it_and_its_form_says_why_it_is_not_saved(pages: Pages) -> None:
    create(pages.env)
    name = pages.env.scheduler.list().items[0].schedule_id
    pages.env.advance(DAY)
    for path in ("/", "/schedules", "/timeline", f"/schedules/{name}", f"/schedules/{name}/edit"):
        assert name in pages.get(path), path
    assert "of a newer release" in pages.get("/schedules")
    assert "whose processes fire it" in pages.get(f"/schedules/{name}")
    answer = pages.send(f"/schedules/{name}/edit", kind="keep", workflow="note", description="another")
    assert answer.status_code == 422
    assert "Ask a process of the newer release" in answer.text
