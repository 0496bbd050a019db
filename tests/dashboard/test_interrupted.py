"""A form whose session has ended is kept through the login, and an unknown path is a page."""

from __future__ import annotations

import pytest

from rqsched.http.limits import Limits
from tests.support.env import HOUR
from tests.support.pages import TOKENS, Pages, fields_of
from tests.support.web import MakeWeb

TYPED = {
    "schedule_id": "report", "workflow": "note", "kind": "cron", "timing": "0 2 * * *", "timezone": "UTC",
    "description": "a long story & more", "labels": "team:a\r\nregion:eu", "namespace": "tenant",
}  # fmt: skip


@pytest.fixture
def guarded(make_web: MakeWeb) -> Pages:
    return Pages(make_web(tokens=TOKENS))


def send_on(pages: Pages, page: str, path: str, **more: str) -> str:
    """Send the form of a page that is sent to a path, and return the page of the answer."""
    fields = fields_of(page, path)
    answer = pages.send(path, **{**fields, **more})
    assert answer.status_code in {200, 303}, answer.text
    return answer.text


def log_in_again(pages: Pages, page: str, name: str) -> str:
    return send_on(pages, page, "/login", token=f"{name}-secret-0123456789")


def test_form_that_was_sent_without_a_session_is_shown_again_filled_in_after_the_login(guarded: Pages) -> None:
    admin = guarded.log_in("tenant")
    typed = {**fields_of(admin.get("/schedules/new"), "/schedules"), **TYPED}
    admin.env.clock.advance(12 * HOUR)

    interrupted = admin.send("/schedules", **typed)
    assert interrupted.status_code == 401
    assert "what you typed is kept" in interrupted.text
    wrong = admin.send("/login", **{**fields_of(interrupted.text, "/login"), "token": "wrong"})
    assert wrong.status_code == 401
    back = log_in_again(admin, wrong.text, "tenant")
    assert "nothing was done yet" in back
    shown = send_on(admin, back, "/schedules")

    assert "Your session had ended before this was done" in shown
    assert fields_of(shown, "/schedules").items() >= {**TYPED, "labels": "team:a\nregion:eu"}.items()
    assert admin.env.scheduler.count(namespace="tenant") == 0
    send_on(admin, shown, "/schedules")
    assert admin.env.scheduler.get("report", namespace="tenant").labels == {"team": "a", "region": "eu"}


def test_action_that_was_confirmed_without_a_session_is_asked_again_after_the_login(guarded: Pages) -> None:
    handle = guarded.env.create("nightly")
    operator = guarded.log_in("operator")
    operator.get("/schedules/nightly")
    operator.get("/schedules/nightly/confirm?action=pause")
    operator.env.clock.advance(12 * HOUR)
    path = "/schedules/nightly/do"

    filled = {"action": "pause", "reason": "the bank is closed", "until": "2026-02-01T10:00", "on_resume": "once"}
    interrupted = operator.send(path, **filled)
    shown = send_on(operator, log_in_again(operator, interrupted.text, "operator"), path)

    assert fields_of(shown, path).items() >= filled.items()
    assert handle.refresh().status == "active"
    send_on(operator, shown, path)
    assert (handle.refresh().status, handle.history()[-1].payload["reason"]) == ("paused", "the bank is closed")


def test_button_without_a_form_of_its_own_is_listed_and_asked_again_after_the_login(guarded: Pages) -> None:
    guarded.env.create("nightly", limit="shop", limit_running=5)
    operator = guarded.log_in("operator")
    operator.get("/limits")
    operator.env.clock.advance(12 * HOUR)

    interrupted = operator.send("/limits", name="shop", number="2", reason="too slow")
    shown = send_on(operator, log_in_again(operator, interrupted.text, "operator"), "/limits")

    assert "<dt>Number</dt><dd><bdi>2</bdi></dd>" in shown
    assert [one.number for one in operator.env.scheduler.limits.list().items] == [5]
    send_on(operator, shown, "/limits")
    assert [one.number for one in operator.env.scheduler.limits.list().items] == [2]


def test_who_logs_in_must_have_the_role_of_the_kept_form(guarded: Pages) -> None:
    admin = guarded.log_in("tenant")
    admin.get("/schedules/new")
    admin.env.clock.advance(12 * HOUR)
    interrupted = admin.send("/schedules", **{**TYPED, "namespace": "default"})
    back = log_in_again(admin, interrupted.text, "reader")
    assert admin.send("/schedules", **fields_of(back, "/schedules")).status_code == 403


def test_form_of_another_site_is_not_kept_and_a_foreign_target_is_ignored(guarded: Pages) -> None:
    admin = guarded.log_in("tenant")
    admin.get("/schedules/new")
    admin.env.clock.advance(12 * HOUR)
    forged = admin.send("/schedules", csrf="0" * 64, **TYPED)
    assert (forged.status_code, forged.headers["location"]) == (303, "/login?to=%2Fschedules")
    forged = admin.send("/bulk", csrf="0" * 64, action="pause")
    assert (forged.status_code, forged.headers["location"]) == (303, "/login?to=%2F")

    interrupted = admin.send("/schedules", **TYPED)
    for target in ("//evil.example/x", "https://evil.example/", "/\\evil.example"):
        fields = {**fields_of(interrupted.text, "/login"), "to": target, "token": "tenant-secret-0123456789"}
        assert "evil" not in admin.send("/login", **fields).text


def test_form_that_is_too_long_to_be_kept_says_so(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS, app={"limits": Limits(stranger_bytes=5_000)})).log_in("tenant")
    pages.get("/schedules/new")
    pages.env.clock.advance(12 * HOUR)
    kept = pages.send("/schedules", **{**TYPED, "description": "x" * 2_000})
    assert "kept" in fields_of(kept.text, "/login")
    longer = pages.send("/schedules", **{**TYPED, "description": "x" * 4_000})
    assert "too long to be kept here" in longer.text
    assert "kept" not in fields_of(longer.text, "/login")


def test_form_that_is_too_long_to_be_read_leads_to_the_login(guarded: Pages) -> None:
    admin = guarded.log_in("tenant")
    typed = {**fields_of(admin.get("/schedules/new"), "/schedules"), **TYPED, "args": "x" * 20_000}
    assert admin.send("/schedules", **typed).status_code == 422
    admin.env.clock.advance(12 * HOUR)
    refused = admin.send("/schedules", **typed)
    assert (refused.status_code, refused.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "too long to be kept here" in refused.text
    assert send_on(admin, refused.text, "/login", token="tenant-secret-0123456789") == ""

    immense = admin.send("/schedules", **{**typed, "args": "x" * 2**20})
    assert (immense.status_code, immense.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "exceeds 1048576 bytes" in immense.text


def test_unknown_path_and_method_are_pages_with_the_menu_for_a_viewer_who_is_known(guarded: Pages) -> None:
    stranger, reader = guarded, Pages(guarded.web).log_in("reader")
    for path, status, told in (("/nope", 404, "No page has this address"), ("/bulk", 405, "shows no page")):
        known, unknown = reader.get(path, status=status), stranger.get(path, status=status)
        assert (told in known, told in unknown) == (True, True)
        assert ('aria-label="Pages"' in known, 'aria-label="Pages"' in unknown) == (True, False)
    answer = guarded.web.get("/bulk")
    assert (answer.headers["allow"], answer.headers["content-type"]) == ("POST", "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/api/v1/nope", "/api/nope", "/ojs/nope", "/ojs/v1/cron/a/b/c"])
def test_unknown_path_of_an_api_is_json(guarded: Pages, path: str) -> None:
    answer = guarded.web.get(path)
    assert answer.status_code == 404
    assert "json" in answer.headers["content-type"]


def test_page_of_an_object_that_does_not_exist_has_the_menu(pages: Pages) -> None:
    assert 'aria-label="Pages"' in pages.get("/schedules/nope", status=404)
