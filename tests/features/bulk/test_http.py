"""Bulk operations over HTTP and by the client; and `paused` in an update."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

from rqsched.errors import InvalidLimitError
from rqsched.features.bulk import api as bulk
from rqsched.features.bulk import runs as bulk_runs
from rqsched.kernel.decide.results import BulkProgress, BulkRow
from rqsched.types import RunListFilters
from tests.support.client import InProcess, asynchronous, client_of
from tests.support.env import NOON, ONCE, SECOND, events
from tests.support.narrow import present
from tests.support.web import Web, at, problem

PAUSE = "/api/v1/bulk/pause/"


def test_what_matches_is_paused_with_a_dry_run_and_a_bound(web: Web) -> None:
    for name, owner in (("a", "x"), ("b", "x"), ("c", "y")):
        web.create(name, owner=owner)
        web.env.clock.advance(SECOND)
    counted = web.post(PAUSE, {"owner": "x"}).json()
    assert {**counted, "next_cursor": ""} == {"matched": 2, "done": 0, "counts": {}, "items": [], "next_cursor": ""}
    problem(web.post(PAUSE, {"owner": "x", "dry_run": True, "cursor": counted["next_cursor"]}), 422, "invalid_limit")
    dry = {"owner": "x", "dry_run": True}
    planned = web.post(PAUSE, {**dry, "cursor": web.post(PAUSE, dry).json()["next_cursor"]}).json()
    assert (planned["matched"], planned["counts"]) == (2, {"would_pause": 2})
    problem(web.post(PAUSE, {"owner": "x", "bound": 1}), 422, "invalid_limit")
    assert [web.read(name)["status"] for name in "abc"] == ["active"] * 3
    counted = web.post(PAUSE, {"owner": "x", "reason": "later"}).json()
    refused = problem(web.post(PAUSE, {"reason": "later", "cursor": counted["next_cursor"]}), 422, "invalid_limit")
    assert "filters, parameters and dry_run that were counted" in refused["detail"]
    done = web.post(PAUSE, {"owner": "x", "reason": "later", "cursor": counted["next_cursor"]}).json()
    assert done == {
        "matched": 2, "done": 2, "counts": {"paused": 2}, "next_cursor": None,
        "items": [
            {"schedule_id": name, "outcome": "paused", "reason": None, "run_uid": None} for name in ("a", "b")
        ],
    }  # fmt: skip
    assert [web.read(name)["status"] for name in "abc"] == ["paused", "paused", "active"]
    problem(web.post("/api/v1/bulk/delete/", {}), 422, "invalid_input")
    problem(web.post("/api/v1/bulk/resume/", {"cursor": counted["next_cursor"]}), 422, "invalid_limit")


def rows_of(chunks: Iterable[BulkProgress]) -> list[BulkRow]:
    return [row for progress in chunks for row in progress.items]


def test_the_client_has_bulk_operations(web: Web) -> None:
    client = client_of(web)
    for name in ("a", "b"):
        web.create(name, labels={"team": "x"})
    assert [row.outcome for row in rows_of(client.bulk.pause(labels={"team": "x"}, dry_run=True))] == [
        "would_pause"
    ] * 2
    assert [row.outcome for row in rows_of(client.bulk.trigger(status="active", idempotency_key="k"))] == [
        "triggered"
    ] * 2
    with pytest.raises(InvalidLimitError):
        next(client.bulk.pause(bound=1))
    assert [row.outcome for row in rows_of(client.bulk.skip_next(count=2, text="b"))] == ["skips_next"]
    assert len(web.env.scheduler.get("b").skips) == 2
    assert [row.outcome for row in rows_of(client.bulk.pause(text="b"))] == ["paused"]
    assert web.read("b")["status"] == "paused"


@pytest.fixture
def five(web: Web, monkeypatch: pytest.MonkeyPatch) -> Web:
    """Five schedules, and chunks of two."""
    monkeypatch.setattr(bulk, "CHUNK", 2)
    for number in range(5):
        web.create(f"job-{number}")
        web.env.clock.advance(SECOND)
    return web


def test_the_client_does_chunk_after_chunk_and_sends_one_again_whose_answer_is_lost(five: Web) -> None:
    transport = InProcess(five)
    chunks = client_of(five, transport).bulk.trigger(overlap="allow_all")
    counted = next(chunks)
    assert (counted.done, counted.matched) == (0, 5)
    transport.lost = 1
    assert [(one.done, len(one.items)) for one in chunks] == [(2, 2), (4, 2), (5, 1)]
    assert len(transport.sent) == 5, "the count, three chunks, and one of them twice"
    assert [one.run_count for one in five.env.scheduler.iter()] == [1] * 5


def test_the_asynchronous_client_goes_on_with_a_cursor(five: Web) -> None:
    _, first = islice(client_of(five).bulk.pause(), 2)

    async def go_on() -> list[int]:
        async with asynchronous(five) as client:
            return [one.done async for one in client.bulk.pause(cursor=first.next_cursor)]

    assert asyncio.run(go_on()) == [4, 5]
    assert {one.status for one in five.env.scheduler.iter()} == {"paused"}


CANCEL = "/api/v1/bulk/runs/cancel/"


def test_runs_that_match_are_cancelled_and_retried_with_a_dry_run_and_a_bound(web: Web) -> None:
    web.create("a")
    runs = [present(web.env.scheduler.get("a").trigger("allow_all").run) for _ in range(2)]
    web.create("b")
    web.env.scheduler.get("b").trigger()
    asked = {"schedule_id": "a", "status": ["pending"], "reason": "the wrong month"}
    counted = web.post(CANCEL, asked).json()
    assert {**counted, "next_cursor": ""} == {"matched": 2, "done": 0, "counts": {}, "items": [], "next_cursor": ""}
    problem(web.post(CANCEL, {**asked, "bound": 1}), 422, "invalid_limit")
    problem(web.post(CANCEL, {**asked, "dry_run": True, "cursor": counted["next_cursor"]}), 422, "invalid_limit")
    problem(web.post(CANCEL, {"status": ["succeeded"]}), 422, "invalid_input")
    problem(web.post("/api/v1/bulk/runs/terminate/", {}), 422, "invalid_input")
    done = web.post(CANCEL, {**asked, "cursor": counted["next_cursor"]}).json()
    assert (done["done"], done["counts"], done["next_cursor"]) == (2, {"cancelled": 2}, None)
    assert {row["run_uid"] for row in done["items"]} == {run.uid for run in runs}
    again = {"status": ["cancelled"], "schedule_id": "a"}
    counted = web.post("/api/v1/bulk/runs/retry/", again).json()
    done = web.post("/api/v1/bulk/runs/retry/", {**again, "cursor": counted["next_cursor"]}).json()
    assert done["counts"] == {"started": 1, "buffered": 1}


RUN_FILTERS: dict[str, Any] = {
    "status": "pending", "schedule_id": "a", "workflow": "other", "limit": "crm", "in_line": True,
    "since": NOON + SECOND, "until": NOON + SECOND, "error": "as the test",
    "backfill_uid": "01KF0000000000000000000000",
}  # fmt: skip


def test_each_filter_of_runs_means_the_same_over_http(any_web: Web) -> None:
    env, client = any_web.env, client_of(any_web)
    env.register("other", lambda: None)
    env.failing = True
    env.run_next(env.create("fails", retry=ONCE))
    limited = env.create("a", limit="crm", limit_running=1)
    for _ in range(2):
        limited.trigger("allow_all")
    env.create("b", workflow="other").trigger()
    assert RUN_FILTERS.keys() == RunListFilters.__annotations__.keys()
    for name, value in RUN_FILTERS.items():
        operation = "retry_runs" if name == "error" else "cancel_runs"
        ours, theirs = (
            [*getattr(which.bulk, operation)(dry_run=True, **{name: value})] for which in (env.scheduler, client)
        )
        assert [one.items for one in ours] == [one.items for one in theirs], name
        assert (ours[0].matched > 0) == (name not in {"backfill_uid", "until"}), name


def test_the_client_sends_a_chunk_of_runs_again_whose_answer_is_lost(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_runs, "CHUNK", 2)
    web.create("a")
    for _ in range(5):
        web.env.scheduler.get("a").trigger("allow_all")
    transport = InProcess(web)
    chunks = client_of(web, transport).bulk.cancel_runs(reason="the wrong month")
    assert next(chunks).matched == 5
    transport.lost = 1
    assert sum(len(one.items) for one in chunks) == 3, "the two of the lost answer are cancelled, too"
    assert {run.status for run in web.env.scheduler.get("a").runs().items} == {"cancelled"}
    assert len(events(web.env.scheduler.get("a"), "RunCancelled")) == 5


def test_an_update_pauses_and_makes_fire_again_in_one_step(web: Web) -> None:
    web.create()
    changed = web("PATCH", at(), {"paused": True, "note": "x"}).json()
    assert (changed["status"], changed["note"]) == ("paused", "x")
    assert web("PATCH", at(), {"note": "y"}).json()["status"] == "paused"
    assert client_of(web).get("report").update(paused=False, priority=3).status == "active"
    assert web.read()["priority"] == 3
