"""Limits over HTTP, its client and the metrics; `why` and doctor say who waits for a place."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from rqsched import Every
from rqsched.api.health import examine
from rqsched.errors import LimitConflictError, LimitNotFoundError
from rqsched.features.limits.decide import GRANT_LIFE
from tests.support.client import asynchronous, client_of
from tests.support.env import HOUR, SECOND, Env, newest
from tests.support.pages import Pages
from tests.support.web import MakeWeb, Web, problem

LIMITS = "/api/v1/limits/"


def fill(env: Env, number: int = 1, **options: Any) -> None:
    """Three runs of a group, of which so many may run at once, are fired."""
    given = {"limit": "shop:{labels.shop}", "labels": {"shop": "eu/1"}, "limit_running": number}
    for name in "abc":
        env.create(name, Every("1h"), **(given | options))
    env.advance(HOUR)
    for name in "abc":
        env.deliver(env.scheduler.get(name))
        env.advance(SECOND)


def findings(env: Env) -> dict[str, tuple[str, str]]:
    return {one.check: (one.level.value, one.told) for one in examine(env.runtime)}


def test_groups_are_read_and_changed(web: Web) -> None:
    fill(web.env)
    (group,) = web.get(LIMITS).json()["items"]
    assert group == {
        "namespace": "default", "name": "shop:eu/1", "number": 1, "running": 0, "starting": 1, "waiting": 2,
        "rate": None, "started": None, "waiting_since": "2026-01-15T13:00:01Z", "changes": [],
    }  # fmt: skip

    changed = web("PUT", LIMITS, {"name": "shop:eu/1", "number": 2})

    assert (changed.status_code, changed.json()["starting"], changed.json()["waiting"]) == (200, 2, 1)
    problem(web("PUT", LIMITS, {"name": "other", "number": 2}), 404, "limit_not_found")
    assert web("PUT", LIMITS, {"name": "shop:eu/1", "number": 0}).status_code == 422
    refused = {"schedule_id": "d", "workflow": "note", "cron": "0 2 * * *", "limit": "shop:eu/1", "limit_running": 7}
    problem(web.post("/api/v1/schedules/", refused), 409, "limit_conflict")
    missing = {**refused, "limit": "{labels.shop}"}
    assert "label 'shop'" in problem(web.post("/api/v1/schedules/", missing), 422, "invalid_policy")["detail"]


def test_group_remembers_who_changed_its_number_and_what_it_was(make_web: MakeWeb) -> None:
    pages = Pages(make_web())
    web, scheduler = pages.web, pages.env.scheduler
    fill(web.env)
    for number in (2, 2):
        web("PUT", LIMITS, {"name": "shop:eu/1", "number": number})
    pages.do("/limits", name="shop:eu/1", number="5", reason="the sale")
    web("PUT", LIMITS, {"name": "shop:eu/1", "rate": "9/min", "reason": "their API"})
    client_of(web).limits.set("shop:eu/1", rate="8/min", reason="slower")
    scheduler.limits.set("shop:eu/1", 1)

    told = web.get(LIMITS).json()["items"][0]["changes"]
    assert [(one["was"], one["number"], one["reason"]) for one in told] == [
        (5, 1, None),
        (5, 5, "slower"),
        (5, 5, "their API"),
        (2, 5, "the sale"),
        (1, 2, None),
    ]
    assert [(one["was_rate"], one["rate"]) for one in told[1:3]] == [("9/min", "8/min"), (None, "9/min")]
    assert [one["by"] is None for one in told] == [True, False, False, False, False]
    assert told[0]["at"] == "2026-01-15T13:00:03Z"
    assert client_of(web).limits.list().items[0].changes == told
    pages.do("/limits", name="shop:eu/1", number="3", rate="8/min", reason="the <sale> is over")
    told = re.sub(r"<(?!/?bdi)[^>]*>", "", pages.get("/system"))
    assert "1 → 3 at once by <bdi>" in told
    assert "now: <bdi>the &lt;sale&gt; is over</bdi>" in told
    scheduler.limits.set("shop:eu/1", 1)
    assert "3 → 1 at once by <bdi>a program</bdi> now" in re.sub(r"<(?!/?bdi)[^>]*>", "", pages.get("/system"))

    for number in range(100, 130):
        scheduler.limits.set("shop:eu/1", number)
    assert [one["was"] for one in scheduler.limits.list().items[0].changes] == [*range(128, 108, -1)]


def test_run_says_its_group_and_its_place_in_line(web: Web) -> None:
    fill(web.env)
    base, seen = "/api/v1/schedules", {}
    for name in "abc":
        (run,) = web.get(f"{base}/{name}/runs/").json()["items"]
        seen[name] = (run["limit"], run["place_in_line"])
        one = web.get(f"{base}/{name}/runs/{run['uid']}/").json()
        handle = web.env.scheduler.get(name).run(run["uid"])
        far = client_of(web).get(name).run(run["uid"])
        assert {(found.limit, found.place_in_line) for found in (handle, handle.refresh(), far)} == {seen[name]}
        assert (one["limit"], one["place_in_line"]) == seen[name]
    assert seen == {"a": ("shop:eu/1", None), "b": ("shop:eu/1", 1), "c": ("shop:eu/1", 2)}
    listed = web.get("/api/v1/runs/", params={"fields": "summary"}).json()["items"]
    assert {run["schedule_id"]: run["place_in_line"] for run in listed} == {"a": None, "b": 1, "c": 2}

    web.env.claim(newest(web.env.scheduler.get("a")))
    web.env.create("free", Every("1h"))
    free = web.env.scheduler.get("free").trigger().run
    assert free is not None
    assert (free.limit, free.refresh().place_in_line) == (None, None)


def test_client_does_as_the_scheduler_does(web: Web) -> None:
    fill(web.env)
    client = client_of(web)
    assert client.limits.list().items == web.env.scheduler.limits.list().items == [*client.limits.iter()]
    assert client.limits.set("shop:eu/1", 3).starting == 3
    with pytest.raises(LimitNotFoundError):
        client.limits.set("other", 3)
    with pytest.raises(LimitConflictError):
        client.create("d", "note", "0 2 * * *", limit="shop:eu/1", limit_running=7)

    async def read() -> list[int | None]:
        async with asynchronous(web) as far:
            await far.limits.set("shop:eu/1", 4)
            return [one.number async for one in far.limits.iter()]

    assert asyncio.run(read()) == [4]


def test_rate_is_read_and_changed_over_http_and_its_client(web: Web) -> None:
    fill(web.env, limit_running=None, limit_rate="1/min")
    web.env.work()
    (group,) = web.get(LIMITS).json()["items"]
    assert [group[one] for one in ("number", "rate", "started", "starting", "waiting")] == [None, "1/min", 1, 0, 2]
    changed = web("PUT", LIMITS, {"name": "shop:eu/1", "number": 5, "rate": "2/minute"}).json()
    assert [changed[one] for one in ("number", "rate", "starting")] == [5, "2/min", 1]
    problem(web("PUT", LIMITS, {"name": "shop:eu/1", "rate": "2/year"}), 422, "invalid_policy")
    problem(web("PUT", LIMITS, {"name": "shop:eu/1"}), 422, "invalid_input")
    refused = {"schedule_id": "d", "workflow": "note", "cron": "0 2 * * *", "limit": "shop:eu/1", "limit_rate": "7/s"}
    problem(web.post("/api/v1/schedules/", refused), 409, "limit_conflict")
    client = client_of(web)
    assert client.limits.set("shop:eu/1", unset=["number"]).number is None
    assert client.limits.set("shop:eu/1", 3, unset="rate").rate is None


def test_why_and_doctor_tell_of_the_rate(env: Env) -> None:
    fill(env, limit_running=None, limit_rate="1/h")
    env.work()
    schedule = env.scheduler.get("b")
    told = schedule.why(newest(schedule).occurrence_at).text
    assert told.startswith(
        "Its run #1 waits in line of limit shop:eu/1: 0 running, 1 of 1 starts in the last hour, the next place on "
        "Thu 15 Jan 2026 at 14:00:03 UTC, it is number 1 in line, since "
    )
    env.advance(timedelta(minutes=59))
    level, told = findings(env)["limits"]
    assert level == "warning"
    assert "2 of default/shop:eu/1 (0 running, 1 of 1 starts in the last hour), the first since " in told


def test_metrics_count_who_runs_and_waits(web: Web) -> None:
    fill(web.env)
    web.env.claim(newest(web.env.scheduler.get("a")))
    text = web.get("/metrics").text
    for name, value in (("running", 1), ("waiting", 2), ("number", 1)):
        assert f'rqsched_limit_{name}{{limit="shop:eu/1",namespace="default"}} {value}.0' in text


def test_metrics_count_the_starts_of_a_rate(web: Web) -> None:
    fill(web.env, limit_running=None, limit_rate="2/h")
    web.env.work()
    text = web.get("/metrics").text
    for name, value in (("starts", 2), ("rate", 2), ("waiting", 1)):
        assert f'rqsched_limit_{name}{{limit="shop:eu/1",namespace="default"}} {value}.0' in text
    assert "rqsched_limit_number{" not in text


def test_why_says_the_place_in_line(env: Env) -> None:
    fill(env)
    schedule = env.scheduler.get("b")
    env.claim(newest(env.scheduler.get("a")))
    told = schedule.why(newest(schedule).occurrence_at)
    assert told.answer == "waits"
    assert told.text.startswith(
        "Its run #1 waits in line of limit shop:eu/1: 1 of 1 running, it is number 1 in line, since "
    )


def test_doctor_tells_of_places_that_nobody_came_to_claim_and_of_long_waits(env: Env) -> None:
    fill(env, queue="nobody")
    assert findings(env)["limits"][0] == "ok"
    assert "1 run on 'nobody'" in findings(env)["workers"][1], "who is in line waits for no worker"
    env.advance(GRANT_LIFE)
    env.recover()
    level, told = findings(env)["limits"]
    assert (level, told) == (
        "warning",
        "Runs had a place in their group, and no worker took them: 1 run or target on 'nobody'.",
    )
    assert (
        "it had a place of limit shop:eu/1, and none came"
        in env.scheduler.get("a").why(newest(env.scheduler.get("a")).occurrence_at).text
    )


def test_doctor_tells_who_waits_long(env: Env) -> None:
    fill(env)
    env.claim(newest(env.scheduler.get("a")))
    env.advance(max(env.runtime.settings.longest_wait.values()) + timedelta(minutes=1))
    level, told = findings(env)["limits"]
    assert level == "warning"
    assert told.startswith(
        "Runs wait too long for a place in their group: 2 of default/shop:eu/1 (1 of 1 running), the first since "
    )
