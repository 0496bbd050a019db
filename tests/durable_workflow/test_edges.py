"""The Durable Workflow surface at its edges: limits, tenants, hostile queries, what clients ask first."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.kernel.store.tables import schedules
from tests.support.durable_workflow import PATH, VERSION, created, detail, refused
from tests.support.web import MakeWeb, Web, one_token

pytestmark = pytest.mark.every_database


@pytest.mark.parametrize("headers", [{}, {"X-Durable-Workflow-Protocol-Version": "1.20"}, VERSION], ids=str)
def test_discovery_needs_no_version_header(web: Web, headers: dict[str, str]) -> None:
    found = web.get("/api/cluster/info", headers={**headers, "X-Namespace": "tenant"}).json()
    assert found["namespace"] == {"name": "tenant"}
    assert found["control_plane"]["version"] == "2"
    assert "runtime_external_payload_transport" not in found["worker_protocol"]["server_capabilities"]


def test_health_returns_ok(web: Web) -> None:
    assert web.get("/api/health").json()["status"] == "ok"


def test_an_unknown_route_has_this_surfaces_form(control_plane: Web) -> None:
    refused(control_plane.get("/api/workflows"), 404, "not_found")
    refused(control_plane("PATCH", PATH), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "operation"),
    [("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/trigger"),
     ("GET", "/history")],
    ids=str,
)  # fmt: skip
def test_an_unknown_schedule_is_not_found(control_plane: Web, method: str, operation: str) -> None:
    body: dict[str, Any] | None = {} if method in {"PUT", "POST"} else None
    refused(control_plane(method, f"{PATH}/missing{operation}", body), 404, "schedule_not_found")


def test_another_namespace_has_other_schedules(control_plane: Web) -> None:
    created(control_plane)
    elsewhere = {"X-Namespace": "tenant"}
    refused(control_plane.get(f"{PATH}/invoices", headers=elsewhere), 404, "schedule_not_found")
    assert control_plane.get(PATH, headers=elsewhere).json()["schedules"] == []
    by_query = control_plane.get(f"{PATH}/invoices", params={"namespace": "tenant"})
    refused(by_query, 404, "schedule_not_found")
    header_wins = control_plane.get(
        f"{PATH}/invoices", params={"namespace": "tenant"}, headers={"X-Namespace": "default"}
    )
    assert header_wins.status_code == 200


def test_a_namespace_a_token_does_not_see_is_not_found(make_web: MakeWeb) -> None:
    token = "a-secret-of-twenty-four-chars"
    web = make_web(tokens=one_token(token, "read", namespaces=["red"]))
    web.headers.update(VERSION)
    refused(web.get(PATH), 401, "unauthorized")
    refused(web.acting_as(token).get(PATH, headers={"X-Namespace": "blue"}), 404, "namespace_not_found")
    refused(created(web.acting_as(token)), 403, "forbidden")


@pytest.mark.parametrize("size", ["0", "201", "-1", "many"])
def test_a_page_size_out_of_bounds_is_refused(control_plane: Web, size: str) -> None:
    refused(control_plane.get(PATH, params={"page_size": size}), 422, "validation_failed")


@pytest.mark.parametrize(
    "token",
    ["%%%", "e30", base64.urlsafe_b64encode(b"[" * 1_400).decode(), "W251bGwsMSwyXQ"],
    ids=["text", "object", "deep", "types"],
)
def test_an_invalid_page_token_is_400(control_plane: Web, token: str) -> None:
    refused(control_plane.get(PATH, params={"next_page_token": token}), 400, "invalid_page_token")


@pytest.mark.parametrize(
    "query",
    ['Note = "\\u0000"', 'Note = "\\ud800"', "x = NaN", "x = 1e999", "x = 1" + "0" * 30, "Status = gone", "= 1"],
    ids=["NUL", "surrogate", "NaN", "beyond a float", "beyond 64 bits", "status", "no name"],
)
def test_a_hostile_query_is_refused(any_control_plane: Web, query: str) -> None:
    answer = any_control_plane.get(PATH, params={"query": query})
    assert answer.status_code == 422, answer.text
    assert answer.json()["reason"] in {"invalid_query", "invalid_status"}


@pytest.mark.parametrize(
    "params",
    [{"query": 'ScheduleId = "a" AND ScheduleId = "b"'}, {"workflow_type": "note", "query": 'WorkflowType = "x"'},
     {"status": "active", "query": "Status = paused"}, {"query": "tenant = 1 AND tenant = 2"}],
    ids=["id", "type", "status", "attribute"],
)  # fmt: skip
def test_contradicting_equalities_match_nothing(any_control_plane: Web, params: dict[str, str]) -> None:
    created(any_control_plane, "a", search_attributes={"tenant": 2})
    created(any_control_plane, "b", search_attributes={"tenant": 1})
    assert any_control_plane.get(PATH, params=params).json()["schedules"] == []


@pytest.mark.parametrize(
    ("size", "status"), [(256 * 1024, 201), (256 * 1024 + 1, 422)], ids=["at the limit", "one byte beyond"]
)
def test_a_memo_of_256_kib_is_the_largest(any_control_plane: Web, size: int, status: int) -> None:
    memo = {"text": "x" * (size - len('{"text":""}'))}
    answer = created(any_control_plane, memo=memo)
    assert answer.status_code == status, answer.text[:200]
    if status == 422:
        refused(answer, 422, "memo_too_large")


@pytest.mark.parametrize(("limit", "count"), [("0", 3), ("-5", 3), ("x", 3), ("2", 2), ("100000", 3)], ids=str)
def test_a_history_limit_is_cut_to_its_bounds(control_plane: Web, limit: str, count: int) -> None:
    created(control_plane)
    control_plane.post(f"{PATH}/invoices/pause")
    control_plane.post(f"{PATH}/invoices/resume")
    found = control_plane.get(f"{PATH}/invoices/history", params={"limit": limit}).json()
    assert (len(found["events"]), found["has_more"]) == (count, count < 3)


@pytest.mark.parametrize("after", ["-1", "x", "", "1.5", "9" * 19])
def test_an_invalid_sequence_is_refused(control_plane: Web, after: str) -> None:
    created(control_plane)
    answer = control_plane.get(f"{PATH}/invoices/history", params={"after_sequence": after})
    refused(answer, 422, "invalid_after_sequence")


def test_a_trigger_that_fails_unexpectedly_reveals_only_its_kind(any_control_plane: Web) -> None:
    created(any_control_plane)
    broken = sa.update(schedules).values(policies='{"retry": "secret"}')
    any_control_plane.env.runtime.database.transact(lambda connection: connection.execute(broken))

    answer = any_control_plane.post(f"{PATH}/invoices/trigger")

    body = answer.json()
    assert (answer.status_code, body["outcome"], body["schedule_id"]) == (500, "trigger_failed", "invoices")
    assert body["reason"] == "AttributeError"
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("timeouts", "seconds"),
    [
        ({"run_timeout_seconds": 60}, 60),
        ({"execution_timeout_seconds": 90}, 90),
        ({"run_timeout_seconds": 60, "execution_timeout_seconds": 90}, 60),
        ({"workflow_execution_timeout_seconds": 30}, 30),
        ({}, None),
    ],
    ids=["run", "execution", "both", "other name", "none"],
)
def test_the_tightest_timeout_bounds_an_attempt(
    control_plane: Web, timeouts: dict[str, int], seconds: int | None
) -> None:
    created(control_plane, action={"workflow_type": "note", **timeouts})
    assert control_plane.env.scheduler.get("invoices").describe().timeout == seconds


def test_an_action_of_another_surface_keeps_what_is_not_sent(control_plane: Web) -> None:
    env = control_plane.env
    handle = env.scheduler.create("native", "note", Every("1h"), args=["eu"], queue="high", timeout=30)
    control_plane("PUT", f"{PATH}/native", {"action": {"input": ["us"]}})
    found = handle.refresh().describe()
    assert (found.args, found.queue, found.timeout, found.executor) == (["us"], "high", 30, "rq")


def test_a_schedule_of_an_unregistered_path_stays_with_rq_when_its_action_changes(control_plane: Web) -> None:
    handle = control_plane.env.scheduler.create("native", "os.getcwd", Every("1h"))
    control_plane("PUT", f"{PATH}/native", {"action": {"task_queue": "low"}})
    assert (handle.refresh().describe().executor, handle.state.definition.queue) == ("rq", "low")


def test_an_action_is_current_after_another_surface_changed_it(control_plane: Web) -> None:
    created(control_plane)
    control_plane.env.scheduler.get("invoices").update(args=["changed"], queue="other")
    assert detail(control_plane)["action"] == {"workflow_type": "note", "task_queue": "other", "input": ["changed"]}


def test_a_put_may_pause_and_resume(control_plane: Web) -> None:
    created(control_plane)
    control_plane("PUT", f"{PATH}/invoices", {"paused": True})
    assert detail(control_plane)["state"]["paused"] is True
    assert detail(control_plane)["paused_at"] is not None
    control_plane("PUT", f"{PATH}/invoices", {"note": "still paused"})
    assert detail(control_plane)["state"]["paused"] is True
    control_plane("PUT", f"{PATH}/invoices", {"paused": False})
    assert detail(control_plane)["state"] == {"status": "active", "paused": False, "note": "still paused"}


def test_an_id_that_another_surfaces_done_schedule_holds_is_free_here(any_control_plane: Web) -> None:
    done = any_control_plane.env.scheduler.create("invoices", "note", Every("1m"), max_runs=1)
    done.trigger()
    assert done.refresh().status == "done"
    refused(any_control_plane.get(f"{PATH}/invoices"), 404, "schedule_not_found")

    assert created(any_control_plane).status_code == 201
    assert detail(any_control_plane)["fires_count"] == 0
    assert done.refresh().status == "deleted"


def test_items_carry_what_the_sdk_reads_from_them(control_plane: Web) -> None:
    created(control_plane)
    (item,) = control_plane.get(PATH).json()["schedules"]
    found = detail(control_plane)
    names = ("next_fire_at", "last_fired_at", "failures_count", "created_at", "updated_at", "paused_at", "spec")
    assert {name: item[name] for name in names} == {name: found[name] for name in names}


def test_recent_actions_are_the_last_ten_with_their_lag(any_control_plane: Web) -> None:
    created(any_control_plane, overlap_policy="allow_all")
    for _ in range(11):
        any_control_plane.post(f"{PATH}/invoices/trigger")
    actions = detail(any_control_plane)["info"]["recent_actions"]
    assert len(actions) == 10
    assert {action["outcome"] for action in actions} == {"triggered"}
    assert {action["fire_lag_ms"] for action in actions} == {0}
