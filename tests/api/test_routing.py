"""Routing: where the runs of a schedule go, and that they never go where links live."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rqsched import aio
from rqsched.errors import InvalidInputError
from tests.support.env import MINUTE, SECOND, Env, types

ROUTES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, int]]] = {
    "settings": ({}, {}, ("default", 600)),
    "workflow": ({"queue": "w", "timeout": 5}, {}, ("w", 5)),
    "schedule": ({}, {"queue": "s", "timeout": 7}, ("s", 7)),
    "schedule over workflow": ({"queue": "w", "timeout": 5}, {"queue": "s", "timeout": 7}, ("s", 7)),
    "each field by itself": ({"queue": "w", "timeout": 5}, {"timeout": 7}, ("w", 7)),
    "the other field by itself": ({"timeout": 5}, {"queue": "s"}, ("s", 5)),
}


@pytest.mark.parametrize(("of_workflow", "of_schedule", "expected"), ROUTES.values(), ids=ROUTES.keys())
def test_queue_connection_and_timeout_come_from_schedule_then_workflow_then_settings(
    env: Env, of_workflow: dict[str, Any], of_schedule: dict[str, Any], expected: tuple[str, int]
) -> None:
    env.register("note", env._note, **of_workflow)
    env.create(**of_schedule)

    env.tick()

    queue, seconds = expected
    assert len(env.queued(queue)) == 1
    env.execute_pending()
    assert env.seen[0].deadline_at - env.seen[0].started_at == seconds * SECOND


def test_a_workflow_on_the_control_queue_is_refused_unless_its_schedule_names_another(env: Env) -> None:
    env.register("astray", env._note, queue="rqsched")
    known = env.create("known")

    for refused in (
        lambda: env.create(workflow="astray"),
        lambda: env.scheduler.upsert("report", "astray", MINUTE),
        lambda: known.update("astray"),
    ):
        with pytest.raises(InvalidInputError, match="control queue"):
            refused()

    assert types(known) == ["Created"]
    env.create(workflow="astray", queue="high")
    env.tick()
    assert len(env.queued("high")) == 1


def test_schedule_workflow_refuses_a_workflow_on_the_control_queue(env: Env) -> None:
    env.register("astray", env._note, queue="rqsched")
    aio.use(env.scheduler)
    try:
        with pytest.raises(InvalidInputError, match="control queue"):
            asyncio.run(aio.schedule_workflow("astray", schedule_name="hourly", schedule="0 * * * *"))
    finally:
        aio.use(None)
    assert env.scheduler.list().items == []
