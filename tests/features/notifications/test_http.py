"""Notifications over HTTP: every option, allowed hosts, lists, deliveries and metrics; and our client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched import Every
from rqsched.client import Client
from rqsched.errors import InvalidInputError, UnknownWorkflowError
from tests.support.client import client_of
from tests.support.env import HOUR, ONCE
from tests.support.rows import every_row
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, problem

ALLOWED = "hc-ping.com, *.example.com, intranet:8080"
TOLD: dict[str, Any] = {
    "on_failure": "alert",
    "on_recovery": "calm",
    "expect_success_within": "26h",
    "expect_duration": "20m",
    "notifications": {
        "webhook": "https://hooks.example.com/secret",
        "events": ["RunFailed"],
        "heartbeat": "https://hc-ping.com/uuid",
    },
}
SHOWN: dict[str, Any] = {
    "on_failure": "alert",
    "on_recovery": "calm",
    "expect_success_within": 93600.0,
    "expect_duration": 1200.0,
    "notifications": {
        "webhook": "https://hooks.example.com/...",
        "events": ["RunFailed"],
        "heartbeat": "https://hc-ping.com/...",
    },
    "overdue_since": None,
    "last_success_at": None,
}


@pytest.fixture
def web(make_web: MakeWeb) -> Web:
    """An application that may call some hosts, with two workflows to tell."""
    web = make_web(webhook_secret="a secret", notification_hosts=ALLOWED)
    web.env.register("alert", lambda message: None)
    web.env.register("calm", lambda message: None)
    return web


def shown(schedule: dict[str, Any]) -> dict[str, Any]:
    return {name: schedule[name] for name in SHOWN}


def test_every_option_can_be_created_replaced_changed_and_taken_away(web: Web) -> None:
    assert shown(web.create(**TOLD)) == SHOWN

    changed = web("PATCH", at(), {"expect_success_within": 60, "on_recovery": None}).json()
    assert shown(changed) == SHOWN | {"expect_success_within": 60.0, "on_recovery": None}

    replaced = web("PUT", at(), MINUTELY | {"notifications": {"sentry": None}}).json()
    assert shown(replaced) == dict.fromkeys(SHOWN) | {"notifications": {}}


def test_a_tenant_cannot_make_the_server_call_hosts_the_operator_does_not_allow(web: Web, make_web: MakeWeb) -> None:
    refused = (
        "http://127.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]/", "http://localhost:6379/",
        "https://example.com/", "https://hc-ping.com.evil.org/", "https://evilexample.com/", "http://intranet/",
        "http://intranet:8081/", "https://hc-ping.com@evil.org/", "http://2130706433/", "https://hc-ping.com\\.evil.org/",
    )  # fmt: skip
    with every_row() as row:
        for key in ("webhook", "heartbeat"):
            for url in refused:
                with row(f"{key} {url}"):
                    answer = web.post(SCHEDULES, {"schedule_id": "evil", **MINUTELY, "notifications": {key: url}})
                    assert answer.status_code in {400, 422}
                    assert f"notifications.{key}" in answer.text
    assert web.get(SCHEDULES).json()["items"] == []

    web.create()
    for method in ("PATCH", "PUT"):
        body = {**MINUTELY, "notifications": {"webhook": "http://127.0.0.1/"}}
        assert web(method, at(), body).status_code in {400, 422}
    for url in ("http://intranet:8080/x", "https://a.b.example.com/x", "https://HC-PING.com/x"):
        assert web("PATCH", at(), {"notifications": {"heartbeat": url}}).status_code == 200

    closed = make_web(webhook_secret="a secret")
    answer = closed("PATCH", at(), {"notifications": {"heartbeat": "https://hc-ping.com/x"}})
    assert "RQSCHED_NOTIFICATION_HOSTS" in answer.text


def test_a_host_is_compared_as_it_is_connected_to(make_web: MakeWeb) -> None:
    allowed = "*.example.com, hc-ping.com, intranet:80, 10.0.0.7:8080, [2001:db8::7], *.example.org:8443"
    web = make_web(webhook_secret="a secret", notification_hosts=allowed)
    web.create()
    not_plain = (
        "http://127.0.0.1%23.example.com/", "http://127.0.0.1%2f.example.com/", "http://[::1%25.example.com]/",
        "http://[::1].example.com/", "http://a.example.com[::1]/", "http://a..example.com/", "http://.example.com/",
        "http://127.1/", "http://0x7f.1/", "http://2130706433/", "http://010.0.0.7:8080/", "http://-a.example.com/",
        "http://a.example.com:0/", "http://a.example.com:65536/", "http://a.example.com:/", "http://a.example.com..:80/",
        "http://a.example.com\\@evil.org/", "http://[10.0.0.7]:8080/", f"http://{'a' * 64}.example.com/",
    )  # fmt: skip
    refused = (
        "http://example.com/", "http://hc-ping.com.evil.org/", "http://intranet:81/", "https://intranet/",
        "http://10.0.0.7/", "http://[2001:db8::8]/", "http://[::ffff:10.0.0.7]:8080/", "http://a.example.org/",
    )  # fmt: skip
    taken = (
        "http://a.example.com/", "http://A.Example.COM.:8080/", "http://a_b.c-d.example.com/", "https://hc-ping.com/x",
        "http://intranet/", "http://intranet:80/", "http://10.0.0.7:8080/", "http://[2001:DB8:0:0:0:0:0:7]:99/",
        "https://a.example.org:8443/",
    )  # fmt: skip
    said = {**dict.fromkeys(not_plain, "plain host"), **dict.fromkeys(refused, "not allowed"), **dict.fromkeys(taken)}
    with every_row() as row:
        for url, why in said.items():
            with row(url):
                answer = web("PATCH", at(), {"notifications": {"heartbeat": url}})
                assert answer.status_code == (200 if why is None else 422), answer.text
                assert why is None or why in answer.json()["detail"] or "neither a user" in answer.json()["detail"]


def test_only_registered_workflows_can_be_told_over_http(web: Web) -> None:
    for name in ("on_failure", "on_recovery"):
        answer = web.post(SCHEDULES, {"schedule_id": "evil", **MINUTELY, name: "os.system"})
        assert answer.status_code in {400, 422}
        assert "os.system" in answer.text


def test_an_unknown_shape_is_refused_by_name(web: Web) -> None:
    wrong: list[Any] = [{"mail": "x"}, {"events": "RunFailed"}, {"events": ["Fired"]}, {"sentry": "a b"}, []]
    for told in wrong:
        answer = web.post(SCHEDULES, {"schedule_id": "evil", **MINUTELY, "notifications": told})
        assert answer.status_code in {400, 422}, told
        assert "notifications" in answer.text


def test_overdue_schedules_are_listed_and_counted(web: Web) -> None:
    web.create("silent", expect_success_within=60)
    web.create("fine", expect_success_within="2h")
    web.env.advance(HOUR)
    web.env.recover()

    def ids(query: str) -> list[str]:
        return [one["schedule_id"] for one in web.get(f"{SCHEDULES}?{query}").json()["items"]]

    assert (ids("overdue=true"), ids("overdue=false")) == (["silent"], ["fine"])
    assert web.read("silent")["overdue_since"] == "2026-01-15T12:01:00Z"
    metrics = web.get("/metrics").text
    assert 'rqsched_schedules_without_success{namespace="default"} 1.0' in metrics


def test_what_was_owed_can_be_read_page_by_page(web: Web) -> None:
    web.env.failing = True
    web.env.create("report", retry=ONCE, on_failure="alert", notifications={"webhook": "https://hooks.example.com/s"})
    for _ in range(2):
        web.env.tick()
        web.env.work("somewhere else")
        web.env.execute_pending()

    first = web.get(at(operation="deliveries/") + "?limit=3").json()
    second = web.get(at(operation="deliveries/") + f"?limit=3&cursor={first['next_cursor']}").json()
    found = [*first["items"], *second["items"]]
    near, far = (one.get("report").deliveries(3, first["next_cursor"]) for one in (web.env.scheduler, client_of(web)))
    assert near == far, "the same page of the same records in process and in the client"
    assert [len(first["items"]), second["next_cursor"]] == [3, None]
    assert {(one["kind"], one["destination"], one["event_type"]) for one in found} == {
        ("workflow", "alert", "RunFailed"),
        ("webhook", "https://hooks.example.com/...", "RunFailed"),
    }
    assert found[0]["message"]["data"]["error"] == "RuntimeError: as the test wants it"
    succeeded = web.get(at(operation="deliveries/") + "?status=succeeded").json()["items"]
    assert {one["kind"] for one in succeeded} == {"workflow"}
    assert problem(web.get(at(operation="deliveries/") + "?status=sent"), 422, "invalid_input")["detail"]
    assert problem(web.get(at(operation="deliveries/") + "?cursor=x"), 422, "invalid_limit")["detail"]


def test_the_client_takes_and_shows_every_option(web: Web) -> None:
    with client_of(web) as client:
        _check_client(client)


def _check_client(client: Client) -> None:
    options = {**TOLD, "expect_success_within": timedelta(hours=26)}
    handle = client.create("report", "note", Every("1m"), **options)
    described = handle.describe()
    assert {name: getattr(described, name) for name in SHOWN} == SHOWN
    handle.update(notifications={"heartbeat": "https://hc-ping.com/other"}, on_failure=None)
    assert handle.describe().on_failure is None
    assert handle.deliveries().items == []
    assert [one.schedule_id for one in client.list(overdue=False).items] == ["report"]
    assert client.list(overdue=True).items == []
    with pytest.raises(InvalidInputError, match="not allowed"):
        handle.update(notifications={"heartbeat": "http://10.0.0.1/"})
    with pytest.raises(UnknownWorkflowError):
        handle.update(on_recovery="nobody")


def test_the_workflows_that_are_told_by_default_are_listed(web: Web) -> None:
    web.env.register("fragile", print, on_failure="alert")
    [found] = [one for one in web.get("/api/v1/workflows/").json()["items"] if one["name"] == "fragile"]
    assert (found["on_failure"], found["on_recovery"]) == ("alert", None)
    web.env.runtime.record_workflows()
    [found] = [one for one in web.get("/api/v1/workflows/").json()["items"] if one["name"] == "fragile"]
    assert (found["on_failure"], found["on_recovery"]) == ("alert", None)
