"""Lists in an order, and of a span of time: over HTTP, by the client and in process."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from rqsched.errors import InvalidInputError
from tests.support.client import client_of
from tests.support.env import ONCE, SECOND
from tests.support.web import SCHEDULES, Web, at, problem

RUNS = "/api/v1/runs/"


@pytest.fixture
def three(any_web: Web) -> Web:
    """c, a and b, created in this order; a fires first, then c; b is paused."""
    for name, interval in (("c", "2h"), ("a", "1h"), ("b", "3h")):
        any_web.create(name, interval=interval)
        any_web.env.clock.advance(SECOND)
    any_web.post(at("b", "pause/"))
    return any_web


def ids(web: Web, path: str = SCHEDULES, **params: Any) -> str:
    """The ids of all pages of two."""
    found, cursor = "", None
    while True:
        page = web.get(path, params={"limit": 2, **params, **({"cursor": cursor} if cursor else {})}).json()
        found += "".join(item["schedule_id"] for item in page["items"])
        if (cursor := page["next_cursor"]) is None:
            return found


def test_a_list_has_the_order_that_is_asked_for(three: Web) -> None:
    orders = {"created": "cab", "-created": "bac", "next": "ac", "-next": "ca", "id": "abc", "-id": "cba"}
    assert {sort: ids(three, sort=sort) for sort in orders} == orders
    client = client_of(three)
    assert {sort: "".join(one.schedule_id for one in client.iter(sort=sort)) for sort in orders} == orders
    near = {sort: "".join(one.schedule_id for one in three.env.scheduler.list(sort=sort).items) for sort in orders}
    assert near == orders
    problem(three.get(SCHEDULES, params={"sort": "name"}), 422, "invalid_input")
    with pytest.raises(InvalidInputError):
        three.env.scheduler.list(sort="name")


def test_a_list_shows_how_the_newest_run_ended(any_web: Web) -> None:
    env = any_web.env
    for name, is_failing in (("fine", False), ("broken", True), ("recovered", True), ("waiting", False)):
        env.create(name, retry=ONCE)
        env.advance(SECOND)
        env.failing = is_failing
        if name != "waiting":
            env.scheduler.get(name).trigger()
            env.execute_pending()
    env.failing = False
    env.scheduler.get("recovered").trigger()
    env.execute_pending()
    expected = {"succeeded": ["fine", "recovered"], "failed": ["broken"], "lost": []}
    client = client_of(any_web)
    for outcome, names in expected.items():
        over_http = any_web.get(SCHEDULES, params={"outcome": outcome}).json()["items"]
        assert [item["schedule_id"] for item in over_http] == names
        assert [one.schedule_id for one in client.list(outcome=outcome).items] == names
        assert [one.schedule_id for one in env.scheduler.list(outcome=outcome).items] == names
    both = any_web.get(SCHEDULES, params={"outcome": "succeeded,failed", "sort": "id"}).json()["items"]
    assert [item["schedule_id"] for item in both] == ["broken", "fine", "recovered"]
    assert [one.schedule_id for one in client.list(outcome=["failed", "lost"]).items] == ["broken"]
    _, planned = client.bulk.pause(outcome="failed", dry_run=True)
    assert [row.schedule_id for row in planned.items] == ["broken"]
    problem(any_web.get(SCHEDULES, params={"outcome": "fine"}), 422, "invalid_input")
    with pytest.raises(InvalidInputError):
        env.scheduler.list(outcome="fine")


def test_a_list_shows_a_span_of_time(three: Web) -> None:
    middle = three.env.clock.now() - timedelta(seconds=2)
    soon = three.env.clock.now() + timedelta(minutes=90)
    assert ids(three, created_since=middle.isoformat()) == "ab"
    assert ids(three, created_until=middle.isoformat()) == "c"
    assert ids(three, next_until=soon.isoformat()) == "a"
    assert ids(three, next_since=soon.isoformat()) == "c"
    client = client_of(three)
    assert [one.schedule_id for one in client.list(next_until=soon).items] == ["a"]
    assert [one.schedule_id for one in three.env.scheduler.list(created_until=middle).items] == ["c"]
    for naive in (client.list, three.env.scheduler.list):
        with pytest.raises(InvalidInputError, match="naive"):
            naive(next_until=datetime(2026, 1, 15))  # noqa: DTZ001 - the refused value


def test_runs_are_listed_from_either_end(three: Web) -> None:
    for name in ("c", "a", "c"):
        three.post(at(name, "trigger/"), {"overlap": "allow_all"})
        three.env.clock.advance(SECOND)
    assert (ids(three, RUNS), ids(three, RUNS, sort="created")) == ("cac", "cac")
    three.post(at("a", "trigger/"), {"overlap": "allow_all"})
    assert (ids(three, RUNS), ids(three, RUNS, sort="created")) == ("acac", "caca")
