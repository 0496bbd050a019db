"""The pages of calendars: which there are, a year of one, and the form that changes it, for those who may."""

from __future__ import annotations

from datetime import date

import pytest
import sqlalchemy as sa

from rqsched import Cron
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.store import tables
from tests.support.env import DAY
from tests.support.pages import TOKENS, Pages, fields_of
from tests.support.web import MakeWeb

HOSTILE = "<script>alert(1)</script>\u202e\x1b\"'&"


def refused(pages: Pages, path: str, form: dict[str, str]) -> str:
    answer = pages.send(path, **form)
    assert answer.status_code == 422, answer.text
    return answer.text


def test_list_says_what_each_is_for_until_when_it_reaches_and_how_many_name_it(pages: Pages) -> None:
    assert "No calendars yet" in pages.get("/calendars")
    pages.env.scheduler.calendars.set(
        "holidays", ["2026-01-16"], description=HOSTILE, reaches=date(2026, 12, 31), context=CommandContext(HOSTILE)
    )
    pages.env.scheduler.calendars.set("public", ["Sun"], shared=True)
    pages.env.create("nightly", Cron("0 9 * * *"), exclude=["holidays", "public"])

    page = pages.get("/calendars")

    assert page.index(">holidays</a>") < page.index(">public</a>")
    assert ("2026-12-31" in page, "1 schedule\n" in page or "1 schedule<" in page) == (True, True)
    assert "shared by all namespaces" in page
    assert not {"<script>alert", "\u202e", "\x1b"} & {one for one in ("<script>alert", "\u202e", "\x1b") if one in page}
    assert 'href="/calendars"' in pages.get("/schedules")


def test_one_is_shown_as_a_year_with_who_names_and_who_changed_it(pages: Pages) -> None:
    pages.env.scheduler.calendars.set(
        "holidays", ["2026-01-16", "Sun 00:00-12:00"], context=CommandContext(HOSTILE, reason=HOSTILE)
    )
    pages.env.create("nightly", Cron("0 9 * * *"), exclude=["holidays"])

    page = pages.get("/calendars/holidays")

    assert 'title="2026-01-16: excluded"' in page
    assert 'title="2026-01-18: a part is excluded"' in page
    assert page.count("a part is excluded</span>") == 52
    assert 'href="/schedules/nightly"' in page
    assert "added 2026-01-16, Sun 00:00-12:00" in page
    assert not [one for one in ("<script>alert", "\u202e", "\x1b") if one in page]
    assert "2025-01-16: excluded" not in pages.get("/calendars/holidays?year=2025")
    assert "The days of 2026" in pages.get("/calendars/holidays?year=99999")
    pages.get("/calendars/nothing", status=404)
    pages.get("/calendars/a%0Ab", status=404)


def test_form_creates_changes_and_deletes_one_and_shows_again_what_it_refuses(pages: Pages) -> None:
    pages.get("/calendars")
    pages.do("/calendars", name="holidays", exclude="2026-01-16\n\nSat, Sun\n", reaches="2026-12-31")
    calendar = pages.env.scheduler.calendars.get("holidays")
    assert (calendar.exclude, calendar.reaches) == (("2026-01-16", "Sat, Sun"), date(2026, 12, 31))
    schedule = pages.env.create("nightly", Cron("0 9 * * *"), exclude=["holidays"])
    first = schedule.next_run_at
    assert first is not None

    pages.get("/calendars/holidays")
    form = {"name": "holidays", "exclude": "2026-01-16", "revision": "1", "reason": "open on Saturdays"}
    pages.do("/calendars", **form)

    assert schedule.refresh().next_run_at == first - 2 * DAY
    history = pages.env.scheduler.calendars.history(calendar)
    assert history[0]["reason"] == "open on Saturdays"
    told = refused(pages, "/calendars", {**form, "revision": "2", "exclude": "25.12."})
    assert "is not a date, a range" in told
    assert ">25.12.</textarea>" in told
    refused(pages, "/calendars", {"name": "Sat", "exclude": ""})
    assert pages.env.scheduler.calendars.get("holidays").exclude == ("2026-01-16",)
    assert "is named by nightly" in pages.do("/calendars/holidays/delete", revision="2")
    schedule.delete()
    pages.do("/calendars/holidays/delete", revision="2")
    assert pages.env.scheduler.calendars.list() == []


def test_form_that_is_old_shows_what_others_changed_and_can_be_sent_again(pages: Pages) -> None:
    calendars = pages.env.scheduler.calendars
    calendars.set("holidays", ["2026-01-16"], description="old")
    mine = {**fields_of(pages.get("/calendars/holidays"), "/calendars"), "description": "mine"}
    calendars.set("holidays", ["2026-01-16", "2026-12-25"], description="theirs")

    answer = pages.send("/calendars", **mine)

    assert answer.status_code == 409
    assert ("theirs" in answer.text, "what you typed" in answer.text, "the value of now" in answer.text) == (True,) * 3
    assert calendars.get("holidays").description == "theirs"
    again = fields_of(answer.text, "/calendars")
    assert pages.send("/calendars", **again).status_code == 303
    found = calendars.get("holidays")
    assert (found.description, found.exclude, found.revision) == ("mine", ("2026-01-16", "2026-12-25"), 3)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "edited"])
def test_every_refused_field_is_marked_in_one_answer(pages: Pages, is_new: bool) -> None:
    if not is_new:
        pages.env.scheduler.calendars.set("holidays", ["2026-01-16"])
    wrong = {"exclude": "25.12.", "reaches": "soon", "description": "x" * 5_000}
    told = refused(
        pages, "/calendars", {"name": "Sat", **wrong} if is_new else {"name": "holidays", "revision": "1", **wrong}
    )
    for name in [*wrong, "name"] if is_new else wrong:
        assert f'id="{name}-error"' in told
        assert f'href="#field-{name}"' in told
        assert f'aria-describedby="{name}-error' in told
    assert told.count('aria-invalid="true"') == (4 if is_new else 3)


def test_form_that_a_login_has_interrupted_is_shown_again(pages: Pages) -> None:
    pages.env.scheduler.calendars.set("holidays", ["2026-01-16"])
    typed = {"name": "holidays", "revision": "1", "exclude": "2026-12-25", "description": "typed", "again": "yes"}
    shown = pages.send("/calendars", **typed)
    assert (shown.status_code, fields_of(shown.text, "/calendars")["exclude"]) == (200, "2026-12-25")
    new = pages.send("/calendars", name="other", exclude="Sun", again="yes")
    assert (new.status_code, fields_of(new.text, "/calendars")["name"]) == (200, "other")
    assert [(one.name, one.revision) for one in pages.env.scheduler.calendars.list()] == [("holidays", 1)]


def test_who_may_not_change_one_has_no_form_and_a_tenant_changes_no_shared_one(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    web.env.scheduler.calendars.set("public", ["Sun"], shared=True)
    tenant = Pages(web)
    tenant.log_in("tenant")
    page = tenant.get("/calendars/public?namespace=tenant")
    assert "<textarea" not in page
    form = {"name": "public", "exclude": "", "revision": "1", "namespace": "tenant"}
    assert "shared by all namespaces" in refused(tenant, "/calendars", form)
    reader = Pages(web)
    reader.log_in("reader")
    assert "<textarea" not in reader.get("/calendars")
    assert web.env.scheduler.calendars.get("public").exclude == ("Sun",)


def test_pages_show_a_schedule_whose_calendar_is_gone(pages: Pages) -> None:
    pages.env.scheduler.calendars.set("holidays", ["2026-01-16"])
    pages.env.create("nightly", Cron("0 9 * * *"), exclude=["holidays"])
    pages.env.runtime.database.transact(lambda connection: connection.execute(sa.delete(tables.calendars)))

    pages.get("/")
    for path in ("/schedules", "/schedules/nightly", "/schedules/nightly/edit"):
        assert "nightly" in pages.get(path)
