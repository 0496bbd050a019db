"""The collection of schedules over HTTP: create, read, list, upsert, change, delete."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from rqsched.errors import ScheduleNotFoundError
from tests.support.client import client_of
from tests.support.env import SECOND
from tests.support.rows import every_row
from tests.support.web import MINUTELY, SCHEDULES, Web, at, problem


def test_create_returns_201_with_the_schedule_and_arms_it(any_web: Web) -> None:
    answer = any_web.post(SCHEDULES, {"schedule_id": "report", **MINUTELY})
    assert answer.status_code == 201
    assert answer.headers["location"].endswith("/api/v1/schedules/report/")
    created = answer.json()
    assert created["status"] == "active"
    assert created["next_run_at"] == "2026-01-15T12:01:00Z"
    assert len(any_web.env.armed()) == 1


def test_a_created_schedule_can_be_read(web: Web) -> None:
    assert web.create() == web.read()


def test_reads_and_lists_say_the_timing_in_words_and_how_the_newest_run_ended(any_web: Web) -> None:
    any_web.create(interval=None, cron="0 9 * * 1-5", timezone="Europe/Berlin")
    any_web.create("never", interval="10m")
    any_web.post(at(operation="trigger/"))
    any_web.env.execute_pending()

    listed = any_web.get(SCHEDULES).json()["items"]
    told = {one["schedule_id"]: (one["timing_in_words"], one["last_outcome"]) for one in listed}
    assert told == {
        "report": ("at 09:00, Monday to Friday, Berlin time", "succeeded"),
        "never": ("every 10 minutes", None),
    }
    assert (any_web.read()["timing_in_words"], any_web.read()["last_outcome"]) == told["report"]
    slim = any_web.get(SCHEDULES, params={"fields": "summary"}).json()["items"]
    assert {one["schedule_id"]: (one["timing_in_words"], one["last_outcome"]) for one in slim} == told
    near, far = any_web.env.scheduler.get("report"), client_of(any_web).get("report")
    assert near.last_outcome == far.last_outcome == far.description.last_outcome == "succeeded"


def test_the_trailing_slash_is_optional(web: Web) -> None:
    web.create()
    paths = [SCHEDULES, at(), at(operation="history/"), at(operation="upcoming/"), "/api/v1/workflows/", "/healthz/"]
    for path in paths:
        assert web.get(path).status_code == web.get(path.rstrip("/")).status_code == 200, path
    assert web.post(at(operation="pause")).status_code == 200


def test_a_timeout_is_a_length_as_every_other(web: Web) -> None:
    for number, length in enumerate((90, 90.0, "90s", "PT1M30S")):
        web.create(f"given-{number}", timeout=length, target_timeout=length)
        shown = web.read(f"given-{number}")
        assert (shown["timeout"], shown["policies"]["target_timeout"]) == (90, 90)
    for wrong in (0, 0.5, "soon", "31d", True):
        answer = web.post(SCHEDULES, {"schedule_id": "wrong", **MINUTELY, "timeout": wrong})
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, ["timeout"])


def test_every_option_reaches_the_schedule(web: Web) -> None:
    web.env.register("sync", print)
    web.create(
        "full",
        workflow="sync",
        interval=None,
        cron=["0 2 * * *", "0 4 * * *"],
        timezone="Europe/Berlin",
        once="2026-02-01T00:00:00Z",
        start_at="2026-01-20T00:00:00+01:00",
        end_at="2027-01-20T00:00:00Z",
        args=["eu"],
        kwargs={"deep": {"er": [1, 2.5, None]}},
        overlap="buffer_all",
        buffer_limit=3,
        missed="all",
        fire_within=3600,
        missed_limit=7,
        on_resume="once",
        jitter="30s",
        max_runs=9,
        on_max_runs="delete",
        max_successes=4,
        retention="30d 500",
        fan_out="all_failed",
        overlap_until="dispatched",
        targets="note",
        target_retry={"max_retries": 2, "base": "5s"},
        target_timeout=20,
        max_parallel=8,
        environments=["production"],
        retry={"max_retries": 5, "base": "10s", "factor": 3, "cap": 60, "jitter": 1.5, "then": "continue"},
        timeout=60,
        queue="high",
        priority=1,
        labels={"team": "billing"},
        memo={"a": 1},
        search_attributes={"tier": 2},
        description="all of it",
        owner="ann",
        note="made by a test",
        paused=True,
    )
    found = web.read("full")
    assert found["spec"] == {
        "dst_gap": "shift",
        "cron_expressions": ["0 2 * * *", "0 4 * * *"],
        "instants": ["2026-02-01T00:00:00Z"],
        "timezone": "Europe/Berlin",
        "start_at": "2026-01-19T23:00:00Z",
        "end_at": "2027-01-20T00:00:00Z",
    }
    policies = found["policies"]
    assert policies["retry"] | {"max_consecutive_failures": None} == {
        "max_retries": 5, "base": 10.0, "factor": 3, "cap": 60.0, "jitter": 1.5, "then": "continue",
        "max_consecutive_failures": None, "retry_on": [], "give_up_on": [],
    }  # fmt: skip
    assert (policies["buffer_limit"], policies["missed"], policies["fire_within"]) == (3, "all", 3600.0)
    assert (policies["missed_limit"], policies["on_resume"], policies["on_max_runs"]) == (7, "once", "delete")
    assert (policies["max_successes"], policies["environments"]) == (4, ["production"])
    assert (policies["retention"], policies["fan_out"]) == ("30d 500", "all_failed")
    assert policies["overlap_until"] == "dispatched"
    errors: dict[str, list[str]] = {"retry_on": [], "give_up_on": []}
    assert (
        policies["target_retry"] == {"max_retries": 2, "base": 5.0, "factor": 2.0, "cap": None, "jitter": 0.0} | errors
    )
    assert found["targets"] == policies["targets"] == "note"
    assert (policies["target_timeout"], policies["max_parallel"]) == (20, 8)
    same: dict[str, Any] = {"args": ["eu"], "kwargs": {"deep": {"er": [1, 2.5, None]}}, "overlap": "buffer_all"}
    same |= {"jitter": 30.0, "max_runs": 9, "timeout": 60, "queue": "high", "priority": 1, "status": "paused"}
    same |= {"labels": {"team": "billing"}, "memo": {"a": 1}, "search_attributes": {"tier": 2}, "owner": "ann"}
    same |= {"description": "all of it", "note": "made by a test", "executor": "rq", "next_run_at": None}
    assert {name: found[name] for name in same} == same


def test_zero_total_repeats_are_no_limit(web: Web) -> None:
    web.post(SCHEDULES, {"name": "a", "workflow": "note", "interval": "1m", "total_repeats": 2})
    assert (web.read("a")["policies"]["max_successes"], web.read("a")["total_repeats"]) == (2, 2)
    web("PATCH", at("a"), {"total_repeats": 0})
    assert (web.read("a")["policies"]["max_successes"], web.read("a")["total_repeats"]) == (None, 0)


def test_the_pipelit_documents_body_creates_a_schedule_with_its_names(web: Web) -> None:
    web.env.register("1", print)
    body = {
        "name": "Daily report", "workflow_id": 1, "trigger_node_id": "trigger_schedule_abc123",
        "interval_seconds": 86400, "total_repeats": 0, "max_retries": 3, "timeout_seconds": 600,
        "trigger_payload": {"report_type": "daily"}, "description": "x", "user_profile_id": 7,
    }  # fmt: skip
    answer = web.post(SCHEDULES, body)
    assert answer.status_code == 201, answer.text
    created = answer.json()
    assert {name: created[name] for name in body} == body | {"workflow_id": "1", "user_profile_id": "7"}
    assert created["next_run_at"] == "2026-01-16T12:00:00Z"
    assert (created["current_repeat"], created["current_retry"], created["run_count"]) == (0, 0, 0)
    assert web.get(at(created["id"])).json()["name"] == "Daily report"


def test_the_pipelit_documents_ids_are_returned_only_where_they_were_sent(web: Web) -> None:
    plain = web.post(SCHEDULES, {"schedule_id": "plain", "workflow": "note", "owner": "ann", **MINUTELY}).json()
    assert {"trigger_node_id", "user_profile_id"} & plain.keys() == set()

    changed = web("PATCH", at("plain"), {"user_profile_id": 7}).json()
    assert (changed["owner"], changed["user_profile_id"], "trigger_node_id" in changed) == ("7", "7", False)

    cleared = web("PATCH", at("plain"), {"user_profile_id": None}).json()
    assert (cleared["owner"], "user_profile_id" in cleared) == (None, False)


def test_the_number_of_an_unregistered_workflow_is_422_with_what_to_do(web: Web) -> None:
    body = {"name": "Daily report", "workflow_id": 1, "interval_seconds": 86400}
    found = problem(web.post(SCHEDULES, body), 422, "unknown_workflow")
    assert "no workflow named '1' is registered; GET /api/v1/workflows/" in str(found)
    assert ids(web) == []


def test_resuming_a_pipelit_schedule_continues_one_interval_from_now(web: Web) -> None:
    web.post(SCHEDULES, {"name": "report", "workflow_id": "note", "interval_seconds": 3600})
    web.post(at(operation="pause/"))
    web.env.advance()
    assert web.post(at(operation="resume/")).json()["next_run_at"] == "2026-01-15T13:01:00Z"


@pytest.mark.parametrize(
    ("name", "is_id"), [("weekly", True), ("Weekly report", False), ("", False)], ids=["id", "text", "empty"]
)
def test_a_name_that_is_an_id_is_the_default_id(web: Web, name: str, is_id: bool) -> None:
    answer = web.post(SCHEDULES, {"name": name, **MINUTELY})
    if not name:
        assert problem(answer, 422, "invalid_input")["errors"][0]["field"] == "name"
        return
    created = answer.json()
    assert created["name"] == name
    assert (created["id"] == name) is is_id


def test_creating_twice_is_a_conflict(any_web: Web) -> None:
    any_web.create()
    problem(any_web.post(SCHEDULES, {"schedule_id": "report", **MINUTELY}), 409, "schedule_already_exists")


NIGHTLY = {"workflow": "note", "cron": "0 2 * * *"}
SPEC = {"cron_expressions": ["0 2 * * *"]}
WINDOW = {"start_at": "2028-01-01T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"}
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("no workflow", {"interval": "1m"}, "workflow", "invalid_input"),
    ("no timing", {"workflow": "note"}, "spec", "invalid_spec"),
    ("unknown workflow", {"workflow": "nope", "interval": "1m"}, "workflow", "unknown_workflow"),
    ("import path", {"workflow": "os.system", "interval": "1m"}, "workflow", "unknown_workflow"),
    ("import path with colon", {"workflow": "os:system", "interval": "1m"}, "workflow", "unknown_workflow"),
    ("bad cron", {"workflow": "note", "cron": "61 * * * *"}, "cron", "invalid_cron"),
    ("bad timezone", {**NIGHTLY, "timezone": "Mars/Base"}, "timezone", "invalid_timezone"),
    ("unknown field", {**MINUTELY, "colour": "red"}, "colour", "invalid_input"),
    ("text for a number", {**MINUTELY, "max_runs": "3"}, "max_runs", "invalid_input"),
    ("truth for a number", {**MINUTELY, "max_runs": True}, "max_runs", "invalid_input"),
    ("number for text", {**MINUTELY, "description": 3}, "description", "invalid_input"),
    ("naive instant", {"workflow": "note", "once": "2026-02-01T00:00:00"}, "once.0", "invalid_input"),
    ("instant beyond reason", {"workflow": "note", "once": "9999-12-31T23:59:59-05:00"}, "once.0", "invalid_input"),
    ("bad retry", {**MINUTELY, "retry": {"then": "explode"}}, "retry.then", "invalid_policy"),
    ("unknown in retry", {**MINUTELY, "retry": {"times": 3}}, "retry.times", "invalid_input"),
    ("bad overlap", {**MINUTELY, "overlap": "maybe"}, "overlap", "invalid_policy"),
    ("contradicting aliases", {**MINUTELY, "workflow_id": "other"}, "workflow", "invalid_input"),
    ("contradicting intervals", {**MINUTELY, "interval_seconds": 7}, "interval", "invalid_input"),
    ("two retries", {**MINUTELY, "max_retries": 1, "retry": {"max_retries": 2}}, "max_retries", "invalid_input"),
    ("spec and cron", {"workflow": "note", "spec": {}, "cron": "* * * * *"}, "cron", "invalid_input"),
    ("empty spec", {"workflow": "note", "spec": {}}, "spec", "invalid_spec"),
    ("spec of another shape", {"workflow": "note", "spec": {"crons": "x"}}, "crons", "invalid_spec"),
    ("spec with a wrong start", {"workflow": "note", "spec": {**SPEC, "start_at": "x"}}, "start_at", "invalid_spec"),
    ("end before start", {**NIGHTLY, **WINDOW}, "end_at", "invalid_spec"),
    ("nothing ever", {"workflow": "note", "once": "2020-01-01T00:00:00Z"}, "spec", "invalid_spec"),
    ("bad id", {**MINUTELY, "schedule_id": "no spaces"}, "schedule_id", "invalid_input"),
    ("long id", {**MINUTELY, "schedule_id": "x" * 256}, "schedule_id", "invalid_input"),
    ("huge payload", {**MINUTELY, "kwargs": {"x": "y" * 300_000}}, "args and kwargs", "invalid_payload"),
    ("too many labels", {**MINUTELY, "labels": {str(n): "x" for n in range(65)}}, "labels", "invalid_input"),
    ("offset alone", {"workflow": "note", "cron": "* * * * *", "offset": "5m"}, "interval", "invalid_input"),
]  # fmt: skip


def test_a_refused_create_names_its_field_and_writes_nothing(web: Web) -> None:
    with every_row() as row:
        for name, body, field, code in REFUSED:
            with row(name):
                found = problem(web.post(SCHEDULES, {"schedule_id": "refused", **body}), 422, code)
                assert found["errors"][0]["field"] == field, found
                assert web.get(SCHEDULES, params={"total": True}).json()["total"] == 0


def test_an_external_type_needs_no_registered_workflow(web: Web) -> None:
    assert web.create(workflow="video.transcode", executor="external")["executor"] == "external"


def ids(web: Web, **params: Any) -> list[str]:
    answer = web.get(SCHEDULES, params=params)
    assert answer.status_code == 200, answer.text
    return sorted(item["schedule_id"] for item in answer.json()["items"])


def test_filters_narrow_the_list(any_web: Web) -> None:
    web = any_web
    web.env.register("other", lambda: None)
    web.create("a", labels={"team": "x", "tier": "1"}, owner="ann")
    web.create("b", labels={"team": "x"}, workflow="other")
    web.create("c", paused=True)
    web.post(SCHEDULES, {"schedule_id": "d", **MINUTELY}, headers={"X-Namespace": "elsewhere"})
    assert ids(web) == ["a", "b", "c"]
    assert ids(web, status="paused") == ["c"]
    assert ids(web, status="paused,active") == ["a", "b", "c"]
    assert ids(web, workflow="other") == ids(web, workflow_id="other") == ["b"]
    assert ids(web, label=["team:x", "tier:1"]) == ["a"]
    assert ids(web, owner="ann") == ["a"]
    assert ids(web, q="B") == ["b"]
    assert ids(web, namespace="elsewhere") == ["d"]
    assert ids(web, query='WorkflowType = "other"') == ["b"]
    assert ids(web, managed_by="sync") == []


@pytest.mark.parametrize("text", ["region", "[1]", '"a"', "{", "[" * 3_000, '{"a": NaN}', '{"a": 1e999}'])
def test_search_attributes_of_a_list_are_a_json_object(web: Web, text: str) -> None:
    web.create("a", search_attributes={"region": "eu"})
    assert ids(web, search_attributes='{"region": "eu"}') == ["a"]
    assert ids(web, search_attributes='{"region": ["eu"]}') == []
    refused = web.get(SCHEDULES, params={"search_attributes": text})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "search_attributes")


def test_pages_follow_each_other_and_the_total_is_counted_only_when_asked_for(any_web: Web) -> None:
    for number in range(5):
        any_web.create(f"s{number}")
        any_web.env.advance(SECOND)
    first = any_web.get(SCHEDULES, params={"limit": 2, "total": "true"}).json()
    assert first["total"] == 5
    seen = [item["id"] for item in first["items"]]
    page = first
    while page["next_cursor"]:
        page = any_web.get(SCHEDULES, params={"limit": 2, "cursor": page["next_cursor"]}).json()
        assert "total" not in page
        seen += [item["id"] for item in page["items"]]
    assert seen == [f"s{number}" for number in range(5)]


WRONG_FILTERS: dict[str, dict[str, Any]] = {
    "limit 0": {"limit": 0},
    "limit 501": {"limit": 501},
    "limit text": {"limit": "x"},
    "status": {"status": "sleeping"},
    "label": {"label": "nocolon"},
    "cursor": {"cursor": "%%%"},
    "cursor with NUL": {"cursor": "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgIlx1MDAwMCJd"},
    "cursor object": {"cursor": "e30"},
    "long cursor": {"cursor": "x" * 501},
    "total": {"total": "perhaps"},
    "long q": {"q": "x" * 256},
}


@pytest.mark.every_database
def test_a_wrong_filter_is_refused(any_web: Web) -> None:
    with every_row() as row:
        for name, params in WRONG_FILTERS.items():
            with row(name):
                assert any_web.get(SCHEDULES, params=params).status_code == 422


def test_put_creates_then_leaves_unchanged_then_updates(any_web: Web) -> None:
    first = any_web("PUT", at(), MINUTELY)
    assert (first.status_code, first.headers["x-outcome"]) == (201, "created")
    again = any_web("PUT", at(), MINUTELY)
    assert (again.status_code, again.headers["x-outcome"]) == (200, "unchanged")
    changed = any_web("PUT", at(), {**MINUTELY, "note": "new", "queue": "high"})
    assert (changed.status_code, changed.headers["x-outcome"], changed.json()["queue"]) == (200, "updated", "high")
    assert any_web("PUT", at(), MINUTELY).json()["queue"] is None


def test_put_of_a_done_schedule_with_an_end_ahead_makes_it_active_and_it_fires(any_web: Web) -> None:
    any_web("PUT", at(), {**MINUTELY, "max_runs": 1})
    any_web.env.run_next(any_web.env.scheduler.get("report"))
    assert any_web.read()["status"] == "done"

    assert any_web("PUT", at(), {**MINUTELY, "max_runs": 2}).json()["status"] == "active"

    any_web.env.run_next(any_web.env.scheduler.get("report"))
    assert (any_web.read()["status"], any_web.read()["run_count"]) == ("done", 2)


def test_put_pauses_only_when_paused_is_sent(web: Web) -> None:
    assert web("PUT", at(), {**MINUTELY, "paused": True}).json()["status"] == "paused"
    assert web("PUT", at(), MINUTELY).json()["status"] == "paused"
    assert web("PUT", at(), {**MINUTELY, "paused": False}).json()["status"] == "active"


def test_patch_changes_only_the_sent_fields(any_web: Web) -> None:
    any_web.create(queue="high", labels={"a": "b"}, max_retries=7, retry={"factor": 4.0}, name="Ours", kwargs={"x": 1})
    changed = any_web("PATCH", at(), {"queue": None, "timeout_seconds": 5, "retry": {"base": 9}}).json()
    assert (changed["queue"], changed["timeout"], changed["labels"]) == (None, 5, {"a": "b"})
    retry = changed["policies"]["retry"]
    assert (retry["max_retries"], retry["factor"], retry["base"]) == (7, 4.0, 9.0)
    assert (changed["name"], changed["kwargs"]) == ("Ours", {"x": 1})
    assert any_web("PATCH", at(), {"retry": None}).json()["max_retries"] == 3


def test_patch_of_the_timing_keeps_absent_fields(web: Web) -> None:
    web.create(interval=None, cron="0 2 * * *", timezone="Europe/Berlin", end_at="2027-01-01T00:00:00Z")
    later = web("PATCH", at(), {"cron": "0 3 * * *"}).json()
    assert later["spec"] == {
        "dst_gap": "shift",
        "cron_expressions": ["0 3 * * *"], "timezone": "Europe/Berlin", "end_at": "2027-01-01T00:00:00Z"
    }  # fmt: skip
    assert later["next_run_at"] == "2026-01-16T02:00:00Z"
    assert "end_at" not in web("PATCH", at(), {"end_at": None}).json()["spec"]
    assert web("PATCH", at(), {"timezone": "UTC"}).json()["next_run_at"] == "2026-01-16T03:00:00Z"


def test_patch_refuses_an_unregistered_workflow_and_another_executor(web: Web) -> None:
    web.create(workflow="os.system", executor="external")
    problem(web("PATCH", at(), {"workflow": "os.getcwd"}), 422, "unknown_workflow")
    problem(web("PATCH", at(), {"executor": "rq"}), 422, "invalid_input")
    problem(web("PUT", at(), {"workflow": "os.system", "interval": "1m"}), 422, "unknown_workflow")
    assert web.read()["executor"] == "external"


@pytest.mark.parametrize("form", ["etag", "version", "weak", "any"])
def test_if_match_with_the_current_version_is_accepted(web: Web, form: str) -> None:
    web.create()
    etag = web.get(at()).headers["etag"]
    condition = {"etag": etag, "version": '"1"', "weak": f"W/{etag}", "any": "*"}[form]
    assert web("PATCH", at(), {"note": "mine"}, headers={"If-Match": condition}).status_code == 200


def test_if_match_with_an_older_version_is_412(any_web: Web) -> None:
    any_web.create()
    etag = any_web.get(at()).headers["etag"]
    assert any_web("PATCH", at(), {"note": "theirs"}).headers["etag"] != etag
    problem(any_web("PATCH", at(), {"note": "mine"}, headers={"If-Match": etag}), 412, "version_conflict")
    assert any_web.read()["note"] == "theirs"


def test_if_match_refuses_a_recreated_schedule_of_the_same_version(web: Web) -> None:
    web.create()
    etag = web.get(at()).headers["etag"]
    web("DELETE", at())
    web.create()
    problem(web("PATCH", at(), {"note": "mine"}, headers={"If-Match": etag}), 412, "version_conflict")


def test_if_match_where_it_is_not_supported_is_refused(web: Web) -> None:
    web.create()
    problem(web("PATCH", at(), {"note": "x"}, headers={"If-Match": '"what"'}), 400, "malformed")
    for method, path, body in (("PUT", at(), MINUTELY), ("POST", at(operation="trigger/"), None)):
        problem(web(method, path, body, headers={"If-Match": '"1"'}), 400, "malformed")
    assert web.read()["run_count"] == 0


def test_if_match_is_honoured_by_every_operation_that_changes_the_version(web: Web) -> None:
    web.create()
    older = web.get(at()).headers["etag"]
    web("PATCH", at(), {"note": "theirs"})
    for method, operation in (("POST", "pause/"), ("POST", "resume/"), ("POST", "restart/"), ("DELETE", "")):
        answer = web(method, at(operation=operation), headers={"If-Match": older})
        found = problem(answer, 412, "version_conflict")
        assert found["attributes"] == {"schedule_id": "report", "expected": 1, "actual": 2}
    assert web.post(at(operation="pause/"), headers={"If-Match": web.get(at()).headers["etag"]}).status_code == 200
    assert web("DELETE", at(), headers={"If-Match": web.get(at()).headers["etag"]}).status_code == 204


def test_delete_frees_the_id_and_keeps_the_history(any_web: Web) -> None:
    any_web.create()
    assert any_web("DELETE", at(), params={"reason": "done with it"}).status_code == 204
    problem(any_web.get(at()), 404, "schedule_not_found")
    events = any_web.get(at(operation="history/")).json()["items"]
    assert [event["event_type"] for event in events] == ["ScheduleCreated", "ScheduleDeleted"]
    assert events[-1]["payload"]["reason"] == "done with it"
    assert ids(any_web) == []
    any_web.create()


def test_purge_leaves_nothing(any_web: Web) -> None:
    any_web.create()
    any_web.post(at(operation="trigger/"))
    assert any_web("DELETE", at(), params={"purge": "true"}).status_code == 204
    problem(any_web.get(at(operation="history/")), 404, "schedule_not_found")
    with pytest.raises(ScheduleNotFoundError):
        any_web.env.scheduler.newest("report")


def test_batch_delete_ignores_ids_that_do_not_exist(any_web: Web) -> None:
    for name in ("a", "b", "c"):
        any_web.create(name)
    body = {"schedule_ids": ["a", "nope", "a"], "ids": ["b", 7]}
    assert any_web.post(f"{SCHEDULES}batch-delete/", body).status_code == 204
    assert ids(any_web) == ["c"]
    problem(any_web.post(f"{SCHEDULES}batch-delete/", {}), 422, "invalid_input")


@pytest.mark.every_database
def test_an_unknown_schedule_is_404(any_web: Web) -> None:
    with every_row() as row:
        for method, schedule_id in product(("GET", "PATCH", "DELETE"), ("nope", "no%20id", "%2E%2E", "x%00y")):
            with row(f"{method} {schedule_id}"):
                answer = any_web(method, at(schedule_id), {} if method == "PATCH" else None)
                assert answer.status_code in ({400} if "%00" in schedule_id else {404, 405})


def test_the_context_of_a_request_is_in_its_audit_event(web: Web) -> None:
    web.post(SCHEDULES, {"schedule_id": "report", **MINUTELY}, headers={"X-Request-Id": "trace-1"})
    event = web.get(at(operation="history/")).json()["items"][0]
    assert event["payload"]["command_context"] == {"principal": "local", "request_id": "trace-1", "source": "http"}


def test_answer_says_what_the_next_change_of_the_clocks_does(web: Web) -> None:
    body = {"workflow": "note", "cron": "30 2 * * *", "timezone": "America/New_York"}
    told = "02:30 does not occur on 2026-03-08 in America/New_York; "
    made = web.post("/api/v1/schedules/", body | {"schedule_id": "nightly"}).json()
    assert made["warnings"] == [told + "fires at 03:30 (dst_gap=shift)"]
    path = "/api/v1/schedules/nightly/"
    changed = web("PATCH", path, {"dst_gap": "skip"}).json()
    assert (changed["warnings"], changed["spec"]["dst_gap"]) == ([told + "does not fire (dst_gap=skip)"], "skip")
    assert web("PATCH", path, {"dst_gap": None}).json()["spec"]["dst_gap"] == "shift"
    assert web("PATCH", path, {"timezone": "UTC"}).json()["warnings"] == []
    refused = web("PATCH", path, {"dst_fold": "twice"})
    assert refused.status_code == 422
    assert web("PUT", path, body | {"dst_fold": "both"}).json()["spec"]["dst_fold"] == "both"
    assert web("PUT", path, body).json()["spec"]["dst_fold"] == "both"
