"""Durable Workflow's own Python SDK, unmodified, against the application as uvicorn serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from durable_workflow import Client
from durable_workflow.client import ScheduleSpec
from durable_workflow.errors import (
    InvalidArgument,
    ScheduleAlreadyExists,
    ScheduleListError,
    ScheduleNotFound,
    Unauthorized,
)
from durable_workflow.serializer import decode_envelope
from durable_workflow.sync import Client as SyncClient

from rqsched.testing import execute_pending
from tests.support.durable_workflow import HOURLY, NOTE, create
from tests.support.processes import REPOSITORY
from tests.support.serving import served
from tests.support.web import MakeWeb, Web, one_token
from tests.system.acceptance.snippets import snippets_of

Ask = Callable[[Callable[[Client], Awaitable[Any]]], Any]


@pytest.fixture
def ask(web: Web, url: str) -> Ask:
    """Run a call of the SDK's client, and return its result."""
    web.env.runtime.record_workflows()

    def ask(question: Callable[[Client], Awaitable[Any]]) -> Any:
        async def once() -> Any:
            async with Client(url) as client:
                return await question(client)

        return asyncio.run(once())

    return ask


def test_a_schedule_is_created_and_described(ask: Ask) -> None:
    async def question(client: Client) -> Any:
        handle = await create(client, note="hourly", memo={"a": 1}, search_attributes={"tenant": "42"}, max_runs=5)
        return await handle.describe()

    found = ask(question)
    assert (found.schedule_id, found.status, found.note, found.memo) == ("invoices", "active", "hourly", {"a": 1})
    assert (found.spec["cron_expressions"], found.action["task_queue"]) == (["0 * * * *"], "high")
    assert (found.next_fire_at, found.fires_count, found.remaining_actions) == ("2026-01-15T13:00:00Z", 0, 5)
    assert (found.search_attributes, found.overlap_policy) == ({"tenant": "42"}, "skip")


def test_the_workflow_gets_the_sdks_encoded_input_and_can_decode_it(ask: Ask, web: Web) -> None:
    ask(create)
    result = ask(lambda client: client.trigger_schedule("invoices"))
    assert (result.outcome, result.workflow_id[:25]) == ("triggered", "schedule:invoices:manual:")

    execute_pending(web.env.scheduler, "high")

    (((envelope,), _),) = web.env.calls
    assert decode_envelope(envelope) == ["nightly", 7]


def test_a_schedule_lives_through_all_the_sdks_verbs(ask: Ask, web: Web) -> None:
    async def question(client: Client) -> list[str | None]:
        handle = await create(client, overlap_policy="allow_all")
        seen = []
        await handle.pause(note="holiday")
        seen.append((await handle.describe()).status)
        assert (await handle.trigger()).reason == "status_not_triggerable"
        await handle.resume()
        seen.append((await handle.describe()).status)
        await handle.update(spec=ScheduleSpec(intervals=[{"every": "PT30M"}]), note="faster")
        seen.append((await handle.describe()).note)
        filled = await handle.backfill(start_time="2026-01-15T09:00:00Z", end_time="2026-01-15T10:00:00Z")
        assert (filled.outcome, filled.fires_attempted, len(filled.results or [])) == ("backfill_started", 2, 2)
        await handle.delete()
        with pytest.raises(ScheduleNotFound):
            await handle.describe()
        return seen

    assert ask(question) == ["paused", "active", "faster"]


def test_history_is_iterated_page_by_page_also_after_delete(ask: Ask) -> None:
    async def question(client: Client) -> list[Any]:
        handle = await create(client)
        await handle.pause()
        await handle.resume()
        await handle.delete()
        return [event async for event in client.iter_schedule_history("invoices", limit=2)]

    events = ask(question)
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    types = ["ScheduleCreated", "SchedulePaused", "ScheduleResumed", "ScheduleDeleted"]
    assert [event.event_type for event in events] == types


def test_lists_are_filtered_and_paged(ask: Ask, web: Web) -> None:
    async def question(client: Client) -> tuple[list[str], list[str]]:
        for number in range(3):
            await create(client, f"s{number}", paused=number == 1)
        page = await client.list_schedules(page_size=2)
        rest = await client.list_schedules(page_size=2, next_page_token=page.next_page_token)
        ids = {one.schedule_id for one in [*page.schedules, *rest.schedules]}
        paused = await client.list_schedules(status="paused", query='TaskQueue = "high"')
        assert paused.schedules[0].next_fire_at is None
        return sorted(ids), [one.schedule_id for one in paused.schedules]

    assert ask(question) == (["s0", "s1", "s2"], ["s1"])


def test_refusals_are_the_sdks_own_errors(ask: Ask) -> None:
    async def question(client: Client) -> None:
        await create(client)
        with pytest.raises(ScheduleAlreadyExists):
            await create(client)
        with pytest.raises(InvalidArgument) as refused:
            await create(client, "other", spec=ScheduleSpec(cron_expressions=["61 * * * *"]))
        assert refused.value.errors
        with pytest.raises(ScheduleNotFound):
            await client.trigger_schedule("missing")
        with pytest.raises(ScheduleListError):
            await client.list_schedules(page_size=500)

    ask(question)


def test_the_sdk_reads_discovery_and_health(ask: Ask) -> None:
    assert ask(lambda client: client.get_cluster_info())["capabilities"]["schedules"] is True
    assert ask(lambda client: client.health())["status"] == "ok"


def test_a_token_and_a_namespace_are_sent_as_the_sdk_sends_them(make_web: MakeWeb) -> None:
    token = "a-secret-of-twenty-four-chars"
    web = make_web(tokens=one_token(token, namespaces=["red"]))
    web.env.runtime.record_workflows()

    async def question(url: str) -> None:
        async with Client(url, token=token, namespace="red") as client:
            await create(client)
            assert (await client.get_schedule_history("invoices")).namespace == "red"
        async with Client(url, token="another", namespace="red") as client:
            with pytest.raises(Unauthorized):
                await client.list_schedules()

    with served(web.app, lifespan="on") as url:
        asyncio.run(question(url))
    assert web.env.scheduler.get("invoices", namespace="red").namespace == "red"


def test_the_sdks_client_without_async_works_too(url: str) -> None:
    with SyncClient(url) as client:
        handle = client.create_schedule(schedule_id="invoices", spec=HOURLY, action=NOTE)
        assert handle.describe().status == "active"
        assert [one.schedule_id for one in client.list_schedules().schedules] == ["invoices"]


def test_the_documentations_example_prints_when_its_schedule_fires(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "open-job-spec.md").read_text()
    (code,) = [snippet.code for snippet in snippets_of(page) if snippet.language == "python"]
    assert "http://127.0.0.1:8000" in code

    exec(code.replace("http://127.0.0.1:8000", url), {})

    assert capsys.readouterr().out == "2026-01-16T07:00:00Z\n"
