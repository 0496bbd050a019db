"""Freeze and thaw on the pages: the banner of every page, the questions and the forms."""

from __future__ import annotations

from tests.support.crowd import copy_run
from tests.support.env import MINUTE, statuses
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb


def test_every_page_says_that_everything_is_frozen_and_one_button_thaws(pages: Pages) -> None:
    schedule = pages.env.create()
    assert "Everything is frozen" not in pages.get("/schedules")
    pages.env.scheduler.freeze("restoring <last> night's backup", everything=True)
    for path in ("/", "/schedules", "/system"):
        assert "restoring &lt;last&gt; night" in pages.get(path)
    assert "Not done: everything is frozen" in pages.do(f"/schedules/{schedule.schedule_id}/do", action="trigger")
    pages.env.advance(3 * MINUTE)
    assert "1 schedule. Their policies say: 1 run to start" in pages.get("/thaw?everything=yes")

    told = pages.do("/thaw", everything="yes", missed="none", reason="the night is back")

    assert "Everything is thawed. 0 occurrences fired, 3 recorded as missed." in told
    assert "No run starts" not in told
    assert statuses(schedule) == []
    assert "everything was frozen" in pages.get(f"/schedules/{schedule.schedule_id}?at=newest")
    audit = pages.get("/audit")
    assert "restoring &lt;last&gt; night" in audit
    assert "the night is back" in audit


def test_question_before_a_thaw_says_of_which_it_lists_only_some(pages: Pages) -> None:
    env = pages.env
    run = present(env.create(overlap="allow_all").trigger().run)
    copy_run(env.runtime, run, 500)
    env.scheduler.freeze("an audit")
    env.advance(MINUTE)
    asked = pages.get("/thaw")
    assert "Due: 1 schedule." in asked
    assert "Waiting to start: 500+ runs." in asked


def test_every_page_of_a_frozen_namespace_says_so_and_one_button_thaws(pages: Pages) -> None:
    schedule = pages.env.create()
    assert "Freeze the namespace default?" in pages.get("/freeze")
    assert 'href="/freeze"' in pages.get("/system")
    assert "The namespace default is frozen." in pages.do("/freeze", reason="the <last> server moves")
    for path in ("/", "/schedules", "/system"):
        assert "the &lt;last&gt; server moves" in pages.get(path)
    assert "No run starts" not in pages.get("/schedules?namespace=tenant")
    assert "Not done: namespace" in pages.do(f"/schedules/{schedule.schedule_id}/do", action="trigger")
    pages.env.advance(3 * MINUTE)
    assert "1 schedule. Their policies say: 1 run to start" in pages.get("/thaw")
    assert ">late</span>" in pages.get("/")

    told = pages.do("/thaw", missed="none", reason="it has moved")

    assert "The namespace default is thawed. 0 occurrences fired, 3 recorded as missed." in told
    assert "No run starts" not in told
    assert statuses(schedule) == []
    assert "the namespace default was frozen" in pages.get(f"/schedules/{schedule.schedule_id}?at=newest")
    audit = pages.get("/audit")
    assert "the &lt;last&gt; server moves" in audit
    assert "it has moved" in audit


def test_viewer_of_one_namespace_thaws_that_and_not_everything(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS)).log_in("tenant")
    pages.env.scheduler.freeze("a restore", everything=True)
    assert "you see only some" in pages.get("/thaw?everything=yes", status=403)
    assert pages.send("/thaw", everything="yes").status_code == 403
    assert [one.reason for one in pages.env.scheduler.frozen()] == ["a restore"]
    pages.do("/freeze", reason="it moves")
    assert "The namespace tenant is thawed." in pages.do("/thaw")
