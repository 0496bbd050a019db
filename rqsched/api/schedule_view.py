"""The fields of a schedule as its handles show them, one typed property each. Nothing here reads SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from rqsched.core.model import Schedule
from rqsched.core.payload import loads
from rqsched.spec.spec import Spec


class ScheduleView(ABC):
    """A schedule as it was read last; `refresh()` of the handle reads it again. Instants are aware UTC."""

    @property
    @abstractmethod
    def state(self) -> Schedule:
        """The whole row as a frozen value."""

    @property
    def uid(self) -> str:
        """The incarnation: new after delete and re-create under the same id."""
        return self.state.uid

    @property
    def schedule_id(self) -> str:
        """The id its owner chose."""
        return self.state.schedule_id

    @property
    def namespace(self) -> str:
        """The namespace of the id."""
        return self.state.namespace

    @property
    def workflow(self) -> str:
        """The name of the workflow its runs execute."""
        return self.state.definition.workflow

    @property
    def spec(self) -> Spec:
        """When it happens."""
        return self.state.spec

    @property
    def status(self) -> str:
        """`active`, `paused`, `done`, `dead` or `deleted`."""
        return self.state.status.value

    @property
    def status_reason(self) -> str | None:
        """Why it is paused, done, dead or deleted; None without a reason."""
        return self.state.status_reason

    @property
    def note(self) -> str | None:
        """The note given last, by create or a later operation."""
        return self.state.note

    @property
    def labels(self) -> dict[str, str]:
        """Its labels; each run gets a copy."""
        labels: dict[str, str] = loads(self.state.definition.labels)
        return labels

    @property
    def memo(self) -> dict[str, Any]:
        """Its memo; each run gets a copy."""
        memo: dict[str, Any] = loads(self.state.definition.memo)
        return memo

    @property
    def search_attributes(self) -> dict[str, Any]:
        """Its search attributes; each run gets a copy."""
        attributes: dict[str, Any] = loads(self.state.definition.search_attributes)
        return attributes

    @property
    def version(self) -> int:
        """Changes with every change a user makes; `update(if_version=...)` compares it."""
        return self.state.version

    @property
    def position(self) -> int:
        """The position in the chain of links."""
        return self.state.n

    @property
    def next_run_at(self) -> datetime | None:
        """The nominal time of the next occurrence; None while paused, ended or awaiting a run."""
        return self.state.next_run_at

    @property
    def due_at(self) -> datetime | None:
        """When the next occurrence may fire: nominal plus jitter, or later after a failed fire."""
        return self.state.due_at

    @property
    def last_run_at(self) -> datetime | None:
        """When the newest run started; None before the first."""
        return self.state.last_run_at

    @property
    def run_count(self) -> int:
        """How many runs have started, of every kind."""
        return self.state.run_count

    @property
    def success_count(self) -> int:
        """How many runs have succeeded."""
        return self.state.success_count

    @property
    def error_count(self) -> int:
        """How many attempts have failed."""
        return self.state.error_count

    @property
    def consecutive_failures(self) -> int:
        """How many runs have failed in a row."""
        return self.state.consecutive_failures

    @property
    def remaining_runs(self) -> int | None:
        """How many runs may still start; None without `max_runs`."""
        return self.state.remaining

    @property
    def buffered_count(self) -> int:
        """How many runs wait for the run ahead of them, those of backfills included."""
        return self.state.buffer_depth + self.state.backfill_waiting

    @property
    def skipped_count(self) -> int:
        """How many occurrences were skipped."""
        return self.state.skipped_count

    @property
    def missed_count(self) -> int:
        """How many occurrences passed without a fire."""
        return self.state.missed_count

    @property
    def last_skip_reason(self) -> str | None:
        """Why the newest skipped occurrence was skipped."""
        return self.state.last_skip_reason

    @property
    def last_skipped_at(self) -> datetime | None:
        """When the newest skip was recorded."""
        return self.state.last_skipped_at

    @property
    def last_error(self) -> str | None:
        """The error of the newest failed attempt or fire."""
        return self.state.last_error

    @property
    def latest_run_uid(self) -> str | None:
        """The uid of the newest run; None before the first."""
        return self.state.latest_run_uid

    @property
    def latest_instance_id(self) -> str | None:
        """The instance id of the newest run; None before the first."""
        return self.state.latest_instance_id

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self.state.created_at

    @property
    def updated_at(self) -> datetime:
        """When its row was written last."""
        return self.state.updated_at

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused; None unless it is."""
        return self.state.paused_at

    @property
    def deleted_at(self) -> datetime | None:
        """When it was deleted; None unless it is."""
        return self.state.deleted_at

    @property
    def overdue_since(self) -> datetime | None:
        """Since when it has been without a success for as long as allowed; None when it is not, or expects none."""
        return self.state.overdue_since

    @property
    def last_success_at(self) -> datetime | None:
        """When a run succeeded last; kept only while it expects successes."""
        return self.state.last_success_at

    @property
    def last_outcome(self) -> str | None:
        """How the run that ended last did, such as `succeeded` or `failed`; None while none has."""
        return self.state.last_outcome or ("succeeded" if self.state.success_count else None)
