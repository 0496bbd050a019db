"""Freeze and thaw over HTTP and by its client: roles, refusals and texts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rqsched import CommandContext
from rqsched.errors import FrozenError
from rqsched.types import DueSchedule, Thawed
from tests.support.client import asynchronous, client_of
from tests.support.env import MINUTE
from tests.support.web import MINUTELY, MakeWeb, Web, at, one_token, problem

FREEZE, THAW, FROZEN = "/api/v1/freeze/", "/api/v1/thaw/", "/api/v1/frozen/"
ALL = {"everything": True}


def test_while_everything_is_frozen_what_is_started_by_hand_is_409_and_reads_say_who_and_why(web: Web) -> None:
    web.create()
    assert web.get(FROZEN).json() == {"items": []}

    frozen = web.post(FREEZE, {**ALL, "reason": "restore"}).json()

    assert (frozen["frozen"], frozen["reason"], frozen["kept_in"]) == (True, "restore", ["redis", "sql"])
    assert (bool(frozen["by"]), frozen["namespace"]) == (True, None)
    assert web.post(FREEZE, {**ALL, "reason": "again"}).json() == frozen
    assert web.get(FROZEN).json() == {"items": [frozen]}
    assert "restore" in problem(web.post(at(operation="trigger/")), 409, "frozen")["detail"]
    assert "rqsched_all_frozen 1.0" in web.get("/metrics").text
    web.env.advance(3 * MINUTE)
    found = web.get(THAW + "preview/?everything=true").json()
    assert [(row["schedule_id"], len(row["fires"]), row["missed"]) for row in found["schedules"]] == [("report", 1, 2)]
    assert found["freeze"] == frozen
    for missed in ({}, {"missed": "one"}):
        refused = web.post(THAW, {**ALL, **missed, "since": "2026-01-01T00:00:00Z"})
        problem(refused, 422, "invalid_input")

    done = web.post(THAW, {**ALL, "missed": "none", "cancel_pending": True}).json()

    ended = done.pop("freeze")
    assert (ended["frozen"], done) == (False, {"schedules": 1, "missed": 3, "cancelled": 0, "fired": 0})
    (over,) = web.get(FREEZE + "history/?everything=true").json()["items"]
    assert (over["frozen"], over["reason"], over["since"]) == (False, "restore", frozen["since"])
    assert (over["thawed_by"], over["kept_in"]) == (frozen["by"], [])
    assert web.get(FREEZE + "history/").json() == {"items": []}
    assert web.post(at(operation="trigger/")).status_code == 200


def test_a_token_of_some_namespaces_does_not_freeze_everything(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("secret-of-the-tenant", "admin", namespaces=["tenant"]))
    tenant = web.acting_as("secret-of-the-tenant")
    for answer in (tenant.post(FREEZE, ALL), tenant.post(THAW, ALL), tenant.get(THAW + "preview/?everything=true")):
        problem(answer, 403, "forbidden")
    assert tenant.get(FROZEN).json() == {"items": []}
    web.env.scheduler.freeze("restore", everything=True, context=CommandContext(principal="ann"))
    (told,) = tenant.get(FROZEN).json()["items"]
    assert (told["by"], told["reason"]) == ("ann", "restore"), "whose work waits is told why, and whom to ask"


def test_the_client_freezes_and_thaws_everything_as_the_scheduler_does(web: Web) -> None:
    client = client_of(web)
    web.create()
    assert client.frozen() == []

    freeze = client.freeze("restore", everything=True)

    assert (freeze.reason, freeze.since, freeze.kept_in) == ("restore", web.env.clock.now(), ("redis", "sql"))
    assert client.frozen() == [freeze]
    with pytest.raises(FrozenError, match="restore"):
        client.get("report").trigger()
    began = web.env.clock.now()
    web.env.advance(2 * MINUTE)
    found = client.preview_thaw(everything=True)
    assert found.freeze == freeze
    assert found.schedules == [
        DueSchedule("default", "report", began + MINUTE, [began + MINUTE], 1, 0, began + 3 * MINUTE)
    ]
    assert found.runs == []

    async def thaw() -> Thawed:
        async with asynchronous(web) as far:
            return await far.thaw(everything=True, missed="none")

    done = asyncio.run(thaw())
    assert done.freeze is not None
    assert (done.freeze.reason, replace(done, freeze=None)) == ("restore", Thawed(None, 1, 2, 0))
    assert client.frozen() == []
    (over,) = client.freezes(everything=True)
    assert (over.reason, over.since, over.thawed_at) == ("restore", freeze.since, web.env.clock.now())


def test_while_a_namespace_is_frozen_what_is_started_by_hand_there_is_409_and_alarms_are_silent(web: Web) -> None:
    web.create()
    web.post("/api/v1/schedules/", {**MINUTELY, "schedule_id": "other"}, headers={"X-Namespace": "tenant"})
    assert web.get(FROZEN).json() == {"items": []}

    frozen = web.post(FREEZE, {"reason": "it moves"}).json()

    assert (frozen["namespace"], frozen["frozen"], frozen["reason"], frozen["kept_in"]) == (
        "default",
        True,
        "it moves",
        ["sql"],
    )
    assert web.post(FREEZE, {"reason": "again"}).json() == frozen
    assert web.get(FROZEN).json() == {"items": [frozen]}
    assert "it moves" in problem(web.post(at(operation="trigger/")), 409, "frozen")["detail"]
    web.env.advance(3 * MINUTE)
    web.app.state.rqsched.meter.refresh(force=True)
    told = web.get("/metrics").text
    assert 'rqsched_frozen{namespace="default"} 1.0' in told
    assert [line for line in told.splitlines() if line.startswith("rqsched_late{")] == [
        'rqsched_late{namespace="tenant"} 1.0'
    ]
    found = web.get(THAW + "preview/").json()
    assert [(row["schedule_id"], len(row["fires"]), row["missed"]) for row in found["schedules"]] == [("report", 1, 2)]
    assert found["freeze"] == frozen
    found = web.get(THAW + "preview/?missed=none").json()
    assert [row["missed"] for row in found["schedules"]] == [3]
    assert web.post(THAW, {"missed": "some"}).status_code == 422

    done = web.post(THAW, {"missed": "none", "cancel_pending": True, "reason": "it has moved"}).json()

    ended = done.pop("freeze")
    assert (ended["frozen"], done) == (False, {"schedules": 1, "missed": 3, "cancelled": 0, "fired": 0})
    (over,) = web.get(FREEZE + "history/").json()["items"]
    assert (over["frozen"], over["reason"], over["thaw_reason"]) == (False, "it moves", "it has moved")
    assert web.post(at(operation="trigger/")).status_code == 200
    assert web.get(FREEZE + "history/?everything=true").json() == {"items": []}


def test_an_admin_of_one_namespace_freezes_and_sees_that_one(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("secret-of-the-tenant", "admin", namespaces=["tenant"]))
    tenant = web.acting_as("secret-of-the-tenant")
    web.env.scheduler.freeze()
    assert tenant.get(FROZEN).json() == {"items": []}
    assert tenant.post(FREEZE, {}).json()["namespace"] == "tenant"
    assert [one["namespace"] for one in tenant.get(FROZEN).json()["items"]] == ["tenant"]
    problem(tenant.post(THAW, {}, headers={"X-Namespace": "default"}), 404, "namespace_not_found")
    assert tenant.post(THAW, {}).json()["freeze"] is not None
    assert [one.namespace for one in web.env.scheduler.frozen()] == ["default"]


def test_the_client_freezes_and_thaws_as_the_scheduler_does(web: Web) -> None:
    client = client_of(web)
    web.create()
    freeze = client.freeze("it moves")
    assert (freeze.namespace, freeze.reason, freeze.kept_in) == ("default", "it moves", ("sql",))
    assert client.frozen() == [freeze]
    with pytest.raises(FrozenError, match="it moves"):
        client.get("report").trigger()
    web.env.advance(2 * MINUTE)
    assert [(len(row.fires), row.missed) for row in client.preview_thaw(missed="one").schedules] == [(1, 1)]

    async def thaw() -> Thawed:
        async with asynchronous(web) as far:
            return await far.thaw(missed="one")

    done = asyncio.run(thaw())
    assert done.freeze is not None
    assert (done.freeze.reason, replace(done, freeze=None)) == ("it moves", Thawed(None, 1, 1, 0, 1))
    assert client.frozen() == []
    assert [one.reason for one in client.freezes()] == ["it moves"]
