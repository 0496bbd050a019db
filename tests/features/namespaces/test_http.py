"""The deletion of a namespace over HTTP and by its clients."""

from __future__ import annotations

import asyncio
import json

import pytest

from rqsched.errors import ConflictError, InvalidIdError
from rqsched.kernel.store import metadata
from tests.support.client import asynchronous, client_of
from tests.support.web import MakeWeb, Web, problem

NAMESPACE = "/api/v1/namespace/"


def test_a_frozen_namespace_is_deleted_by_an_admin_who_says_its_name(make_web: MakeWeb) -> None:
    tokens = [
        {"name": "boss", "role": "admin", "namespaces": ["tenant"], "token": "boss-secret-0123456789"},
        {"name": "op", "role": "operate", "namespaces": ["tenant"], "token": "op-secret-0123456789"},
    ]
    web = make_web(tokens=json.dumps(tokens))
    env = web.env
    env.create(namespace="tenant")
    env.create()
    boss, operator = web.acting_as("boss-secret-0123456789"), web.acting_as("op-secret-0123456789")
    for call in (operator.get(NAMESPACE), operator("DELETE", f"{NAMESPACE}?confirm=tenant")):
        problem(call, 403, "forbidden")
    assert boss.get(NAMESPACE).json()["rows"]["schedules"] == 1
    problem(boss("DELETE", f"{NAMESPACE}?confirm=tenant"), 409, "conflict")
    env.scheduler.freeze(namespace="tenant")
    problem(boss("DELETE", NAMESPACE), 422, "invalid_input")
    problem(boss("DELETE", f"{NAMESPACE}?confirm=default"), 422, "invalid_input")
    problem(boss("DELETE", f"{NAMESPACE}?confirm=default&namespace=default"), 404, "namespace_not_found")

    done = boss("DELETE", f"{NAMESPACE}?confirm=tenant&reason=it+leaves").json()

    assert (done["is_over"], done["rows"]["schedules"]) == (True, 1)
    assert env.scheduler.list(namespace="tenant").items == []
    assert len(env.scheduler.list().items) == 1
    (line,) = env.runtime.database.read(lambda c: metadata.find_altered(c, "tenant"))
    assert (line.by, line.reason, line.source) == ("boss", "it leaves", "http")


def test_both_clients_delete_a_namespace(web: Web) -> None:
    for name in ("one", "default"):
        web.env.create(namespace=name)
        web.env.scheduler.freeze(namespace=name)
    client = client_of(web)
    assert client.namespaces.preview_delete("one").rows["schedules"] == 1
    with pytest.raises(InvalidIdError):
        client.namespaces.delete("*")
    done = client.namespaces.delete("one", "it leaves")
    assert (done.namespace, done.is_over, done.rows["schedules"]) == ("one", True, 1)
    with pytest.raises(ConflictError, match="not frozen"):
        client.namespaces.delete("one")

    async def delete() -> None:
        async with asynchronous(web) as other:
            assert (await other.namespaces.preview_delete("default")).is_frozen
            assert (await other.namespaces.delete("default")).is_over

    asyncio.run(delete())
