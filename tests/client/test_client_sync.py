"""A declared set of schedules, brought about by our own client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rqsched import Declaration, Every
from rqsched.errors import InvalidInputError, UnknownWorkflowError
from tests.client.test_client import asynchronous, client_of
from tests.support.web import Web


def declared(**others: Any) -> list[Declaration]:
    return [Declaration("a", "note", Every("1h"), {"priority": 1}), Declaration("b", "note", Every("2h"), **others)]


def test_a_declared_set_is_created_updated_or_left_as_it_is(web: Web) -> None:
    client = client_of(web)
    assert (client.sync(declared()).created, web.read("a")["priority"]) == (["a", "b"], 1)
    again = client.sync(declared(note="x", paused=True))
    assert (again.created, again.updated, again.unchanged) == ([], ["b"], ["a"])
    assert (web.read("b")["status"], web.read("b")["note"]) == ("paused", "x")

    async def same() -> list[str]:
        async with asynchronous(web) as far:
            return (await far.sync(declared())).unchanged

    assert asyncio.run(same()) == ["a", "b"]


def test_what_is_refused_here_is_refused_before_anything_is_sent(web: Web) -> None:
    client = client_of(web)
    for wrong in (declared()[0], Declaration("c", len, Every("1h"))):
        with pytest.raises(InvalidInputError):
            client.sync([*declared(), wrong])
        assert client.count() == 0
    with pytest.raises(UnknownWorkflowError):
        client.sync([declared()[0], Declaration("c", "unknown", Every("1h"))])
    assert client.count() == 1
