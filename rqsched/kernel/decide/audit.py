"""Audit events: the append-only record of a schedule, and the contract of the keys each type may carry.

Types and keys are those of the durable-workflow document, verbatim; ours are marked. The contract is checked
on every write, so adding a key here is a documented change of the wire format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from rqsched.errors import InvalidPayloadError
from rqsched.kernel.decide.payload import MEMO_BYTES, NOTE_BYTES, json_text
from rqsched.kernel.decide.traceparent import parse_traceparent

CREATED = "ScheduleCreated"
"""It was created."""
PAUSED = "SchedulePaused"
"""It fires no more until it is resumed; runs that have begun continue."""
RESUMED = "ScheduleResumed"
"""It fires again, next at `next_fire_at`: it was resumed or restarted, or an end that lies ahead was declared."""
UPDATED = "ScheduleUpdated"
"""Its definition was changed; `changed_fields` names what."""
TRIGGERED = "ScheduleTriggered"
"""A run was started: by an occurrence, a trigger, a backfill, or because the run that it waited for has ended."""
SKIPPED = "ScheduleTriggerSkipped"
"""An occurrence or a trigger started nothing; `reason` says why."""
DELETED = "ScheduleDeleted"
"""It was deleted, by somebody or by `on_exhausted`; its history stays."""
BUFFERED = "ScheduleBuffered"
"""A run waits for the end of `blocking_run_id`, as `overlap` says."""
FIRE_FAILED = "ScheduleFireFailed"
"""It could not be evaluated; the occurrence stays due and is tried again at `retry_at`."""
MISSED = "ScheduleMissed"
"""Occurrences passed without a fire: `count`, from `first` to `last`; the occurrences in `fired` fire in their
place."""
SKIPS_SET = "ScheduleSkipsSet"
"""Somebody chose which of its next occurrences are skipped, or a change of its timing did: `occurrences`, or none."""
EXCLUDED = "ScheduleExcluded"
"""Occurrences are excluded and did not happen: `count`, from `first` to `last`, recorded by the fire after them."""
CALENDAR_CHANGED = "ScheduleCalendarChanged"
"""Its next time moved because a calendar that it names was changed: `calendar` at `revision`, `changed_by` whom."""
COMPLETED = "ScheduleCompleted"
"""It is done: no occurrence is left, or it has run as often as it may."""
DIED = "ScheduleDied"
"""It is dead: its runs failed, and `retry.then` says that it ends by that."""
RECOVERED = "ScheduleRecovered"
"""A repair planned its next time anew: it had none, or the rules of its time zone had changed."""
OVERDUE = "ScheduleOverdue"
"""It has had no success for as long as `expect_success_within` allows."""
RUN_LONG = "RunLong"
"""A run takes, or took, longer than `expect_duration`; once for a run."""
RUN_FAILED = "RunFailed"
"""A run has failed for good."""
RUN_RETRYING = "RunRetrying"
"""An attempt failed or was lost; the next begins at `retry_at`."""
RUN_LOST = "RunLost"
"""A run was lost for good: its worker died, and no retry is left."""
RUN_EXPIRED = "RunExpired"
"""A run was not started by `start_by`, so long after it was queued as `start_within` allows; it has ended."""
RUN_BLOCKED = "RunBlocked"
"""A worker lacked the code of a run, which waits for one that has it."""
RUN_RETRY_REQUESTED = "RunRetryRequested"
"""Somebody asked for one more attempt of a run; `outcome` says whether it started or waits."""
RUN_RETRY_STARTED = "RunRetryStarted"
"""A retry that had to wait starts; when a retry starts at once, the event of its request says so."""
RUN_SUCCEEDED = "RunSucceeded"
"""A run succeeded after failures; a success that follows a success has no event."""
RUN_CANCELLED = "RunCancelled"
"""A run was cancelled; recorded when the caller says who asks or why."""
RUN_TERMINATED = "RunTerminated"
"""A run was terminated, its process killed; recorded when the caller says who asks or why."""
BACKFILL_STOPPED = "BackfillStopped"
"""A backfill was stopped before its end; runs that it has started continue."""
FAN_OUT_ENDED = "FanOutEnded"
"""The last target of a run has ended; recorded before the event of the run's own end, if it has one."""

REMAINING_EXHAUSTED = "remaining_actions_exhausted"
"""The reason of a skip for which `max_runs` leaves no run."""
NOT_TRIGGERABLE = "status_not_triggerable"
"""The reason of a skip whose schedule is in a status that starts nothing."""

_DEFINED = frozenset({"spec", "action", "overlap_policy", "next_fire_at"})
_STARTED = frozenset(
    {
        "workflow_instance_id",
        "workflow_run_id",
        "outcome",
        "effective_overlap_policy",
        "trigger_number",
        "occurrence_time",
        "upstream_run_id",
        "upstream_schedule_id",
    }
)
_ENDED = frozenset(
    {"workflow_instance_id", "workflow_run_id", "occurrence_time", "attempt", "error", "duration_seconds"}
)
_ASKED = frozenset({"workflow_instance_id", "workflow_run_id", "occurrence_time", "attempt", "outcome"})

CONTRACT: Mapping[str, frozenset[str]] = {
    CREATED: _DEFINED,
    PAUSED: frozenset({"reason", "paused_at", "until", "on_resume"}),
    RESUMED: frozenset({"next_fire_at", "reason", "until"}),
    UPDATED: _DEFINED | {"changed_fields"},
    TRIGGERED: _STARTED | {"cancelled_run_ids", "terminated_run_ids", "moved_from"},
    SKIPPED: frozenset({"reason", "skipped_trigger_count", "last_skipped_at", "occurrence_time", "blocking_run_id"})
    | {"asked_at", "asked_by", "asked_reason", "upstream_run_id", "upstream_schedule_id"},
    SKIPS_SET: frozenset({"occurrences", "reason", "next_fire_at"}),
    DELETED: frozenset({"reason", "deleted_at", "dropped_buffered"}),
    BUFFERED: _STARTED | {"buffer_depth", "blocking_run_id"},
    FIRE_FAILED: frozenset({"error", "fire_failures", "retry_at", "occurrence_time"}),
    MISSED: frozenset({"count", "count_capped", "first", "last", "fired", "policy"})
    | {"upstream_run_id", "upstream_schedule_id"},
    EXCLUDED: frozenset({"count", "count_capped", "first", "last"}),
    CALENDAR_CHANGED: frozenset({"calendar", "revision", "changed_by", "next_fire_at"}),
    COMPLETED: frozenset({"reason", "completed_at", "dropped_buffered"}),
    DIED: frozenset({"reason", "died_at", "error", "workflow_run_id", "consecutive_failures", "dropped_buffered"}),
    RECOVERED: frozenset({"reason", "next_fire_at", "workflow_run_id", "previous_status"}),
    OVERDUE: frozenset(
        {"overdue_since", "last_success_at", "expect_success_within_seconds", "error", "consecutive_failures"}
    ),
    RUN_LONG: (_ENDED - {"error"}) | {"expect_duration_seconds"},
    RUN_FAILED: _ENDED | {"consecutive_failures", "reason"},
    RUN_RETRYING: _ENDED | {"outcome", "retry_at"},
    RUN_LOST: _ENDED | {"consecutive_failures", "reason"},
    RUN_EXPIRED: (_ENDED - {"duration_seconds"}) | {"queued_at", "start_by"},
    RUN_BLOCKED: _ENDED | {"reason", "worker", "blocked_at"},
    RUN_RETRY_REQUESTED: _ASKED | {"previous_status", "blocking_run_id", "reason"},
    RUN_RETRY_STARTED: _ASKED,
    RUN_CANCELLED: (_ENDED - {"error"}) | {"previous_status", "reason"},
    RUN_TERMINATED: (_ENDED - {"error"}) | {"previous_status", "reason"},
    BACKFILL_STOPPED: frozenset({"backfill_id", "start_at", "end_at", "stopped_at", "attempted", "reason"}),
    FAN_OUT_ENDED: (_ENDED - {"error"}) | {"outcome", "targets"},
    RUN_SUCCEEDED: (_ENDED - {"error"}) | {"consecutive_failures", "overdue_since"},
}
"""The payload keys that each event type may carry; every type may carry `command_context` too."""

LINEAGE_KEYS = frozenset(
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
"""The keys of the ScheduleTriggered event on the started run (durable-workflow document)."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The actor and the reason of an operation; recorded with its audit event when given."""

    principal: str | None = None
    """The user or token on whose behalf the operation ran."""
    request_id: str | None = None
    """The id that ties the event to the caller's own logs."""
    source: str | None = None
    """The surface: `python`, `cli`, `http`, `control_plane`, ..."""
    reason: str | None = None
    """Free text for the next operator."""
    context: Mapping[str, Any] | None = None
    """Further JSON-native values, as the Durable Workflow control plane records them; at most 256 KiB."""
    traceparent: str | None = None
    """The caller's span, as W3C Trace Context writes it: what is created, or started, belongs to its trace."""

    def __post_init__(self) -> None:
        """Refuse what an audit event could not hold; raises InvalidPayloadError."""
        for name in ("principal", "request_id", "source", "reason"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise InvalidPayloadError(f"context.{name}", f"must be text, not {type(value).__name__}")
            json_text(f"context.{name}", value, NOTE_BYTES)
        if not isinstance(self.context, Mapping | None):
            raise InvalidPayloadError("context", f"must be an object, not {type(self.context).__name__}")
        json_text("context", None if self.context is None else dict(self.context), MEMO_BYTES)
        if self.traceparent is not None and str(parse_traceparent(str(self.traceparent))) != self.traceparent:
            told = "is not a span as W3C Trace Context writes it: 00-, 32, 16 and 2 hexadecimal digits"
            raise InvalidPayloadError("context.traceparent", told)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> CommandContext:
        """Return the context that `to_json` rendered; keys that a newer release added are ignored."""
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})

    def to_json(self) -> dict[str, Any]:
        """Render the attributes that were given; absent ones are omitted, never blank.

        A span alone says neither who asked nor why: then there is nothing to record.
        """
        names = ("principal", "request_id", "source", "reason", "context", "traceparent")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {} if given.keys() == {"traceparent"} else given


@dataclass(frozen=True, slots=True)
class Event:
    """One audit event before it has a sequence; building one with a key outside the contract raises."""

    type: str
    """The type, a key of CONTRACT."""
    payload: dict[str, Any] = field(default_factory=dict)
    """JSON-native values; instants are ISO 8601 UTC text."""
    run_uid: str | None = None
    """The run it concerns; None when it concerns the schedule only."""
    instance_id: str | None = None
    """That run's instance id; None without one."""

    def __post_init__(self) -> None:
        """Refuse a type or key outside the contract."""
        allowed = CONTRACT.get(self.type)
        if allowed is None:
            raise InvalidPayloadError("event_type", f"{self.type!r} is not in the audit contract; see audit.CONTRACT")
        if extra := set(self.payload) - allowed - {"command_context"}:
            raise InvalidPayloadError("payload", f"{self.type} may not carry {sorted(extra)}; see audit.CONTRACT")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audit event as it was recorded."""

    schedule_uid: str
    """The incarnation of the schedule."""
    sequence: int
    """1, 2, 3 ... within the schedule, without gaps."""
    event_type: str
    """The type of the event, such as `RunFailed`; the reference on events lists them all."""
    payload: dict[str, Any]
    """Its values by name, and `command_context` when a caller gave one."""
    workflow_instance_id: str | None
    """The instance id of the run it is about; None when it is about no run."""
    workflow_run_id: str | None
    """The uid of that run."""
    recorded_at: datetime
    """When its transaction recorded it, aware UTC."""


def instant_of(record: AuditRecord, key: str) -> datetime | None:
    """Read an instant of an event's payload; None where it has none."""
    text = record.payload.get(key)
    return None if text is None else datetime.fromisoformat(text)
