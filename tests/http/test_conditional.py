"""HEAD, ETag and If-None-Match, Allow, conditions on changes, and a create that is answered again as it was."""

from __future__ import annotations

from tests.support.population import documented_operations, minimal_body, populate, request
from tests.support.web import MINUTELY, SCHEDULES, Web, at, problem

KEY = {"Idempotency-Key": "order 66"}
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
HONOURED = {
    f"{method} {SCHEDULES}{{schedule_id}}/{name}"
    for method, name in (
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "pause/"),
        ("POST", "resume/"),
        ("POST", "restart/"),
        ("POST", "skip-next/"),
    )
}


def test_head_is_get_without_a_body_on_every_route(unlimited: Web) -> None:
    known = populate(unlimited)
    volatile = {"x-request-id", "date"}
    for label in documented_operations(unlimited):
        if not label.startswith("GET "):
            continue
        got, head = (request(unlimited, f"{method} {label[4:]}", known) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (got.status_code, b""), label
        if "metrics" not in label:
            assert {k: v for k, v in head.headers.items() if k not in volatile} == {
                k: v for k, v in got.headers.items() if k not in volatile
            }, label


def test_a_read_that_would_return_the_same_is_304_without_a_body(unlimited: Web) -> None:
    known = populate(unlimited)
    for label in documented_operations(unlimited):
        if not label.startswith("GET /api/v1/") or label.endswith("stream/"):
            continue
        first = request(unlimited, label, known)
        again = request(unlimited, label, known, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"]), label
        assert request(unlimited, label, known, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_schedule_that_ran_is_no_longer_the_same_but_has_its_version(web: Web) -> None:
    web.create()
    before = web.get(at()).headers["etag"]
    web.post(at(operation="trigger/"))
    after = web.get(at(), headers={"If-None-Match": before})
    assert (after.status_code, after.json()["run_count"]) == (200, 1)
    assert web("PATCH", at(), {"note": "x"}, headers={"If-Match": before}).status_code == 200


def test_allow_names_every_method_of_the_path(web: Web) -> None:
    web.create()
    for path, method, allowed in (
        (SCHEDULES, "DELETE", {"GET", "HEAD", "POST"}),
        (at(), "POST", {"GET", "HEAD", "PUT", "PATCH", "DELETE"}),
        (at(operation="pause/"), "GET", {"POST"}),
        ("/api/schedules/report", "PATCH", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/healthz", "POST", {"GET", "HEAD"}),
        ("/schedules/report/edit", "DELETE", {"GET", "HEAD", "POST"}),
    ):
        answer = web(method, path)
        assert answer.status_code == 405, path
        assert set(answer.headers["allow"].split(", ")) == allowed, path


def test_a_condition_is_honoured_or_refused_on_every_route_that_changes(unlimited: Web) -> None:
    known = populate(unlimited)
    changing = [
        label
        for label in documented_operations(unlimited)
        if label.split()[0] in CHANGING and label.split()[1].startswith("/api/v1/")
    ]
    assert set(changing) >= HONOURED
    for label in changing:
        answer = request(unlimited, label, known, minimal_body(label, known), headers={"If-Match": '"999"'})
        if label in HONOURED:
            problem(answer, 412, "version_conflict")
        else:
            assert "Omit it" in problem(answer, 400, "malformed")["detail"], label
    assert unlimited.read()["status"] == "active"


def test_a_create_repeated_under_its_key_is_answered_as_the_first_time(any_web: Web) -> None:
    body = {"schedule_id": "report", **MINUTELY, "kwargs": {"name": "é"}}
    first = any_web.post(SCHEDULES, body, headers=KEY)
    any_web("PATCH", at(), {"note": "changed", "interval": "2h"})
    any_web.post(at(operation="trigger/"))
    any_web.post(at(operation="pause/"))
    for _ in range(2):
        again = any_web.post(SCHEDULES, body, headers=KEY)
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert [again.headers[name] for name in ("etag", "location")] == [
            first.headers[name] for name in ("etag", "location")
        ]
    any_web("DELETE", at())
    assert any_web.post(SCHEDULES, body, headers=KEY).json() == first.json()
    problem(any_web.post(SCHEDULES, {**body, "note": "x"}, headers=KEY), 409, "idempotency_conflict")


def test_a_key_of_a_create_in_python_which_keeps_no_answer_returns_the_schedule(web: Web) -> None:
    body = {"schedule_id": "report", **MINUTELY}
    web.env.scheduler.create("report", "note", "1m", idempotency_key=KEY["Idempotency-Key"])
    web("PATCH", at(), {"note": "changed"})
    again = web.post(SCHEDULES, body, headers=KEY)
    assert (again.status_code, again.json()["note"]) == (201, "changed")
