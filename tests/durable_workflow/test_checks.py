"""The expectations of Durable Workflow's own Python SDK, check by check, against the served application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from durable_workflow import Client
from durable_workflow.client import ScheduleAction, ScheduleDescription, ScheduleSpec
from durable_workflow.errors import InvalidArgument, ScheduleAlreadyExists, ScheduleListError, ScheduleNotFound

from rqsched.testing import execute_pending
from tests.support.durable_workflow import create
from tests.support.env import MINUTE
from tests.support.rows import every_row
from tests.support.serving import served
from tests.support.web import Web

Check = Callable[[Client, Web], Awaitable[None]]
CHECKS: dict[str, Check] = {}
ID = "invoices"
MORNING = {"start_time": "2026-01-15T09:00:00Z", "end_time": "2026-01-15T11:00:00Z"}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


async def described(client: Client, **options: Any) -> ScheduleDescription:
    found: ScheduleDescription = await (await create(client, **options)).describe()
    return found


async def history(client: Client) -> list[tuple[str | None, dict[str, Any]]]:
    events = client.iter_schedule_history(ID)
    return [(event.event_type, event.payload or {}) async for event in events]


async def last_event(client: Client) -> tuple[str | None, dict[str, Any]]:
    return (await history(client))[-1]


def field(name: str, options: dict[str, Any], expected: Any, *, shown_as: str | None = None) -> None:
    """Add a check that a created schedule's field is described and listed."""

    async def is_described(client: Client, web: Web) -> None:
        assert getattr(await described(client, **options), shown_as or name) == expected

    async def is_listed(client: Client, web: Web) -> None:
        await create(client, **options)
        (one,) = (await client.list_schedules()).schedules
        assert getattr(one, shown_as or name) == expected

    CHECKS[f"{name} is described"] = is_described
    if name not in {"memo", "search_attributes"}:
        CHECKS[f"{name} is listed"] = is_listed


field("schedule_id", {}, ID)
field("status", {}, "active")
field("status of a paused one", {"paused": True}, "paused", shown_as="status")
field("overlap_policy", {"overlap_policy": "buffer_all"}, "buffer_all")
field("overlap_policy by default", {}, "skip", shown_as="overlap_policy")
field("note", {"note": "hourly"}, "hourly")
field("no note", {}, None, shown_as="note")
field("memo", {"memo": {"a": [1, None]}}, {"a": [1, None]})
field("search_attributes", {"search_attributes": {"tenant": "42"}}, {"tenant": "42"})
field("jitter_seconds", {"jitter_seconds": 30}, 30)
field("max_runs", {"max_runs": 5}, 5)
field("remaining_actions", {"max_runs": 5}, 5)
field("fires_count", {}, 0)
field("failures_count", {}, 0)
field("next_fire_at", {}, "2026-01-15T13:00:00Z")
field("next_fire_at of a paused one", {"paused": True}, None, shown_as="next_fire_at")
field("last_fired_at", {}, None)
field("latest_workflow_instance_id", {}, None)
field("paused_at", {"paused": True}, "2026-01-15T12:00:00Z")
field("created_at", {}, "2026-01-15T12:00:00Z")
field("updated_at", {}, "2026-01-15T12:00:00Z")
field("spec", {}, {"cron_expressions": ["0 * * * *"], "intervals": [], "timezone": "UTC"})


def start(name: str, spec: ScheduleSpec, next_fire_at: str) -> None:
    async def fires(client: Client, web: Web) -> None:
        assert (await described(client, spec=spec)).next_fire_at == next_fire_at

    CHECKS[f"a spec of {name} fires next"] = fires


start("an interval", ScheduleSpec(intervals=[{"every": "PT30M"}]), "2026-01-15T12:30:00Z")
start(
    "an interval with an offset", ScheduleSpec(intervals=[{"every": "PT1H", "offset": "PT5M"}]), "2026-01-15T12:05:00Z"
)
start("a timezone", ScheduleSpec(cron_expressions=["0 2 * * *"], timezone="America/New_York"), "2026-01-16T07:00:00Z")
start("two expressions", ScheduleSpec(cron_expressions=["0 14 * * *", "0 13 * * *"]), "2026-01-15T13:00:00Z")
start("both", ScheduleSpec(cron_expressions=["0 14 * * *"], intervals=[{"every": "PT15M"}]), "2026-01-15T12:15:00Z")


def refused(name: str, expected: type[Exception], **options: Any) -> None:
    async def is_refused(client: Client, web: Web) -> None:
        with pytest.raises(expected):
            await create(client, **options)
        assert (await client.list_schedules()).schedules == []

    CHECKS[f"{name} is refused"] = is_refused


refused("a bad cron", InvalidArgument, spec=ScheduleSpec(cron_expressions=["61 * * * *"]))
refused("a bad interval", InvalidArgument, spec=ScheduleSpec(intervals=[{"every": "soon"}]))
refused("a bad timezone", InvalidArgument, spec=ScheduleSpec(cron_expressions=["@daily"], timezone="Mars/Base"))
refused("an empty spec", InvalidArgument, spec=ScheduleSpec())
refused("no workflow type", InvalidArgument, action=ScheduleAction(workflow_type=""))
refused("a bad overlap policy", InvalidArgument, overlap_policy="maybe")
refused("too much jitter", InvalidArgument, jitter_seconds=3_601)
refused("negative jitter", InvalidArgument, jitter_seconds=-1)
refused("no run at all", InvalidArgument, max_runs=0)
refused("a memo beyond the limit", InvalidArgument, memo={"x": "y" * 300_000})
refused("a note beyond the limit", InvalidArgument, note="x" * 1_001)
refused("an id beyond the limit", InvalidArgument, schedule_id="x" * 129)


@check
async def a_note_of_a_thousand_letters_of_any_alphabet_is_kept(client: Client, web: Web) -> None:
    assert (await described(client, note="\N{GREEK SMALL LETTER ALPHA}" * 1_000)).note is not None


@check
async def a_memo_counts_the_letters_that_were_sent(client: Client, web: Web) -> None:
    assert (await described(client, memo={"x": "\N{GREEK SMALL LETTER ALPHA}" * 100_000})).memo is not None


@check
async def an_id_is_generated_when_none_is_given(client: Client, web: Web) -> None:
    handle = await create(client, None)
    assert len(handle.schedule_id) == 36
    assert (await handle.describe()).status == "active"


@check
async def the_action_is_described_as_it_was_sent(client: Client, web: Web) -> None:
    action = (await described(client)).action or {}
    assert (action["workflow_type"], action["task_queue"], action["run_timeout_seconds"]) == ("note", "high", 60)


@check
async def items_of_a_list_carry_the_action(client: Client, web: Web) -> None:
    await create(client)
    (one,) = (await client.list_schedules()).schedules
    assert one.action == (await client.describe_schedule(ID)).action


@check
async def a_taken_id_is_its_own_error(client: Client, web: Web) -> None:
    await create(client)
    with pytest.raises(ScheduleAlreadyExists):
        await create(client)


@check
async def a_deleted_id_is_free_again(client: Client, web: Web) -> None:
    await (await create(client)).delete()
    assert (await described(client)).status == "active"


@check
async def creating_a_paused_one_records_both(client: Client, web: Web) -> None:
    await create(client, paused=True)
    assert [kind for kind, _ in await history(client)] == ["ScheduleCreated", "SchedulePaused"]


def missing(name: str, ask: Callable[[Client], Awaitable[Any]]) -> None:
    async def is_missing(client: Client, web: Web) -> None:
        with pytest.raises(ScheduleNotFound):
            await ask(client)

    CHECKS[f"{name} of a missing schedule is not found"] = is_missing


missing("describe", lambda client: client.describe_schedule("missing"))
missing("update", lambda client: client.update_schedule("missing", note="x"))
missing("pause", lambda client: client.pause_schedule("missing"))
missing("resume", lambda client: client.resume_schedule("missing"))
missing("trigger", lambda client: client.trigger_schedule("missing"))
missing("delete", lambda client: client.delete_schedule("missing"))
missing("backfill", lambda client: client.backfill_schedule("missing", **MORNING))
missing("history", lambda client: client.get_schedule_history("missing"))


def updated(name: str, value: Any, expected: Any) -> None:
    async def is_updated(client: Client, web: Web) -> None:
        handle = await create(client)
        before = await handle.describe()
        await handle.update(**{name: value})
        after = await handle.describe()
        assert getattr(after, name) == expected
        assert (after.created_at, after.fires_count) == (before.created_at, before.fires_count)
        kind, payload = await last_event(client)
        assert kind == "ScheduleUpdated"
        assert payload["command_context"]["context"]["server"]["command"] == "schedule.update"

    CHECKS[f"{name} is updated"] = is_updated


updated("note", "faster", "faster")
updated("overlap_policy", "allow_all", "allow_all")
updated("jitter_seconds", 7, 7)
updated("max_runs", 3, 3)
updated("memo", {"b": 2}, {"b": 2})
updated("search_attributes", {"c": "d"}, {"c": "d"})
updated(
    "spec", ScheduleSpec(intervals=[{"every": "PT30M"}]),
    {"cron_expressions": [], "intervals": [{"every": "PT30M"}], "timezone": "UTC"},
)  # fmt: skip


@check
async def a_refused_update_changes_nothing(client: Client, web: Web) -> None:
    handle = await create(client)
    before = await handle.describe()
    with pytest.raises(InvalidArgument):
        await handle.update(spec=ScheduleSpec(cron_expressions=["61 * * * *"]), note="x")
    assert await handle.describe() == before


@check
async def an_updated_action_is_merged_by_key(client: Client, web: Web) -> None:
    handle = await create(client)
    await handle.update(action=ScheduleAction(workflow_type="note", task_queue="low"))
    action = (await handle.describe()).action or {}
    assert (action["task_queue"], action["run_timeout_seconds"]) == ("low", 60)


@check
async def pause_is_idempotent_and_keeps_its_note(client: Client, web: Web) -> None:
    handle = await create(client)
    await handle.pause(note="holiday")
    await handle.pause()
    found = await handle.describe()
    assert (found.status, found.note, found.next_fire_at) == ("paused", "holiday", None)


@check
async def resume_is_idempotent_and_plans_the_next_fire(client: Client, web: Web) -> None:
    handle = await create(client, paused=True)
    await handle.resume(note="back")
    await handle.resume()
    found = await handle.describe()
    assert (found.status, found.note, found.next_fire_at) == ("active", "back", "2026-01-15T13:00:00Z")


@check
async def a_trigger_starts_a_workflow(client: Client, web: Web) -> None:
    result = await (await create(client)).trigger()
    assert (result.outcome, bool(result.workflow_id), bool(result.run_id)) == ("triggered", True, True)


@check
async def a_trigger_during_a_run_is_skipped_with_its_reason(client: Client, web: Web) -> None:
    handle = await create(client)
    await handle.trigger()
    result = await handle.trigger()
    assert (result.outcome, result.reason) == ("skipped", "overlap_policy_skip")


@check
async def a_trigger_may_wait(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="buffer_all")
    await handle.trigger()
    result = await handle.trigger()
    assert (result.outcome, result.buffer_depth) == ("buffered", 1)


@check
async def a_full_buffer_says_so(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="buffer_one")
    for _ in range(2):
        await handle.trigger()
    result = await handle.trigger()
    assert (result.outcome, result.reason) == ("buffer_full", "buffer_full")


@check
async def a_trigger_may_override_the_policy(client: Client, web: Web) -> None:
    handle = await create(client)
    await handle.trigger()
    assert (await handle.trigger(overlap_policy="allow_all")).outcome == "triggered"


@check
async def a_trigger_of_a_paused_schedule_is_skipped(client: Client, web: Web) -> None:
    result = await (await create(client, paused=True)).trigger()
    assert (result.outcome, result.reason) == ("skipped", "status_not_triggerable")


@check
async def used_up_runs_delete_the_schedule_and_leave_its_history(client: Client, web: Web) -> None:
    handle = await create(client, max_runs=1)
    await handle.trigger()
    with pytest.raises(ScheduleNotFound):
        await handle.describe()
    assert (await last_event(client))[0] == "ScheduleDeleted"


@check
async def waiting_runs_are_listed_as_buffered_actions(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="buffer_all")
    first, second = await handle.trigger(), await handle.trigger()
    info = (await handle.describe()).info or {}
    assert [one["workflow_id"] for one in info["buffered_actions"]] == [second.workflow_id]
    outcomes = {one["run_id"]: one["outcome"] for one in info["recent_actions"]}
    assert outcomes == {first.run_id: "triggered", second.run_id: "buffered"}


@check
async def buffered_actions_are_an_empty_list_when_nothing_waits(client: Client, web: Web) -> None:
    assert ((await described(client)).info or {})["buffered_actions"] == []


@check
async def an_occurrence_counts_as_scheduled(client: Client, web: Web) -> None:
    handle = await create(client, spec=ScheduleSpec(intervals=[{"every": "PT1M"}]))
    web.env.advance(MINUTE)
    web.env.dispatch()
    info = (await handle.describe()).info or {}
    assert [one["outcome"] for one in info["recent_actions"]] == ["scheduled"]
    kind, payload = await last_event(client)
    assert (kind, payload["outcome"]) == ("ScheduleTriggered", "scheduled")


@check
async def a_trigger_counts_as_triggered(client: Client, web: Web) -> None:
    await (await create(client)).trigger()
    kind, payload = await last_event(client)
    assert (kind, payload["outcome"]) == ("ScheduleTriggered", "triggered")


@check
async def a_run_that_waited_counts_as_drained(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="buffer_all")
    await handle.trigger()
    await handle.trigger()
    web.env.advance(MINUTE)
    execute_pending(web.env.scheduler, "high")
    info = (await handle.describe()).info or {}
    assert [one["outcome"] for one in info["recent_actions"]] == ["drained", "triggered"]


@check
async def a_backfill_fires_each_occurrence_of_its_range(client: Client, web: Web) -> None:
    filled = await (await create(client, overlap_policy="allow_all")).backfill(**MORNING)
    assert (filled.outcome, filled.fires_attempted) == ("backfill_started", 2)
    assert [one["fire_time"] for one in filled.results or []] == ["2026-01-15T09:00:00Z", "2026-01-15T10:00:00Z"]
    assert {one["outcome"] for one in filled.results or []} == {"started"}


@check
async def backfilled_runs_count_as_backfilled(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="allow_all")
    await handle.backfill(**MORNING)
    info = (await handle.describe()).info or {}
    assert {one["outcome"] for one in info["recent_actions"]} == {"backfilled"}


@check
async def a_second_backfill_of_the_same_range_starts_nothing(client: Client, web: Web) -> None:
    handle = await create(client, overlap_policy="allow_all")
    await handle.backfill(**MORNING)
    again = await handle.backfill(**MORNING)
    assert {one["outcome"] for one in again.results or []} == {"skipped"}


@check
async def a_backfill_that_ends_before_it_starts_is_refused(client: Client, web: Web) -> None:
    handle = await create(client)
    with pytest.raises(InvalidArgument):
        await handle.backfill(start_time=MORNING["end_time"], end_time=MORNING["start_time"])


@check
async def delete_says_why_in_the_history(client: Client, web: Web) -> None:
    await (await create(client)).delete()
    kind, payload = await last_event(client)
    assert (kind, payload["reason"]) == ("ScheduleDeleted", "deleted")


@check
async def a_deleted_schedule_is_not_listed(client: Client, web: Web) -> None:
    await (await create(client)).delete()
    assert (await client.list_schedules()).schedules == []


@check
async def history_pages_by_sequence(client: Client, web: Web) -> None:
    handle = await create(client)
    await handle.pause()
    await handle.resume()
    first = await handle.history(limit=2)
    assert ([event.sequence for event in first.events], first.has_more, first.next_cursor) == ([1, 2], True, 2)
    rest = await handle.history(limit=2, after_sequence=first.next_cursor)
    assert ([event.sequence for event in rest.events], rest.has_more, rest.next_cursor) == ([3], False, None)


@check
async def a_command_is_recorded_with_its_context(client: Client, web: Web) -> None:
    await create(client)
    ((_, payload),) = await history(client)
    assert payload["command_context"]["source"] == "control_plane"
    assert payload["command_context"]["context"]["server"]["command"] == "schedule.create"


@check
async def lists_are_newest_first_and_page_by_token(client: Client, web: Web) -> None:
    for number in range(3):
        await create(client, f"s{number}")
        web.env.advance(MINUTE)
    first = await client.list_schedules(page_size=2)
    rest = await client.list_schedules(page_size=2, next_page_token=first.next_page_token)
    assert [one.schedule_id for one in [*first.schedules, *rest.schedules]] == ["s2", "s1", "s0"]
    assert rest.next_page_token is None


def filtered(name: str, **filters: Any) -> None:
    async def is_filtered(client: Client, web: Web) -> None:
        await create(client, "mine", note="mine", paused=True, search_attributes={"tenant": "42"})
        await create(client, "other", action=ScheduleAction(workflow_type="elsewhere", task_queue="low"))
        assert [one.schedule_id for one in (await client.list_schedules(**filters)).schedules] == ["mine"]

    CHECKS[f"a list is filtered by {name}"] = is_filtered


filtered("status", status="paused")
filtered("workflow type", workflow_type="note")
filtered("id in a query", query='ScheduleId = "mine"')
filtered("two equalities", query='TaskQueue = "high" AND Note = "mine"')
filtered("a search attribute", query='tenant = "42"')


def list_refused(name: str, reason: str, refused_field: str, **filters: Any) -> None:
    async def is_refused(client: Client, web: Web) -> None:
        with pytest.raises(ScheduleListError) as caught:
            await client.list_schedules(**filters)
        error = caught.value
        assert (error.reason(), error.field) == (reason, refused_field)
        assert refused_field in (error.errors or {})

    CHECKS[f"a list by {name} is refused by name"] = is_refused


list_refused("a bad status", "invalid_status", "status", status="asleep")
list_refused("a bad query", "invalid_query", "query", query="status ~ x")
list_refused("too large a page", "validation_failed", "page_size", page_size=500)
list_refused("a bad token", "invalid_page_token", "next_page_token", next_page_token="%%%")


@check
async def a_token_of_other_filters_says_where_it_stood(client: Client, web: Web) -> None:
    for number in range(2):
        await create(client, f"s{number}")
    page = await client.list_schedules(page_size=1)
    with pytest.raises(ScheduleListError) as caught:
        await client.list_schedules(page_size=1, status="active", next_page_token=page.next_page_token)
    assert caught.value.status == 409
    assert set(caught.value.last_safe_cursor or {}) == {"created_at", "schedule_ulid"}


@check
async def discovery_names_what_is_served(client: Client, web: Web) -> None:
    assert (await client.get_cluster_info())["capabilities"]["schedules"] is True


def test_the_sdk_finds_every_thing_as_it_expects(web: Web) -> None:
    assert len(CHECKS) >= 104

    async def ask(url: str, check: Check, namespace: str) -> None:
        async with Client(url, namespace=namespace) as client:
            await check(client, web)

    web.env.runtime.record_workflows()
    with served(web.app, lifespan="on") as url, every_row() as row:
        for number, (name, one) in enumerate(CHECKS.items()):
            web.env.clock.set(web.env.clock.now().replace(month=1, day=15, hour=12, minute=0))
            with row(name):
                asyncio.run(ask(url, one, f"n{number}"))
