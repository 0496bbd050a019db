"""A cursor belongs to one list, in one order: the next page of another list refuses it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from rqsched import Every
from rqsched.errors import InvalidLimitError
from rqsched.kernel.queries.pages import bind_cursor, write_cursor
from rqsched.kernel.queries.schedules import SORTS
from tests.support.client import client_of
from tests.support.env import HOUR
from tests.support.pages import Pages
from tests.support.population import HEADERS
from tests.support.rows import every_row
from tests.support.web import SCHEDULES, Web, at, problem


def three_of_each(web: Web) -> None:
    for number in range(3):
        for namespace in ("default", "other"):
            web.env.create(
                f"s{number}",
                spec=Every(HOUR),
                namespace=namespace,
                overlap="allow_all",
                limit=f"g{number}",
                limit_running=1,
            )
    for name in ("s0", "s1"):
        handle = web.env.scheduler.get(name)
        for _ in range(3):
            handle.trigger()


def test_a_cursor_of_another_order_or_namespace_of_schedules_is_refused(web: Web) -> None:
    three_of_each(web)
    orders = [*SORTS]
    cursors = {one: web.get(SCHEDULES, params={"sort": one, "limit": 1}).json()["next_cursor"] for one in orders}
    with every_row() as row:
        for given, cursor in cursors.items():
            for asked in orders:
                with row((given, asked)):
                    answer = web.get(SCHEDULES, params={"sort": asked, "limit": 1, "cursor": cursor})
                    if given == asked:
                        assert len(answer.json()["items"]) == 1
                    else:
                        assert problem(answer, 422, "invalid_limit")["errors"][0]["field"] == "cursor"
                    elsewhere = {"sort": asked, "cursor": cursor, "namespace": "other"}
                    problem(web.get(SCHEDULES, params=elsewhere), 422, "invalid_limit")


def test_a_cursor_of_another_list_is_refused_by_every_list(web: Web) -> None:
    three_of_each(web)
    lists = {
        "schedules": SCHEDULES,
        "schedules by id": f"{SCHEDULES}?sort=id",
        "runs": "/api/v1/runs/",
        "runs backwards": "/api/v1/runs/?sort=created",
        "runs of one found": "/api/v1/runs/?schedule_id=s0",
        "runs of one": at("s0", "runs/"),
        "runs of another": at("s1", "runs/"),
        "history of one": at("s0", "history/"),
        "history of another": at("s1", "history/"),
        "limits": "/api/v1/limits/",
        "limits elsewhere": "/api/v1/limits/?namespace=other",
        "ojs": "/ojs/v1/cron?",
    }

    def read(path: str, **params: Any) -> Any:
        joint = "&" if "?" in path else "?"
        asked = "&".join(f"{name}={value}" for name, value in {"limit": 1, **params}.items())
        return web.get(f"{path}{joint}{asked}", headers=HEADERS)

    cursors = {}
    for name, path in lists.items():
        found = read(path).json()
        cursors[name] = (found.get("pagination") or found)["next_cursor"]
    assert None not in cursors.values()
    with every_row() as row:
        for name, path in lists.items():
            for of, cursor in cursors.items():
                with row((name, of)):
                    same = name == of or {name, of} == {"schedules", "ojs"}
                    assert read(path, cursor=cursor).status_code == (200 if same else 400 if name == "ojs" else 422)


INSTANTS = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00", "now"]


@pytest.mark.parametrize("sort", SORTS)
def test_a_forged_place_in_a_list_is_refused(web: Web, sort: str) -> None:
    uid = web.create()["uid"]
    for place in ["\ud800", "x\x00"] if sort.endswith("id") else INSTANTS:
        cursor = bind_cursor(write_cursor(place, uid), "schedules", "default", sort)
        problem(web.get(SCHEDULES, params={"sort": sort, "cursor": cursor}), 422, "invalid_limit")


@pytest.mark.parametrize("at", INSTANTS)
def test_a_forged_place_in_the_list_of_the_dashboard_is_refused(web: Web, at: str) -> None:
    after = bind_cursor(f"{web.create()['uid']}~{at}", "default", "newest")
    address = f"/schedules?{urlencode({'sort': 'newest', 'after': after})}"
    assert "go back to the first page" in Pages(web).get(address, status=422)


def test_the_python_api_the_client_and_the_pages_refuse_a_cursor_of_another_order(web: Web) -> None:
    three_of_each(web)
    scheduler, client = web.env.scheduler, client_of(web)
    for api in (scheduler, client):
        page = api.list(sort="id", limit=1)
        assert len(api.list(sort="id", limit=1, cursor=page.next_cursor).items) == 1
        with pytest.raises(InvalidLimitError, match="of another list"):
            api.list(sort="-created", limit=1, cursor=page.next_cursor)
    pages = Pages(web)
    assert "of another list" in pages.get(f"/schedules?sort=newest&after={page.next_cursor}", status=422)
    runs = client.get("s0").runs(1)
    assert "of another list" in pages.get(f"/schedules/s1?cursor={runs.next_cursor}", status=422)
    assert "of another list" in pages.get(f"/runs?after={runs.next_cursor}", status=422)
