"""What the handles of both clients have in common: the description as it was last read, and requests of one form."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any, Self

from rqsched.api.description import Description
from rqsched.client import responses
from rqsched.client.requests import Request, given, path_of
from rqsched.client.responses import RunDescription
from rqsched.core.shown import Shown


class RunView:
    """One run: its description as it was last read."""

    _schedule_id: str
    description: RunDescription
    """Every field of the run."""

    def __repr__(self) -> str:
        return f"<Run {self.description.instance_id} {self.status}>"

    uid = Shown[str]("description.uid", "The run's uid.")
    status = Shown[str]("description.status", "The run's status as it was last read.")
    schedule_uid = Shown[str]("description.schedule_uid", "The incarnation of its schedule.")
    number = Shown[int]("description.number", "1, 2, 3 ... within the schedule.")
    instance_id = Shown[str]("description.instance_id", "The readable id, unique within the schedule.")
    workflow = Shown[str]("description.workflow", "The name of the workflow it executes.")
    occurrence_at = Shown[datetime](
        "description.occurrence_at", "The nominal time; for a manual run the moment of the trigger."
    )
    due_at = Shown[datetime | None](
        "description.due_at", "When its occurrence could fire: nominal plus jitter; None for a manual run."
    )
    attempt = Shown[int]("description.attempt", "The number of the newest attempt, from 1.")
    worker = Shown[str | None](
        "description.worker", "Who executes or executed the newest attempt; None before it started."
    )
    created_at = Shown[datetime]("description.created_at", "When the run was decided.")
    queued_at = Shown[datetime | None]("description.queued_at", "When its job was put on the queue.")
    started_at = Shown[datetime | None]("description.started_at", "When the newest attempt started.")
    ended_at = Shown[datetime | None]("description.ended_at", "When the run ended; None while it has not.")
    retry_at = Shown[datetime | None](
        "description.retry_at", "When the next attempt is due; None unless the run is `retrying`."
    )
    is_blocked = Shown[bool](
        "description.is_blocked",
        "Whether it waits for a worker that can find its workflow; its status is `pending` then.",
    )
    blocked_at = Shown[datetime | None](
        "description.blocked_at",
        "Since when no worker that took it could find its workflow; None unless it is blocked.",
    )
    blocked_reason = Shown[str | None](
        "description.blocked_reason",
        "Which worker was the last of them, and what it lacked; None unless it is blocked.",
    )
    error = Shown[str | None]("description.error", "The error of the newest failed attempt.")
    queue = Shown[str | None]("description.queue", "The queue of its job; None is the settings' default queue.")
    connection = Shown[str | None]("description.connection", "The named Redis of its job; None is the settings' Redis.")
    timeout = Shown[int | None](
        "description.timeout", "Seconds one attempt may take; None is the settings' run timeout."
    )
    idempotency_key = Shown[str | None](
        "description.idempotency_key", "The key of the trigger that started it, if one was given."
    )
    backfill_uid = Shown[str | None]("description.backfill_uid", "The backfill that started it, if one did.")
    kind = Shown[str]("description.kind", "`scheduled`, `manual` or `backfill`.")
    attempts = Shown[list[dict[str, Any]]](
        "description.attempts", "The ended attempts, oldest first: attempt, started_at, ended_at, outcome, error."
    )
    labels = Shown[dict[str, str]]("description.labels", "The labels it got from its schedule.")
    memo = Shown[dict[str, Any]]("description.memo", "The memo it got from its schedule.")
    search_attributes = Shown[dict[str, Any]](
        "description.search_attributes", "The search attributes it got from its schedule."
    )
    lineage = Shown[dict[str, Any]](
        "description.lineage", "The ScheduleTriggered event that ties the run to its schedule."
    )
    result = Shown[Any]("description.result", "What the workflow returned; None until it succeeded.")
    dispatched_at = Shown[datetime | None](
        "description.dispatched_at", "When its workflow returned and its targets were open; None unless it has targets."
    )
    target_counts = Shown[dict[str, int] | None](
        "description.target_counts", "How many of its targets ended in each status; None until the last one has."
    )

    @property
    def args(self) -> list[Any]:
        """The workflow's positional arguments."""
        given: list[Any] = self.description.action["args"]
        return given

    @property
    def kwargs(self) -> dict[str, Any]:
        """The workflow's keyword arguments."""
        given: dict[str, Any] = self.description.action["kwargs"]
        return given

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, as it was last read."""
        return self.ended_at is not None

    def _path(self, *parts: str) -> str:
        return path_of("schedules", self._schedule_id, "runs", self.uid, *parts)

    def _keep(self, description: RunDescription) -> Self:
        self.description = description
        return self

    def _end(self, operation: str, reason: str | None) -> Request[Self]:
        body = given({"reason": reason}) or None
        request = Request("POST", self._path(operation), responses.one(RunDescription), body, is_repeatable=True)
        return request.then(self._keep)


class ScheduleView:
    """One schedule by its id: its description as it was last read."""

    def __init__(self, schedule_id: str, description: Description | None) -> None:
        self.schedule_id = schedule_id
        self._description = description

    def __repr__(self) -> str:
        return f"<Schedule {self.schedule_id} {self._description.status if self._description else 'unread'}>"

    @property
    @abstractmethod
    def description(self) -> Description:
        """Every field of the schedule."""

    uid = Shown[str]("description.uid", "The incarnation: a schedule that is deleted and created again has a new one.")
    status = Shown[str]("description.status", "`active`, `paused`, `done`, `dead` or `deleted`, as it was last read.")
    next_run_at = Shown[datetime | None](
        "description.next_run_at", "The nominal time of the next occurrence, as it was last read."
    )
    namespace = Shown[str]("description.namespace", "The namespace of the id.")
    workflow = Shown[str]("description.workflow", "The name of the workflow its runs execute.")
    status_reason = Shown[str | None](
        "description.status_reason", "Why it is paused, done, dead or deleted; None without a reason."
    )
    note = Shown[str | None]("description.note", "The note given last, by create or a later operation.")
    labels = Shown[dict[str, str]]("description.labels", "Its labels; each run gets a copy.")
    memo = Shown[dict[str, Any]]("description.memo", "Its memo; each run gets a copy.")
    search_attributes = Shown[dict[str, Any]](
        "description.search_attributes", "Its search attributes; each run gets a copy."
    )
    version = Shown[int](
        "description.version", "Changes with every change a user makes; `update(if_version=...)` compares it."
    )
    position = Shown[int]("description.position", "The position in the chain of links.")
    due_at = Shown[datetime | None](
        "description.due_at", "When the next occurrence may fire: nominal plus jitter, or later after a failed fire."
    )
    last_run_at = Shown[datetime | None](
        "description.last_run_at", "When the newest run started; None before the first."
    )
    run_count = Shown[int]("description.run_count", "How many runs have started, of every kind.")
    success_count = Shown[int]("description.success_count", "How many runs have succeeded.")
    error_count = Shown[int]("description.error_count", "How many attempts have failed.")
    consecutive_failures = Shown[int]("description.consecutive_failures", "How many runs have failed in a row.")
    remaining_runs = Shown[int | None](
        "description.remaining_runs", "How many runs may still start; None without `max_runs`."
    )
    buffered_count = Shown[int](
        "description.buffered_count", "How many runs wait for the run ahead of them, those of backfills included."
    )
    skipped_count = Shown[int]("description.skipped_count", "How many occurrences were skipped.")
    missed_count = Shown[int]("description.missed_count", "How many occurrences passed without a fire.")
    last_skip_reason = Shown[str | None](
        "description.last_skip_reason", "Why the newest skipped occurrence was skipped."
    )
    last_skipped_at = Shown[datetime | None]("description.last_skipped_at", "When the newest skip was recorded.")
    last_error = Shown[str | None]("description.last_error", "The error of the newest failed attempt or fire.")
    latest_run_uid = Shown[str | None](
        "description.latest_run_uid", "The uid of the newest run; None before the first."
    )
    latest_instance_id = Shown[str | None](
        "description.latest_instance_id", "The instance id of the newest run; None before the first."
    )
    created_at = Shown[datetime]("description.created_at", "When it was created.")
    updated_at = Shown[datetime]("description.updated_at", "When its row was written last.")
    paused_at = Shown[datetime | None]("description.paused_at", "When it was paused; None unless it is.")
    deleted_at = Shown[datetime | None]("description.deleted_at", "When it was deleted; None unless it is.")
    spec = Shown[dict[str, Any]](
        "description.spec", "When it happens, in the spec's JSON form; `Spec.from_json` reads it."
    )
    overdue_since = Shown[datetime | None](
        "description.overdue_since",
        "Since when it has been without a success for as long as allowed; None when it is not, or expects none.",
    )
    last_success_at = Shown[datetime | None](
        "description.last_success_at", "When a run succeeded last; kept only while it expects successes."
    )
    last_outcome = Shown[str | None](
        "description.last_outcome",
        "How the run that ended last did, such as `succeeded` or `failed`; None while none has.",
    )

    def _keep(self, description: Description) -> Self:
        self._description = description
        return self

    def _keep_description(self, description: Description) -> Description:
        self._description = description
        return description

    def _path(self, *parts: str) -> str:
        return path_of("schedules", self.schedule_id, *parts)

    def _if_match(self, version: int | None) -> dict[str, str]:
        """Return the header that names this incarnation at a version, by its ETag."""
        return {} if version is None else {"If-Match": f'"{self.uid}.{version}"'}

    def _edit(self, operation: str, body: dict[str, Any], if_version: int | None) -> Request[Self]:
        headers = self._if_match(if_version)
        request = Request("POST", self._path(operation), responses.one(Description), given(body), headers=headers)
        return request.then(self._keep)
