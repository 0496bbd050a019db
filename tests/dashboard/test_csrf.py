"""A form of another site changes nothing, whichever form it is: only our own pages know what ours carry."""

from __future__ import annotations

import re

import pytest

from rqsched.dashboard.routes import routes
from tests.support.env import ONCE
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb

FORMS = sorted(route.path for route in routes() if "POST" in (route.methods or ()))
FIELDS = {
    "action": "delete", "id": "nightly", "reason": "forged", "schedule_id": "forged", "workflow": "note",
    "kind": "interval", "timing": "1m", "timezone": "UTC", "theme": "dark", "to": "/", "since": "2026-01-15T11:00",
}  # fmt: skip


@pytest.fixture
def signed_in(make_web: MakeWeb) -> Pages:
    """An administrator's browser, and a schedule with a run that failed."""
    pages = Pages(make_web(tokens=TOKENS)).log_in("tenant")
    pages.env.fail_next(pages.env.create("nightly", namespace="tenant", retry=ONCE))
    return pages


def state(pages: Pages) -> tuple[object, ...]:
    """Return everything that a form could change about the schedule, and the number of schedules."""
    handle = pages.env.scheduler.get("nightly", namespace="tenant")
    runs = [(run.uid, run.status) for run in handle.runs().items]
    return handle.state.version, handle.status, runs, pages.env.scheduler.count(namespace="tenant")


def address(pages: Pages, path: str) -> str:
    (run, *_) = pages.env.scheduler.get("nightly", namespace="tenant").runs().items
    uid = run.uid if path.startswith("/runs") else "0" * 26
    return path.replace("{schedule_id}", "nightly").replace("{uid}", uid).replace("{sequence}", "1")


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("forged", ["none", "of another browser", "of another site"])
def test_form_of_another_site_is_refused_and_changes_nothing(signed_in: Pages, path: str, forged: str) -> None:
    own = signed_in.get("/schedules/nightly")
    (value,) = {*re.findall(r'name="csrf" value="([^"]*)"', own)}
    stranger = Pages(signed_in.web)
    stranger.get("/login")
    (of_stranger,) = stranger.csrf
    sent = {"none": "", "of another browser": of_stranger, "of another site": value}[forged]
    if forged == "of another site":
        signed_in.web.headers["sec-fetch-site"] = "cross-site"
    before, cookies = state(signed_in), dict(signed_in.cookies)
    answer = signed_in.send(address(signed_in, path), csrf=sent, namespace="tenant", **FIELDS)
    assert answer.status_code == 403, answer.text
    assert state(signed_in) == before
    assert {name: signed_in.cookies[name] for name in cookies} == cookies


def test_every_form_is_tried() -> None:
    assert len(FORMS) >= 10
    assert {"/bulk", "/runs/{uid}/do", "/schedules/{schedule_id}/do", "/login", "/logout"} <= set(FORMS)
