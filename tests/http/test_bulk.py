"""Bulk operations over HTTP, the client and the command; and `paused` in an update."""

from __future__ import annotations

import pytest

from rqsched.errors import InvalidLimitError
from tests.support.client import client_of
from tests.support.env import SECOND
from tests.support.web import Web, at, problem

PAUSE = "/api/v1/bulk/pause/"


def test_what_matches_is_paused_with_a_dry_run_and_a_bound(web: Web) -> None:
    for name, owner in (("a", "x"), ("b", "x"), ("c", "y")):
        web.create(name, owner=owner)
        web.env.clock.advance(SECOND)
    planned = web.post(PAUSE, {"owner": "x", "dry_run": True}).json()
    assert (planned["matched"], planned["counts"]) == (2, {"would_pause": 2})
    problem(web.post(PAUSE, {"owner": "x", "bound": 1}), 422, "invalid_limit")
    done = web.post(PAUSE, {"owner": "x", "reason": "later"}).json()
    assert done["items"] == [{"schedule_id": name, "outcome": "paused", "reason": None} for name in ("a", "b")]
    assert [web.read(name)["status"] for name in "abc"] == ["paused", "paused", "active"]
    assert web.post("/api/v1/bulk/resume/", {"q": "A"}).json()["counts"] == {"resumed": 1}
    problem(web.post("/api/v1/bulk/delete/", {}), 422, "invalid_input")


def test_the_client_has_bulk_operations(web: Web) -> None:
    client = client_of(web)
    for name in ("a", "b"):
        web.create(name, labels={"team": "x"})
    assert [row.outcome for row in client.bulk("pause", labels={"team": "x"}, dry_run=True)] == ["would_pause"] * 2
    assert [row.outcome for row in client.bulk("trigger", status="active", idempotency_key="k")] == ["triggered"] * 2
    with pytest.raises(InvalidLimitError):
        client.bulk("pause", bound=1)
    assert [row.outcome for row in client.bulk("skip_next", count=2, text="b")] == ["skips_next"]
    assert len(web.env.scheduler.get("b").skips) == 2
    assert [row.outcome for row in client.bulk("pause", text="b")] == ["paused"]
    assert web.read("b")["status"] == "paused"


def test_an_update_pauses_and_makes_fire_again_in_one_step(web: Web) -> None:
    web.create()
    changed = web("PATCH", at(), {"paused": True, "note": "x"}).json()
    assert (changed["status"], changed["note"]) == ("paused", "x")
    assert web("PATCH", at(), {"note": "y"}).json()["status"] == "paused"
    assert client_of(web).get("report").update(paused=False, priority=3).status == "active"
    assert web.read()["priority"] == 3
