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
from rqsched.core.audit import AuditRecord
from rqsched.core.hold import HeldRun, HeldSchedule
from rqsched.core.model import Schedule
from rqsched.core.payload import loads
from rqsched.core.results import BackfillRow, BulkRow, LimitDescription, RetryRow, Synced, Why
from rqsched.core.target_progress import TargetDescription, TargetProgress
from rqsched.http.openapi import Schema, schema_of
from rqsched.spec.spec import Every
from rqsched.store.run_queries import LatestRun


class _SlimPipelitNames(Schema):
    """The same values under the Pipelit document's names."""

    id: str
    """`schedule_id`."""
    name: str
    """The display name; the id where there is none."""
    workflow_id: str
    """`workflow`."""
    trigger_node_id: str | None = None
    """Only of a schedule that was given one."""
    user_profile_id: str | None = None
    """`owner`; only of a schedule that was given it under this name."""
    interval_seconds: float | None
    """The interval, of a schedule that is one; else None."""
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
    """Passed to read the next page; null on the last one."""


_LARGE = ("args", "kwargs", "trigger_payload", "memo", "search_attributes")
"""What a summary of a schedule leaves out."""
LARGE_OF_RUN = ("args", "kwargs", "memo", "search_attributes", "lineage", "attempts", "result")
"""What a summary of a run leaves out."""


ScheduleResponse: Any = schema_of("ScheduleResponse", Description, base=_PipelitNames)
ScheduleSummary: Any = schema_of(
    "ScheduleSummary", Description, without=_LARGE, base=_SlimPipelitNames, doc="A schedule without what may be large."
)


def schedule_response(schedule: Schedule, latest: LatestRun | None = None, *, is_slim: bool = False) -> dict[str, Any]:
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
    """Fewer than asked for where they are large: `next_cursor` tells whether there are more."""
    total: int | None = None
    """The number of all matching schedules; only when `total` was asked for."""


RunResponse: Any = schema_of("RunResponse", RunDescription, doc="One run.")
RunSummary: Any = schema_of("RunSummary", RunDescription, without=LARGE_OF_RUN, doc="A run without what may be large.")
TargetProgressResponse: Any = schema_of("TargetProgressResponse", TargetProgress)
TargetResponse: Any = schema_of("TargetResponse", TargetDescription)


class TargetsResponse(Page):
    """How far the targets of a run are, and a page of them in the order they were named."""

    progress: TargetProgressResponse | None
    """None when the run has no targets."""
    items: list[TargetResponse]
    """The targets of this page."""


WhyResponse: Any = schema_of("WhyResponse", Why)
RetryRowResponse: Any = schema_of("RetryRowResponse", RetryRow)


class RetryFailedResponse(Schema):
    """What a bulk retry did, oldest end first."""

    matched: int
    """How many runs were failed or lost."""
    started: int
    """Those that are on their queues now."""
    buffered: int
    """Those that wait for the run ahead of them."""
    skipped: int
    """Those that changed meanwhile."""
    items: list[RetryRowResponse]
    """What was done to each run."""


def retry_failed_response(rows: Sequence[RetryRow]) -> dict[str, Any]:
    """Return what a bulk retry did."""
    outcomes = Counter(row.outcome for row in rows)
    counts = {name: outcomes[name] for name in ("started", "buffered", "skipped")}
    return {"matched": len(rows), **counts, "items": rows}


SyncResponse: Any = schema_of("SyncResponse", Synced)
BulkRowResponse: Any = schema_of("BulkRowResponse", BulkRow)


class BulkResponse(Schema):
    """What a bulk operation did, in the order in which the schedules were created."""

    matched: int
    """How many schedules matched."""
    counts: dict[str, int]
    """How many had each outcome."""
    items: list[BulkRowResponse]
    """What was done to each schedule."""


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
    """What a manual trigger did."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    """Why no run was started; None otherwise."""
    instance_id: str | None
    """The instance id of the run; None without one."""
    run: RunResponse | None
    """The run; None without one."""
    buffer_depth: int | None
    """How many runs wait; None unless this one does."""


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
    """Its place among those of all schedules: what follows it is read with `after`."""


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
    """One per occurrence, when the backfill completed within the request; empty otherwise. At most 500 of a dry run."""


BackfillResponse: Any = schema_of(
    "BackfillResponse", BackfillProgress, without=("rows",), base=_WithRows, doc="A backfill and its progress."
)


class BackfillsResponse(Page):
    """A page of backfills, newest first."""

    items: list[BackfillResponse]
    """The backfills of this page."""


class WorkflowResponse(Schema):
    """A workflow that some process registered."""

    name: str
    """The name that schedules give."""
    queue: str | None
    """The queue of its runs, unless a schedule names another."""
    connection: str | None
    """The named Redis of its runs, unless a schedule names another."""
    timeout: int | None
    """Seconds that an attempt may take, unless a schedule says otherwise."""
    on_failure: str | None
    """The workflow that is told of failures of its runs."""
    on_recovery: str | None
    """The workflow that is told of the first success after them."""
    targets: str | None
    """What names the targets that its runs call it for; None when nothing does."""
    registered_at: datetime | None
    """When a worker recorded it; None when only this process knows it."""


LimitResponse: Any = schema_of("LimitResponse", LimitDescription)


class LimitsResponse(Page):
    """A page of groups, by name."""

    items: list[LimitResponse]
    """The groups of this page."""


class HoldResponse(Schema):
    """Whether everything, or a namespace, is held."""

    held: bool
    """Whether nothing begins."""
    since: datetime | None = None
    """When it was set."""
    by: str | None = None
    """Who set it."""
    reason: str | None = None
    """Why."""
    kept_in: list[str] = Field(default_factory=list)
    """Where it is kept: `redis`, `sql`, or `process` for this process alone."""
    released_at: datetime | None = None
    """When it was released; null while it lasts, and where SQL went back and has not seen its release."""
    released_by: str | None = None
    """Who released it."""
    release_reason: str | None = None
    """Why it was released."""
    namespace: str | None = None
    """The namespace that is frozen; null where everything is meant."""


class HoldsResponse(Schema):
    """Holds of everything, or of a namespace, and those that were released, at most 101 of each."""

    items: list[HoldResponse]
    """The newest first."""


HeldScheduleResponse: Any = schema_of("HeldScheduleResponse", HeldSchedule)
HeldRunResponse: Any = schema_of("HeldRunResponse", HeldRun)


class ReleasePreviewResponse(Schema):
    """What a release would do now."""

    hold: HoldResponse
    """Whether everything, or the namespace, is held."""
    schedules: list[HeldScheduleResponse]
    """The schedules that are due, the earliest first."""
    runs: list[HeldRunResponse]
    """The runs that wait, the oldest first."""
    has_more: bool
    """Whether there are more of either."""


class ReleaseResponse(Schema):
    """What a release did."""

    was_held: bool
    """Whether there was a hold."""
    schedules: int
    """Of how many schedules what was due was dealt with first."""
    missed: int
    """How many occurrences were recorded as missed."""
    cancelled: int
    """How many waiting runs were cancelled."""
    fired: int
    """How many occurrences started a run, or wait behind one, because a thaw said so."""


class WorkflowsResponse(Schema):
    """Every registered workflow, by name."""

    items: list[WorkflowResponse]
    """The workflows."""
