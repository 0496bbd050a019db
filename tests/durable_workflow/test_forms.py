"""The Durable Workflow surface key by key: what bodies may say, what answers carry, and whom the audit names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.durable_workflow import PATH, created, detail, refused
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb, Web

ONE = f"{PATH}/invoices"
MORNING = {"start_time": "2026-01-15T09:00:00Z", "end_time": "2026-01-15T11:00:00Z"}


def events(web: Web) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = web.get(f"{ONE}/history").json()["events"]
    return found


ITEM = {
    "schedule_id", "workflow_type", "status", "paused", "next_fire", "last_fire", "overlap_policy", "note",
    "fires_count", "jitter_seconds", "max_runs", "remaining_actions",
}  # fmt: skip
DETAIL = {
    "schedule_id", "spec", "action", "overlap_policy", "state", "info", "memo", "search_attributes", "jitter_seconds",
    "max_runs", "remaining_actions", "latest_workflow_instance_id", "created_at", "updated_at", "status",
    "next_fire_at", "last_fired_at", "fires_count",
}  # fmt: skip
INFO = {
    "next_fire", "last_fire", "fires_count", "failures_count", "recent_actions", "buffered_actions",
    "skipped_trigger_count", "last_skip_reason", "last_skipped_at",
}  # fmt: skip
ACTION = {"workflow_id", "run_id", "outcome", "fired_at", "occurrence_time", "fire_lag_ms"}
EVENT = {"id", "sequence", "event_type", "payload", "workflow_instance_id", "workflow_run_id", "recorded_at"}


def test_every_published_key_is_there(control_plane: Web) -> None:
    created(control_plane)
    control_plane.post(f"{ONE}/trigger")
    (item,) = control_plane.get(PATH).json()["schedules"]
    found = detail(control_plane)
    assert set(item) >= ITEM
    assert set(found) >= DETAIL
    assert set(found["state"]) == {"status", "paused", "note"}
    assert set(found["info"]) == INFO
    assert set(found["info"]["recent_actions"][0]) >= ACTION
    assert [set(event) for event in events(control_plane)] == [EVENT, EVENT]


def test_a_fire_appears_in_the_detail_and_in_the_history(control_plane: Web) -> None:
    created(control_plane, overlap_policy="skip")
    control_plane.env.advance(timedelta(hours=1))
    control_plane.env.dispatch()
    control_plane.post(f"{ONE}/trigger")

    found, fired = detail(control_plane), events(control_plane)[1]

    info, (action,) = found["info"], found["info"]["recent_actions"]
    assert (info["fires_count"], info["last_fire"], info["next_fire"]) == (
        1, "2026-01-15T13:00:00Z", "2026-01-15T14:00:00Z",
    )  # fmt: skip
    assert (info["skipped_trigger_count"], info["last_skip_reason"]) == (1, "overlap_policy_skip")
    assert info["last_skipped_at"] == "2026-01-15T13:00:00Z"
    assert (action["workflow_id"], action["occurrence_time"]) == (
        "schedule:invoices:2026-01-15T13:00:00Z", "2026-01-15T13:00:00Z",
    )  # fmt: skip
    assert found["latest_workflow_instance_id"] == fired["workflow_instance_id"] == action["workflow_id"]
    assert (fired["event_type"], fired["workflow_run_id"]) == ("ScheduleTriggered", action["run_id"])


def test_an_interval_with_an_offset_fires_on_its_grid(control_plane: Web) -> None:
    created(control_plane, spec={"intervals": [{"every": "PT1H", "offset": "PT15M"}]})
    found = detail(control_plane)
    assert found["next_fire_at"] == "2026-01-15T12:15:00Z"
    assert found["spec"]["intervals"] == [{"every": "PT1H", "offset": "PT15M"}]


CHANGES: dict[str, Any] = {
    "overlap_policy": "buffer_all",
    "jitter_seconds": 90,
    "max_runs": 7,
    "memo": {"new": [1]},
    "search_attributes": {"tenant": "9"},
    "note": "changed",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_put_changes_what_it_names_and_nothing_else(control_plane: Web, name: str) -> None:
    created(control_plane, memo={"old": 1}, search_attributes={"tenant": "1"}, note="first", max_runs=5)
    before = detail(control_plane)
    answer = control_plane("PUT", ONE, {name: CHANGES[name], "unknown": 1})
    assert answer.json() == {"schedule_id": "invoices", "outcome": "updated"}
    after = detail(control_plane)
    assert after[name] == CHANGES[name]
    others = set(CHANGES) - {name} | {"spec", "action", "fires_count"}
    assert {other: after[other] for other in others} == {other: before[other] for other in others}


@pytest.mark.parametrize("operation", ["pause", "resume"])
def test_a_note_beyond_a_thousand_characters_is_refused_and_nothing_happens(control_plane: Web, operation: str) -> None:
    created(control_plane, paused=operation == "resume")
    refused(control_plane.post(f"{ONE}/{operation}", {"note": "x" * 1_001}), 422, "validation_failed")
    types = [event["event_type"] for event in events(control_plane)]
    assert types == ["ScheduleCreated", *(["SchedulePaused"] if operation == "resume" else [])]


def test_an_update_that_also_pauses_is_one_operation(control_plane: Web) -> None:
    created(control_plane)
    control_plane("PUT", ONE, {"jitter_seconds": 5, "paused": True})
    assert [event["event_type"] for event in events(control_plane)][1:] == ["ScheduleUpdated", "SchedulePaused"]
    assert control_plane.env.scheduler.get("invoices").state.paused_at is not None

    bad = {"spec": {"cron_expressions": ["61 * * * *"]}, "paused": False}
    refused(control_plane("PUT", ONE, bad), 422, "invalid_cron")
    assert detail(control_plane)["status"] == "paused"
    control_plane("PUT", ONE, {"jitter_seconds": 0, "paused": False})
    assert (detail(control_plane)["status"], detail(control_plane)["jitter_seconds"]) == ("active", 0)


@pytest.mark.broad
def test_a_backfill_that_takes_long_continues_after_the_response(control_plane: Web) -> None:
    created(control_plane, spec={"intervals": [{"every": "PT1M", "offset": "PT0S"}]}, overlap_policy="allow_all")
    week = {"start_time": "2026-01-08T13:20:00Z", "end_time": "2026-01-15T12:00:00Z"}
    answer = control_plane.post(f"{ONE}/backfill", week).json()
    assert (answer["outcome"], answer["status"]) == ("backfill_started", "running")
    assert len(answer["results"]) == answer["fires_attempted"] < 10_000
    path = f"/api/v1/backfills/{answer['backfill_id']}/"
    wait_until(lambda: control_plane.get(path).json()["status"] == "done", what="the backfill to end", timeout=120)
    assert control_plane.get(path).json()["started"] == 10_000


def test_older_names_of_timeouts_are_read_as_seconds(control_plane: Web) -> None:
    created(control_plane, action={"workflow_type": "note", "workflow_run_timeout": 40})
    created(control_plane, "other", action={"workflow_type": "note", "workflow_execution_timeout": 50})
    timeouts = [control_plane.env.scheduler.get(name).describe().timeout for name in ("invoices", "other")]
    assert timeouts == [40, 50]


def test_a_page_holds_50_schedules_unless_it_is_asked_for_more(control_plane: Web) -> None:
    for number in range(51):
        created(control_plane, f"s{number}")
    assert len(control_plane.get(PATH).json()["schedules"]) == 50
    assert len(control_plane.get(PATH, params={"page_size": 200}).json()["schedules"]) == 51


def test_a_query_may_name_the_workflow_type(control_plane: Web) -> None:
    created(control_plane, "a")
    created(control_plane, "b", action={"workflow_type": "elsewhere"})
    found = control_plane.get(PATH, params={"query": "WorkflowType = 'elsewhere'"}).json()["schedules"]
    assert [item["schedule_id"] for item in found] == ["b"]


def test_what_a_backfill_ran_is_skipped_by_the_next_one(control_plane: Web) -> None:
    created(control_plane, overlap_policy="allow_all")
    control_plane.post(f"{ONE}/backfill", MORNING)
    again = control_plane.post(f"{ONE}/backfill", MORNING).json()
    assert [(row["outcome"], row["reason"]) for row in again["results"]] == [("skipped", "already_run")] * 2


def test_a_backfill_may_have_an_overlap_policy_of_its_own(control_plane: Web) -> None:
    created(control_plane, overlap_policy="skip")
    control_plane.post(f"{ONE}/backfill", {**MORNING, "overlap_policy": "allow_all"})
    runs = control_plane.env.scheduler.get("invoices").runs().items
    assert [(run.status, run.state.overlap) for run in runs] == [("pending", "allow_all")] * 2


def test_under_skip_the_occurrences_of_a_backfill_wait_for_each_other_and_count_as_started(control_plane: Web) -> None:
    created(control_plane, overlap_policy="skip")
    answer = control_plane.post(f"{ONE}/backfill", MORNING).json()
    assert [row["outcome"] for row in answer["results"]] == ["started", "started"]
    runs = control_plane.env.scheduler.get("invoices").runs().items
    assert [run.status for run in runs] == ["buffered", "pending"]
    waiting = runs[0].state
    assert detail(control_plane)["info"]["buffered_actions"] == [
        {
            "workflow_id": waiting.instance_id,
            "run_id": waiting.uid,
            "occurrence_time": "2026-01-15T10:00:00Z",
            "buffered_at": "2026-01-15T12:00:00Z",
        }
    ]


@pytest.mark.parametrize(
    "body",
    [{}, {"start_time": "2026-01-15T09:00:00", "end_time": "2026-01-15T11:00:00"}, {**MORNING, "end_time": "noon"}],
    ids=["no times", "no offset", "no instant"],
)
def test_a_backfill_without_two_instants_is_refused(control_plane: Web, body: dict[str, str]) -> None:
    created(control_plane)
    refused(control_plane.post(f"{ONE}/backfill", body), 422, "validation_failed")
    assert len(events(control_plane)) == 1


def test_health_is_503_while_redis_is_unavailable(make_web: MakeWeb, own_valkey: ValkeyServer) -> None:
    web = make_web(redis_url=own_valkey.url)
    own_valkey.stop()
    answer = web.get("/api/health")
    refused(answer, 503, "backend_unavailable")
    assert answer.headers["retry-after"]


COMMANDS = {
    "update": ("PUT", "", {"note": "changed"}),
    "pause": ("POST", "/pause", None),
    "resume": ("POST", "/resume", None),
    "trigger": ("POST", "/trigger", None),
    "backfill": ("POST", "/backfill", MORNING),
    "delete": ("DELETE", "", None),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_recorded_with_who_sent_it(control_plane: Web, command: str) -> None:
    method, path, body = COMMANDS[command]
    created(control_plane, paused=command == "resume")
    answer = control_plane(method, ONE + path, body, headers={"User-Agent": "sdk/2", "X-Request-Id": "r-7"})
    assert answer.status_code == 200, answer.text

    recorded = events(control_plane)[2 if command == "resume" else 1]["payload"]["command_context"]

    context = recorded["context"]
    assert recorded["source"] == "control_plane"
    assert context["request"] == {
        "method": method, "path": ONE + path, "ip": "127.0.0.1", "user_agent": "sdk/2", "request_id": "r-7",
    }  # fmt: skip
    assert context["auth"]["method"] == "none"
    server = {"namespace": "default", "workflow_id": "invoices", "command": f"schedule.{command}"}
    assert context["server"] == server
