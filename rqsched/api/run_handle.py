"""Run handles: one run as a caller holds it, and the result of a manual trigger."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from rqsched.chain import retrying, settling
from rqsched.chain.fan_out.progress import read_progress, read_targets
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import CommandContext
from rqsched.core.model import Run
from rqsched.core.option_table import require_note
from rqsched.core.overlap import StartResult
from rqsched.core.page import Page
from rqsched.core.settle_decision import AttemptOutcome
from rqsched.core.target_progress import TargetDescription, TargetProgress
from rqsched.core.waiting import looks
from rqsched.errors import RunNotFoundError
from rqsched.store import changes


class RunView(ABC):
    """A run as it was read last; `refresh()` of the handle reads it again. Instants are aware UTC."""

    @property
    @abstractmethod
    def state(self) -> Run:
        """The whole row as a frozen value."""

    @property
    def uid(self) -> str:
        """The run's uid, a ULID."""
        return self.state.uid

    @property
    def schedule_uid(self) -> str:
        """The incarnation of its schedule."""
        return self.state.schedule_uid

    @property
    def number(self) -> int:
        """1, 2, 3 ... within the schedule."""
        return self.state.number

    @property
    def instance_id(self) -> str:
        """The readable id, unique within the schedule."""
        return self.state.instance_id

    @property
    def workflow(self) -> str:
        """The name of the workflow it executes."""
        return self.state.workflow

    @property
    def occurrence_at(self) -> datetime:
        """The nominal time; for a manual run the moment of the trigger."""
        return self.state.occurrence_at

    @property
    def due_at(self) -> datetime | None:
        """When its occurrence could fire: nominal plus jitter; None for a manual run."""
        return self.state.due_at

    @property
    def attempt(self) -> int:
        """The number of the newest attempt, from 1."""
        return self.state.attempt

    @property
    def worker(self) -> str | None:
        """Who executes or executed the newest attempt; None before it started."""
        return self.state.worker

    @property
    def created_at(self) -> datetime:
        """When the run was decided."""
        return self.state.created_at

    @property
    def queued_at(self) -> datetime | None:
        """When its job was put on the queue."""
        return self.state.queued_at

    @property
    def started_at(self) -> datetime | None:
        """When the newest attempt started."""
        return self.state.started_at

    @property
    def ended_at(self) -> datetime | None:
        """When the run ended; None while it has not."""
        return self.state.ended_at

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, as it was last read."""
        return self.ended_at is not None

    @property
    def retry_at(self) -> datetime | None:
        """When the next attempt is due; None unless the run is `retrying`."""
        return self.state.retry_at

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow; its status is `pending` then."""
        return self.state.is_blocked

    @property
    def blocked_at(self) -> datetime | None:
        """Since when no worker that took it could find its workflow; None unless it is blocked."""
        return self.state.blocked_at

    @property
    def blocked_reason(self) -> str | None:
        """Which worker was the last of them, and what it lacked; None unless it is blocked."""
        return self.state.blocked_reason

    @property
    def error(self) -> str | None:
        """The error of the newest failed attempt."""
        return self.state.error

    @property
    def queue(self) -> str | None:
        """The queue of its job; None is the settings' default queue."""
        return self.state.queue

    @property
    def connection(self) -> str | None:
        """The named Redis of its job; None is the settings' Redis."""
        return self.state.connection

    @property
    def timeout(self) -> int | None:
        """Seconds one attempt may take; None is the settings' run timeout."""
        return self.state.timeout

    @property
    def idempotency_key(self) -> str | None:
        """The key of the trigger that started it, if one was given."""
        return self.state.idempotency_key

    @property
    def backfill_uid(self) -> str | None:
        """The backfill that started it, if one did."""
        return self.state.backfill_uid

    @property
    def dispatched_at(self) -> datetime | None:
        """When its workflow returned and its targets were open; None unless it has targets."""
        return self.state.dispatched_at

    @property
    def target_counts(self) -> dict[str, int] | None:
        """How many of its targets ended in each status; None until the last one has."""
        counts: dict[str, int] | None = (
            None if self.state.target_counts is None else json.loads(self.state.target_counts)
        )
        return counts

    @property
    def status(self) -> str:
        """`pending`, `running`, `retrying`, `buffered`, or how it ended; see RunStatus."""
        return self.state.status.value

    @property
    def kind(self) -> str:
        """`scheduled`, `manual` or `backfill`."""
        return self.state.kind.value

    @property
    def result(self) -> Any:
        """What the workflow returned; None until it succeeded."""
        return None if self.state.result is None else json.loads(self.state.result)

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The ended attempts, oldest first: attempt, started_at, ended_at, outcome, error."""
        ended: list[dict[str, Any]] = json.loads(self.state.attempts)
        return ended

    @property
    def args(self) -> list[Any]:
        """The workflow's positional arguments."""
        given: list[Any] = json.loads(self.state.action)["args"]
        return given

    @property
    def kwargs(self) -> dict[str, Any]:
        """The workflow's keyword arguments."""
        given: dict[str, Any] = json.loads(self.state.action)["kwargs"]
        return given

    @property
    def labels(self) -> dict[str, str]:
        """The labels it got from its schedule."""
        copied: dict[str, str] = json.loads(self.state.labels)
        return copied

    @property
    def memo(self) -> dict[str, Any]:
        """The memo it got from its schedule."""
        copied: dict[str, Any] = json.loads(self.state.memo)
        return copied

    @property
    def search_attributes(self) -> dict[str, Any]:
        """The search attributes it got from its schedule."""
        copied: dict[str, Any] = json.loads(self.state.search_attributes)
        return copied

    @property
    def lineage(self) -> dict[str, Any]:
        """The ScheduleTriggered event that ties the run to its schedule."""
        event: dict[str, Any] = json.loads(self.state.lineage)
        return event


class RunHandle(RunView):
    """One run: its fields as they were read last, and everything that can be done to it.

    >>> run = scheduler.get("nightly").trigger().run
    >>> run.status
    'pending'
    >>> run.cancel().status
    'cancelled'
    """

    def __init__(self, runtime: Runtime, run: Run) -> None:
        self._runtime = runtime
        self._run = run

    def __repr__(self) -> str:
        return f"<Run {self.instance_id} {self.status}>"

    @property
    def runtime(self) -> Runtime:
        """What its process holds: settings, SQL, Redis."""
        return self._runtime

    @property
    def state(self) -> Run:
        """The whole row as a frozen value."""
        return self._run

    def refresh(self) -> RunHandle:
        """Read the run again; raises RunNotFoundError when it was purged."""
        found = self._runtime.database.read(lambda connection: changes.find_run(connection, self._run.uid))
        if found is None:
            raise RunNotFoundError(self._run.uid)
        self._run = found
        return self

    def wait(self, timeout: float | None = None) -> RunHandle:
        """Read the run until it has ended; raises TimeoutError after `timeout` seconds (None waits without end).

        >>> scheduler.get("nightly").trigger().run.wait(timeout=60).result  # doctest: +SKIP
        """
        pauses = looks(timeout, time.monotonic)  # others execute it, in real time, whatever the scheduler's clock says
        while not self.refresh().has_ended:
            time.sleep(next(pauses))
        return self

    def progress(self) -> TargetProgress | None:
        """Read how far its targets are: counts by status, pace and likely end; None when it has no targets."""
        return read_progress(self._runtime, self._run)

    def targets(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[TargetDescription]:
        """Read a page (1 to 500) of its targets in the order they were named, such as those of status `failed`."""
        return read_targets(self._runtime, self._run, limit, cursor, status)

    def retry(
        self, reason: str | None = None, *, failed_targets: bool = False, context: CommandContext | None = None
    ) -> RunHandle:
        """Run it again: one more attempt of a run that failed, was lost, cancelled or terminated.

        One that is blocked is offered to the workers now instead of after its delay.

        It keeps its uid, its occurrence and its earlier attempts, starts as the overlap policy allows (else it is
        `buffered` until those ahead of it have ended), and counts for no `max_runs`. A run that is being retried on
        request already is left as it is. Of a run with targets those are handled again that failed or were lost, and no
        others are named; `failed_targets` asks for that of a run that has succeeded, too, and refuses one without any.
        Raises RunStateError for one that has succeeded or not ended, or whose schedule is deleted.

        >>> run = scheduler.get("nightly").trigger().run
        >>> run.cancel().retry("the mail server is back").attempt
        2
        """
        require_note(reason, "reason")
        self._run = retrying.retry_run(
            self._runtime, self._run.uid, reason=reason, context=context, failed_targets=failed_targets
        )
        return self

    def require_retryable(self, *, failed_targets: bool = False) -> None:
        """Check that `retry` would be accepted now; raises what it would raise. Writes nothing."""
        retrying.require_retryable(self._runtime, self._run.uid, failed_targets=failed_targets)

    def cancel(self, reason: str | None = None, *, context: CommandContext | None = None) -> RunHandle:
        """End the run: a waiting one never starts, a running one sees it at its next checkpoint. Idempotent.

        Who (`context`) and why are recorded as RunCancelled; without either nothing is.
        """
        return self._end(AttemptOutcome.CANCELLED, reason, context)

    def terminate(self, reason: str | None = None, *, context: CommandContext | None = None) -> RunHandle:
        """End the run and have RQ kill its process. Idempotent.

        Who (`context`) and why are recorded as RunTerminated; without either nothing is.
        """
        return self._end(AttemptOutcome.TERMINATED, reason, context)

    def _end(self, outcome: AttemptOutcome, reason: str | None, context: CommandContext | None) -> RunHandle:
        require_note(reason, "reason")
        self._run = settling.end_run(self._runtime, self._run.uid, outcome, reason=reason, context=context)
        return self


H = TypeVar("H", bound=RunView)


@dataclass(frozen=True, slots=True)
class TriggerResult(Generic[H]):
    """What a manual trigger did; its run is a handle of the kind that was triggered."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    run: H | None = None
    """The run that was started or buffered; None when nothing was."""
    reason: str | None = None
    """Why nothing was started; None when something was."""
    buffer_depth: int | None = None
    """How many runs wait, this one included; None unless it waits."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of the run; None when nothing was started."""
        return self.run.instance_id if self.run else None

    def __bool__(self) -> bool:
        """Whether a run was started or buffered."""
        return self.run is not None


def trigger_result(runtime: Runtime, outcome: StartResult) -> TriggerResult[RunHandle]:
    """Turn the outcome of a trigger into what its caller gets."""
    run = RunHandle(runtime, outcome.run) if outcome.run else None
    return TriggerResult(outcome.outcome, run, outcome.reason, outcome.buffer_depth)
