"""The page of the runs of all schedules: filters, pages, and the view of one namespace."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rqsched.kernel.queries.run_pages import MOST_LOOKED_AT
from tests.support.crowd import copy_run
from tests.support.env import DAY, HOUR, MINUTE, ONCE, SECOND
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb


def listed(page: str) -> list[str]:
    """The schedules of the runs that a page lists, in its order."""
    return re.findall(r'<td class="of"><a class="id" href="[^"]*">([^<]*)</a>', page)


def fail(pages: Pages, schedule_id: str, error: str, **options: Any) -> None:
    """A run of a schedule, which may be there, fails with this text."""

    def workflow() -> None:
        raise ValueError(error)

    pages.env.register("fails", workflow)
    handle, _ = pages.env.scheduler.upsert(schedule_id, "fails", DAY, retry=ONCE, **options)
    present(handle.trigger().run)
    pages.env.execute_pending()


@pytest.mark.every_database
def test_runs_of_all_schedules_are_listed_by_each_filter(any_pages: Pages) -> None:
    env = any_pages.env
    fail(any_pages, "crm", "no customer 7")
    env.advance(2 * HOUR)
    fail(any_pages, "mail", "550 no such mailbox")
    env.advance(SECOND)
    env.create("waits").trigger()
    assert listed(any_pages.get("/runs")) == ["waits", "mail", "crm"]
    found = {
        "status=failures": ["mail", "crm"],
        "status=lost": [],
        "status=pending": ["waits"],
        "q=NO+customer": ["crm"],
        "q=no&status=failures&within=1h": ["mail"],
        "within=1h": ["waits", "mail"],
        "schedule=crm": ["crm"],
        "schedule=crm&status=pending": [],
        "workflow=note": ["waits"],
        "since=2026-01-15T14:00&until=2026-01-15T15:00": ["waits", "mail"],
        "until=2026-01-15T14:00": ["crm"],
    }
    assert {query: listed(any_pages.get(f"/runs?{query}")) for query in found} == found
    assert "No run matches." in any_pages.get("/runs?status=lost")


def test_an_empty_list_of_runs_says_so(pages: Pages) -> None:
    assert "No runs are stored." in pages.get("/runs")


def test_runs_come_in_pages_that_keep_the_filters(pages: Pages) -> None:
    handle = pages.env.create("often", overlap="allow_all")
    for _ in range(60):
        pages.env.advance(MINUTE)
        handle.trigger()
    first = pages.get("/runs?status=pending&schedule=often")
    (following,) = re.findall(r'rel="next" href="([^"]*)"', first)
    second = pages.get(following.replace("&amp;", "&"))
    assert [len(listed(page)) for page in (first, second)] == [50, 10]
    assert 'value="often"' in second
    assert len({*re.findall(r"/runs/(\w{26})", first + second)}) == 60


def test_search_that_found_nothing_yet_offers_to_go_on(pages: Pages) -> None:
    env = pages.env
    env.run_next(env.create("first"))
    env.advance(HOUR)
    many = env.create("often", overlap="allow_all")
    copy_run(env.runtime, present(many.trigger().run), 2 * MOST_LOOKED_AT)
    query, seen = "/runs?workflow=note&status=succeeded", list[list[str]]()
    while query:
        shown = pages.get(query)
        assert ("No match yet among" in shown) == ("data-search-on" in shown)
        seen.append(listed(shown))
        query = "".join(re.findall(r'data-search-on href="([^"]*)"', shown)).replace("&amp;", "&")
    assert seen == [[], [], ["first"]]


@pytest.mark.parametrize(
    "query", ["status=x", "within=2h", "since=yesterday", "until=x", "after=x", "status=failures&after=x"]
)
def test_a_refused_parameter_says_what_to_write(pages: Pages, query: str) -> None:
    assert "That cannot be read" in pages.get(f"/runs?{query}", status=422)


def test_a_viewer_of_one_namespace_finds_its_runs_alone(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS)).log_in("tenant")
    fail(pages, "secret-plan", "the secret of others")
    fail(pages, "mine", "the secret of mine", namespace="tenant")
    for query in ("", "?q=secret", "?status=failures", "?schedule=secret-plan", "?schedule=mine", "?within=24h"):
        shown = pages.get(f"/runs{query}")
        assert set(listed(shown)) <= {"mine"}, query
        assert "of others" not in shown
    assert listed(pages.get("/runs?q=secret")) == ["mine"]
    pages.get("/runs?namespace=default", status=404)


def test_a_viewer_of_all_namespaces_chooses_one(pages: Pages) -> None:
    pages.env.create("mine", namespace="tenant").trigger()
    pages.env.create("ours").trigger()
    assert "<option >tenant</option>" in pages.get("/runs").replace("selected", "")
    assert listed(pages.get("/runs?namespace=tenant")) == ["mine"]


def test_times_are_read_by_the_clock_of_the_viewer(pages: Pages) -> None:
    pages.env.create("nightly").trigger()  # at 12:00 UTC
    pages.cookies["rqsched_zone"] = "Asia%2FTokyo"
    shown = pages.get("/runs?since=2026-01-15T20:59")
    assert listed(shown) == ["nightly"]
    assert 'name="since" value="2026-01-15T20:59"' in shown
    assert listed(pages.get("/runs?since=2026-01-15T21:01")) == []
    pages.env.advance(DAY)
    assert listed(pages.get("/runs?within=6h")) == []
