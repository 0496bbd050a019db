"""Audit events: the append-only record of a schedule, and the contract of the keys that each event type may carry.

Most types and keys come from the Durable Workflow document. The contract is checked on every write. A new key here
changes the wire format, so document it.
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
"""The schedule was created."""
PAUSED = "SchedulePaused"
"""The schedule was paused: it fires no more until it is resumed. Runs that have begun continue."""
RESUMED = "ScheduleResumed"
"""A resume, a restart or a later end made the schedule active again. It fires next at `next_fire_at`."""
UPDATED = "ScheduleUpdated"
"""The definition of the schedule was changed; `changes` has the value of each changed option before and after. It has
null for a value that is longer than 4 KiB, and only the host of a URL."""
TRIGGERED = "ScheduleTriggered"
"""A run started: for an occurrence, a trigger or a backfill, or after it had waited for the run ahead of it."""
SKIPPED = "ScheduleTriggerSkipped"
"""An occurrence or a trigger started no run; `reason` gives the cause."""
DELETED = "ScheduleDeleted"
"""The schedule was deleted, by a user or by `on_max_runs`; its history stays."""
BUFFERED = "ScheduleBuffered"
"""The `overlap` policy made a run wait for the end of the run `blocking_run_id`."""
FIRE_FAILED = "ScheduleFireFailed"
"""An error prevented a fire. The occurrence stays due and is tried again at `retry_at`."""
MISSED = "ScheduleMissed"
"""`count` occurrences passed without a fire, from `first` to `last`. `fired` lists the passed occurrences that still
fire."""
SKIPS_SET = "ScheduleSkipsSet"
"""A user or a change of the timing set the upcoming occurrences to skip. They are now `occurrences`."""
EXCLUDED = "ScheduleExcluded"
"""`count` excluded occurrences passed, from `first` to `last`. The next fire records this event."""
CALENDAR_CHANGED = "ScheduleCalendarChanged"
"""`changed_by` changed the calendar `calendar`, which is now at `revision`. This moved the schedule's next time."""
COMPLETED = "ScheduleCompleted"
"""The schedule is done: it has no occurrence left, or has reached `max_runs` or `max_successes`."""
DIED = "ScheduleDied"
"""The schedule is dead, because runs failed and its retry policy says that failures end it."""
RECOVERED = "ScheduleRecovered"
"""A repair computed the next time again: it was missing, or the rules of the time zone had changed."""
OVERDUE = "ScheduleOverdue"
"""The schedule had no success within `expect_success_within`."""
RUN_LONG = "RunLong"
"""A run takes, or took, longer than `expect_duration`. The event is recorded once for a run."""
RUN_FAILED = "RunFailed"
"""A run has failed for good."""
RUN_RETRYING = "RunRetrying"
"""An attempt failed or was lost; the next begins at `retry_at`."""
RUN_LOST = "RunLost"
"""A run was lost for good: its worker died, and no retry is left."""
RUN_EXPIRED = "RunExpired"
"""A run expired: it was queued, but did not start by `start_by`, the limit that `start_within` sets."""
RUN_BLOCKED = "RunBlocked"
"""A worker lacked the code of a run. The run waits for a worker that has it."""
RUN_RETRY_REQUESTED = "RunRetryRequested"
"""A user asked for one more attempt of a run; `outcome` tells whether the attempt started or waits."""
RUN_RETRY_STARTED = "RunRetryStarted"
"""A requested attempt started after a wait. If it starts at once, only RunRetryRequested or RunCopied is recorded."""
RUN_COPIED = "RunCopied"
"""A user asked to run a run again. The event is about the new run; `outcome` tells whether it started or waits."""
RUN_SUCCEEDED = "RunSucceeded"
"""A run succeeded after failures. A success that follows a success has no event."""
RUN_CANCELLED = "RunCancelled"
"""A run was cancelled. The event is recorded only if the caller gave a principal or a reason."""
RUN_TERMINATED = "RunTerminated"
"""The process of a run was killed. The event is recorded only if the caller gave a principal or a reason."""
BACKFILL_STOPPED = "BackfillStopped"
"""A backfill was stopped before its end. Runs that it has started continue."""
FAN_OUT_ENDED = "FanOutEnded"
"""The last target of a run has ended. If the end of the run is also recorded, its event comes next."""

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
    UPDATED: _DEFINED | {"changed_fields", "changes"},
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
    RUN_COPIED: _ASKED | {"copied_from", "downstream", "arguments", "copied_arguments", "blocking_run_id", "reason"},
    RUN_CANCELLED: (_ENDED - {"error"}) | {"previous_status", "reason"},
    RUN_TERMINATED: (_ENDED - {"error"}) | {"previous_status", "reason"},
    BACKFILL_STOPPED: frozenset({"backfill_id", "start_at", "end_at", "stopped_at", "attempted", "reason"}),
    FAN_OUT_ENDED: (_ENDED - {"error"}) | {"outcome", "targets"},
    RUN_SUCCEEDED: (_ENDED - {"error"}) | {"consecutive_failures", "overdue_since"},
}
"""The payload keys that each event type may carry. Every type may also carry `command_context`."""

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
"""The keys of the ScheduleTriggered event in the history of the started run (Durable Workflow document)."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The actor and the reason of an operation. The audit event of the operation records them."""

    principal: str | None = None
    """The user or token on whose behalf the operation ran."""
    request_id: str | None = None
    """The id that ties the event to the caller's own logs."""
    source: str | None = None
    """The surface: `python`, `cli`, `http`, `control_plane`, ..."""
    reason: str | None = None
    """Free text for a person who reads the history."""
    context: Mapping[str, Any] | None = None
    """Further JSON-native values, as the Durable Workflow control plane records them; at most 256 KiB."""
    traceparent: str | None = None
    """The caller's span in the format of W3C Trace Context. A schedule or run that the call creates joins its trace."""

    def __post_init__(self) -> None:
        """Refuse values that an audit event cannot hold; raises InvalidPayloadError."""
        for name in ("principal", "request_id", "source", "reason"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise InvalidPayloadError(f"context.{name}", f"must be text, not {type(value).__name__}")
            json_text(f"context.{name}", value, NOTE_BYTES)
        if not isinstance(self.context, Mapping | None):
            raise InvalidPayloadError("context", f"must be an object, not {type(self.context).__name__}")
        json_text("context", None if self.context is None else dict(self.context), MEMO_BYTES)
        if self.traceparent is not None and str(parse_traceparent(str(self.traceparent))) != self.traceparent:
            told = "is not in the format of W3C Trace Context: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>"
            raise InvalidPayloadError("context.traceparent", told)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> CommandContext:
        """Return the context from the values of `to_json`; keys of a newer release are ignored."""
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})

    def to_json(self) -> dict[str, Any]:
        """Return the attributes that were given.

        If only `traceparent` was given, the object is empty, because a span names neither an actor nor a reason.
        """
        names = ("principal", "request_id", "source", "reason", "context", "traceparent")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {} if given.keys() == {"traceparent"} else given


@dataclass(frozen=True, slots=True)
class Event:
    """One audit event before it is recorded. Creating one with a key outside the contract raises."""

    type: str
    """The type, a key of CONTRACT."""
    payload: dict[str, Any] = field(default_factory=dict)
    """JSON-native values; instants are ISO 8601 UTC text."""
    run_uid: str | None = None
    """The run that the event is about; None if it is about the schedule only."""
    instance_id: str | None = None
    """The instance id of that run; None without a run."""

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
    """The uid of the schedule."""
    sequence: int
    """1, 2, 3 ... within the schedule, without gaps."""
    event_type: str
    """The type of the event, such as `RunFailed`; the reference on events lists them all."""
    payload: dict[str, Any]
    """The values by name, with `command_context` if the caller gave one."""
    workflow_instance_id: str | None
    """The instance id of the run that the event is about; None if it is about no run."""
    workflow_run_id: str | None
    """The uid of that run."""
    recorded_at: datetime
    """When the event was recorded, aware UTC."""


def instant_of(record: AuditRecord, key: str) -> datetime | None:
    """Return an instant from the payload of an event; None if the key is absent."""
    text = record.payload.get(key)
    return None if text is None else datetime.fromisoformat(text)
