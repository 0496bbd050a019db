"""The dashboard as a WSGI application: the host names the viewer; forks, logins and addresses are right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from rqsched.dashboard import Principal, Role, wsgi
from rqsched.dashboard.mount import Environ
from tests.support.env import Env, MakeEnv
from tests.support.web import one_token

MakeClient = Callable[..., Client]


def by_header(environ: Environ) -> Principal | None:
    """The host's authentication of these tests: a header names the user and the role."""
    name, _, role = environ.get("HTTP_X_USER", "").partition(":")
    namespaces = frozenset({"default"}) if name == "tenant" else None
    return Principal(name, Role[role.upper()], namespaces) if name else None


@pytest.fixture
def client(env: Env) -> MakeClient:
    """A client of an application that has the dashboard under /jobs."""

    def make(**options: Any) -> Client:
        def host(environ: Any, start_response: Any) -> list[bytes]:
            start_response("404 Not Found", [])
            return [b"the host's own page"]

        return Client(DispatcherMiddleware(host, {"/jobs": wsgi(env.scheduler, **options)}))

    return make


def acting_as(user: str) -> dict[str, str]:
    return {"X-User": user}


def csrf_of(text: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found is not None, text
    return found[1]


def test_pages_are_below_the_mount_point_and_so_are_their_links(env: Env, client: MakeClient) -> None:
    env.create("nightly")
    seen = client(operator=by_header)
    for path in ("/jobs", "/jobs/", "/jobs/schedules", "/jobs/schedules/nightly", "/jobs/timeline", "/jobs/system"):
        page = seen.get(path, headers=acting_as("ada:read"))
        assert page.status_code == 200, path
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert links
        assert [link for link in links if not link.startswith("/jobs/")] == []
    style = re.findall(r'href="(/jobs/static/app.css[^"]*)"', page.text)[0]
    assert seen.get(style, headers=acting_as("ada:read")).mimetype == "text/css"
    assert seen.get("/other").text == "the host's own page"


def test_an_operator_of_the_host_acts_in_his_own_name(env: Env, client: MakeClient) -> None:
    schedule = env.create("nightly")
    seen = client(operator=by_header)
    page = seen.get("/jobs/schedules/nightly", headers=acting_as("ada:operate"))

    done = seen.post(
        "/jobs/schedules/nightly/do",
        data={"csrf": csrf_of(page.text), "action": "pause", "reason": "holidays"},
        headers=acting_as("ada:operate"),
    )

    assert (done.status_code, done.headers["location"]) == (303, "/jobs/schedules/nightly")
    assert schedule.refresh().status == "paused"
    told = schedule.history()[-1].payload["command_context"]
    assert (told["principal"], told["source"], told["reason"]) == ("ada", "dashboard", "holidays")


def test_a_reader_may_not_act_and_a_tenant_sees_his_namespaces_alone(env: Env, client: MakeClient) -> None:
    schedule = env.create("nightly")
    env.create("foreign", namespace="other")
    seen = client(operator=by_header)
    csrf = csrf_of(seen.get("/jobs/schedules/nightly", headers=acting_as("ada:operate")).text)

    refused = seen.post(
        "/jobs/schedules/nightly/do", data={"csrf": csrf, "action": "pause"}, headers=acting_as("bob:read")
    )
    hidden = seen.get("/jobs/schedules/foreign?namespace=other", headers=acting_as("tenant:admin"))

    assert (refused.status_code, schedule.refresh().status) == (403, "active")
    assert hidden.status_code == 404


def test_a_form_without_the_value_of_its_page_changes_nothing(env: Env, client: MakeClient) -> None:
    schedule = env.create("nightly")
    answer = client(operator=by_header).post(
        "/jobs/schedules/nightly/do", data={"csrf": "0" * 32, "action": "pause"}, headers=acting_as("ada:admin")
    )
    assert (answer.status_code, schedule.refresh().status) == (403, "active")


def test_the_live_parts_of_a_page_are_read_again_and_are_fresh(env: Env, client: MakeClient) -> None:
    schedule = env.create("nightly")
    seen = client(operator=by_header)
    live = {**acting_as("ada:read"), "X-Live": "1"}
    before = seen.get("/jobs/schedules/nightly", headers=live)
    schedule.pause(reason="holidays")
    after = seen.get("/jobs/schedules/nightly", headers=live)
    assert "data-live" in before.text
    assert ("holidays" in before.text, "holidays" in after.text) == (False, True)
    assert seen.get("/jobs/schedules/nightly", headers={"X-Live": "1"}).status_code == 401  # the script stops there


def test_nobody_is_sent_to_the_hosts_login_and_back(client: MakeClient) -> None:
    seen = client(operator=by_header, login_url="/accounts/login")
    sent = seen.get("/jobs/schedules?q=a+b&status=dead")
    assert (sent.status_code, sent.headers["location"]) == (
        303,
        "/accounts/login?next=/jobs/schedules%3Fq%3Da%2Bb%26status%3Ddead",
    )


def test_nobody_gets_401_where_there_is_no_login(client: MakeClient) -> None:
    assert client(operator=by_header).get("/jobs/").status_code == 401


def test_beside_an_operator_neither_tokens_nor_their_login_count(make_env: MakeEnv) -> None:
    env = make_env(tokens=one_token("0123456789abcdef"))
    seen = Client(wsgi(env.scheduler, operator=by_header))
    bearer = {"Authorization": "Bearer 0123456789abcdef"}
    assert seen.get("/", headers=bearer).status_code == 401
    assert seen.get("/login", headers=acting_as("ada:read")).status_code == 404


def test_without_an_operator_tokens_decide(make_env: MakeEnv) -> None:
    env = make_env(tokens=one_token("0123456789abcdef"))
    seen = Client(wsgi(env.scheduler))
    assert seen.get("/").headers["location"].startswith("/login")
    assert seen.get("/", headers={"Authorization": "Bearer 0123456789abcdef"}).status_code == 200


def test_without_an_operator_and_tokens_only_this_machine_may_look(client: MakeClient) -> None:
    seen = client()
    assert seen.get("/jobs/", environ_base={"REMOTE_ADDR": "127.0.0.1"}).status_code == 200
    assert seen.get("/jobs/", environ_base={"REMOTE_ADDR": "192.0.2.7"}).status_code == 403


def test_the_api_is_not_behind_the_hosts_session(client: MakeClient) -> None:
    seen = client(operator=by_header)
    for path in ("/jobs/api/v1/schedules/", "/jobs/openapi.json", "/jobs/metrics"):
        assert seen.get(path, headers=acting_as("ada:admin")).status_code == 404


def test_a_server_may_fork_after_its_first_request(client: MakeClient) -> None:
    application = client(operator=by_header).application
    reading, writing = os.pipe()

    def status() -> bytes:
        got: list[Any] = []
        environ = {
            "REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": "/jobs/", "SERVER_NAME": "localhost",
            "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_X_USER": "ada:read", "wsgi.input": BytesIO(),
            "wsgi.url_scheme": "http",
        }  # fmt: skip

        def start_response(status: str, *_: Any) -> Callable[[bytes], object]:
            got.append(status)
            return got.append

        b"".join(application(environ, start_response))
        return str(got[0]).encode()

    assert status() == b"200 OK"
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, status())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"200 OK"
    os.close(reading)


def test_a_host_without_streams_gets_none_and_is_not_held_up_by_asking(env: Env, client: MakeClient) -> None:
    seen = client(operator=by_header)
    assert 'data-stream=""' in seen.get("/jobs/", headers=acting_as("ada:read")).text
    assert seen.get("/jobs/stream", headers=acting_as("ada:read")).status_code == 204
