"""Open Job Spec, cron jobs: listed page by page, patched, toggled; and beside what other surfaces do to them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rqsched import Cron, Every, Once, RetryPolicy, Spec
from tests.support.env import MINUTE, SECOND
from tests.support.openjobspec import CRON, Ojs, refused
from tests.support.web import MakeWeb


def names(page: dict[str, Any]) -> list[str]:
    assert page["crons"] == page["cron_jobs"]
    return [job["name"] for job in page["crons"]]


def register_in_order(ojs: Ojs, count: int) -> None:
    for number in range(count):
        ojs.registered(name=f"job-{number}")
        ojs.env.advance(SECOND)


def test_an_empty_list_is_an_empty_array(ojs: Ojs) -> None:
    pagination = {"total": 0, "has_more": False, "next_cursor": None}
    assert ojs.listed() == {"crons": [], "cron_jobs": [], "count": 0, "pagination": pagination}


def test_the_list_pages_by_cursor_and_counts_all_there_are(any_ojs: Ojs) -> None:
    register_in_order(any_ojs, 5)

    pages = [any_ojs.listed(limit=2)]
    while pages[-1]["pagination"]["has_more"]:
        pages.append(any_ojs.listed(limit=2, cursor=pages[-1]["pagination"]["next_cursor"]))

    assert [names(page) for page in pages] == [["job-0", "job-1"], ["job-2", "job-3"], ["job-4"]]
    assert {page["count"] for page in pages} == {page["pagination"]["total"] for page in pages} == {5}
    assert pages[-1]["pagination"]["next_cursor"] is None


def test_the_list_pages_by_offset_too(ojs: Ojs) -> None:
    register_in_order(ojs, 3)
    assert names(ojs.listed(offset=1, limit=1)) == ["job-1"]
    assert names(ojs.listed(offset=3)) == []
    assert ojs.listed(offset=1, limit=1)["pagination"]["has_more"] is True


def test_a_page_holds_50_unless_it_is_asked_for_more_and_never_beyond_200(ojs: Ojs) -> None:
    for number in range(201):
        ojs.env.scheduler.create(f"job-{number}", "note", Cron("0 0 1 1 *"))
    assert [len(names(ojs.listed(**params))) for params in ({}, {"limit": 200}, {"limit": 1_000_000})] == [50, 200, 200]


def test_the_list_filters_by_enabled(ojs: Ojs) -> None:
    ojs.registered(name="on")
    ojs.registered(name="off", enabled=False)
    assert names(ojs.listed(enabled="true")) == ["on"]
    assert names(ojs.listed(enabled="false")) == ["off"]
    assert [ojs.listed(enabled=flag)["count"] for flag in ("true", "false")] == [1, 1]


@pytest.mark.parametrize(
    "params",
    [{"limit": 0}, {"limit": "x"}, {"offset": -1}, {"enabled": "maybe"}, {"cursor": "%%%"}, {"cursor": "bm8"}],
    ids=str,
)
def test_an_invalid_list_request_is_refused(ojs: Ojs, params: dict[str, Any]) -> None:
    refused(ojs("GET", CRON, params=params), 400, "invalid_request")


def test_disabling_clears_the_next_time_and_enabling_brings_it_back(any_ojs: Ojs) -> None:
    any_ojs.registered(cron="0 * * * *")

    off = any_ojs.patched(enabled=False)
    again = any_ojs.patched(enabled=False)
    on = any_ojs.patched(enabled=True)

    assert (off["enabled"], off["next_run_at"], off["status"]) == (False, None, "paused")
    assert again == off
    assert (on["enabled"], on["next_run_at"]) == (True, "2026-01-15T13:00:00.000Z")
    assert any_ojs.patched(enabled=True) == on


def test_a_disabled_cron_job_does_not_fire(ojs: Ojs) -> None:
    ojs.registered()
    ojs.patched(enabled=False)
    ojs.advance_and_dispatch(5 * MINUTE)
    assert ojs.fetch() == []
    ojs.patched(enabled=True)
    ojs.advance_and_dispatch()
    assert len(ojs.fetch()) == 1


BEFORE = {
    "cron": "0 * * * *",
    "timezone": "Europe/Berlin",
    "args": [1],
    "options": {"queue": "reports", "timeout": 60, "retry": {"max_attempts": 2}, "meta": {"a": 1}},
    "overlap_policy": "allow",
    "description": "hourly",
}
PATCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("expression", {"cron": "30 * * * *"}, {"next_run_at": "2026-01-15T12:30:00.000Z"}),
    (
        "expression's other name",
        {"expression": "@daily"},
        {"cron": "@daily", "next_run_at": "2026-01-15T23:00:00.000Z"},
    ),
    ("timezone", {"timezone": "Asia/Kolkata"}, {"cron": "0 * * * *", "next_run_at": "2026-01-15T12:30:00.000Z"}),
    ("type", {"type": "a.b"}, {}),
    ("args", {"args": []}, {}),
    ("template", {"job_template": {"args": [2]}}, {"args": [2], "type": "report.generate"}),
    ("options", {"options": {"queue": "other"}}, {}),
    ("meta alone", {"meta": {"b": 2}}, {"options": {**BEFORE["options"], "meta": {"b": 2}}}),  # type: ignore[dict-item]
    ("overlap", {"overlap_policy": "enqueue"}, {}),
    ("description", {"description": None}, {}),
    ("with enabled", {"args": [3], "enabled": False}, {"args": [3], "enabled": False, "next_run_at": None}),
]


@pytest.mark.parametrize(("patch", "seen"), [row[1:] for row in PATCHES], ids=[row[0] for row in PATCHES])
def test_a_patch_changes_only_the_sent_fields(ojs: Ojs, patch: dict[str, Any], seen: dict[str, Any]) -> None:
    before = ojs.registered(**BEFORE)

    after = ojs.patched(**patch)

    said = {name: value for name, value in patch.items() if name not in {"meta", "job_template"}}
    for name, value in (said | seen).items():
        assert after[name] == value, name
    depends = {*said, *seen, "cron", "expression", "next_run_at", "job_template", "status"}
    assert {n: v for n, v in after.items() if n not in depends} == {n: v for n, v in before.items() if n not in depends}
    template = {"type": after["type"], "args": after["args"], "options": after["options"]}
    assert after["job_template"] == template
    assert ojs.cron() == after


def test_changed_meta_reaches_the_job_and_leaves_queue_timeout_and_retry(ojs: Ojs) -> None:
    ojs.registered(**BEFORE)
    ojs.patched(meta={"b": 2})
    ojs.advance_and_dispatch(60 * MINUTE)
    (job,) = ojs.fetch("reports")
    assert (job["timeout"], job["max_attempts"], job["meta"]["b"], "a" in job["meta"]) == (60, 2, 2, False)


@pytest.mark.parametrize(
    "body",
    [{}, {"name": "other"}, {"colour": "red"}, [], None, "x", {"enabled": "yes"}, {"enabled": None},
     {"overlap_policy": "maybe"}, {"cron": "61 * * * *"}, {"timezone": "EST"}],
    ids=str,
)  # fmt: skip
def test_a_patch_that_is_refused_changes_nothing(ojs: Ojs, body: Any) -> None:
    before = ojs.registered()
    refused(ojs.patch(body), 400, "invalid_request")
    assert ojs.cron() == before


def test_a_patch_of_a_missing_cron_job_is_not_found(ojs: Ojs) -> None:
    refused(ojs.patch({"enabled": False}), 404, "not_found")
    refused(ojs.patch({"args": [1]}), 404, "not_found")


def test_the_operate_role_may_toggle_and_change_nothing_else(make_web: MakeWeb) -> None:
    tokens = [
        f'{{"name": "{role}", "token": "secret-of-the-{role}-role", "role": "{role}"}}'
        for role in ("read", "operate", "admin")
    ]
    web = make_web(tokens=f"[{', '.join(tokens)}]")
    read, operate, admin = (Ojs(web.acting_as(f"secret-of-the-{role}-role")) for role in ("read", "operate", "admin"))
    refused(operate.register(), 403, "x_forbidden")
    admin.registered()

    assert operate.patched(enabled=False)["enabled"] is False
    refused(operate.patch({"enabled": True, "args": [1]}), 403, "x_forbidden")
    refused(read.patch({"enabled": True}), 403, "x_forbidden")
    refused(operate("DELETE", f"{CRON}/daily-report"), 403, "x_forbidden")
    assert read.cron()["enabled"] is False
    refused(Ojs(web)("GET", CRON), 401, "x_unauthorized")


def test_an_expression_that_another_surface_replaced_is_not_shown_any_more(ojs: Ojs) -> None:
    ojs.registered(cron="@hourly")
    ojs.env.scheduler.get("daily-report").update(spec="*/5 * * * *")
    assert ojs.cron()["cron"] == "*/5 * * * *"


@pytest.mark.parametrize(
    ("spec", "expression"),
    [
        (Cron("0 2 * * *"), "0 2 * * *"),
        (Every("90s"), "@every 1m30s"),
        ([Cron("0 2 * * *"), Every("1h")], "0 2 * * *"),
    ],
    ids=["cron", "interval", "mixture"],
)
def test_a_schedule_of_another_surface_is_shown_with_an_expression(ojs: Ojs, spec: Any, expression: str) -> None:
    ojs.env.scheduler.create("native", "note", spec, overlap="buffer_one")
    job = ojs.cron("native")
    assert (job["cron"], job["options"], job["overlap_policy"]) == (expression, {}, "buffer_one")


MIXTURE = Spec([Cron("0 2 * * *"), Every("1h")])
BEYOND: dict[str, Any] = {
    "two expressions": Spec([Cron("0 2 * * *"), Cron("0 3 * * *")]),
    "mixture": MIXTURE,
    "window": Spec(Cron("0 2 * * *"), end_at=datetime(2027, 1, 1, tzinfo=UTC)),
    "instant": Once(datetime(2027, 1, 1, tzinfo=UTC)),
}


@pytest.mark.parametrize("spec", BEYOND.values(), ids=BEYOND)
def test_a_schedule_that_one_expression_cannot_say_is_shown_whole_and_not_replaced(ojs: Ojs, spec: Any) -> None:
    handle = ojs.env.scheduler.create("native", "note", spec)

    job = ojs.cron("native")
    error = refused(ojs.register(name="native"), 409, "duplicate")

    assert job["x_specs"] == error["details"]["x_specs"] == handle.state.spec.to_json()
    assert ojs.cron("native") == job
    assert "x_specs" not in ojs.patched("native", cron="0 4 * * *"), "a change of the expression is meant"


@pytest.mark.parametrize("spec", [Cron("0 2 * * *"), Every("90s")], ids=["cron", "interval"])
def test_a_schedule_that_one_expression_says_is_replaced(ojs: Ojs, spec: Any) -> None:
    ojs.env.scheduler.create("native", "note", spec)
    assert "x_specs" not in ojs.cron("native")
    assert ojs.register(name="native").status_code == 200


def test_changed_meta_leaves_the_retries_of_another_surface(ojs: Ojs) -> None:
    retry = RetryPolicy(max_retries=7, then="continue")
    handle = ojs.env.scheduler.create("native", "note", Every("1h"), retry=retry)
    ojs.patched("native", meta={"a": 1})
    assert (handle.refresh().describe().memo["a"], handle.state.policies.retry) == (1, retry)


def test_a_patch_keeps_the_fields_of_other_surfaces(ojs: Ojs) -> None:
    handle = ojs.env.scheduler.create("native", "note", Every("1h"), queue="high", timeout=30, labels={"a": "b"})
    ojs.patched("native", args=["eu"])
    state = handle.refresh().describe()
    assert (state.args, state.queue, state.timeout, state.labels) == (["eu"], "high", 30, {"a": "b"})


def test_enabling_revives_a_schedule_that_died_or_is_done(ojs: Ojs) -> None:
    handle = ojs.env.scheduler.create("native", "note", Every("1m"), max_runs=1)
    handle.trigger()
    assert ojs.cron("native")["enabled"] is False
    assert ojs.patched("native", enabled=True)["status"] == "active"
