"""A query parameter that a route does not have is refused: ignored, it would say something that nobody meant."""

from __future__ import annotations

from typing import Any

from tests.support.population import HEADERS, documented_operations, minimal_body, populate, request, stored_contents
from tests.support.rows import every_row
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, one_token, problem


def test_every_route_of_the_native_api_refuses_a_parameter_it_does_not_have(web: Web) -> None:
    known = populate(web)
    native = [label for label in documented_operations(web) if " /api/v1/" in label]
    assert len(native) > 25
    before = stored_contents(web)
    with every_row() as row:
        for label in native:
            with row(label):
                body = None if label.startswith("GET") else minimal_body(label, known)
                answer = request(web, label, known, body, params={"no_such_parameter": "1"})
                found = problem(answer, 422, "invalid_input")
                assert found["errors"][0]["field"] == "no_such_parameter"
    assert stored_contents(web) == before


def test_the_nearest_parameter_is_named_and_all_where_none_is_near(web: Web) -> None:
    web.create()
    nearest = {
        f"{SCHEDULES}?limt=1": "limt: is not a parameter of this request; did you mean limit?",
        f"{SCHEDULES}?name_space=x": "name_space: is not a parameter of this request; did you mean namespace?",
        f"{at()}upcoming/?offset=1": "offset: is not a parameter of this request; known are count, namespace",
    }
    with every_row() as row:
        for path, detail in nearest.items():
            with row(path):
                assert problem(web.get(path), 422, "invalid_input")["detail"] == detail


def test_the_nearest_field_of_a_body_is_named_also_inside_of_it(web: Web) -> None:
    web.create()
    synced = {"schedules": [{"schedule_id": "x", **MINUTELY, "retry": {"max_retry": 1}}]}
    nearest: dict[str, tuple[str, str, dict[str, Any], str]] = {
        "create": ("POST", SCHEDULES, {**MINUTELY, "time_zone": "UTC"}, "time_zone: {}; did you mean timezone?"),
        "update": ("PATCH", at(), {"retry": {"max_retry": 1}}, "retry.max_retry: {}; did you mean max_retries?"),
        "in a list": ("POST", "/api/v1/sync/", synced, "schedules.0.retry.max_retry: {}; did you mean max_retries?"),
        "pause": ("POST", at(operation="pause/"), {"reson": "x"}, "reson: {}; did you mean reason?"),
        "limit": ("PUT", "/api/v1/limits/", {"name": "x", "numbr": 1}, "numbr: {}; did you mean number?"),
        "calendar": ("PUT", "/api/v1/calendars/x/", {"exclude": [], "sorce": "x"}, "sorce: {}; did you mean source?"),
        "far": ("POST", at(operation="skip-next/"), {"zzz": 1}, "zzz: {}; known are count, reason"),
        "far of many": ("POST", SCHEDULES, {**MINUTELY, "zzz": 1}, "zzz: {}; leave it out"),
    }
    with every_row() as row:
        for name, (method, path, body, detail) in nearest.items():
            with row(name):
                found = problem(web(method, path, body), 422, "invalid_input")
                assert found["detail"] == detail.format("is not a field of this request")


def test_only_who_may_ask_is_told_what_the_parameters_are(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("0123456789abcdef", "read"))
    assert web.get(f"{SCHEDULES}?offset=1").status_code == 401
    assert web.acting_as("0123456789abcdef").get(f"{SCHEDULES}?offset=1").status_code == 422


def test_other_surfaces_keep_what_their_clients_send(web: Web) -> None:
    with every_row() as row:
        for path in ("/ojs/v1/cron", "/api/schedules", "/healthz", "/"):
            with row(path):
                assert web.get(f"{path}?offset=1", headers=HEADERS).status_code == 200
