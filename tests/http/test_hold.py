"""Hold and release over HTTP, by its client, and on the pages: who holds, what is refused, what is shown."""

from __future__ import annotations

import asyncio

import pytest

from rqsched import CommandContext, HeldSchedule, Released
from rqsched.errors import HeldError
from tests.support.client import asynchronous, client_of
from tests.support.env import MINUTE, statuses
from tests.support.pages import Pages
from tests.support.web import MakeWeb, Web, at, one_token, problem

HOLD, RELEASE, PREVIEW = "/api/v1/hold/", "/api/v1/release/", "/api/v1/hold/preview/"


def test_while_held_what_is_started_by_hand_is_409_and_reads_say_who_and_why(web: Web) -> None:
    web.create()
    assert web.get(HOLD).json()["held"] is False

    held = web.post(HOLD, {"reason": "restore"}).json()

    assert (held["held"], held["reason"], held["kept_in"]) == (True, "restore", ["redis", "sql"])
    assert held["by"]
    assert web.post(HOLD, {"reason": "again"}).json() == held
    assert web.get(HOLD).json() == held
    assert "restore" in problem(web.post(at(operation="trigger/")), 409, "held")["detail"]
    assert "rqsched_held 1.0" in web.get("/metrics").text
    web.env.advance(3 * MINUTE)
    found = web.get(PREVIEW).json()
    assert [(row["schedule_id"], len(row["fires"]), row["missed"]) for row in found["schedules"]] == [("report", 1, 2)]
    problem(web.post(RELEASE, {"since": "2026-01-01T00:00:00Z"}), 422, "invalid_input")

    done = web.post(RELEASE, {"missed": True, "cancel_pending": True}).json()

    assert done == {"was_held": True, "schedules": 1, "missed": 3, "cancelled": 0}
    (over,) = web.get("/api/v1/hold/history/").json()["items"]
    assert (over["held"], over["reason"], over["since"]) == (False, "restore", held["since"])
    assert (over["released_by"], over["kept_in"]) == (held["by"], [])
    assert web.post(at(operation="trigger/")).status_code == 200


def test_a_token_of_some_namespaces_holds_nothing(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("secret-of-the-tenant", "admin", namespaces=["tenant"]))
    tenant = web.acting_as("secret-of-the-tenant")
    for answer in (tenant.post(HOLD, {}), tenant.post(RELEASE, {}), tenant.get(PREVIEW)):
        problem(answer, 403, "forbidden")
    assert tenant.get(HOLD).json()["held"] is False
    web.env.scheduler.hold("restore", context=CommandContext(principal="ann"))
    told = tenant.get(HOLD).json()
    assert (told["by"], told["reason"]) == ("ann", "restore"), "who is held up is told why, and whom to ask"


def test_the_client_does_what_the_scheduler_does(web: Web) -> None:
    client = client_of(web)
    web.create()
    assert client.held() is None

    hold = client.hold("restore")

    assert (hold.reason, hold.since, hold.kept_in) == ("restore", web.env.clock.now(), ("redis", "sql"))
    assert client.held() == hold
    with pytest.raises(HeldError, match="restore"):
        client.get("report").trigger()
    began = web.env.clock.now()
    web.env.advance(2 * MINUTE)
    found = client.preview_release()
    assert found.hold == hold
    assert found.schedules == [
        HeldSchedule("default", "report", began + MINUTE, [began + MINUTE], 1, 0, began + 3 * MINUTE)
    ]
    assert found.runs == []

    async def release() -> Released:
        async with asynchronous(web) as far:
            return await far.release(missed=True)

    assert asyncio.run(release()) == Released(None, 1, 2, 0)
    assert client.held() is None
    (over,) = client.holds()
    assert (over.reason, over.since, over.released_at) == ("restore", hold.since, web.env.clock.now())


def test_every_page_says_that_it_is_held_and_one_button_releases(make_web: MakeWeb) -> None:
    pages = Pages(make_web())
    schedule = pages.env.create()
    assert "Everything is held" not in pages.get("/schedules")
    pages.env.scheduler.hold("restoring <last> night's backup")
    for path in ("/", "/schedules", "/system"):
        assert "restoring &lt;last&gt; night" in pages.get(path)
    assert "Not done: everything is held" in pages.do(f"/schedules/{schedule.schedule_id}/do", action="trigger")
    pages.env.advance(3 * MINUTE)
    assert "1 schedule(s). By their policies 1 run(s) start" in pages.get("/release")

    told = pages.do("/release", missed="yes", reason="the night is back")

    assert "Everything is released. 3 occurrences are recorded as missed." in told
    assert "Nothing begins" not in told
    assert statuses(schedule) == []
    assert "everything was held" in pages.get(f"/schedules/{schedule.schedule_id}?at=newest")
    audit = pages.get("/audit")
    assert "restoring &lt;last&gt; night" in audit
    assert "the night is back" in audit
