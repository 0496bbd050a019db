"""Pause, resume, restart, trigger, runs, history, upcoming and backfill over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from rqsched.api.description import DeliveryDescription, Description, RunDescription
from rqsched.features.backfill import chain as backfills
from rqsched.http import Limits
from tests.support.env import MINUTE, ONCE, SECOND, block
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.web import SCHEDULES, MakeWeb, Web, at, one_token, problem

BACKFILL = at(operation="backfill/")


def fail() -> None:
    raise RuntimeError("no")


def test_pause_and_resume_return_the_changed_schedule(any_web: Web) -> None:
    any_web.create()
    paused = any_web.post(at(operation="pause/"), {"note": "maintenance", "reason": "db"}).json()
    assert (paused["status"], paused["next_run_at"], paused["note"]) == ("paused", None, "maintenance")
    resumed = any_web.post(at(operation="resume/"), {"note": "done"}).json()
    assert (resumed["status"], resumed["note"]) == ("active", "done")
    assert resumed["next_run_at"] == "2026-01-15T12:01:00Z"
    check_invariants(any_web.env.runtime)


def test_pause_ends_by_itself_where_the_body_says_when(web: Web) -> None:
    web.create()
    paused = web.post(at(operation="pause/"), {"until": "2026-01-15T12:02:30Z", "on_resume": "once"}).json()
    assert (paused["resume_at"], paused["resume_mode"]) == ("2026-01-15T12:02:30Z", "once")
    later = web.post(at(operation="pause/"), {"until": "2026-01-15T13:02:30+01:00"}).json()
    assert (later["resume_at"], later["resume_mode"]) == ("2026-01-15T12:02:30Z", "next")
    web.env.advance(MINUTE * 3)
    web.env.recover()
    assert web.read("report")["resume_at"] is None
    assert web.read("report")["status"] == "active"


def test_end_of_a_pause_that_has_passed_is_refused(web: Web) -> None:
    web.create()
    problem(web.post(at(operation="pause/"), {"until": "2026-01-15T11:59:00Z"}), 422, "invalid_input")
    problem(web.post(at(operation="pause/"), {"on_resume": "once"}), 422, "invalid_input")
    assert web.read("report")["status"] == "active"


def test_skip_next_returns_what_is_skipped(any_web: Web) -> None:
    any_web.create()
    skipped = any_web.post(at(operation="skip-next/"), {"count": 2, "reason": "db"}).json()
    assert skipped["skips"] == ["2026-01-15T12:01:00Z", "2026-01-15T12:02:00Z"]
    assert skipped["next_run_at"] == "2026-01-15T12:03:00Z"
    assert any_web.read("report")["skips"] == skipped["skips"]
    listed = any_web.get(SCHEDULES).json()["items"]
    assert listed[0]["skips"] == skipped["skips"]
    assert len(any_web.post(at(operation="skip-next/")).json()["skips"]) == 1
    assert any_web.post(at(operation="skip-next/"), {"count": 0}).json()["skips"] == []


def test_what_cannot_be_skipped_is_refused(web: Web) -> None:
    web.create()
    problem(web.post(at(operation="skip-next/"), {"count": 101}), 422, "invalid_input")
    problem(web.post(at(operation="skip-next/"), {"count": "two"}), 422, "invalid_input")
    web.post(at(operation="pause/"))
    problem(web.post(at(operation="skip-next/"), {"count": 1}), 409, "invalid_state")
    assert web.read("report")["skips"] == []


def test_resume_can_fire_what_the_pause_missed(web: Web) -> None:
    web.create()
    web.post(at(operation="pause/"))
    web.env.advance(MINUTE * 3)
    assert web.post(at(operation="resume/"), {"on_resume": "once"}).json()["next_run_at"] == "2026-01-15T12:03:00Z"


def make_paused(web: Web) -> None:
    web.create(paused=True)


def make_dead(web: Web) -> None:
    web.env.register("fail", fail)
    web.create(workflow="fail", retry={"max_retries": 0, "then": "dead"})
    web.env.run_next(web.env.scheduler.get("report"))


WRONG = [
    ("pause", "paused", 400),
    ("pause", "dead", 400),
    ("resume", "active", 400),
    ("resume", "dead", 400),
    ("restart", "active", 409),
    ("restart", "paused", 409),
]


@pytest.mark.parametrize(("operation", "status", "code"), WRONG, ids=[f"{op} {status}" for op, status, _ in WRONG])
def test_an_operation_in_a_wrong_status_is_refused_and_changes_nothing(
    web: Web, operation: str, status: str, code: int
) -> None:
    makers: dict[str, Callable[[Web], object]] = {"active": Web.create, "paused": make_paused, "dead": make_dead}
    makers[status](web)
    before = web.read()
    found = problem(web.post(at(operation=f"{operation}/")), code, "invalid_state")
    assert status in found["detail"]
    assert web.read() == before


def test_restart_revives_a_dead_schedule(web: Web) -> None:
    make_dead(web)
    assert web.read()["status"] == "dead"
    revived = web.post(at(operation="restart/"), {"note": "fixed"}).json()
    assert (revived["status"], revived["error_count"], revived["note"]) == ("active", 0, "fixed")


OPERATIONS = ["pause/", "resume/", "restart/", "trigger/", "upcoming/", "history/", "runs/", "runs/1/", "backfill/"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_on_an_unknown_schedule_is_404(web: Web, operation: str) -> None:
    is_read = operation.startswith(("upcoming", "history", "runs"))
    body = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"} if operation == "backfill/" else None
    problem(web("GET" if is_read else "POST", at("nope", operation), body), 404, "schedule_not_found")


def test_trigger_starts_a_run_that_can_be_followed_to_its_end(any_web: Web) -> None:
    any_web.create(kwargs={"x": 1})
    answer = any_web.post(at(operation="trigger/")).json()
    assert (answer["outcome"], answer["run"]["status"], answer["run"]["kind"]) == ("triggered", "pending", "manual")
    any_web.env.work()
    run = any_web.get(at(operation=f"runs/{answer['run']['uid']}/")).json()
    assert (run["status"], run["attempt"], run["attempts"][0]["outcome"]) == ("succeeded", 1, "succeeded")
    assert "token" not in run
    assert any_web.env.calls == [((), {"x": 1})]
    for name in (str(run["number"]), run["instance_id"], run["uid"].lower()):
        assert any_web.get(at(operation=f"runs/{name}/")).json() == run
    assert any_web.read()["success_count"] == 1


def test_trigger_returns_the_reason_when_nothing_starts(web: Web) -> None:
    web.create(paused=True)
    refused = web.post(at(operation="trigger/"))
    assert (refused.status_code, refused.json()["outcome"]) == (200, "skipped")
    assert refused.json()["reason"] == "status_not_triggerable"
    assert web.post(at(operation="trigger/"), {"force": True}).json()["outcome"] == "triggered"
    assert web.post(at(operation="trigger/"), {"force": True}).json()["reason"] == "overlap_policy_skip"
    forced = web.post(at(operation="trigger/"), {"force": True, "overlap": "buffer_one"}).json()
    assert (forced["outcome"], forced["buffer_depth"]) == ("buffered", 1)
    problem(web.post(at(operation="trigger/"), {"overlap": "perhaps"}), 422, "invalid_policy")


def test_runs_come_newest_first_in_pages_and_by_status(any_web: Web) -> None:
    any_web.create(overlap="allow_all")
    for _ in range(5):
        any_web.env.advance(SECOND)
        any_web.post(at(operation="trigger/"))
    page = any_web.get(at(operation="runs/"), params={"limit": 2}).json()
    numbers = [run["number"] for run in page["items"]]
    while page["next_cursor"]:
        page = any_web.get(at(operation="runs/"), params={"limit": 2, "cursor": page["next_cursor"]}).json()
        numbers += [run["number"] for run in page["items"]]
    assert numbers == [5, 4, 3, 2, 1]
    assert any_web.get(at(operation="runs/"), params={"status": "succeeded,failed"}).json()["items"] == []
    assert any_web.get(at(operation="runs/"), params={"status": "what"}).status_code == 422
    assert any_web.get(at(operation="runs/"), params={"cursor": "what"}).status_code == 422
    problem(any_web.get(at(operation="runs/99/")), 404, "run_not_found")


@pytest.mark.parametrize(("operation", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_a_run_can_be_ended_once(any_web: Web, operation: str, status: str) -> None:
    any_web.create()
    any_web.post(at(operation="trigger/"))
    for _ in range(2):
        assert any_web.post(at(operation=f"runs/1/{operation}/")).json()["status"] == status
    problem(any_web.post(at(operation=f"runs/2/{operation}/")), 404, "run_not_found")


def test_the_runs_of_a_deleted_schedule_stay_readable(web: Web) -> None:
    web.create()
    web.post(at(operation="trigger/"))
    web("DELETE", at())
    assert web.get(at(operation="runs/")).json()["items"][0]["number"] == 1


def test_history_comes_in_pages_without_gaps(any_web: Web) -> None:
    any_web.create()
    for _ in range(3):
        any_web.post(at(operation="pause/"))
        any_web.post(at(operation="resume/"))
    path = at(operation="history/")
    page = any_web.get(path, params={"limit": 3}).json()
    sequences = [event["sequence"] for event in page["items"]]
    while page["next_cursor"]:
        page = any_web.get(path, params={"limit": 3, "cursor": page["next_cursor"]}).json()
        sequences += [event["sequence"] for event in page["items"]]
    assert sequences == [1, 2, 3, 4, 5, 6, 7]
    later = any_web.get(path, params={"after_sequence": 5}).json()
    assert [event["sequence"] for event in later["items"]] == [6, 7]
    assert later["next_cursor"] is None


@pytest.mark.parametrize(
    "params",
    [{"limit": 0}, {"limit": 501}, {"after_sequence": -1}, {"after_sequence": 2**63}, {"cursor": "x"}],
    ids=str,
)
def test_history_refuses_parameters_out_of_bounds(web: Web, params: dict[str, Any]) -> None:
    web.create()
    assert web.get(at(operation="history/"), params=params).status_code == 422


def test_upcoming_returns_the_next_fires(web: Web) -> None:
    web.create()
    path = at(operation="upcoming/")
    assert web.get(path, params={"count": 2}).json() == {"items": ["2026-01-15T12:01:00Z", "2026-01-15T12:02:00Z"]}
    assert len(web.get(path).json()["items"]) == 5
    assert web.get(path, params={"count": 1001}).status_code == 422
    web.post(at(operation="pause/"))
    assert web.get(path).json() == {"items": []}


def test_why_answers_for_an_instant_and_for_the_newest_occurrence(web: Web) -> None:
    web.create(cron="0 * * * *", interval=None)
    web.post(at(operation="pause/"), {"reason": "the vendor moves"})
    told = web.get(at(operation="why/"), params={"at": "2026-01-15T13:00:00Z"}).json()
    assert (told["answer"], told["at"], told["since"]) == ("paused", "2026-01-15T13:00:00Z", "2026-01-15T12:00:00Z")
    assert told["text"].endswith(": the vendor moves.")
    assert web.get(at(operation="why/")).json()["answer"] == "paused"
    assert web.get(at(operation="why/"), params={"at": "yesterday"}).status_code == 422


def hours(start: int, end: int) -> dict[str, str]:
    return {"start": f"2026-01-15T{start:02}:00:00Z", "end": f"2026-01-15T{end:02}:00:00Z"}


def test_a_small_backfill_completes_within_the_request(any_web: Web) -> None:
    any_web.create(interval=None, cron="0 * * * *", overlap="allow_all")
    answer = any_web.post(BACKFILL, hours(8, 11))
    assert answer.status_code == 200
    done = answer.json()
    assert (done["status"], done["attempted"], done["started"]) == ("done", 3, 3)
    assert [row["outcome"] for row in done["rows"]] == ["started"] * 3
    again = any_web.post(BACKFILL, hours(7, 11)).json()
    assert (again["started"], again["already_run"]) == (1, 3)
    check_invariants(any_web.env.runtime)


def test_a_dry_run_writes_nothing(web: Web) -> None:
    web.create(interval=None, cron="0 * * * *")
    answer = web.post(BACKFILL, {**hours(8, 11), "dry_run": True}).json()
    assert (answer["status"], answer["started"], len(answer["rows"])) == ("dry_run", 3, 3)
    assert web.get(at(operation="runs/")).json()["items"] == []


def test_a_large_backfill_continues_after_the_response(any_web: Web) -> None:
    web = any_web
    web.env.clock.advance(timedelta(hours=20))
    web.create(interval=None, cron="* * * * *", overlap="allow_all")
    answer = web.post(BACKFILL, {"start": "2026-01-15T12:00:00Z", "end": "2026-01-16T06:00:00Z"})
    assert answer.status_code == 202
    assert answer.json()["attempted"] == backfills.CHUNK
    location = answer.headers["location"]
    done = wait_until(lambda: found if (found := web.get(location).json())["status"] == "done" else None, timeout=30)
    assert done is not None
    assert (done["attempted"], done["started"]) == (18 * 60, 18 * 60)
    problem(web.get(location, headers={"X-Namespace": "elsewhere"}), 404, "backfill_not_found")
    problem(web.get("/api/v1/backfills/nope/"), 404, "backfill_not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "start"),
        ({"start": "2026-01-15T08:00:00", "end": "2026-01-15T09:00:00Z"}, "start"),
        ({**hours(9, 8)}, "end"),
        ({"start": "2027-01-15T08:00:00Z", "end": "2027-01-15T09:00:00Z"}, "start"),
        ({**hours(8, 11), "bound": 2}, "end"),
        ({**hours(8, 11), "overlap": "x"}, "overlap"),
    ],
    ids=["empty", "naive", "backwards", "future", "beyond the bound", "overlap"],
)
def test_an_invalid_backfill_is_refused(web: Web, body: dict[str, Any], field: str) -> None:
    web.create(interval=None, cron="0 * * * *")
    answer = web.post(BACKFILL, body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
    assert web.get(at(operation="runs/")).json()["items"] == []


def test_workflows_lists_the_registered_workflows(web: Web) -> None:
    web.env.register("local", print, queue="high", timeout=9)
    web.env.runtime.record_workflows()
    web.env.registry.remove("local")
    found = {item["name"]: item for item in web.get("/api/v1/workflows/").json()["items"]}
    assert set(found) == {"local", "note"}
    assert (found["local"]["queue"], found["local"]["timeout"]) == ("high", 9)
    assert "path" not in found["local"]
    assert web.post(SCHEDULES, {"name": "x", "workflow": "local", "interval": "1m"}).json()["queue"] == "high"


WORDS = {
    "interval_seconds": ({"interval_seconds": 60}, "dead"),
    "total_repeats": ({"interval": "PT1M", "total_repeats": 2}, "dead"),
    "ours": ({"interval": "PT1M"}, "continue"),
    "interval_seconds and what follows": ({"interval_seconds": 60, "retry": {"then": "continue"}}, "continue"),
}


@pytest.mark.parametrize(("timing", "then"), WORDS.values(), ids=WORDS)
def test_a_create_in_the_pipelit_documents_words_ends_a_schedule_whose_run_failed(
    web: Web, timing: dict[str, Any], then: str
) -> None:
    web.post(SCHEDULES, {"name": "a", "workflow": "note", **timing})
    assert web.read("a")["policies"]["retry"]["then"] == then

    put = {"workflow": "note", "interval_seconds": 60}
    assert web("PUT", at("a"), put).json()["policies"]["retry"]["then"] == then, "PUT keeps what is stored"


def test_a_blocked_run_is_pending_with_its_reason_and_can_be_listed_alone(any_web: Web) -> None:
    any_web.create(overlap="allow_all")
    schedule = any_web.env.scheduler.get("report")
    run = block(any_web.env.runtime, present(schedule.trigger().run))

    (found,) = any_web.get(at(operation="runs/"), params={"status": "blocked"}).json()["items"]
    assert (found["uid"], found["status"], found["blocked_at"]) == (run.uid, "pending", "2026-01-15T12:00:00Z")
    assert found["blocked_reason"] == run.blocked_reason
    assert any_web.get(at()).json()["blocked_reason"] == run.blocked_reason
    schedule.trigger()
    assert len(any_web.get(at(operation="runs/"), params={"status": "blocked,pending"}).json()["items"]) == 2
    assert any_web.get(at(operation="runs/2/")).json()["blocked_at"] is None


def test_runs_of_all_schedules_are_listed_by_filters(any_web: Web) -> None:
    any_web.create("first", overlap="allow_all")
    any_web.create("second", overlap="allow_all")
    any_web.post(at("first", "trigger/"))
    any_web.env.advance(MINUTE)
    since = any_web.env.clock.now().isoformat()
    failed = any_web.post(at("second", "trigger/")).json()["run"]
    any_web.post(at("second", f"runs/{failed['uid']}/cancel/"))

    def found(**params: Any) -> list[str]:
        answer = any_web.get("/api/v1/runs/", params=params)
        assert answer.status_code == 200, answer.text
        return [run["schedule_id"] for run in answer.json()["items"]]

    assert found() == ["second", "first"]
    assert found(status="cancelled", since=since) == ["second"]
    assert found(status=["pending", "running"]) == ["first"]
    assert found(until=since) == found(schedule_id="first") == ["first"]
    assert found(workflow="elsewhere") == found(since=since, schedule_id="first") == []
    page = any_web.get("/api/v1/runs/", params={"limit": 1}).json()
    assert found(limit=1, cursor=page["next_cursor"]) == ["first"]
    assert any_web.get("/api/v1/runs/", headers={"X-Namespace": "tenant"}).json()["items"] == []
    for params in ({"status": "odd"}, {"since": "2026-01-15T12:00:00"}, {"cursor": "x"}, {"limit": 0}, {"sort": "x"}):
        assert any_web.get("/api/v1/runs/", params=params).status_code == 422, params


def test_failed_runs_of_all_schedules_are_found_by_the_text_of_their_error(any_web: Web) -> None:
    env = any_web.env
    for name in ("first", "second"):
        env.fail_next(env.create(name, retry=ONCE))
    env.run_next(env.create("sound"))

    def found(**params: Any) -> list[str]:
        answer = any_web.get("/api/v1/runs/", params=params)
        assert answer.status_code == 200, answer.text
        return [run["schedule_id"] for run in answer.json()["items"]]

    assert found(error="AS THE test wants") == found(sort="-ended") == ["second", "first"]
    assert found(error="as the test wants", schedule_id="first") == ["first"]
    assert found(error="nobody wants it") == found(error="as the test", status="lost") == []
    page = any_web.get("/api/v1/runs/", params={"error": "as the test", "limit": 1}).json()
    assert found(error="as the test", cursor=page["next_cursor"]) == ["first"]
    assert any_web.get("/api/v1/runs/", params={"error": ""}).status_code == 422


def test_a_trigger_with_a_used_key_and_another_policy_is_a_conflict(web: Web) -> None:
    web.create()
    key = {"Idempotency-Key": "k"}
    first = web.post(at(operation="trigger/"), {"overlap": "allow_all"}, headers=key).json()
    again = web.post(at(operation="trigger/"), {"overlap": "allow_all"}, headers=key).json()
    assert again["run"]["uid"] == first["run"]["uid"]
    for body in ({}, {"overlap": "buffer_all"}):
        problem(web.post(at(operation="trigger/"), body, headers=key), 409, "idempotency_conflict")
    assert web.read()["run_count"] == 1


def test_a_response_says_what_is_left_of_the_rate(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(rate=0.001, burst=2)})
    left = [web.get(SCHEDULES) for _ in range(2)]
    assert [answer.headers["ratelimit-remaining"] for answer in left] == ["1", "0"]
    assert {answer.headers["ratelimit-limit"] for answer in left} == {"2"}
    assert web.get("/healthz").headers.get("ratelimit-limit") is None


def test_what_needs_no_token_is_documented_so(make_web: MakeWeb) -> None:
    token = "a-secret-of-twenty-four-chars"
    web = make_web(tokens=one_token(token, name="ops")).acting_as(token)
    paths = web.get("/openapi.json").json()["paths"]
    assert [paths[path]["get"]["security"] for path in ("/healthz", "/readyz", "/ojs/manifest")] == [[], [], []]
    assert paths["/api/v1/schedules/"]["get"]["security"] != []


def test_fields_of_responses_are_described_by_the_docstrings_of_what_they_show(web: Web) -> None:
    schemas = web.get("/openapi.json").json()["components"]["schemas"]
    shown = {"ScheduleResponse": Description, "RunResponse": RunDescription, "DeliveryResponse": DeliveryDescription}
    for name, shape in shown.items():
        own = {field.name for field in fields(shape)}
        described = {field for field, said in schemas[name]["properties"].items() if said.get("description")}
        assert own <= described & set(schemas[name]["required"])
    fields_of_run = schemas["RunResponse"]["properties"]
    assert fields_of_run["number"]["description"] == "1, 2, 3 ... within the schedule."
    assert fields_of_run["ended_at"]["description"] == "When it ended; null while it is open."
