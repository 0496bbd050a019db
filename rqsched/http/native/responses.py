"""The responses of the native surface as JSON, and their schemas: schedules, runs, events, backfills, workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from rqsched.api.build_description import describe_plainly, describe_run
from rqsched.api.description import BackfillProgress, DeliveryDescription, Description, RunDescription, TriggerResult
from rqsched.api.run_handle import RunHandle
from rqsched.api.runs import LastRun
from rqsched.api.values import loads
from rqsched.http.openapi import Schema, schema_of
from rqsched.types import (
    AuditRecord,
    BackfillRow,
    BulkProgress,
    BulkRow,
    DueSchedule,
    LimitDescription,
    RetryRow,
    Schedule,
    Synced,
    TargetDescription,
    TargetProgress,
    WaitingRun,
    Why,
)
from rqsched.when.spec import Every


class _SlimPipelitNames(Schema):
    """The same values under the Pipelit document's names."""

    id: str
    """`schedule_id`."""
    name: str
    """The display name, or the id if there is no display name."""
    workflow_id: str
    """`workflow`."""
    trigger_node_id: str | None = None
    """Present if the schedule was created with one."""
    user_profile_id: str | None = None
    """`owner`; present if the owner was sent under this name."""
    interval_seconds: float | None
    """The interval of a schedule whose whole timing is one interval; else None."""
    total_repeats: int
    """`max_successes`; 0 means no limit."""
    max_retries: int
    """`max_retries` of `retry`."""
    timeout_seconds: int | None
    """`timeout`."""
    current_repeat: int
    """`success_count`."""


class _PipelitNames(_SlimPipelitNames):
    trigger_payload: dict[str, Any]
    """`kwargs`."""


class Page(Schema):
    """A page of a list."""

    next_cursor: str | None
    """The cursor of the next page; null on the last page."""


_LARGE = ("args", "kwargs", "trigger_payload", "memo", "search_attributes")
"""The fields that a summary of a schedule leaves out."""
LARGE_OF_RUN = ("args", "kwargs", "memo", "search_attributes", "lineage", "attempts", "result")
"""The fields that a summary of a run leaves out."""


ScheduleResponse: Any = schema_of("ScheduleResponse", Description, base=_PipelitNames)
ScheduleSummary: Any = schema_of(
    "ScheduleSummary", Description, without=_LARGE, base=_SlimPipelitNames, doc="A schedule without what may be large."
)


def schedule_response(schedule: Schedule, latest: LastRun | None = None, *, is_slim: bool = False) -> dict[str, Any]:
    """Return a schedule, in our names and in the Pipelit document's."""
    fields = describe_plainly(schedule, latest)
    surface = loads(schedule.definition.surface)
    only = schedule.spec.members[0] if len(schedule.spec.members) == 1 else None
    fields |= {
        "id": schedule.schedule_id,
        "name": surface.get("name") or schedule.schedule_id,
        "workflow_id": fields["workflow"],
        "interval_seconds": only.every.total_seconds() if isinstance(only, Every) else None,
        "total_repeats": schedule.policies.max_successes or 0,
        "max_retries": schedule.policies.retry.max_retries,
        "timeout_seconds": fields["timeout"],
        "trigger_payload": fields["kwargs"],
        "current_repeat": fields["success_count"],
    }
    if "trigger_node_id" in surface:
        fields["trigger_node_id"] = surface["trigger_node_id"]
    if "user_profile_id" in surface:
        fields["user_profile_id"] = fields["owner"]
    if is_slim:
        for name in _LARGE:
            del fields[name]
    return fields


class SchedulesResponse(Page):
    """A page of schedules, in the order they were created."""

    items: list[ScheduleResponse | ScheduleSummary]
    """The schedules of this page. There may be fewer than requested; `next_cursor` says whether more follow."""
    total: int | None = None
    """The number of all matching schedules; only when `total` was requested."""


RunResponse: Any = schema_of("RunResponse", RunDescription, doc="One run.")
RunSummary: Any = schema_of("RunSummary", RunDescription, without=LARGE_OF_RUN, doc="A run without what may be large.")
TargetProgressResponse: Any = schema_of("TargetProgressResponse", TargetProgress)
TargetResponse: Any = schema_of("TargetResponse", TargetDescription)


class TargetsResponse(Page):
    """The progress of a run's targets, and a page of them in the order they were named."""

    progress: TargetProgressResponse | None
    """None when the run has no targets."""
    items: list[TargetResponse]
    """The targets of this page."""


WhyResponse: Any = schema_of("WhyResponse", Why)
RetryRowResponse: Any = schema_of("RetryRowResponse", RetryRow)


class RetryFailedResponse(Schema):
    """The outcome of a bulk retry. The runs that ended first come first."""

    matched: int
    """How many runs were failed or lost."""
    started: int
    """How many runs are on their queues now."""
    buffered: int
    """How many runs wait for an earlier run of their schedule."""
    skipped: int
    """How many runs were not retried, because they changed meanwhile."""
    items: list[RetryRowResponse]
    """The outcome of each run."""


def retry_failed_response(rows: Sequence[RetryRow]) -> dict[str, Any]:
    """Return the outcome of a bulk retry."""
    outcomes = Counter(row.outcome for row in rows)
    counts = {name: outcomes[name] for name in ("started", "buffered", "skipped")}
    return {"matched": len(rows), **counts, "items": rows}


SyncResponse: Any = schema_of("SyncResponse", Synced)
BulkRowResponse: Any = schema_of("BulkRowResponse", BulkRow)


class BulkResponse(Schema):
    """The result of one request of a bulk operation: the count of schedules or runs, or a chunk. Also the progress."""

    matched: int
    """How many schedules or runs matched when they were counted."""
    done: int
    """How many are done, including this chunk. It can exceed `matched` if more schedules match meanwhile, and remain
    below `matched` if some do not match any more."""
    counts: dict[str, int]
    """For each outcome, how many schedules or runs of this chunk had it."""
    items: list[BulkRowResponse]
    """The outcome of each schedule or run of this chunk, in the order in which they were handled."""
    next_cursor: str | None
    """The `cursor` of the next chunk's request; null when the operation is done."""


def bulk_response(progress: BulkProgress) -> dict[str, Any]:
    """Return one chunk of a bulk operation."""
    shown = {name: getattr(progress, name) for name in ("matched", "done", "items", "next_cursor")}
    return shown | {"counts": Counter(row.outcome for row in progress.items)}


class RunsResponse(Page):
    """A page of runs, newest first."""

    items: list[RunResponse | RunSummary]
    """The runs of this page."""


class _OfSchedule(Schema):
    schedule_id: str
    """The id of its schedule."""


FoundRunResponse: Any = schema_of(
    "FoundRunResponse", RunDescription, base=_OfSchedule, doc="A run with the id of its schedule."
)
FoundRunSummary: Any = schema_of(
    "FoundRunSummary", RunDescription, without=LARGE_OF_RUN, base=_OfSchedule,
    doc="A run with the id of its schedule, without what may be large.",
)  # fmt: skip


class FoundRunsResponse(Page):
    """A page of runs of all schedules, newest first."""

    items: list[FoundRunResponse | FoundRunSummary]
    """The runs of this page."""


class TriggerResponse(Schema):
    """The outcome of a manual trigger."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    """Why no run was started; None otherwise."""
    instance_id: str | None
    """The instance id of the run; None without one."""
    run: RunResponse | None
    """The run; None without one."""
    buffer_depth: int | None
    """How many runs of the schedule wait; None if this run does not wait."""


def trigger_response(result: TriggerResult[RunHandle]) -> dict[str, Any]:
    """Return the outcome of a manual trigger, with its run."""
    fields = {name: getattr(result, name) for name in TriggerResponse.model_fields}
    return fields | {"run": result.run and describe_run(result.run.state)}


EventResponse: Any = schema_of("EventResponse", AuditRecord)


class EventsResponse(Page):
    """A page of audit events, oldest first."""

    items: list[EventResponse]
    """The events of this page."""


class _Found(_OfSchedule):
    id: str
    """The event's position among the events of all schedules. Pass it as `after` to read later events."""


FoundEventResponse: Any = schema_of(
    "FoundEventResponse", AuditRecord, base=_Found, doc="An audit event with the id of its schedule."
)


class FoundEventsResponse(Page):
    """A page of audit events of all schedules, oldest first."""

    items: list[FoundEventResponse]
    """The events of this page."""


DeliveryResponse: Any = schema_of("DeliveryResponse", DeliveryDescription)


class DeliveriesResponse(Page):
    """A page of notifications, newest first."""

    items: list[DeliveryResponse]
    """The notifications of this page."""


class UpcomingResponse(Schema):
    """The next instants at which a schedule fires, jitter included."""

    items: list[datetime]
    """The instants, the next one first."""


BackfillRowResponse: Any = schema_of("BackfillRowResponse", BackfillRow)


class _WithRows(Schema):
    rows: list[BackfillRowResponse]
    """One row per occurrence if the backfill completed within the request, else none. A dry run has at most 500."""


BackfillResponse: Any = schema_of(
    "BackfillResponse", BackfillProgress, without=("rows",), base=_WithRows, doc="A backfill and its progress."
)


class BackfillsResponse(Page):
    """A page of backfills, newest first."""

    items: list[BackfillResponse]
    """The backfills of this page."""


class WorkflowResponse(Schema):
    """A workflow that a process registered."""

    name: str
    """The name by which schedules refer to it."""
    queue: str | None
    """The queue of its runs, unless a schedule names another queue."""
    connection: str | None
    """The named Redis of its runs, unless a schedule names another Redis."""
    timeout: int | None
    """Seconds that an attempt may take, unless a schedule says otherwise."""
    on_failure: str | None
    """The workflow that runs on a failure of its runs."""
    on_recovery: str | None
    """The workflow that runs on the first success after failures."""
    targets: str | None
    """The source of its runs' targets; None if its runs have no targets."""
    registered_at: datetime | None
    """When a worker recorded it; None when only this process knows it."""


LimitResponse: Any = schema_of("LimitResponse", LimitDescription)


class LimitsResponse(Page):
    """A page of groups, by name."""

    items: list[LimitResponse]
    """The groups of this page."""


class FreezeResponse(Schema):
    """A freeze of everything, or of a namespace."""

    frozen: bool
    """Whether the freeze lasts. While it lasts, nothing begins."""
    since: datetime | None = None
    """When it began."""
    by: str | None = None
    """Who began it."""
    reason: str | None = None
    """Why."""
    kept_in: list[str] = Field(default_factory=list)
    """The places that store it: `redis`, `sql`, or `process` for this process alone."""
    thawed_at: datetime | None = None
    """When it was thawed; null while it lasts, or if SQL was restored to a state before the thaw."""
    thawed_by: str | None = None
    """Who thawed it."""
    thaw_reason: str | None = None
    """Why it was thawed."""
    namespace: str | None = None
    """The namespace that is frozen; null if everything is."""


class FreezesResponse(Schema):
    """Current or past freezes. At most 100 past freezes are listed."""

    items: list[FreezeResponse]
    """The freeze of everything first, then the newest."""


DueScheduleResponse: Any = schema_of("DueScheduleResponse", DueSchedule)
WaitingRunResponse: Any = schema_of("WaitingRunResponse", WaitingRun)


class ThawPreviewResponse(Schema):
    """The effect that a thaw would have now."""

    freeze: FreezeResponse | None
    """The freeze that the thaw would end; null if there is none."""
    schedules: list[DueScheduleResponse]
    """The schedules that are due, the earliest first."""
    runs: list[WaitingRunResponse]
    """The runs that wait, the oldest first."""
    has_more_schedules: bool
    """Whether more schedules are due than are listed."""
    has_more_runs: bool
    """Whether more runs wait than are listed."""


class ThawResponse(Schema):
    """The effect of a thaw."""

    freeze: FreezeResponse | None
    """The freeze that has ended; null if there was no freeze."""
    schedules: int
    """How many due schedules the thaw handled before it ended the freeze."""
    missed: int
    """How many occurrences were recorded as missed."""
    cancelled: int
    """How many waiting runs were cancelled."""
    fired: int
    """How many missed occurrences got a run because the thaw asked for that."""


class WorkflowsResponse(Schema):
    """Every registered workflow, by name."""

    items: list[WorkflowResponse]
    """The workflows."""
