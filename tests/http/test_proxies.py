"""Who asks: the peer, or the client of a proxy that the settings name."""

from __future__ import annotations

import logging
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from werkzeug.test import Client

from rqsched.dashboard import wsgi
from rqsched.dashboard.routes import routes
from rqsched.http import Limits
from rqsched.http.root_path import OWN, is_below
from tests.support.narrow import present
from tests.support.web import SCHEDULES, MakeWeb, Web, one_token

TOKENS = one_token("admin-secret-0123456789")
NAMED = "10.0.0.0/8, 127.0.0.1 fd00::/8 unix"

CLIENTS: dict[str, tuple[str, dict[str, str], str]] = {
    "no proxy": ("8.8.8.8", {}, "8.8.8.8"),
    "a stranger's word": ("8.8.8.8", {"x-forwarded-for": "1.1.1.1"}, "8.8.8.8"),
    "a proxy's word": ("10.0.0.1", {"x-forwarded-for": "1.1.1.1"}, "1.1.1.1"),
    "a chain of proxies": ("10.0.0.1", {"x-forwarded-for": "6.6.6.6, 1.1.1.1, 10.9.9.9"}, "1.1.1.1"),
    "proxies alone": ("10.0.0.1", {"x-forwarded-for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
    "a proxy itself": ("10.0.0.1", {}, "10.0.0.1"),
    "not an address": ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, unknown"}, "10.0.0.1"),
    "not an address farther away": ("10.0.0.1", {"x-forwarded-for": "1.1.1.1, x, 10.9.9.9"}, "10.9.9.9"),
    "with a port": ("10.0.0.1", {"x-forwarded-for": "1.1.1.1:5000"}, "1.1.1.1"),
    "IPv6": ("fd00::1", {"x-forwarded-for": "2001:db8::1"}, "2001:db8::1"),
    "IPv6 with a port": ("fd00::1", {"x-forwarded-for": "[2001:db8::1]:5000"}, "2001:db8::1"),
    "a proxy over IPv6 for IPv4": ("::ffff:10.0.0.1", {"x-forwarded-for": "1.1.1.1"}, "1.1.1.1"),
    "a proxy over a UNIX socket": ("", {"x-forwarded-for": "6.6.6.6, 1.1.1.1"}, "1.1.1.1"),
    "a chain from a UNIX socket": ("", {"x-forwarded-for": "6.6.6.6, 1.1.1.1, 10.9.9.9"}, "1.1.1.1"),
    "other headers": ("10.0.0.1", {"x-real-ip": "1.1.1.1", "forwarded": "for=1.1.1.1"}, "10.0.0.1"),
}


@pytest.mark.parametrize(("peer", "headers", "client"), CLIENTS.values(), ids=CLIENTS)
def test_a_proxy_that_is_named_says_who_asks(
    make_web: MakeWeb, caplog: pytest.LogCaptureFixture, peer: str, headers: dict[str, str], client: str
) -> None:
    caplog.set_level(logging.INFO, "rqsched.http.access")
    web = make_web(tokens=TOKENS, trusted_proxies=NAMED)
    web.peer = peer
    web.get("/healthz", headers=headers)
    (line,) = [record for record in caplog.records if record.name == "rqsched.http.access"]
    assert line.__dict__["peer"] == client


PREFIXES: dict[str, tuple[str, str, str, str]] = {
    "a proxy's word": ("10.0.0.1", "/jobs", "/schedules/report", "/jobs"),
    "with a slash at its end": ("10.0.0.1", "/a/jobs/", "/schedules/report", "/a/jobs"),
    "a proxy that leaves the path as it is": ("10.0.0.1", "/jobs", "/jobs/schedules/report", "/jobs"),
    "a stranger's word": ("8.8.8.8", "/jobs", "/schedules/report", ""),
    "not a path": ("10.0.0.1", "//evil.example", "/schedules/report", ""),
    "a path that leads up": ("10.0.0.1", "/jobs/..", "/schedules/report", ""),
    "a path that leads nowhere": ("10.0.0.1", "/./jobs", "/schedules/report", ""),
    "a path above one of ours, but not of any": ("10.0.0.1", "/api/jobs", "/schedules/report", "/api/jobs"),
    "a name with dots": ("10.0.0.1", "/.jobs/v1..2", "/schedules/report", "/.jobs/v1..2"),
    "a header in a header": ("10.0.0.1", '/jobs"><script>', "/schedules/report", ""),
    "none": ("10.0.0.1", "", "/schedules/report", ""),
}


@pytest.mark.parametrize(("peer", "prefix", "path", "root"), PREFIXES.values(), ids=PREFIXES)
def test_a_proxy_that_is_named_says_below_which_path_it_serves(
    make_web: MakeWeb, peer: str, prefix: str, path: str, root: str
) -> None:
    web = make_web(tokens=TOKENS, trusted_proxies=NAMED)
    admin = web.acting_as("admin-secret-0123456789")
    admin.peer = peer
    made = admin.post(SCHEDULES, {"schedule_id": "report", "workflow": "note", "interval": "1h"},
                      headers={"x-forwarded-prefix": prefix})  # fmt: skip
    assert urlsplit(made.headers["location"]).path == f"{root}/api/v1/schedules/report/"
    shown = admin.get(path, headers={"x-forwarded-prefix": prefix})
    assert shown.status_code == 200
    assert f'href="{root}/static/app.css' in shown.text
    assert (
        f'action="{root}/schedules/report/do"'
        in admin.get(
            f"{root if path.startswith('/jobs') else ''}/schedules/report/confirm?action=pause",
            headers={"x-forwarded-prefix": prefix},
        ).text
    )


@pytest.mark.parametrize("prefix", ["/api", "/api/", "/api/v1", "/schedules", "/schedules/team", "/ojs", "/runs/x"])
def test_prefix_that_is_a_path_of_ours_is_refused_because_nobody_could_tell_what_is_meant(
    make_web: MakeWeb, prefix: str
) -> None:
    web = make_web(tokens=TOKENS, trusted_proxies=NAMED)
    web.peer = "10.0.0.1"
    for path in ("/login", f"{prefix.rstrip('/')}/schedules"):
        told = web.get(path, headers={"x-forwarded-prefix": prefix})
        assert told.status_code == 400
        assert (
            f"X-Forwarded-Prefix {prefix.rstrip('/')} is a path of rqsched itself; serve it below another" in told.text
        )
    web.peer = "8.8.8.8"
    assert web.get("/login", headers={"x-forwarded-prefix": prefix}).status_code == 200


def test_every_route_of_ours_is_below_a_path_that_no_proxy_may_serve(web: Web) -> None:
    paths = [*web.app.openapi()["paths"], *(route.path for route in routes()), "/docs", "/openapi.json"]
    assert [path for path in paths if path != "/" and not any(is_below(path.rstrip("/"), own) for own in OWN)] == []


@pytest.mark.parametrize("named", ["", "10.0.0.0/8 unix"], ids=["none named", "another named"])
def test_a_peer_on_loopback_does_not_escape_the_limit_of_unknown_tokens(make_web: MakeWeb, named: str) -> None:
    web = make_web(tokens=TOKENS, trusted_proxies=named, app={"limits": Limits(failures=3, failure_rate=0.001)})
    wrong = web.acting_as("wrong-secret-0123456789")
    statuses = [wrong.get(SCHEDULES, headers={"x-forwarded-for": f"1.1.1.{n}"}).status_code for n in range(5)]
    assert statuses == [401, 401, 401, 429, 429]


def test_clients_of_a_proxy_that_is_named_have_limits_of_their_own(make_web: MakeWeb) -> None:
    limits = Limits(failures=1, failure_rate=0.001)
    web = make_web(tokens=TOKENS, trusted_proxies="127.0.0.1", app={"limits": limits})
    wrong = web.acting_as("wrong-secret-0123456789")
    asked = ["1.1.1.1", "1.1.1.1", "9.9.9.9, 1.1.1.1", "1.1.1.2"]
    assert [wrong.get(SCHEDULES, headers={"x-forwarded-for": each}).status_code for each in asked] == [
        401, 429, 429, 401
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("named", "told", "is_secure"),
    [("127.0.0.1", "https", True), ("127.0.0.1", "http", False), ("127.0.0.1", "x", False), ("", "https", False)],
)
def test_a_cookie_is_for_https_alone_where_a_proxy_that_is_named_says_so(
    make_web: MakeWeb, named: str, told: str, is_secure: bool
) -> None:
    web = make_web(tokens=TOKENS, trusted_proxies=named)
    cookie = web.get("/login", headers={"x-forwarded-proto": told}).headers["set-cookie"]
    assert ("Secure" in cookie) == is_secure


def test_without_tokens_nobody_is_served_through_a_proxy_that_is_named_either(make_web: MakeWeb) -> None:
    web = make_web(trusted_proxies="127.0.0.1")
    assert web.get(SCHEDULES, headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403


def test_the_dashboard_in_a_wsgi_application_believes_the_same_proxies(make_web: MakeWeb) -> None:
    limits = Limits(failures=1, failure_rate=0.001)
    for named, statuses in (("", [401, 429, 429]), ("127.0.0.1", [401, 401, 429])):
        web = make_web(tokens=TOKENS, trusted_proxies=named)
        client: Any = Client(wsgi(web.env.scheduler, limits=limits))
        page = client.get("/login")
        fields = {"csrf": present(re.search(r'name="csrf" value="([^"]+)"', page.text))[1], "token": "wrong"}
        asked = ["1.1.1.1", "1.1.1.2", "1.1.1.1"]
        environ = {"REMOTE_ADDR": "127.0.0.1"}
        assert page.status_code == 200
        assert [
            client.post("/login", data=fields, headers={"x-forwarded-for": each}, environ_base=environ).status_code
            for each in asked
        ] == statuses
