"""The Durable Workflow surface: the routes, bodies, outcomes and refusals its own clients rely on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched.kernel.decide.policy import RetryPolicy
from tests.support.durable_workflow import PATH, VERSION, created, detail
from tests.support.web import MakeWeb, Web, one_token

NOON = "2026-01-15T12:00:00Z"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        pytest.param({}, "missing_control_plane_version", id="none"),
        pytest.param(
            {"X-Durable-Workflow-Control-Plane-Version": "1"}, "unsupported_control_plane_version", id="another"
        ),
    ],
)
def test_a_request_without_version_2_is_refused(web: Web, headers: dict[str, str], reason: str) -> None:
    answer = web.get(PATH, headers=headers)

    assert answer.status_code == 400
    assert answer.json()["reason"] == reason


def test_a_created_schedule_is_described_with_every_key_the_sdk_reads(control_plane: Web) -> None:
    answer = created(control_plane, note="Runs hourly.", memo={"origin": "test"}, jitter_seconds=30, max_runs=5)

    assert (answer.status_code, answer.json()) == (201, {"schedule_id": "invoices", "outcome": "created"})
    found = detail(control_plane)
    assert found["spec"] == {"cron_expressions": ["0 * * * *"], "intervals": [], "timezone": "UTC"}
    assert found["action"] == {"workflow_type": "note", "task_queue": "high", "input": ["nightly"]}
    assert found["state"] == {"status": "active", "paused": False, "note": "Runs hourly."}
    assert found["memo"] == {"origin": "test"}
    assert (found["jitter_seconds"], found["max_runs"], found["remaining_actions"]) == (30, 5, 5)
    assert found["status"] == "active"
    assert found["next_fire_at"] == found["info"]["next_fire"]
    assert found["last_fired_at"] is None
    assert found["fires_count"] == found["info"]["fires_count"] == 0


def test_an_id_is_generated_when_none_is_given(control_plane: Web) -> None:
    body = {"spec": {"intervals": [{"every": "PT30M"}]}, "action": {"workflow_type": "note"}}

    answer = control_plane.post(PATH, body)

    assert answer.status_code == 201
    assert detail(control_plane, answer.json()["schedule_id"])["spec"]["intervals"] == [{"every": "PT30M"}]


def test_a_taken_id_is_a_conflict(control_plane: Web) -> None:
    created(control_plane)

    answer = created(control_plane)

    assert answer.status_code == 409
    assert answer.json()["reason"] == "schedule_already_exists"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"spec": {"cron_expressions": ["61 * * * *"]}}, "invalid_cron", id="cron"),
        pytest.param({"spec": {"intervals": [{"every": "P1M"}]}}, "invalid_duration", id="interval"),
        pytest.param({"spec": {"cron_expressions": ["0 * * * *"], "timezone": "EST"}}, "invalid_timezone", id="zone"),
        pytest.param({"spec": {}}, "invalid_spec", id="empty spec"),
        pytest.param({"action": {}}, "validation_failed", id="no workflow type"),
        pytest.param({"overlap_policy": "sometimes"}, "invalid_policy", id="overlap"),
        pytest.param({"jitter_seconds": 3601}, "validation_failed", id="jitter beyond an hour"),
        pytest.param({"max_runs": 0}, "validation_failed", id="max runs"),
        pytest.param({"note": "x" * 1001}, "validation_failed", id="note"),
        pytest.param({"memo": {"text": "x" * 300_000}}, "memo_too_large", id="memo"),
        pytest.param({"schedule_id": "x" * 129}, "validation_failed", id="long id"),
    ],
)
def test_a_bad_body_is_refused_by_name_and_nothing_is_written(
    control_plane: Web, fields: dict[str, Any], reason: str
) -> None:
    answer = created(control_plane, **fields)

    assert answer.status_code == 422, answer.text
    assert answer.json()["reason"] == reason
    assert control_plane.get(PATH).json()["schedules"] == []


def test_an_encoded_input_is_kept_opaque_and_handed_to_the_workflow(control_plane: Web) -> None:
    envelope = {"codec": "avro", "blob": "AAEC"}
    created(control_plane, action={"workflow_type": "note", "input": envelope})

    control_plane.post(f"{PATH}/invoices/trigger")

    assert detail(control_plane)["action"]["input"] == envelope
    assert control_plane.env.scheduler.get("invoices").describe().args == [envelope]


def test_a_type_that_no_process_registered_waits_for_an_external_worker(control_plane: Web) -> None:
    created(control_plane, action={"workflow_type": "os.system", "input": ["true"]})

    assert control_plane.env.scheduler.get("invoices").describe().executor == "external"


def test_the_list_is_newest_first_and_pages_with_a_bound_token(control_plane: Web) -> None:
    for number in range(3):
        created(control_plane, f"s{number}")
        control_plane.env.clock.advance(timedelta(seconds=1))

    first = control_plane.get(PATH, params={"page_size": 2}).json()
    token = first["next_page_token"]
    second = control_plane.get(PATH, params={"page_size": 2, "next_page_token": token}).json()

    assert [one["schedule_id"] for one in first["schedules"]] == ["s2", "s1"]
    assert [one["schedule_id"] for one in second["schedules"]] == ["s0"]
    assert second["next_page_token"] is None
    other_filter = control_plane.get(PATH, params={"status": "paused", "next_page_token": token})
    other_namespace = control_plane.get(PATH, params={"next_page_token": token}, headers={"X-Namespace": "other"})
    malformed = control_plane.get(PATH, params={"next_page_token": "%%%"})
    assert (other_filter.status_code, other_namespace.status_code, malformed.status_code) == (409, 403, 400)


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        pytest.param({"status": "paused"}, ["b"], id="status"),
        pytest.param({"workflow_type": "note"}, ["b", "a"], id="workflow type"),
        pytest.param({"query": 'ScheduleId = "a"'}, ["a"], id="id"),
        pytest.param({"query": 'TaskQueue = "high" AND Status = "active"'}, ["a"], id="queue and status"),
        pytest.param({"query": 'Note = "second"'}, ["b"], id="note"),
        pytest.param({"query": 'tenant_id = "42"'}, ["b"], id="search attribute"),
        pytest.param({"query": 'ScheduleId = "a" AND tenant_id = "42"'}, [], id="nothing"),
    ],
)
def test_filters_and_queries_narrow_the_list(control_plane: Web, params: dict[str, str], shown: list[str]) -> None:
    created(control_plane, "a")
    control_plane.env.clock.advance(timedelta(seconds=1))
    created(control_plane, "b", note="second", paused=True, search_attributes={"tenant_id": "42"})

    found = control_plane.get(PATH, params=params)

    assert [one["schedule_id"] for one in found.json()["schedules"]] == shown, found.text


@pytest.mark.parametrize("text", ["ScheduleId", 'ScheduleId = "a" OR Note = "b"', 'ScheduleId = "a" AND'])
def test_a_query_other_than_an_and_of_equalities_is_refused(control_plane: Web, text: str) -> None:
    answer = control_plane.get(PATH, params={"query": text})

    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_query")


def test_an_update_replaces_the_spec_and_merges_the_action(control_plane: Web) -> None:
    created(control_plane)

    answer = control_plane(
        "PUT",
        f"{PATH}/invoices",
        {"spec": {"cron_expressions": ["30 3 * * *"], "timezone": "America/Chicago"}, "action": {"task_queue": "low"}},
    )

    assert answer.json() == {"schedule_id": "invoices", "outcome": "updated"}
    found = detail(control_plane)
    assert found["spec"]["cron_expressions"] == ["30 3 * * *"]
    assert found["action"] == {"workflow_type": "note", "task_queue": "low", "input": ["nightly"]}


def test_pause_and_resume_take_a_note_and_are_idempotent(control_plane: Web) -> None:
    created(control_plane)

    first = control_plane.post(f"{PATH}/invoices/pause", {"note": "holiday"})
    again = control_plane.post(f"{PATH}/invoices/pause")
    paused = detail(control_plane)
    resumed = control_plane.post(f"{PATH}/invoices/resume")

    assert first.json() == again.json() == {"schedule_id": "invoices", "outcome": "paused"}
    assert paused["state"] == {"status": "paused", "paused": True, "note": "holiday"}
    assert resumed.json()["outcome"] == "resumed"
    assert detail(control_plane)["next_fire_at"] is not None


def test_a_deleted_schedule_is_gone_but_its_history_is_readable(control_plane: Web) -> None:
    created(control_plane)

    answer = control_plane("DELETE", f"{PATH}/invoices")

    assert answer.json() == {"schedule_id": "invoices", "outcome": "deleted"}
    gone = control_plane.get(f"{PATH}/invoices")
    assert (gone.status_code, gone.json()["reason"]) == (404, "schedule_not_found")
    history = control_plane.get(f"{PATH}/invoices/history").json()
    assert [one["event_type"] for one in history["events"]] == ["ScheduleCreated", "ScheduleDeleted"]


def test_a_trigger_returns_its_run_or_the_reason_for_none(control_plane: Web) -> None:
    created(control_plane)

    first = control_plane.post(f"{PATH}/invoices/trigger").json()
    second = control_plane.post(f"{PATH}/invoices/trigger").json()
    buffered = control_plane.post(f"{PATH}/invoices/trigger", {"overlap_policy": "buffer_one"}).json()
    full = control_plane.post(f"{PATH}/invoices/trigger", {"overlap_policy": "buffer_one"}).json()

    assert first["outcome"] == "triggered"
    assert first["workflow_id"].startswith("schedule:invoices:manual:")
    assert first["run_id"]
    assert second == {"schedule_id": "invoices", "outcome": "skipped", "reason": "overlap_policy_skip"}
    assert (buffered["outcome"], buffered["buffer_depth"]) == ("buffered", 1)
    assert (full["outcome"], full["reason"]) == ("buffer_full", "buffer_full")


def test_max_runs_used_up_deletes_the_schedule_here(control_plane: Web) -> None:
    created(control_plane, max_runs=1)

    control_plane.post(f"{PATH}/invoices/trigger")

    assert control_plane.get(f"{PATH}/invoices").status_code == 404
    events = control_plane.get(f"{PATH}/invoices/history").json()["events"]
    assert events[-1]["payload"]["reason"] == "max_runs_exhausted"


def test_a_backfill_returns_a_row_for_each_occurrence(control_plane: Web) -> None:
    created(control_plane, overlap_policy="allow_all")

    answer = control_plane.post(
        f"{PATH}/invoices/backfill", {"start_time": "2026-01-15T09:00:00Z", "end_time": "2026-01-15T11:00:00Z"}
    ).json()

    assert (answer["outcome"], answer["fires_attempted"]) == ("backfill_started", 2)
    assert [row["fire_time"] for row in answer["results"]] == ["2026-01-15T09:00:00Z", "2026-01-15T10:00:00Z"]
    assert answer["results"][0]["workflow_id"] == "schedule:invoices:backfill:2026-01-15T09:00:00Z"
    empty = control_plane.post(f"{PATH}/invoices/backfill", {"start_time": NOON, "end_time": NOON})
    assert (empty.status_code, empty.json()["reason"]) == (422, "invalid_time_range")


def test_history_pages_by_sequence_and_returns_has_more(control_plane: Web) -> None:
    created(control_plane)
    control_plane.post(f"{PATH}/invoices/pause")
    control_plane.post(f"{PATH}/invoices/resume")

    first = control_plane.get(f"{PATH}/invoices/history", params={"limit": 2}).json()
    rest = control_plane.get(f"{PATH}/invoices/history", params={"after_sequence": first["next_cursor"]}).json()

    assert ([one["sequence"] for one in first["events"]], first["has_more"]) == ([1, 2], True)
    assert ([one["sequence"] for one in rest["events"]], rest["has_more"]) == ([3], False)
    assert rest["next_cursor"] is None
    assert control_plane.get(f"{PATH}/invoices/history", params={"limit": 9_999}).status_code == 200
    bad = control_plane.get(f"{PATH}/invoices/history", params={"after_sequence": "-1"})
    assert (bad.status_code, bad.json()["reason"]) == (422, "invalid_after_sequence")


def test_the_audit_event_records_the_control_planes_command_context(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("a-secret-of-twenty-four-chars", name="ops"))
    web.headers.update(VERSION | {"Authorization": "Bearer a-secret-of-twenty-four-chars", "X-Request-Id": "r-1"})

    created(web, action={"workflow_type": "elsewhere"})

    payload = web.get(f"{PATH}/invoices/history").json()["events"][0]["payload"]["command_context"]
    assert payload["source"] == "control_plane"
    assert payload["context"]["request"]["request_id"] == "r-1"
    assert payload["context"]["request"]["method"] == "POST"
    assert payload["context"]["auth"] == {"method": "token", "role": "admin", "principal": "ops"}
    assert payload["context"]["server"] == {
        "namespace": "default",
        "workflow_id": "invoices",
        "command": "schedule.create",
    }


def test_a_dead_schedule_appears_as_paused_with_its_reason_and_resume_revives_it(control_plane: Web) -> None:
    def fail() -> None:
        raise RuntimeError("no invoice server")

    control_plane.env.register("fail", fail)
    created(control_plane, action={"workflow_type": "fail"})
    handle = control_plane.env.scheduler.get("invoices")
    handle.update(retry=RetryPolicy(max_retries=0, then="dead"))
    control_plane.post(f"{PATH}/invoices/trigger")
    control_plane.env.work()

    found = detail(control_plane)
    resumed = control_plane.post(f"{PATH}/invoices/resume")

    assert found["status"] == "paused"
    assert found["note"].startswith("dead: ")
    assert resumed.json()["outcome"] == "resumed"
    assert detail(control_plane)["status"] == "active"
