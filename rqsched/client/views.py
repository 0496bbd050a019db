"""What the handles of both clients have in common: the description as it was last read, and requests of one form."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any, Self

from rqsched.api.description import Description
from rqsched.client import responses
from rqsched.client.requests import Request, given, path_of
from rqsched.client.responses import RunDescription


class RunView:
    """One run: its description as it was last read."""

    _schedule_id: str
    description: RunDescription
    """Every field of the run."""

    def __repr__(self) -> str:
        return f"<Run {self.description.instance_id} {self.status}>"

    @property
    def uid(self) -> str:
        """The run's uid."""
        return self.description.uid

    @property
    def status(self) -> str:
        """The run's status as it was last read."""
        return self.description.status

    @property
    def schedule_uid(self) -> str:
        """The incarnation of its schedule."""
        return self.description.schedule_uid

    @property
    def number(self) -> int:
        """1, 2, 3 ... within the schedule."""
        return self.description.number

    @property
    def instance_id(self) -> str:
        """The readable id, unique within the schedule."""
        return self.description.instance_id

    @property
    def workflow(self) -> str:
        """The name of the workflow it executes."""
        return self.description.workflow

    @property
    def occurrence_at(self) -> datetime:
        """The nominal time; for a manual run the moment of the trigger."""
        return self.description.occurrence_at

    @property
    def due_at(self) -> datetime | None:
        """When its occurrence could fire: nominal plus jitter; None for a manual run."""
        return self.description.due_at

    @property
    def attempt(self) -> int:
        """The number of the newest attempt, from 1."""
        return self.description.attempt

    @property
    def worker(self) -> str | None:
        """Who executes or executed the newest attempt; None before it started."""
        return self.description.worker

    @property
    def created_at(self) -> datetime:
        """When the run was decided."""
        return self.description.created_at

    @property
    def queued_at(self) -> datetime | None:
        """When its job was put on the queue."""
        return self.description.queued_at

    @property
    def started_at(self) -> datetime | None:
        """When the newest attempt started."""
        return self.description.started_at

    @property
    def ended_at(self) -> datetime | None:
        """When the run ended; None while it has not."""
        return self.description.ended_at

    @property
    def retry_at(self) -> datetime | None:
        """When the next attempt is due; None unless the run is `retrying`."""
        return self.description.retry_at

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow; its status is `pending` then."""
        return self.description.is_blocked

    @property
    def blocked_at(self) -> datetime | None:
        """Since when no worker that took it could find its workflow; None unless it is blocked."""
        return self.description.blocked_at

    @property
    def blocked_reason(self) -> str | None:
        """Which worker was the last of them, and what it lacked; None unless it is blocked."""
        return self.description.blocked_reason

    @property
    def error(self) -> str | None:
        """The error of the newest failed attempt."""
        return self.description.error

    @property
    def queue(self) -> str | None:
        """The queue of its job; None is the settings' default queue."""
        return self.description.queue

    @property
    def connection(self) -> str | None:
        """The named Redis of its job; None is the settings' Redis."""
        return self.description.connection

    @property
    def timeout(self) -> int | None:
        """Seconds one attempt may take; None is the settings' run timeout."""
        return self.description.timeout

    @property
    def idempotency_key(self) -> str | None:
        """The key of the trigger that started it, if one was given."""
        return self.description.idempotency_key

    @property
    def backfill_uid(self) -> str | None:
        """The backfill that started it, if one did."""
        return self.description.backfill_uid

    @property
    def kind(self) -> str:
        """`scheduled`, `manual` or `backfill`."""
        return self.description.kind

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The ended attempts, oldest first: attempt, started_at, ended_at, outcome, error."""
        return self.description.attempts

    @property
    def labels(self) -> dict[str, str]:
        """The labels it got from its schedule."""
        return self.description.labels

    @property
    def memo(self) -> dict[str, Any]:
        """The memo it got from its schedule."""
        return self.description.memo

    @property
    def search_attributes(self) -> dict[str, Any]:
        """The search attributes it got from its schedule."""
        return self.description.search_attributes

    @property
    def lineage(self) -> dict[str, Any]:
        """The ScheduleTriggered event that ties the run to its schedule."""
        return self.description.lineage

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

    @property
    def result(self) -> Any:
        """What the workflow returned; None until it succeeded."""
        return self.description.result

    @property
    def dispatched_at(self) -> datetime | None:
        """When its workflow returned and its targets were open; None unless it has targets."""
        return self.description.dispatched_at

    @property
    def target_counts(self) -> dict[str, int] | None:
        """How many of its targets ended in each status; None until the last one has."""
        return self.description.target_counts

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

    @property
    def uid(self) -> str:
        """The incarnation: a schedule that is deleted and created again has a new one."""
        return self.description.uid

    @property
    def status(self) -> str:
        """`active`, `paused`, `done`, `dead` or `deleted`, as it was last read."""
        return self.description.status

    @property
    def next_run_at(self) -> datetime | None:
        """The nominal time of the next occurrence, as it was last read."""
        return self.description.next_run_at

    @property
    def namespace(self) -> str:
        """The namespace of the id."""
        return self.description.namespace

    @property
    def workflow(self) -> str:
        """The name of the workflow its runs execute."""
        return self.description.workflow

    @property
    def status_reason(self) -> str | None:
        """Why it is paused, done, dead or deleted; None without a reason."""
        return self.description.status_reason

    @property
    def note(self) -> str | None:
        """The note given last, by create or a later operation."""
        return self.description.note

    @property
    def labels(self) -> dict[str, str]:
        """Its labels; each run gets a copy."""
        return self.description.labels

    @property
    def memo(self) -> dict[str, Any]:
        """Its memo; each run gets a copy."""
        return self.description.memo

    @property
    def search_attributes(self) -> dict[str, Any]:
        """Its search attributes; each run gets a copy."""
        return self.description.search_attributes

    @property
    def version(self) -> int:
        """Changes with every change a user makes; `update(if_version=...)` compares it."""
        return self.description.version

    @property
    def n(self) -> int:
        """The position in the chain of links."""
        return self.description.position

    @property
    def due_at(self) -> datetime | None:
        """When the next occurrence may fire: nominal plus jitter, or later after a failed fire."""
        return self.description.due_at

    @property
    def last_run_at(self) -> datetime | None:
        """When the newest run started; None before the first."""
        return self.description.last_run_at

    @property
    def run_count(self) -> int:
        """How many runs have started, of every kind."""
        return self.description.run_count

    @property
    def success_count(self) -> int:
        """How many runs have succeeded."""
        return self.description.success_count

    @property
    def error_count(self) -> int:
        """How many attempts have failed."""
        return self.description.error_count

    @property
    def consecutive_failures(self) -> int:
        """How many runs have failed in a row."""
        return self.description.consecutive_failures

    @property
    def remaining(self) -> int | None:
        """How many runs may still start; None without `max_runs`."""
        return self.description.remaining_actions

    @property
    def buffer_depth(self) -> int:
        """How many runs wait for the run ahead of them, those of backfills apart."""
        return self.description.buffered_actions

    @property
    def skipped_count(self) -> int:
        """How many occurrences were skipped."""
        return self.description.skipped_count

    @property
    def missed_count(self) -> int:
        """How many occurrences passed without a fire."""
        return self.description.missed_count

    @property
    def last_skip_reason(self) -> str | None:
        """Why the newest skipped occurrence was skipped."""
        return self.description.last_skip_reason

    @property
    def last_skipped_at(self) -> datetime | None:
        """When the newest skip was recorded."""
        return self.description.last_skipped_at

    @property
    def last_error(self) -> str | None:
        """The error of the newest failed attempt or fire."""
        return self.description.last_error

    @property
    def latest_run_uid(self) -> str | None:
        """The uid of the newest run; None before the first."""
        return self.description.latest_run_uid

    @property
    def latest_instance_id(self) -> str | None:
        """The instance id of the newest run; None before the first."""
        return self.description.latest_instance_id

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self.description.created_at

    @property
    def updated_at(self) -> datetime:
        """When its row was written last."""
        return self.description.updated_at

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused; None unless it is."""
        return self.description.paused_at

    @property
    def deleted_at(self) -> datetime | None:
        """When it was deleted; None unless it is."""
        return self.description.deleted_at

    @property
    def spec(self) -> dict[str, Any]:
        """When it happens, in the spec's JSON form; `Spec.from_json` reads it."""
        return self.description.spec

    @property
    def overdue_since(self) -> datetime | None:
        """Since when it has been without a success for as long as allowed; None when it is not, or expects none."""
        return self.description.overdue_since

    @property
    def last_success_at(self) -> datetime | None:
        """When a run succeeded last; kept only while it expects successes."""
        return self.description.last_success_at

    @property
    def last_outcome(self) -> str | None:
        """How the run that ended last did, such as `succeeded` or `failed`; None while none has."""
        return self.description.last_outcome

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
