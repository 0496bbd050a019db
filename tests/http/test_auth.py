"""Authentication: tokens, roles, namespaces, and the rules without a token."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.http import Principal, Role, serve
from rqsched.http.auth import Tokens
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, problem

READ, OPERATE, ADMIN, TENANT, ROOT = (
    f"{name}-secret-0123456789" for name in ("read", "operate", "admin", "tenant", "root")
)


def entry(secret: str, role: str, namespaces: Any = ("default",), **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return {"name": secret.partition("-")[0], "role": role, "namespaces": namespaces, "token_sha256": digest, **more}


TOKENS = json.dumps(
    [
        entry(READ, "read"),
        entry(OPERATE, "operate"),
        entry(ADMIN, "admin"),
        entry(TENANT, "admin", ["tenant"]),
        {"name": "root", "role": "admin", "namespaces": "*", "token": ROOT},
    ]
)


@pytest.fixture
def guarded(make_web: MakeWeb) -> Web:
    """An application with tokens, and a schedule in `default`."""
    web = make_web(tokens=TOKENS)
    web.acting_as(ROOT).create()
    return web


ENDPOINTS: list[tuple[str, str, Role, Any]] = [
    ("GET", SCHEDULES, Role.READ, None),
    ("GET", at(), Role.READ, None),
    ("GET", at(operation="history/"), Role.READ, None),
    ("GET", at(operation="runs/"), Role.READ, None),
    ("GET", at(operation="runs/1/"), Role.READ, None),
    ("GET", at(operation="upcoming/"), Role.READ, None),
    ("GET", at(operation="why/"), Role.READ, None),
    ("GET", "/api/v1/workflows/", Role.READ, None),
    ("GET", "/api/v1/backfills/x/", Role.READ, None),
    ("POST", at(operation="pause/"), Role.OPERATE, None),
    ("POST", at(operation="resume/"), Role.OPERATE, None),
    ("POST", at(operation="restart/"), Role.OPERATE, None),
    ("POST", at(operation="trigger/"), Role.OPERATE, None),
    ("POST", at(operation="backfill/"), Role.OPERATE, {"start": "2026-01-15T11:00:00Z", "end": "2026-01-15T11:02:00Z"}),
    ("POST", at(operation="runs/1/cancel/"), Role.OPERATE, None),
    ("POST", at(operation="runs/1/terminate/"), Role.OPERATE, None),
    ("POST", SCHEDULES, Role.ADMIN, {"schedule_id": "other", **MINUTELY}),
    ("PUT", at(), Role.ADMIN, MINUTELY),
    ("PATCH", at(), Role.ADMIN, {"note": "x"}),
    ("DELETE", at(), Role.ADMIN, None),
    ("POST", f"{SCHEDULES}batch-delete/", Role.ADMIN, {"ids": ["report"]}),
]
MATRIX = [
    pytest.param(*endpoint, token, role, id=f"{role.name} {endpoint[0]} {endpoint[1].removeprefix('/api/v1')}")
    for endpoint in ENDPOINTS
    for token, role in ((READ, Role.READ), (OPERATE, Role.OPERATE), (ADMIN, Role.ADMIN))
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "needed", "body", "token", "role"), MATRIX)
def test_a_role_may_do_only_its_own_operations(
    guarded: Web, method: str, path: str, needed: Role, body: Any, token: str, role: Role
) -> None:
    answer = guarded.acting_as(token)(method, path, body)
    if role < needed:
        problem(answer, 403, "forbidden")
        assert guarded.acting_as(ROOT).read()["version"] == 1
    else:
        assert answer.status_code not in {401, 403}, answer.text


EVERY = {"interval": "1m"}


def test_a_token_is_shown_the_workflows_that_schedules_of_its_namespace_use(guarded: Web) -> None:
    for name in ("ours", "theirs", "unused"):
        guarded.env.register(name, print)
    root, tenant, reader = (guarded.acting_as(token) for token in (ROOT, TENANT, READ))

    def names(web: Web, **headers: str) -> list[str]:
        return [item["name"] for item in web.get("/api/v1/workflows/", headers=headers).json()["items"]]

    assert names(tenant) == []
    assert tenant("POST", SCHEDULES, {"schedule_id": "a", "workflow": "theirs"} | EVERY).is_success
    assert tenant("POST", SCHEDULES, {"schedule_id": "b", "workflow": "far", "executor": "external"} | EVERY).is_success
    assert names(tenant) == ["theirs"], "what runs elsewhere is registered nowhere"
    assert names(reader) == ["note"], "as the fixture's schedule of the default namespace"
    assert names(root) == names(root, **{"x-namespace": "tenant"}) == ["note", "ours", "theirs", "unused"]

    assert tenant("DELETE", at("a"), None).is_success
    assert names(tenant) == []


@pytest.mark.parametrize(("method", "path", "needed", "body"), ENDPOINTS, ids=[f"{e[0]} {e[1]}" for e in ENDPOINTS])
def test_a_request_without_a_known_token_is_401_and_reveals_nothing(
    guarded: Web, method: str, path: str, needed: Role, body: Any
) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {ROOT}"}, {"authorization": ROOT}):
        answer = guarded(method, path, body, headers=headers)
        assert problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path", "needed", "body"), ENDPOINTS, ids=[f"{e[0]} {e[1]}" for e in ENDPOINTS])
def test_a_foreign_namespace_is_not_found(guarded: Web, method: str, path: str, needed: Role, body: Any) -> None:
    tenant = guarded.acting_as(TENANT)
    problem(tenant(method, path, body, headers={"X-Namespace": "default"}), 404, "namespace_not_found")
    problem(tenant(method, path, body, params={"namespace": "never-made"}), 404, "namespace_not_found")
    assert guarded.acting_as(ROOT).read()["version"] == 1


def test_a_token_of_one_namespace_uses_it_by_default(guarded: Web) -> None:
    tenant = guarded.acting_as(TENANT)
    assert tenant.get(SCHEDULES).json()["items"] == []
    assert tenant.create("mine")["namespace"] == "tenant"
    problem(guarded.acting_as(ADMIN).get(at("mine")), 404, "schedule_not_found")
    assert guarded.acting_as(ROOT).get(at("mine"), params={"namespace": "tenant"}).status_code == 200


def test_the_namespace_header_takes_precedence_over_the_query(guarded: Web) -> None:
    root = guarded.acting_as(ROOT)
    options = {"headers": {"X-Namespace": "one"}, "params": {"namespace": "two"}}
    assert root.post(SCHEDULES, {"schedule_id": "x", **MINUTELY}, **options).json()["namespace"] == "one"
    problem(root.get(SCHEDULES, headers={"X-Namespace": "no spaces"}), 422, "invalid_id")


def test_the_tokens_name_is_recorded_and_its_secret_is_not(guarded: Web) -> None:
    events = guarded.acting_as(READ).get(at(operation="history/")).text
    assert '"principal":"root"' in events
    assert ROOT not in events


def test_health_needs_no_token(guarded: Web) -> None:
    assert guarded.get("/healthz").status_code == 200


def wrong(**changes: Any) -> str:
    known = {"name": "x", "role": "read", "token": "s3cret-0123456789abc"}
    return json.dumps([{name: value for name, value in (known | changes).items() if value is not None}])


WRONG = [
    (wrong(role="king"), "[0].role"),
    (wrong(token=None), "token_sha256"),
    (wrong(token_sha256="0" * 64), "not both"),
    (wrong(token="short"), "[0].token"),
    (wrong(token=None, token_sha256="xyz"), "[0].token_sha256"),
    (wrong(namespaces="one"), '[0].namespaces: write a list of names, or "*" for all'),
    (wrong(namespaces=[]), "[0].namespaces: name one at least"),
    (wrong(namespaces=["*"]), '[0].namespaces: "*" stands alone for all'),
    (wrong(namespaces=["billing", "two words"]), "[0].namespaces: 'two words' could never exist"),
    (wrong(namespaces=["-billing"]), "[0].namespaces: '-billing' could never exist"),
    (wrong(namespaces=[""]), "[0].namespaces: '' could never exist"),
    (wrong(namespaces=[7]), "[0].namespaces: 7 could never exist"),
    (wrong(colour="red"), "[0].colour"),
    ('["s3cret-0123456789abc"]', "[0]"),
]


@pytest.mark.parametrize(("tokens", "named"), WRONG, ids=[named for _, named in WRONG])
def test_a_wrong_token_setting_names_the_entry_and_never_its_value(tokens: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        Tokens.of(Settings(tokens=tokens))
    assert named in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_serving_beyond_loopback_without_tokens_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="RQSCHED_TOKENS"):
        serve(host, 0, settings=Settings())


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_without_tokens_a_loopback_request_is_allowed(web: Web, peer: str) -> None:
    web.peer = peer
    assert web.get(SCHEDULES).status_code == 200


@pytest.mark.parametrize("peer", ["10.0.0.1", "8.8.8.8", "fe80::1", "::ffff:10.0.0.1"])
def test_without_tokens_a_request_from_another_machine_is_forbidden(web: Web, peer: str) -> None:
    web.peer = peer
    problem(web.get(SCHEDULES), 403, "forbidden")


def test_without_tokens_a_rebound_host_name_is_forbidden(web: Web) -> None:
    accepted = ("localhost:8000", "127.0.0.1:8000", "[::1]:1", "app.localhost")
    foreign = ("evil.example", "evil", "evil:8000", "10.0.0.1", "[::2]", "127.0.0.1.evil", "localhost@evil")
    unclear = (
        "evil@localhost",
        "localhost/evil",
        "localhost#evil",
        "evil\\.localhost",
        "[::1]evil",
        ".localhost",
        "",
        "[",
    )
    for host, status in (*dict.fromkeys(accepted, 200).items(), *dict.fromkeys(foreign + unclear, 403).items()):
        assert web.get(SCHEDULES, headers={"host": host}).status_code == status, host
        assert web.get("/", headers={"host": host}).status_code == status, host


CROSS_SITE = [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"},
              {"origin": "null"}, {"origin": "http://["}]  # fmt: skip


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
def test_without_tokens_a_cross_site_request_changes_nothing(web: Web, headers: dict[str, str]) -> None:
    web.create()
    problem(web.post(at(operation="pause/"), headers=headers), 403, "forbidden")
    assert web.read()["status"] == "active"
    assert web.post(at(operation="pause/"), headers={"origin": "http://localhost"}).status_code == 200


def test_an_application_may_provide_its_own_authentication(make_web: MakeWeb) -> None:
    people = {"ann": Principal("ann", Role.ADMIN, frozenset({"default"})), "bob": Principal("bob", Role.READ)}
    web = make_web(app={"authenticate": lambda connection: people.get(connection.headers.get("x-user", ""))})
    body = {"schedule_id": "report", **MINUTELY}
    assert web.post(SCHEDULES, body, headers={"x-user": "ann"}).status_code == 201
    problem(web.post(SCHEDULES, body, headers={"x-user": "bob"}), 403, "forbidden")
    problem(web.get(SCHEDULES), 401, "unauthorized")


PROXIED = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded", "x-real-ip", "via"]


@pytest.mark.parametrize("header", PROXIED)
def test_without_tokens_nobody_is_served_through_a_proxy(web: Web, header: str) -> None:
    problem(web.get(SCHEDULES, headers={header: "127.0.0.1"}), 403, "forbidden")


def test_a_stranger_is_refused_before_the_version_of_a_standard_is_looked_at(guarded: Web) -> None:
    for path, headers in (("/ojs/v1/cron", {"OJS-Version": "9"}), ("/api/schedules", {})):
        assert guarded.get(path, headers=headers).status_code == 401
        assert guarded.acting_as(READ).get(path, headers=headers).status_code in {400, 422}
    assert guarded.get("/ojs/manifest", headers={"OJS-Version": "9"}).status_code == 422
