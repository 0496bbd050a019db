"""The audit contract: which keys an event may carry, and that every event a decision writes keeps to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rqsched.errors import InvalidPayloadError
from rqsched.features.after.decide import UpstreamEnd, decide_after
from rqsched.kernel.decide import audit, lifecycle
from rqsched.kernel.decide.audit import CONTRACT, CommandContext, Event
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.fire_decision import decide_fire_failed
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import Change, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import OverlapPolicy, Policies, RetryPolicy
from rqsched.kernel.decide.runs_on_request import (
    Copy,
    Trigger,
    decide_copy,
    decide_retry_on_request,
    decide_stop_backfill,
    decide_trigger,
)
from rqsched.kernel.decide.schedule_repair import decide_drain, decide_overdue, decide_retime
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.when.calendars import Calendar
from rqsched.when.spec import After, Every, Once, Spec
from tests.support.decisions import IDENTITY, active, definition, fire, holding, overlapping, run
from tests.support.env import HOUR, MINUTE, NOON

DOCUMENT = {
    "ScheduleCreated": {"spec", "action", "overlap_policy", "next_fire_at"},
    "SchedulePaused": {"reason", "paused_at"},
    "ScheduleResumed": {"next_fire_at"},
    "ScheduleUpdated": {"changed_fields", "spec", "action", "overlap_policy", "next_fire_at"},
    "ScheduleTriggered": {
        "workflow_instance_id", "workflow_run_id", "outcome", "effective_overlap_policy", "trigger_number",
        "occurrence_time",
    },
    "ScheduleTriggerSkipped": {"reason", "skipped_trigger_count", "last_skipped_at"},
    "ScheduleDeleted": {"reason", "deleted_at"},
}  # fmt: skip
"""The durable-workflow document's table, `command_context` apart."""
OURS = {
    "ScheduleBuffered",
    "ScheduleFireFailed",
    "ScheduleMissed",
    "ScheduleExcluded",
    "ScheduleCalendarChanged",
    "ScheduleSkipsSet",
    "ScheduleCompleted",
    "ScheduleDied",
    "ScheduleRecovered",
    "ScheduleOverdue",
    "RunLong",
    "RunFailed",
    "RunRetrying",
    "RunLost",
    "RunExpired",
    "RunBlocked",
    "RunCancelled",
    "RunTerminated",
    "RunRetryRequested",
    "RunRetryStarted",
    "RunCopied",
    "RunSucceeded",
    "FanOutEnded",
    "BackfillStopped",
}


def settle(schedule: Schedule, attempt_result: AttemptResult) -> Change:
    two = [run(1, started_at=NOON - MINUTE), run(2, "buffered")]
    return decide_settle(holding(schedule, *two), two, two[0], attempt_result, now=NOON)


def every_event() -> list[Event]:
    """One decision of each kind, so that every type is written with every key it ever has."""
    hourly, two = active(), [run(1), run(2, "buffered")]
    asked = replace(run(1, "buffered"), attempt=2, asked_attempt=2)
    dying = active(policies=Policies(retry=RetryPolicy(0, then="dead")))
    expecting = active(notifications='{"expect_success_within":60}')
    quick = active(notifications='{"expect_duration":30}')
    silent = replace(expecting, overdue_at=NOON, last_success_at=NOON - MINUTE, last_error="boom")
    retrying = active(policies=Policies(retry=RetryPolicy(1)))
    choosy = active(policies=Policies(retry=RetryPolicy(retry_on="OSError", give_up_on="lost")))
    paused = lifecycle.decide_pause(hourly, now=NOON + 2 * HOUR, reason="moving").after
    until = lifecycle.decide_pause(hourly, now=NOON + 2 * HOUR, until=NOON + 4 * HOUR)
    patient = active(policies=Policies(start_within=HOUR))
    late = replace(run(1, "pending"), queued_at=NOON, start_by=NOON + HOUR)
    ann = CommandContext(principal="ann")
    after = active(After("nightly"), policies=Policies(fire_within=HOUR))
    ends = [
        UpstreamEnd(uid, IDENTITY.uid, "U", "succeeded", at, at, upstream_id="nightly")
        for uid, at in (("A", NOON), ("B", NOON + 3 * HOUR))
    ]
    busy = active(After("nightly"), policies=Policies(overlap=OverlapPolicy.BUFFER_ALL))
    skipping = lifecycle.decide_skip_next(hourly, 1, now=NOON, reason="the bank is away", context=ann)
    done = replace(hourly, status=ScheduleStatus.DONE)
    calendar = Calendar("holidays", ("2026-01-15",), revision=2, edit="2", since=NOON, changed_by="ann")
    naming = replace(active(Spec("@hourly", exclude="holidays"), calendars=(calendar,)), calendars="1")
    naming = replace(naming, next_run_at=NOON + HOUR, due_at=NOON + HOUR)
    trigger = Trigger(run(9).uid, overlap=OverlapPolicy.CANCEL_OTHER)
    kill = trigger._replace(overlap=OverlapPolicy.TERMINATE_OTHER)
    changes: list[Change] = [
        lifecycle.decide_create(IDENTITY, definition(), now=NOON),
        lifecycle.decide_update(hourly, definition("@daily"), now=NOON + 2 * HOUR),
        lifecycle.decide_pause(hourly, now=NOON + 2 * HOUR, reason="moving"),
        until,
        lifecycle.decide_end_pause(until.after, [], now=NOON + 5 * HOUR),
        lifecycle.decide_resume(paused, [], now=NOON),
        lifecycle.decide_skip_next(hourly, 1, now=NOON, reason="the bank is away"),
        fire(skipping.after),
        lifecycle.decide_restart(done, [], now=NOON),
        lifecycle.decide_delete(holding(hourly, *two), now=NOON, reason="obsolete"),
        decide_retime(replace(hourly, next_run_at=NOON + MINUTE), now=NOON, tzdata="2027a"),
        decide_trigger(holding(hourly, run(1)), [run(1)], trigger, now=NOON)[0],
        decide_trigger(holding(hourly, run(1)), [run(1)], kill, now=NOON)[0],
        fire(holding(hourly, run(1)), run(1)),
        fire(hourly, now=NOON + 3 * HOUR),
        fire(active(["* * * * *", Every("90s")]), now=NOON + 72 * HOUR),
        fire(active(Spec(["* * * * *", Every("90s")], exclude="2026-01-16")), now=NOON + 72 * HOUR),
        lifecycle.decide_apply_calendars(naming, now=NOON),
        fire(active(Spec("0 9 * * FRI", exclude="2026-01-16", on_excluded="next"))),
        fire(holding(overlapping("buffer_all"), run(1)), run(1)),
        fire(holding(overlapping("allow_all", max_runs=1), *two), *two),
        fire(active(Once(NOON + HOUR))),
        decide_fire_failed(hourly, "boom", now=NOON),
        settle(dying, AttemptResult(AttemptOutcome.FAILED, error="boom")),
        settle(hourly, AttemptResult(AttemptOutcome.LOST, error="its work horse died")),
        settle(retrying, AttemptResult(AttemptOutcome.LOST, error="its work horse died")),
        settle(choosy, AttemptResult(AttemptOutcome.FAILED, error="boom")),
        settle(choosy, AttemptResult(AttemptOutcome.LOST, error="its work horse died")),
        decide_overdue(silent, now=NOON),
        settle(replace(silent, overdue_since=NOON, consecutive_failures=1), AttemptResult(AttemptOutcome.SUCCEEDED)),
        settle(quick, AttemptResult(AttemptOutcome.SUCCEEDED)),
        decide_settle(patient, [late], late, AttemptResult(AttemptOutcome.EXPIRED), now=NOON + HOUR),
        settle(hourly, AttemptResult(AttemptOutcome.CANCELLED, reason="the vendor is away")),
        settle(hourly, AttemptResult(AttemptOutcome.TERMINATED, reason="it hangs")),
        settle(hourly, AttemptResult(AttemptOutcome.TARGETS_ENDED, target_counts='{"succeeded":1}')),
        decide_retry_on_request(hourly, [run(2)], run(1, "failed"), now=NOON, reason="repaired"),
        decide_after(after, [], ends, now=NOON + 3 * HOUR)[0],
        decide_after(holding(after, run(1)), [run(1)], ends, now=NOON)[0],
        decide_after(holding(busy, run(1)), [run(1)], ends, now=NOON)[0],
        decide_copy(
            holding(hourly, run(2)), [run(2)], run(1, "succeeded"), Copy(run(9).uid, [1], reason="x"), now=NOON
        ),
        decide_drain(holding(hourly, asked), [asked], now=NOON),
        decide_stop_backfill(
            hourly, now=NOON, backfill_uid=run(9).uid, start_at=NOON, end_at=NOON + HOUR, attempted=1, reason="wrong"
        ),
    ]
    return [event for change in changes for event in change.events]


def test_the_contract_has_the_document_s_types_and_keys_and_ours() -> None:
    assert set(CONTRACT) == set(DOCUMENT) | OURS
    assert all(keys <= CONTRACT[name] for name, keys in DOCUMENT.items())


def test_the_keys_we_add_to_the_document_s_types_are_these() -> None:
    """Adding one is a change of the wire format: document it, then change this."""
    added = {name: set(CONTRACT[name] - keys) for name, keys in DOCUMENT.items()}
    assert added == {
        "ScheduleCreated": set(),
        "SchedulePaused": {"until", "on_resume"},
        "ScheduleResumed": {"reason", "until"},
        "ScheduleUpdated": {"changes"},
        "ScheduleTriggered": {"cancelled_run_ids", "terminated_run_ids", "moved_from"}
        | {"upstream_run_id", "upstream_schedule_id"},
        "ScheduleTriggerSkipped": {
            "occurrence_time",
            "blocking_run_id",
            "asked_at",
            "asked_by",
            "asked_reason",
            "upstream_run_id",
            "upstream_schedule_id",
        },
        "ScheduleDeleted": {"dropped_buffered"},
    }


def test_decisions_write_every_type_and_leave_no_key_of_the_contract_unused() -> None:
    written: dict[str, set[str]] = {}
    for event in every_event():
        written.setdefault(event.type, set()).update(event.payload)
    unused = {name: set(keys - written.get(name, set())) for name, keys in CONTRACT.items()}
    assert {name: keys for name, keys in unused.items() if keys} == {
        "ScheduleBuffered": {"trigger_number"},
        "ScheduleRecovered": {"workflow_run_id", "previous_status"},
        "RunBlocked": set(CONTRACT["RunBlocked"]),
    }


@pytest.mark.parametrize("event", every_event(), ids=lambda event: event.type)
def test_an_event_is_plain_json_without_empty_keys(event: Event) -> None:
    assert all(value is not None for key, value in event.payload.items() if key != "next_fire_at")
    assert all(isinstance(value, (str, int, float, list, dict, type(None))) for value in event.payload.values())
    assert "command_context" not in event.payload


def test_what_the_document_requires_is_always_there() -> None:
    optional = {"SchedulePaused": {"reason"}, "ScheduleDeleted": {"reason"}}
    for event in every_event():
        required = DOCUMENT.get(event.type, set()) - optional.get(event.type, set())
        assert required <= set(event.payload), event


@pytest.mark.parametrize("name", CONTRACT)
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidPayloadError, match="surprise"):
        Event(name, {"surprise": 1})
    assert Event(name, dict.fromkeys(CONTRACT[name], 1) | {"command_context": {}}).type == name


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="ScheduleExploded"):
        Event("ScheduleExploded")


@pytest.mark.parametrize(
    ("context", "values"),
    [
        (CommandContext("ops", "r-1", "cli", "deploy", {"ip": "::1"}), ("ops", "r-1", "cli", "deploy", {"ip": "::1"})),
        (CommandContext(principal="ops"), ("ops", None, None, None, None)),
    ],
)
def test_a_context_is_recorded_without_empty_keys(context: CommandContext, values: tuple[Any, ...]) -> None:
    names = ("principal", "request_id", "source", "reason", "context")
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    change = lifecycle.decide_pause(active(), now=NOON, context=context)
    assert change.events[0].payload["command_context"] == given


@pytest.mark.parametrize("context", [None, CommandContext()], ids=["none", "empty"])
def test_without_a_context_an_event_has_no_command_context(context: CommandContext | None) -> None:
    change = lifecycle.decide_pause(active(), now=NOON, context=context)
    assert "command_context" not in change.events[0].payload


def test_a_context_accompanies_every_event_of_its_operation() -> None:
    schedule = active("*/10 * * * *")
    change = lifecycle.decide_delete(schedule, now=NOON + HOUR, context=CommandContext(source="http"))
    assert len(change.events) == 3
    assert all(event.payload["command_context"] == {"source": "http"} for event in change.events)


def test_an_event_keeps_its_run() -> None:
    (event,) = fire(active()).events
    assert event.run_uid == event.payload["workflow_run_id"]
    assert event.instance_id == event.payload["workflow_instance_id"]
    builder = ChangeBuilder(active(), now=NOON, context=CommandContext("ops"))
    builder.record(audit.RUN_CANCELLED, run(1))
    (event,) = builder.build().events
    assert (event.run_uid, event.instance_id) == (run(1).uid, run(1).instance_id)
    assert event.payload == {
        "workflow_instance_id": run(1).instance_id,
        "workflow_run_id": run(1).uid,
        "occurrence_time": iso_utc(run(1).occurrence_at),
        "attempt": 1,
        "command_context": {"principal": "ops"},
    }


def test_the_lineage_of_a_run_has_the_document_s_keys() -> None:
    assert (
        frozenset(
            {
                "schedule_id",
                "schedule_ulid",
                "cron_expression",
                "timezone",
                "overlap_policy",
                "trigger_number",
                "occurrence_time",
            }
        )
        == audit.LINEAGE_KEYS
    )
