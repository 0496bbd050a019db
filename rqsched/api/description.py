"""Descriptions of schedules, runs, triggers, backfills and notifications as plain values, and the fields of handles.

This module imports no SQL, cron or Redis, because HTTP clients import it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar

from rqsched.api.shown import Shown
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.results import BackfillRow


@dataclass(frozen=True, slots=True)
class Description:
    """A schedule as `describe` shows it. Instants are aware UTC."""

    uid: str
    """The uid of this incarnation. A schedule that is deleted and created again gets another uid."""
    namespace: str
    """The namespace of the id."""
    schedule_id: str
    """The id its owner chose."""
    status: str
    """`active`, `paused`, `done`, `dead` or `deleted`."""
    status_reason: str | None
    """Why it is paused, done, dead or deleted."""
    workflow: str
    """The name of the workflow its runs execute."""
    spec: dict[str, Any]
    """The spec in its JSON form."""
    timing: str
    """The spec in words."""
    timezone: str
    """The zone of cron expressions that name no zone, as an IANA name."""
    overlap: str
    """How a fire treats an unfinished earlier run; see OverlapPolicy."""
    policies: dict[str, Any]
    """All policies in their JSON form."""
    args: list[Any]
    """Positional arguments of the workflow."""
    kwargs: dict[str, Any]
    """Keyword arguments of the workflow."""
    queue: str | None
    """The queue of its runs, from the schedule or its workflow; None means the default of the settings."""
    connection: str | None
    """The named Redis of its runs, from the schedule or its workflow; None means the Redis of the settings."""
    targets: str | None
    """The workflow that names the targets of a run, from the schedule or its workflow; None without targets."""
    timeout: int | None
    """Seconds that one attempt may take; None means the run timeout of the settings."""
    executor: str
    """`rq` or `external`."""
    priority: int
    """Above 0, runs go to the front of their queue."""
    jitter: float
    """The longest random delay of a fire, in seconds."""
    max_runs: int | None
    """How many runs may start in all; None is no limit."""
    remaining_runs: int | None
    """How many runs may still start; None is no limit."""
    labels: dict[str, str]
    """Short texts to filter by, copied to each run."""
    memo: dict[str, Any]
    """Free data, copied to each run."""
    search_attributes: dict[str, Any]
    """Values to query by, copied to each run."""
    description: str | None
    """Free text for people."""
    owner: str | None
    """Who owns it."""
    note: str | None
    """The note given last, by create or a later operation."""
    next_run_at: datetime | None
    """The nominal time of the next occurrence; None while paused, ended or awaiting a run."""
    due_at: datetime | None
    """The time from which the next occurrence may fire, with jitter or backoff included."""
    last_run_at: datetime | None
    """When the newest run was queued."""
    run_count: int
    """How many runs have been queued, of every kind."""
    success_count: int
    """Runs that have succeeded."""
    error_count: int
    """Attempts that have failed."""
    consecutive_failures: int
    """Runs that have failed in a row."""
    skipped_count: int
    """Occurrences that were skipped."""
    missed_count: int
    """Occurrences that passed without a fire."""
    buffered_count: int
    """Runs that wait for the run ahead of them, including backfilled runs."""
    last_skip_reason: str | None
    """Why the newest skipped occurrence was skipped."""
    last_skipped_at: datetime | None
    """When the newest skip was recorded."""
    last_error: str | None
    """The error of the newest failed attempt or fire."""
    on_failure: str | None
    """The workflow that runs on a failure, from the schedule or its workflow."""
    on_recovery: str | None
    """The workflow that runs on the first success after failures."""
    expect_success_within: float | None
    """Seconds without a success after which it is overdue; None means never."""
    overdue_since: datetime | None
    """When it became overdue; None if it is not overdue."""
    last_success_at: datetime | None
    """When a run succeeded last; recorded only if the schedule has `expect_success_within`."""
    notifications: dict[str, Any]
    """Other recipients: `webhook` and `heartbeat` (their hosts), `events`, `sentry`."""
    current_retry: int
    """How many attempts of the newest run have failed so far."""
    last_instance_id: str | None
    """The instance id of the newest run."""
    last_run_uid: str | None
    """The uid of the newest run."""
    position: int
    """`n`, the number of its current link (the delayed job that fires it)."""
    version: int
    """Grows with every change by a user; for `if_version`."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its row was written last."""
    paused_at: datetime | None
    """When it was paused; None unless it is paused."""
    deleted_at: datetime | None
    """When it was deleted; None unless it is deleted."""
    blocked_reason: str | None = None
    """While the newest run is blocked: the last worker that could not find the run's code, and the missing code."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about clock changes and excluded days in the 53 weeks after its last change; usually none."""
    timing_in_words: str = ""
    """The spec as a phrase for people: `at 02:00, Monday to Friday, New York time`."""
    last_outcome: str | None = None
    """The outcome of the run that ended last, such as `succeeded` or `failed`; None before the first end."""
    expect_duration: float | None = None
    """Seconds that a run may take before it is reported as long; None means any time."""
    resume_at: datetime | None = None
    """When its pause ends by itself; None if a person has to end the pause, or if it is not paused."""
    resume_mode: str | None = None
    """How it continues at `resume_at`: `next`, `once` or `from_now`; None without `resume_at`."""
    moved_from: list[datetime] = field(default_factory=list)
    """The excluded instants that were moved to the next occurrence; usually none."""
    skips: list[datetime] = field(default_factory=list)
    """The nominal times of occurrences to skip, until their outcome is recorded."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values, with instants as ISO 8601 UTC. Lists and dicts are not copied."""
        return plainly({name: getattr(self, name) for name in _NAMES})  # deep copies would take most of a list's time


_NAMES = [one.name for one in fields(Description)]


def plainly(described: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Description as JSON-native values, without copying lists and dicts."""
    found = {name: iso_utc(value) if type(value) is datetime else value for name, value in described.items()}
    for name in ("skips", "moved_from"):
        if found[name]:
            found[name] = [*map(iso_utc, found[name])]
    return found


@dataclass(frozen=True, slots=True)
class DeliveryDescription:
    """One notification: a message to a workflow, a webhook, a heartbeat or Sentry. Instants are aware UTC."""

    uid: str
    """Its identity."""
    kind: str
    """`workflow`, `webhook`, `heartbeat` or `sentry`."""
    destination: str
    """The workflow, the monitor, or the host of a URL. The rest of the URL is not shown, because it may hold a
    secret."""
    event_type: str
    """The audit event, or the kind of a ping."""
    run_uid: str | None
    """The run that it is about; None if it is only about the schedule."""
    status: str
    """`pending`, `running`, `succeeded` or `failed`."""
    attempt: int
    """The current attempt, from 1."""
    error: str | None
    """Why the newest attempt failed; None if no attempt failed."""
    message: dict[str, Any]
    """The content."""
    created_at: datetime
    """When its transaction wrote it."""
    due_at: datetime
    """When it is attempted next, while it is pending."""
    started_at: datetime | None
    """When the newest attempt began; None before the first."""
    ended_at: datetime | None
    """When it arrived or was given up; None before."""
    worker: str | None
    """The process of the newest attempt; None before the first."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values; instants as ISO 8601 UTC."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in values}


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run with the fields that HTTP returns. Instants are aware UTC."""

    uid: str
    """The run's uid."""
    schedule_uid: str
    """The incarnation of its schedule."""
    number: int
    """1, 2, 3 ... within the schedule."""
    instance_id: str
    """The readable id, unique within the schedule."""
    kind: str
    """`scheduled`, `manual`, `backfill` or `after`."""
    occurrence_at: datetime
    """The nominal time of its occurrence; of a copy, that of the copied run."""
    status: str
    """`pending`, `running`, `retrying`, `buffered`, or how it ended."""
    created_at: datetime
    """When it was recorded."""
    workflow: str
    """The name of the workflow it executes."""
    executor: str
    """`rq` or `external`."""
    args: list[Any]
    """The positional arguments of its workflow."""
    kwargs: dict[str, Any]
    """The keyword arguments of its workflow."""
    queue: str | None
    """Its queue; None means the default of the server."""
    connection: str | None
    """Its named Redis; None means the Redis of the server."""
    timeout: int | None
    """Seconds that one attempt may take; None means the default of the server."""
    priority: int
    """Above 0, it goes to the front of its queue."""
    overlap: str
    """The overlap policy that decided about the run."""
    is_override: bool
    """Whether the policy was not the schedule's own, or a backfill created the run."""
    trigger_number: int | None
    """1 for the schedule's first run that started, 2 for the second, and so on; None until this run starts. A copy has
    the number of the copied run."""
    labels: dict[str, Any]
    """The schedule's labels when it was recorded."""
    memo: dict[str, Any]
    """The schedule's memo when it was recorded."""
    search_attributes: dict[str, Any]
    """The schedule's search attributes when it was recorded."""
    lineage: dict[str, Any]
    """The audit event that connects the run to its schedule."""
    attempt: int
    """The current attempt, from 1."""
    job_number: int
    """The number of the job that carries this attempt, from 1. A job that is lost before its claim is replaced."""
    worker: str | None
    """The worker of the current or last attempt; None before the first."""
    due_at: datetime | None
    """The planned start."""
    queued_at: datetime | None
    """When it became pending; None while it waits."""
    started_at: datetime | None
    """When the current attempt began; None before."""
    ended_at: datetime | None
    """When it ended; None while it is open."""
    retry_at: datetime | None
    """When its next attempt is due; None unless it is retrying."""
    heartbeat_at: datetime | None
    """When an external worker last reported that it executes the run."""
    attempts: list[dict[str, Any]]
    """One entry for each ended attempt, the newest 50."""
    result: Any
    """The value that the workflow returned."""
    error: str | None
    """The error of the newest failed attempt; None when none failed."""
    idempotency_key: str | None
    """The key of the trigger that created the run; None without a key."""
    backfill_uid: str | None
    """The backfill that created the run; None otherwise."""
    asked_attempt: int | None = None
    """The last attempt that a person requested; None without a request."""
    dispatched_at: datetime | None = None
    """When its workflow returned while targets were open; None without targets."""
    target_counts: dict[str, int] | None = None
    """How many of its targets ended in each status; None until the last target has ended."""
    long_at: datetime | None = None
    """When it was reported as longer than its schedule expects; None if it was not."""
    start_by: datetime | None = None
    """The latest start of its newest attempt; None without `start_within`."""
    expired_at: datetime | None = None
    """When it ended as `cancelled` because it had not started in time; None otherwise."""
    blocked_at: datetime | None = None
    """When it became blocked, because a worker could not find its workflow. None unless it is blocked."""
    blocked_reason: str | None = None
    """The last worker that could not find its workflow, and the missing code; None unless it is blocked."""
    upstream_run_uid: str | None = None
    """The upstream run whose end started this run or, in a copy, the copied run; None without such a run."""
    upstream_schedule_id: str | None = None
    """The id of the upstream schedule; None without an upstream run, or if that run was pruned."""
    moved_from: list[datetime] = field(default_factory=list)
    """The excluded instants that were moved to its occurrence; usually none."""
    limit: str | None = None
    """The group whose limit applies to the run, since its creation; None without a limit."""
    place_in_line: int | None = None
    """Its position in the line of that group, from 1 to 1 000, or 1 001 if more are ahead; None if not in line."""
    traceparent: str | None = None
    """The span of the fire or trigger that created it, in the form of W3C Trace Context; None without a trace."""
    copied_from: str | None = None
    """The uid of the run that this run repeats, because somebody ran that run again; None if it is no copy."""

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow; its status is `pending` then."""
        return self.blocked_at is not None and self.status == "pending"


class ScheduleFields:
    """The fields of a schedule, as last read, in the handles of the scheduler and of the client.

    Instants are aware UTC.
    """

    uid = Shown[str]("The uid of this incarnation; a schedule that is created again gets another uid.")
    status = Shown[str]("`active`, `paused`, `done`, `dead` or `deleted`.")
    next_run_at = Shown[datetime | None](
        "The nominal time of the next occurrence; None while paused, ended or awaiting a run."
    )
    namespace = Shown[str]("The namespace of the id.")
    workflow = Shown[str]("The name of the workflow its runs execute.")
    status_reason = Shown[str | None]("Why it is paused, done, dead or deleted; None without a reason.")
    note = Shown[str | None]("The note given last, by create or a later operation.")
    labels = Shown[dict[str, str]]("Its labels; each run gets a copy.")
    memo = Shown[dict[str, Any]]("Its memo; each run gets a copy.")
    search_attributes = Shown[dict[str, Any]]("Its search attributes; each run gets a copy.")
    version = Shown[int]("Changes with every change a user makes; `update(if_version=...)` compares it.")
    position = Shown[int]("The position in the chain of links.")
    due_at = Shown[datetime | None](
        "When the next occurrence may fire: its nominal time plus jitter, or later after a failed fire."
    )
    last_run_at = Shown[datetime | None]("When the newest run was queued; None before the first.")
    run_count = Shown[int]("How many runs have been queued, of every kind.")
    success_count = Shown[int]("How many runs have succeeded.")
    error_count = Shown[int]("How many attempts have failed.")
    consecutive_failures = Shown[int]("How many runs have failed in a row.")
    remaining_runs = Shown[int | None]("How many runs may still start; None without `max_runs`.")
    buffered_count = Shown[int]("How many runs wait for the run ahead of them, including backfilled runs.")
    skipped_count = Shown[int]("How many occurrences were skipped.")
    missed_count = Shown[int]("How many occurrences passed without a fire.")
    last_skip_reason = Shown[str | None]("Why the newest skipped occurrence was skipped.")
    last_skipped_at = Shown[datetime | None]("When the newest skip was recorded.")
    last_error = Shown[str | None]("The error of the newest failed attempt or fire.")
    last_run_uid = Shown[str | None]("The uid of the newest run; None before the first.")
    last_instance_id = Shown[str | None]("The instance id of the newest run; None before the first.")
    created_at = Shown[datetime]("When it was created.")
    updated_at = Shown[datetime]("When its row was written last.")
    paused_at = Shown[datetime | None]("When it was paused; None unless it is paused.")
    resume_at = Shown[datetime | None]("When its pause ends by itself; None if a person has to end it.")
    resume_mode = Shown[str | None]("How it continues then: `next`, `once` or `from_now`.")
    skips = Shown[list[datetime]]("The nominal times of occurrences to skip, until their outcome is recorded.")
    moved_from = Shown[list[datetime]]("The excluded instants that were moved to the next occurrence; usually none.")
    deleted_at = Shown[datetime | None]("When it was deleted; None unless it is deleted.")
    overdue_since = Shown[datetime | None]("Since when it is overdue (`expect_success_within`); None if it is not.")
    last_success_at = Shown[datetime | None]("When a run succeeded last; only with `expect_success_within`.")
    last_outcome = Shown[str | None](
        "The outcome of the run that ended last, such as `succeeded` or `failed`; None before the first end."
    )


class RunFields:
    """The fields of a run, as last read, in the handles of the scheduler and of the client.

    Instants are aware UTC.
    """

    uid = Shown[str]("The run's uid.")
    status = Shown[str]("`pending`, `running`, `retrying`, `buffered`, or how it ended; see RunStatus.")
    schedule_uid = Shown[str]("The incarnation of its schedule.")
    number = Shown[int]("1, 2, 3 ... within the schedule.")
    instance_id = Shown[str]("The readable id, unique within the schedule.")
    workflow = Shown[str]("The name of the workflow it executes.")
    occurrence_at = Shown[datetime](
        "The nominal time; for a manual run the moment of the trigger; for a copy the time of the copied run."
    )
    moved_from = Shown[list[datetime]]("The excluded instants that were moved to its occurrence; usually none.")
    due_at = Shown[datetime | None]("When its occurrence could fire: nominal time plus jitter; None for a manual run.")
    attempt = Shown[int]("The number of the newest attempt, from 1.")
    worker = Shown[str | None]("Who executes or executed the newest attempt; None before it started.")
    created_at = Shown[datetime]("When the run was recorded.")
    queued_at = Shown[datetime | None]("When its job was put on the queue.")
    started_at = Shown[datetime | None]("When the newest attempt started.")
    ended_at = Shown[datetime | None]("When the run ended; None before that.")
    retry_at = Shown[datetime | None]("When the next attempt is due; None unless the run is `retrying`.")
    is_blocked = Shown[bool]("Whether it waits for a worker that can find its workflow; its status is `pending` then.")
    blocked_at = Shown[datetime | None](
        "Since when no worker that took it could find its workflow; None unless it is blocked."
    )
    blocked_reason = Shown[str | None](
        "The last worker that could not find its workflow, and the missing code; None unless it is blocked."
    )
    upstream_run_uid = Shown[str | None](
        "The upstream run whose end started this run or, in a copy, the copied run; None without such a run."
    )
    upstream_schedule_id = Shown[str | None]("The upstream schedule's id; None also if that run was pruned.")
    limit = Shown[str | None]("The group whose limit applies to it; None without a limit.")
    place_in_line = Shown[int | None](
        "Its position in that group's line, from 1 to 1 000, or 1 001 if more are ahead; None unless it waits there, "
        "and in the result of the call that created it."
    )
    traceparent = Shown[str | None](
        "The span of the fire or trigger that created it (W3C Trace Context); None without a trace."
    )
    copied_from = Shown[str | None](
        "The uid of the run that this run repeats, because somebody ran that run again; None if it is no copy."
    )
    error = Shown[str | None]("The error of the newest failed attempt.")
    queue = Shown[str | None]("The queue of its job; None means the default queue.")
    connection = Shown[str | None]("The named Redis of its job; None means the main Redis.")
    timeout = Shown[int | None]("Seconds that one attempt may take; None means the run timeout of the settings.")
    idempotency_key = Shown[str | None]("The key of the trigger that started it, if one was given.")
    backfill_uid = Shown[str | None]("The backfill that created it; None otherwise.")
    kind = Shown[str]("`scheduled`, `manual`, `backfill` or `after`.")
    attempts = Shown[list[dict[str, Any]]](
        "The ended attempts, oldest first: attempt, started_at, ended_at, outcome, error."
    )
    labels = Shown[dict[str, str]]("The labels it got from its schedule.")
    memo = Shown[dict[str, Any]]("The memo it got from its schedule.")
    search_attributes = Shown[dict[str, Any]]("The search attributes it got from its schedule.")
    lineage = Shown[dict[str, Any]]("The audit event that connects the run to its schedule.")
    result = Shown[Any]("What the workflow returned; None until it succeeded.")
    dispatched_at = Shown[datetime | None]("When its workflow returned while targets were open; None without targets.")
    target_counts = Shown[dict[str, int] | None](
        "How many of its targets ended in each status; None until the last target has ended."
    )
    long_at = Shown[datetime | None](
        "When it was reported to take longer than its schedule expects; None if it was not."
    )
    start_by = Shown[datetime | None](
        "The instant after which its newest attempt may not start; None without `start_within`."
    )
    expired_at = Shown[datetime | None](
        "When it ended as `cancelled` because it had not started in time; None otherwise."
    )
    args = Shown[list[Any]]("The workflow's positional arguments.")
    kwargs = Shown[dict[str, Any]]("The workflow's keyword arguments.")

    @property
    def has_ended(self) -> bool:
        """Whether the run had ended when it was last read."""
        return self.ended_at is not None


H = TypeVar("H", bound=RunFields)


@dataclass(frozen=True, slots=True)
class TriggerResult(Generic[H]):
    """The outcome of a manual trigger; `run` is a handle of the same kind (scheduler, client or async)."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    run: H | None = None
    """The run that was started or buffered; None without a run."""
    reason: str | None = None
    """Why no run was started or buffered; None with a run."""
    buffer_depth: int | None = None
    """How many runs wait, including this run; None if it does not wait."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of the run; None without a run."""
        return self.run.instance_id if self.run else None

    def __bool__(self) -> bool:
        """Whether a run was started or buffered."""
        return self.run is not None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill and its progress. Read it again with `scheduler.backfills.get(uid)` until `is_done`."""

    uid: str | None
    """None for a dry run."""
    schedule_uid: str
    """The incarnation of its schedule."""
    status: str
    """`running`, `done`, `stopped` or `dry_run`."""
    start_at: datetime
    """The first instant of the range, inclusive."""
    end_at: datetime
    """The end of the range, exclusive."""
    overlap: str | None
    """The overlap policy that was given for the backfill; None means the policy of the schedule."""
    rerun: str | None
    """The occurrences with a run that are run again: `failed` or `all`; None means none of them."""
    bound: int
    """The maximum number of occurrences that the range may have."""
    attempted: int
    """Occurrences handled so far."""
    started: int
    """Runs started. In a dry run, the runs that would start."""
    buffered: int
    """Runs that wait for the run ahead of them."""
    skipped: int
    """Occurrences that started no run."""
    already_run: int
    """Occurrences that had a run before."""
    reason: str | None = None
    """Why it stopped; None if it did not stop early."""
    cursor: datetime | None = None
    """The instant from which it continues; None for a dry run."""
    created_at: datetime | None = None
    """When it was requested; None for a dry run."""
    updated_at: datetime | None = None
    """When its progress was last recorded; None for a dry run."""
    rows: list[BackfillRow] = field(default_factory=list)
    """One row for each occurrence that this call, or this step of `backfill_in_chunks`, handled.

    It is empty if the progress is only read, and if an HTTP request leaves a part of the range for later. Then the
    counts show the progress.
    """

    @property
    def is_done(self) -> bool:
        """Whether the backfill has ended."""
        return self.status != "running"
