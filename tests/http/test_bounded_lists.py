"""Lists with filters that no index serves: each request is bounded, and no schedule is missed."""

from __future__ import annotations

import pytest

from rqsched.kernel.queries.schedules import MOST_LOOKED_AT
from tests.support.client import client_of
from tests.support.crowd import copy_schedule
from tests.support.env import SECOND
from tests.support.population import HEADERS
from tests.support.web import SCHEDULES, Web

RARE = ["first", "last"]


@pytest.fixture
def crowd(any_web: Web) -> Web:
    """Two schedules of a rare workflow, and between them more others than one request looks at."""
    env = any_web.env
    env.register("rare", lambda: None)
    env.create("first", workflow="rare", labels={"team": "rare"})
    env.clock.advance(SECOND)
    copy_schedule(env.scheduler.runtime, env.create("model"), 2 * MOST_LOOKED_AT)
    env.clock.advance(SECOND)
    env.create("last", workflow="rare", labels={"team": "rare"})
    return any_web


def test_a_page_over_http_is_short_or_empty_and_leads_on(crowd: Web) -> None:
    found: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        asked = {"workflow": "rare", "limit": 1, "total": True, **({"cursor": cursor} if cursor else {})}
        page = crowd.get(SCHEDULES, params=asked).json()
        found.append([item["schedule_id"] for item in page["items"]])
        assert page["total"] == len(RARE)
        cursor = page["next_cursor"]
    assert found[0] == ["first"]
    assert [] in found
    assert [name for names in found for name in names] == RARE
    client = client_of(crowd)
    assert [one.schedule_id for one in client.iter(labels={"team": "rare"})] == RARE


def test_in_process_a_page_is_as_full_as_there_are_matches(crowd: Web) -> None:
    scheduler = crowd.env.scheduler
    page = scheduler.list(labels={"team": "rare"})
    assert ([one.schedule_id for one in page.items], page.next_cursor) == (RARE, None)
    assert scheduler.list(text="ST", limit=2).next_cursor is None
    first = scheduler.list(text="ST", limit=1, sort="-created")
    rest = scheduler.list(text="ST", limit=1, sort="-created", cursor=first.next_cursor)
    assert [one.schedule_id for one in first.items + rest.items] == RARE[::-1]
    assert [one.schedule_id for one in scheduler.iter(text="ST")] == RARE


def test_a_page_of_the_durable_workflow_surface_is_never_empty_before_the_last(crowd: Web) -> None:
    found: list[list[str]] = []
    token: str | None = ""
    while token is not None:
        asked = {"workflow_type": "rare", "page_size": 1, **({"next_page_token": token} if token else {})}
        page = crowd.get("/api/schedules", params=asked, headers=HEADERS).json()
        found.append([item["schedule_id"] for item in page["schedules"]])
        token = page["next_page_token"]
    assert [] not in found[:-1]
    assert [name for names in found for name in names] == RARE[::-1]
