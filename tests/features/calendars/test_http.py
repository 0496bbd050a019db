"""Calendars over HTTP and by its client: roles and answers."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest

from rqsched import Calendar
from rqsched.errors import CalendarChangedError, CalendarInUseError, CalendarNotFoundError
from rqsched.features.calendars import api as calendars
from tests.support.client import asynchronous, client_of
from tests.support.env import DAY, NOON
from tests.support.web import MakeWeb, Web, at, one_token, problem

CALENDARS, HOLIDAYS = "/api/v1/calendars/", "/api/v1/calendars/holidays/"
DAILY = {"workflow": "note", "cron": "0 9 * * *"}


def test_calendar_is_set_read_named_and_deleted(web: Web) -> None:
    assert web.get(CALENDARS).json() == {"items": []}
    body = {"exclude": ["2026-01-16", "Sat, Sun"], "reaches": "2026-12-31", "reason": "the new year"}

    calendar = web("PUT", HOLIDAYS, body).json()

    assert calendar | {
        "name": "holidays", "namespace": "default", "shared": False, "revision": 1, "reaches": "2026-12-31",
        "exclude": ["2026-01-16", "Sat, Sun"], "source": None,
    } == calendar  # fmt: skip
    assert web.get(CALENDARS).json()["items"] == [calendar]
    created = web("PUT", at("report"), {**DAILY, "exclude": ["holidays"]}).json()
    assert created["next_run_at"] == "2026-01-19T09:00:00Z"
    assert created["spec"]["calendars"] == ["holidays"]
    read = web.get(HOLIDAYS).json()
    assert read["used_by"] == [{"namespace": "default", "schedule_id": "report"}]
    assert [(one["revision"], one["reason"]) for one in read["history"]] == [(1, "the new year")]
    assert "report" in problem(web("DELETE", HOLIDAYS), 409, "calendar_in_use")["detail"]
    web("PUT", HOLIDAYS, {"exclude": []})
    assert web.get(at("report")).json()["next_run_at"] == "2026-01-16T09:00:00Z"
    web("DELETE", at("report"))
    assert web("DELETE", HOLIDAYS).status_code == 204
    problem(web.get(HOLIDAYS), 404, "calendar_not_found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"exclude": ["nonsense there"]}, "invalid_spec"),
        ({"exclude": ["holidays2"]}, "invalid_spec"),
        ({"exclude": ["2026-01-16"], "reaches": "soon"}, "invalid_input"),
        ({"exclude": ["2026-01-16"] * 5001}, "invalid_input"),
        ({"exclude": [], "revision": 4}, "calendar_changed"),
    ],
)
def test_what_is_no_calendar_is_refused(web: Web, body: dict[str, object], code: str) -> None:
    status = 412 if code == "calendar_changed" else 422
    problem(web("PUT", HOLIDAYS, body), status, code)
    assert web.get(CALENDARS).json() == {"items": []}


def test_name_that_no_calendar_has_is_refused_and_an_unknown_one_of_a_schedule_too(web: Web) -> None:
    problem(web("PUT", f"{CALENDARS}Sat/", {"exclude": []}), 422, "invalid_id")
    problem(web.get(f"{CALENDARS}a%0Ab/"), 404, "calendar_not_found")
    problem(web("DELETE", f"{CALENDARS}Sat/"), 404, "calendar_not_found")
    problem(web("PUT", at("report"), {**DAILY, "exclude": ["holidays"]}), 422, "unknown_calendar")


def test_shared_calendar_takes_the_right_to_all_namespaces(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("secret-of-the-tenant", "admin", namespaces=["tenant"]))
    tenant = web.acting_as("secret-of-the-tenant")
    web.env.scheduler.calendars.set("public", ["2026-01-16"], shared=True)
    web.env.scheduler.create("theirs", "note", "0 9 * * *", exclude="public", namespace="other")

    problem(tenant("PUT", f"{CALENDARS}public/?shared=true", {"exclude": []}), 403, "forbidden")
    problem(tenant("DELETE", f"{CALENDARS}public/?shared=true"), 403, "forbidden")
    problem(tenant("DELETE", f"{CALENDARS}public/"), 404, "calendar_not_found")

    assert tenant("PUT", f"{CALENDARS}mine/", {"exclude": ["Sat"]}).json()["namespace"] == "tenant"
    assert [one["name"] for one in tenant.get(CALENDARS).json()["items"]] == ["mine", "public"]
    assert tenant.get(f"{CALENDARS}public/").json()["used_by"] == []
    assert tenant.get(f"{CALENDARS}public/?shared=true").json()["shared"] is True
    problem(tenant.get(f"{CALENDARS}public/?shared=false"), 404, "calendar_not_found")
    problem(tenant.get(f"{CALENDARS}mine/?shared=true"), 404, "calendar_not_found")
    assert web.env.scheduler.calendars.get("public").exclude == ("2026-01-16",)


def test_schedules_of_others_do_not_fill_up_the_list_of_who_names_a_calendar(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_web(tokens=one_token("0123456789abcdef", "read", namespaces=["tenant"]))
    scheduler = web.env.scheduler
    monkeypatch.setattr(calendars, "MAX_USERS", 3)
    scheduler.calendars.set("public", ["2026-12-24"], shared=True)
    for number in range(5):
        web.env.create(f"other-{number}", namespace="other", exclude=["public"])
    web.env.create("mine", namespace="tenant", exclude=["public"])
    tenant = web.acting_as("0123456789abcdef")
    assert tenant.get(f"{CALENDARS}public/").json()["used_by"] == [{"namespace": "tenant", "schedule_id": "mine"}]
    found = scheduler.calendars.get("public")
    assert scheduler.calendars.used_by(found, namespaces=["tenant"]) == [("tenant", "mine")]
    assert len(scheduler.calendars.used_by(found)) == 3


def test_token_that_may_only_operate_changes_none(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("secret-of-an-operator", "operate"))
    operator = web.acting_as("secret-of-an-operator")
    problem(operator("PUT", HOLIDAYS, {"exclude": []}), 403, "forbidden")
    assert operator.get(CALENDARS).status_code == 200


def test_client_has_the_same_and_the_same_errors(web: Web) -> None:
    with client_of(web) as client:
        made = client.calendars.set("holidays", ["2026-01-16", date(2026, 1, 17)], reaches=date(2026, 12, 31))
        assert (made.exclude, made.reaches, made.revision) == (("2026-01-16", "2026-01-17"), date(2026, 12, 31), 1)
        assert isinstance(made, Calendar)
        assert client.calendars.list() == [made] == [client.calendars.get("holidays")]
        client.create("report", "note", "0 9 * * *", exclude="holidays")
        assert client.calendars.used_by(made) == [("default", "report")]
        with pytest.raises(CalendarInUseError):
            client.calendars.delete("holidays")
        with pytest.raises(CalendarChangedError):
            client.calendars.set("holidays", [], revision=0)
        client.calendars.set("spare", [])
        client.calendars.delete("spare", reason="nothing names it")
        with pytest.raises(CalendarNotFoundError):
            client.calendars.get("spare")
    assert web.env.scheduler.get("report").next_run_at == NOON.replace(hour=9) + 3 * DAY

    async def same() -> Calendar:
        async with asynchronous(web) as client:
            return await client.calendars.get("holidays")

    assert asyncio.run(same()).name == "holidays"
