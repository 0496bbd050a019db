"""The search of the header without its script: results, and the limits of the viewer's role."""

from __future__ import annotations

import re

import pytest

from rqsched.kernel.queries.schedules import MOST_LOOKED_AT
from tests.support.crowd import copy_schedule
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb


def found(pages: Pages, query: str) -> list[str]:
    """Return the results in the order of the page."""
    (listed,) = re.findall(r'<ul class="lines stacked" id="found">(.*?)</ul>', pages.get(f"/find?{query}"), re.DOTALL)
    return [re.sub(r"<[^>]*>", "", line).strip() for line in re.findall(r"<li>(.*?)</li>", listed)]


@pytest.mark.every_database
def test_ids_that_begin_so_come_first_with_what_may_be_done_to_them(any_pages: Pages) -> None:
    for name in ("fortnight", "night-a", "night-b"):
        any_pages.env.create(name)
    any_pages.env.scheduler.get("night-a").pause()
    assert found(any_pages, "q=night") == [
        "night-a", "Run now night-a", "Resume night-a", "Backfill night-a", "Delete night-a",
        "night-b", "Run now night-b", "Pause night-b", "Skip next night-b", "Backfill night-b", "Delete night-b",
        "fortnight", "Run now fortnight", "Pause fortnight", "Skip next fortnight", "Backfill fortnight",
        "Delete fortnight",
    ]  # fmt: skip


def test_action_that_is_typed_before_an_id_is_found_where_it_may_be_done(pages: Pages) -> None:
    for name in ("night-a", "night-b"):
        pages.env.create(name)
    pages.env.scheduler.get("night-a").pause()
    assert found(pages, "q=pause+night") == ["Pause night-b"]
    assert found(pages, "q=run+now+night-b") == found(pages, "q=Run+night-b") == ["Run now night-b"]
    assert found(pages, "q=re+night-a") == ["Resume night-a"]
    assert "/schedules/night-b/confirm?action=pause" in pages.get("/find?q=pause+night-b")
    assert "has this text in its id" in pages.get("/find?q=dance+night")


def test_pages_are_found_by_a_part_of_their_names(pages: Pages) -> None:
    assert found(pages, "q=time") == ["Timeline"]
    assert found(pages, "q=NEW") == ["New schedule"]
    assert found(pages, "") == [
        "Overview", "Schedules", "Calendars", "Runs", "Timeline", "Workers", "Audit", "Limits", "New schedule",
        "Stop a namespace", "Retry failed runs",
    ]  # fmt: skip


def test_stop_of_a_namespace_is_a_page_that_is_found_and_nothing_is_done(pages: Pages) -> None:
    run = pages.env.create("stops").trigger().run
    assert found(pages, "q=stop+a") == ["Stop a namespace"]
    assert '<li><a class="id" href="/namespace/stop">' in pages.get("/find?q=stop")
    assert "data-dialog" not in pages.get("/find?q=stop+a").partition('id="found"')[2].partition("</ul>")[0]
    pages.get("/namespace/stop")
    assert present(run).refresh().status == "pending"
    assert pages.env.scheduler.frozen() == []


def test_whole_id_leads_to_its_schedule_and_a_script_is_shown_the_list(pages: Pages) -> None:
    pages.env.create("night")
    pages.env.create("night-2")
    assert pages.led_to("/find?q=night") == "/schedules/night"
    assert pages.web.get("/find?q=night", headers={"x-live": "1"}).status_code == 200
    assert '<form method="get" action="/find" class="find" role="search"' in pages.get("/schedules/night")


def test_viewer_finds_nothing_of_other_namespaces_and_no_action_that_is_refused(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    web.env.create("night-ours")
    web.env.create("night-theirs", namespace="tenant")
    tenant, reader, operator = (Pages(web).log_in(name) for name in ("tenant", "reader", "operator"))
    assert found(tenant, "q=night")[0] == "night-theirs"
    assert "night-ours" not in tenant.get("/find?q=night")
    assert tenant.get("/find?q=night&namespace=default", status=404)
    assert found(reader, "q=night-o") == ["night-ours"]
    assert found(reader, "q=ne") == ["Timeline"]
    assert found(operator, "q=night-o") == [
        "night-ours",
        "Run now night-ours",
        "Pause night-ours",
        "Skip next night-ours",
        "Backfill night-ours",
    ]
    assert 'name="namespace" value="tenant"' in tenant.get("/find?q=night")


def test_what_begins_so_is_found_behind_more_schedules_than_are_looked_at(pages: Pages) -> None:
    crowd = pages.env.create("among-many")
    copy_schedule(pages.env.runtime, crowd, MOST_LOOKED_AT)
    pages.env.create("zebra")
    assert found(pages, "q=zeb")[0] == "zebra"
    assert f"among the first {MOST_LOOKED_AT}" in pages.get("/find?q=bra")
    assert "/schedules?q=bra" in pages.get("/find?q=bra")


def test_what_is_typed_is_never_markup(pages: Pages) -> None:
    assert "<script>alert" not in pages.get("/find?q=<script>alert(1)</script>")


def test_row_says_which_keys_ask_for_what_to_who_may_do_it(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    web.env.create("active")
    web.env.create("paused").pause()
    operator, reader = Pages(web).log_in("operator").get("/schedules"), Pages(web).log_in("reader").get("/schedules")
    assert re.findall(r'data-keys="([^"]*)"', operator) == ["r=trigger&amp;p=pause&amp;", "r=trigger&amp;p=resume&amp;"]
    assert set(re.findall(r'data-keys="([^"]*)"', reader)) == {""}
