"""The audit stream: types and payload keys of the durable-workflow document, sequences, pages, retention."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rqsched import CommandContext, Cron, RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError, InvalidLimitError, InvalidPayloadError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.decide.audit import LINEAGE_KEYS, AuditRecord, Event
from rqsched.testing import run_schedule
from tests.support.env import HOUR, MINUTE, NOON, Env, events, last, newest, types

Story = Callable[[Env, ScheduleHandle], Any]


def skipped(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    env.tick()


HAPPENINGS: dict[str, tuple[str, Story, dict[str, Any]]] = {
    "created": (
        "ScheduleCreated",
        lambda env, schedule: None,
        {
            "spec": {"cron_expressions": ["* * * * *"], "timezone": "Europe/Berlin", "dst_gap": "shift"},
            "action": {"workflow": "note", "args": [1], "kwargs": {}, "queue": "high"},
            "overlap_policy": "skip",
            "next_fire_at": "2026-01-15T12:01:00Z",
        },
    ),
    "paused": (
        "SchedulePaused",
        lambda env, schedule: schedule.pause(reason="disk full"),
        {"reason": "disk full", "paused_at": "2026-01-15T12:00:00Z"},
    ),
    "resumed": (
        "ScheduleResumed",
        lambda env, schedule: schedule.pause().resume(),
        {"next_fire_at": "2026-01-15T12:01:00Z"},
    ),
    "updated": (
        "ScheduleUpdated",
        lambda env, schedule: schedule.update(spec="*/5 * * * *", args=[2]),
        {
            "changed_fields": ["spec", "action"],
            "changes": {
                "spec": [
                    {"cron_expressions": ["* * * * *"], "timezone": "Europe/Berlin"},
                    {"cron_expressions": ["*/5 * * * *"], "timezone": "Europe/Berlin"},
                ],
                "args": [[1], [2]],
            },
            "spec": {"cron_expressions": ["*/5 * * * *"], "timezone": "Europe/Berlin", "dst_gap": "shift"},
            "action": {"workflow": "note", "args": [2], "kwargs": {}, "queue": "high"},
            "overlap_policy": "skip",
            "next_fire_at": "2026-01-15T12:05:00Z",
        },
    ),
    "triggered": (
        "ScheduleTriggered",
        lambda env, schedule: env.tick(),
        {
            "workflow_instance_id": "schedule:report:2026-01-15T12:01:00Z",
            "workflow_run_id": "RUN",
            "outcome": "triggered",
            "effective_overlap_policy": "skip",
            "trigger_number": 1,
            "occurrence_time": "2026-01-15T12:01:00Z",
        },
    ),
    "skipped": (
        "ScheduleTriggerSkipped",
        skipped,
        {
            "reason": "overlap_policy_skip",
            "skipped_trigger_count": 1,
            "last_skipped_at": "2026-01-15T12:02:00Z",
            "occurrence_time": "2026-01-15T12:02:00Z",
            "blocking_run_id": "RUN",
        },
    ),
    "deleted": (
        "ScheduleDeleted",
        lambda env, schedule: schedule.delete(reason="obsolete"),
        {"reason": "obsolete", "deleted_at": "2026-01-15T12:00:00Z"},
    ),
}


@pytest.mark.parametrize(("event_type", "story", "expected"), HAPPENINGS.values(), ids=HAPPENINGS.keys())
def test_an_event_has_exactly_the_keys_of_the_document(
    env: Env, event_type: str, story: Story, expected: dict[str, Any]
) -> None:
    schedule = env.create(spec=Cron("* * * * *"), timezone="Europe/Berlin", args=[1], queue="high")

    story(env, schedule)

    event = events(schedule)[-1]
    run_uid = newest(schedule).uid if schedule.runs().items else ""
    wanted = {key: run_uid if value == "RUN" else value for key, value in expected.items()}
    assert (event.event_type, event.payload) == (event_type, wanted)


def test_an_event_outside_the_contract_is_not_written() -> None:
    with pytest.raises(InvalidPayloadError, match="may not carry"):
        Event("SchedulePaused", {"colour": "red"})
    with pytest.raises(InvalidPayloadError, match="not in the audit contract"):
        Event("ScheduleSneezed")
    assert Event("SchedulePaused", {"command_context": {}}).payload == {"command_context": {}}


def test_our_own_event_types_record_what_the_document_does_not(any_env: Env) -> None:
    any_env.failing = True
    dies = any_env.create("dies", retry=RetryPolicy(max_retries=0, then="dead"))
    waits = any_env.create("waits", overlap="buffer_one", max_runs=1)
    any_env.tick(3 * MINUTE)
    any_env.execute_pending()

    assert types(dies) == ["Created", "Missed", "Triggered", "RunFailed", "Died"]
    missed, died = last(dies, "Missed"), last(dies, "Died")
    assert missed == {
        "count": 2,
        "first": "2026-01-15T12:02:00Z",
        "last": "2026-01-15T12:03:00Z",
        "fired": ["2026-01-15T12:01:00Z"],
        "policy": "fire_once",
    }
    assert (died["reason"], died["workflow_run_id"], died["consecutive_failures"]) == (
        "retries_exhausted",
        newest(dies).uid,
        1,
    )
    assert died["error"].startswith("RuntimeError: as the test wants it")
    assert last(waits, "Completed")["reason"] == "max_runs_exhausted"


def test_a_buffered_run_has_its_event_and_another_when_it_starts(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_one")
    any_env.tick()
    any_env.tick()
    any_env.execute_pending()

    assert types(schedule) == ["Created", "Triggered", "Buffered", "Triggered"]
    assert last(schedule, "Buffered")["buffer_depth"] == 1
    assert last(schedule, "Triggered")["outcome"] == "drained"
    assert [event.workflow_run_id for event in events(schedule)[2:]] == [newest(schedule).uid] * 2


def test_the_run_has_the_lineage_event(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("* * * * *"), timezone="Europe/Berlin")
    any_env.tick()

    lineage = newest(schedule).lineage

    assert set(lineage) == LINEAGE_KEYS
    assert lineage == {
        "schedule_id": "report",
        "schedule_ulid": schedule.uid,
        "cron_expression": "* * * * *",
        "timezone": "Europe/Berlin",
        "overlap_policy": "skip",
        "trigger_number": 1,
        "occurrence_time": "2026-01-15T12:01:00Z",
    }


CONTEXT = CommandContext(principal="ann", request_id="r-1", source="http", reason="maintenance", context={"ip": "::1"})
COMMANDS: dict[str, Callable[[Env, ScheduleHandle], Any]] = {
    "update": lambda env, schedule: schedule.update(queue="high", context=CONTEXT),
    "pause": lambda env, schedule: schedule.pause(context=CONTEXT),
    "resume": lambda env, schedule: schedule.pause().resume(context=CONTEXT),
    "delete": lambda env, schedule: schedule.delete(context=CONTEXT),
    "trigger": lambda env, schedule: schedule.trigger(context=CONTEXT),
    "backfill": lambda env, schedule: schedule.backfill(NOON - MINUTE, NOON, context=CONTEXT),
    "upsert": lambda env, schedule: env.scheduler.upsert("report", "note", HOUR, context=CONTEXT),
    "sync": lambda env, schedule: env.scheduler.sync([], delete_removed=True, context=CONTEXT),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_caller_is_recorded_with_each_operation(env: Env, command: Callable[[Env, ScheduleHandle], Any]) -> None:
    schedule = env.scheduler.upsert("report", "note", MINUTE)[0]
    if command is COMMANDS["sync"]:
        schedule.delete(purge=True)
        env.scheduler.sync([Declaration("report", "note", MINUTE)])
        schedule = env.scheduler.get("report")

    command(env, schedule)

    assert events(schedule)[-1].payload["command_context"] == {
        "principal": "ann",
        "request_id": "r-1",
        "source": "http",
        "reason": "maintenance",
        "context": {"ip": "::1"},
    }


def test_context_attributes_that_are_not_given_are_absent(env: Env) -> None:
    created = env.create(context=CommandContext(principal="ann"))
    assert last(created, "Created")["command_context"] == {"principal": "ann"}
    created.pause(context=CommandContext())
    created.resume()
    assert all("command_context" not in event.payload for event in events(created)[1:])


def test_sequences_count_from_one_without_a_gap(any_env: Env) -> None:
    schedule = any_env.create()
    for _ in range(5):
        any_env.run_due()
        schedule.pause()
        schedule.resume()

    assert [event.sequence for event in events(schedule)] == list(range(1, 17))
    assert schedule.refresh().state.event_sequence == 16


def test_history_is_read_in_pages_after_a_sequence(any_env: Env) -> None:
    schedule = any_env.create()
    for _ in range(4):
        schedule.pause()
        schedule.resume()

    assert [event.sequence for event in schedule.history(limit=3)] == [1, 2, 3]
    assert [event.sequence for event in schedule.history(limit=500, after_sequence=7)] == [8, 9]
    assert schedule.history(after_sequence=9) == []
    assert [event.sequence for event in schedule.iter_history(after_sequence=4)] == [5, 6, 7, 8, 9]
    record = schedule.history(limit=1)[0]
    assert isinstance(record, AuditRecord)
    assert (record.event_type, record.recorded_at, record.workflow_run_id) == ("ScheduleCreated", NOON, None)


BAD_PAGES: dict[str, dict[str, Any]] = {
    "limit 0": {"limit": 0},
    "limit 501": {"limit": 501},
    "limit in words": {"limit": "ten"},
    "a cursor below zero": {"after_sequence": -1},
    "a cursor that is no number": {"after_sequence": "7"},
}


@pytest.mark.parametrize("page", BAD_PAGES.values(), ids=BAD_PAGES.keys())
def test_a_page_of_history_refuses_an_invalid_limit_or_sequence(env: Env, page: dict[str, Any]) -> None:
    with pytest.raises(InvalidLimitError):
        env.create().history(**page)


def test_iter_history_reads_a_long_stream_to_its_end(env: Env) -> None:
    schedule = env.create(overlap="allow_all")
    schedule.backfill(NOON - 1100 * MINUTE, NOON)
    assert [event.sequence for event in schedule.iter_history()] == list(range(1, 1102))


def test_history_is_readable_after_delete_by_id_and_by_handle(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.delete()

    assert types(schedule) == ["Created", "Deleted"]
    assert [event.event_type for event in any_env.scheduler.newest("report").history(limit=1, after_sequence=1)] == [
        "ScheduleDeleted"
    ]


def test_after_pruning_history_continues_with_the_next_sequence(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.run_due()
    any_env.run_due()

    assert any_env.scheduler.prune(events_before=NOON + 2 * MINUTE, dry_run=True).events == 2
    assert any_env.scheduler.prune(events_before=NOON + 2 * MINUTE).events == 2
    any_env.run_due()

    assert [(event.sequence, event.event_type) for event in events(schedule)] == [
        (3, "ScheduleTriggered"),
        (4, "ScheduleTriggered"),
    ], "a stream need not begin with a ScheduleCreated"
    assert [event.sequence for event in schedule.history(limit=1)] == [3]
    assert schedule.refresh().run_count == 3
    schedule.pause()
    run_schedule(any_env.scheduler, "report")
    assert events(schedule)[-1].sequence == 6


def test_history_is_pruned_only_before_the_given_instant(env: Env) -> None:
    env.create()
    assert env.scheduler.prune(events_before=NOON).events == 0
    with pytest.raises(InvalidInputError, match="naive"):
        env.scheduler.prune(events_before=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    assert env.scheduler.prune(events_before=datetime(2030, 1, 1, tzinfo=UTC)).events == 1


SKIPS: dict[str, tuple[str, Story]] = {
    "overlap": ("overlap_policy_skip", skipped),
    "a full buffer": ("buffer_full", lambda env, schedule: [schedule.trigger("buffer_one") for _ in range(3)]),
    "a status": ("status_not_triggerable", lambda env, schedule: schedule.pause().trigger()),
    "no actions left": (
        "remaining_actions_exhausted",
        lambda env, schedule: schedule.update(max_runs=1).trigger() and schedule.trigger(),
    ),
    "pause of what was due": ("disabled", lambda env, schedule: (env.advance(MINUTE), schedule.pause())),
    "delete of what was due": ("deleted", lambda env, schedule: (env.advance(MINUTE), schedule.delete())),
    "another environment": (
        "environment",
        lambda env, schedule: (schedule.update(environments=["production"]), env.tick()),
    ),
}


@pytest.mark.parametrize(("reason", "story"), SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_is_tracked_on_the_schedule_and_in_its_stream(env: Env, reason: str, story: Story) -> None:
    schedule = env.create()

    story(env, schedule)

    described = schedule.describe()
    assert (described.last_skip_reason, described.skipped_count) == (reason, 1)
    assert described.last_skipped_at == env.clock.now()
    payload = last(schedule, "TriggerSkipped")
    assert (payload["reason"], payload["skipped_trigger_count"]) == (reason, 1)


def test_two_decisions_in_one_transaction_number_their_events_in_order(any_env: Env) -> None:
    schedule = any_env.create()

    any_env.scheduler.upsert("report", "note", 2 * MINUTE, paused=True)

    assert types(schedule) == ["Created", "Updated", "Paused"]
    assert [event.sequence for event in events(schedule)] == [1, 2, 3]
