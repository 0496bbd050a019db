"""A declared set of schedules, brought about by our own client."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from rqsched import Declaration, Every
from rqsched.errors import InvalidInputError, UnknownWorkflowError
from tests.support.client import InProcess, asynchronous, client_of
from tests.support.env import last
from tests.support.web import Web


def declared(**others: Any) -> list[Declaration]:
    return [Declaration("a", "note", Every("1h"), {"priority": 1}), Declaration("b", "note", Every("2h"), **others)]


def test_a_declared_set_is_created_updated_or_left_as_it_is(web: Web) -> None:
    client = client_of(web)
    assert (client.sync(declared()).created, web.read("a")["priority"]) == (["a", "b"], 1)
    again = client.sync(declared(note="x", paused=True))
    assert (again.created, again.updated, again.unchanged) == ([], ["b"], ["a"])
    assert (web.read("b")["status"], web.read("b")["note"]) == ("paused", "x")

    async def same() -> list[str]:
        async with asynchronous(web) as far:
            return (await far.sync(declared())).unchanged

    assert asyncio.run(same()) == ["a", "b"]


def test_a_declared_timeout_is_sent_as_a_length(web: Web) -> None:
    client_of(web).sync([Declaration("a", "note", Every("1h"), {"timeout": timedelta(minutes=10)})])
    assert web.read("a")["timeout"] == 600


def test_what_is_refused_here_is_refused_before_anything_is_sent(web: Web) -> None:
    client = client_of(web)
    for wrong in (declared()[0], Declaration("c", len, Every("1h"))):
        with pytest.raises(InvalidInputError):
            client.sync([*declared(), wrong])
        assert client.count() == 0
    with pytest.raises(UnknownWorkflowError, match="in the declaration of 'c'"):
        client.sync([declared()[0], Declaration("c", "unknown", Every("1h"))])
    assert client.count() == 0


def test_a_set_is_pruned_by_the_client_as_in_process_and_previewed_first(web: Web) -> None:
    client, scheduler = client_of(web), web.env.scheduler
    web.create("by-hand")
    client.sync(declared())
    told: list[tuple[str, str]] = []
    smaller = [Declaration("b", "note", Every("3h")), Declaration("c", "note", Every("1h"))]

    planned = client.sync(smaller, delete_removed=True, dry_run=True)
    assert asdict(planned) == asdict(scheduler.sync(smaller, delete_removed=True, dry_run=True))
    assert client.count() == 3
    done = client.sync(smaller, delete_removed=True, progress=lambda *outcome: told.append(outcome))

    assert done == planned
    assert (done.created, done.updated, done.unchanged, done.removed) == (["c"], ["b"], [], ["a"])
    assert told == [("c", "created"), ("b", "updated")]
    assert {one.schedule_id for one in client.iter()} == {"by-hand", "b", "c"}
    assert last(scheduler.newest("a"), "Deleted")["reason"] == "removed by sync"

    async def nothing_is_left() -> tuple[list[str], list[str]]:
        async with asynchronous(web) as far:
            planned = await far.sync([], delete_removed=True, dry_run=True)
            return planned.removed, (await far.sync([], delete_removed=True)).removed

    assert asyncio.run(nothing_is_left()) == (["b", "c"], ["b", "c"])
    assert [one.schedule_id for one in client.iter()] == ["by-hand"]


def test_a_large_set_is_sent_in_parts_that_prune_only_what_none_of_them_has(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqsched.client.requests._MOST_SENT", 2)
    transport = InProcess(web)
    client = client_of(web, transport)
    whole = [Declaration(f"s{number}", "note", Every("1h")) for number in range(5)]
    assert client.sync(whole, delete_removed=True).created == ["s0", "s1", "s2", "s3", "s4"]
    assert transport.sent == [("POST", "/api/v1/sync/")] * 6, "each part is checked before the first is written"
    assert (sorted(client.sync(whole[:3], delete_removed=True).removed), client.count()) == (["s3", "s4"], 3)

    with pytest.raises(UnknownWorkflowError):
        client.sync([*whole, Declaration("last", "unknown", Every("1h"))])
    assert client.count() == 3


def test_a_sync_over_http_is_refused_whole_with_the_name_of_the_declaration(web: Web) -> None:
    good = {"schedule_id": "a", "workflow": "note", "interval": "1h"}
    for bad, status in (({"queue": "no queue"}, 422), ({"workflow": "unknown"}, 422), ({"interval": "soon"}, 422)):
        answer = web.post("/api/v1/sync/", {"schedules": [good, {**good, "schedule_id": "wrong", **bad}]})
        assert answer.status_code == status
        assert "wrong" in answer.json()["detail"] or answer.json()["errors"][0]["field"].startswith("schedules.1.")
    twice = web.post("/api/v1/sync/", {"schedules": [good, good]})
    assert (twice.status_code, web.get("/api/v1/schedules/").json()["items"]) == (422, [])
