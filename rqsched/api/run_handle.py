"""Run handles: a run's fields and operations, the result of a manual trigger, and the runs of all schedules."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rqsched.api.description import RunFields, TriggerResult
from rqsched.api.groups import Group
from rqsched.api.list_filters import to_run_filters
from rqsched.api.waiting import looks
from rqsched.errors import RunNotFoundError
from rqsched.features.fan_out.dispatch import read_progress, read_targets
from rqsched.features.fan_out.progress import TargetDescription, TargetProgress
from rqsched.features.retry_on_request import chain as retrying
from rqsched.kernel.chain import settle
from rqsched.kernel.chain import trigger as triggering
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.model import Run
from rqsched.kernel.decide.options import require_key, require_note
from rqsched.kernel.decide.overlap import StartResult
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.results import MAX_PAGE, Page, RetryRow, pages
from rqsched.kernel.decide.runs_on_request import Copy
from rqsched.kernel.decide.settle_decision import AttemptOutcome
from rqsched.kernel.queries import run_pages
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries.runs import FailedRuns
from rqsched.kernel.queries.schedules import require_limit
from rqsched.when.duration import SpanLike, to_span


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


class RunView(RunFields, ABC):
    """The fields of a run as last read; the handle's `refresh()` reads them again. Instants are aware UTC."""

    @property
    @abstractmethod
    def state(self) -> Run:
        """The whole row as a frozen value."""

    @property
    def _record(self) -> Run:
        return self.state

    status = RunFields.status.of("status.value")
    kind = RunFields.kind.of("kind.value")
    upstream_run_uid = RunFields.upstream_run_uid.of("came_after")
    target_counts = RunFields.target_counts.of("target_counts", _parsed)
    result = RunFields.result.of("result", _parsed)
    attempts = RunFields.attempts.of("attempts", _parsed)
    labels = RunFields.labels.of("labels", loads)
    memo = RunFields.memo.of("memo", loads)
    search_attributes = RunFields.search_attributes.of("search_attributes", loads)
    lineage = RunFields.lineage.of("lineage", loads)


class RunHandle(RunView):
    """One run: its fields as last read, and its operations.

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
        """The runtime of this process: settings, SQL, Redis."""
        return self._runtime

    @property
    def state(self) -> Run:
        """The whole row as a frozen value."""
        return self._run

    def refresh(self) -> RunHandle:
        """Read the run again; raises RunNotFoundError if it was purged."""
        found = self._runtime.database.read(
            lambda connection: run_queries.find_run_of(connection, self._run.schedule_uid, self._run.uid)
        )
        if found is None:
            raise RunNotFoundError(self._run.uid)
        self._run = found
        return self

    def wait(self, timeout: float | None = None) -> RunHandle:
        """Wait until the run has ended; raises TimeoutError after `timeout` seconds (None waits without end).

        >>> scheduler.get("nightly").trigger().run.wait(timeout=60).result  # doctest: +SKIP
        """
        pauses = looks(timeout, time.monotonic)  # workers execute the run in real time, not by the scheduler's clock
        while not self.refresh().has_ended:
            time.sleep(next(pauses))
        return self

    def progress(self) -> TargetProgress | None:
        """Read the progress of its targets: counts by status, pace and likely end; None if it has no targets."""
        return read_progress(self._runtime, self._run)

    def targets(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[TargetDescription]:
        """Read a page (1 to 500) of its targets, in the order in which they were named; `status` selects a status."""
        return read_targets(self._runtime, self._run, limit, cursor, status)

    def retry(
        self, reason: str | None = None, *, failed_targets: bool = False, context: CommandContext | None = None
    ) -> RunHandle:
        """Start one more attempt of a run that failed, was lost, cancelled or terminated.

        A blocked run is offered to the workers now instead of after its delay.

        The run keeps its uid, its occurrence and its earlier attempts, and does not count for `max_runs`. It starts
        when the overlap policy allows; until then it is `buffered`. A run that is already being retried on request is
        left unchanged. In a run with targets, only the failed and lost targets are handled again, and the resolver is
        not called; `failed_targets=True` also allows this for a run that has succeeded, and refuses a run without
        failed or lost targets. Raises RunStateError for a run that has succeeded or not ended, or whose schedule is
        deleted.

        >>> run = scheduler.get("nightly").trigger().run
        >>> run.cancel().retry("the mail server is back").attempt
        2

        Args:
            reason: Why; recorded with the audit event.
            failed_targets: Only its targets that failed or were lost; also of a run that has succeeded.
            context: The caller, for the audit events.
        """
        require_note(reason, "reason")
        self._run = retrying.retry_run(
            self._runtime, self._run.uid, reason=reason, context=context, failed_targets=failed_targets
        )
        return self

    def run_again(
        self,
        reason: str | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        downstream: bool = False,
        idempotency_key: str | None = None,
        context: CommandContext | None = None,
    ) -> RunHandle:
        """Run an ended run again, also a successful one, as a new manual run; returns the new run.

        The new run is for the same occurrence: `occurrence_at` is that of this run, and `copied_from` its uid. It has
        the arguments of this run, and all else as the schedule has it now; targets are named again. It starts when the
        overlap policy allows, even if the schedule is paused, done or dead; until then it is `buffered`. It moves no
        time of the schedule, counts neither for `max_runs` nor for `max_successes`, and never makes the schedule dead.
        A second call with the same `idempotency_key` returns the run of the first call. Raises RunStateError if the
        run has not ended, if its schedule is deleted, or if its schedule executes another workflow now.

        >>> run = scheduler.get("nightly").trigger().run
        >>> run.cancel().run_again("the file is complete now").copied_from == run.uid
        True

        Args:
            reason: Why; recorded with the audit event. Required if the arguments differ.
            args: Other positional arguments; over HTTP this needs the role admin.
            kwargs: Other keyword arguments; over HTTP this needs the role admin.
            downstream: Whether its end also starts the schedules that run after this one.
            idempotency_key: A text that is the same in each call for the same new run.
            context: The caller, for the audit events.
        """
        require_note(reason, "reason")
        key = None if idempotency_key is None else require_key(idempotency_key)
        wanted = Copy(new_uid(self._runtime.now()), args, kwargs, downstream, key, reason)
        return RunHandle(self._runtime, triggering.copy_run(self._runtime, self._run.uid, wanted, context=context))

    def cancel(self, reason: str | None = None, *, context: CommandContext | None = None) -> RunHandle:
        """End the run: a waiting run never starts, a running workflow stops at its next checkpoint. Idempotent.

        If a caller or a reason is given, the audit event RunCancelled records it.

        Args:
            reason: Why.
            context: The caller, for the audit events.
        """
        return self._end(AttemptOutcome.CANCELLED, reason, context)

    def terminate(self, reason: str | None = None, *, context: CommandContext | None = None) -> RunHandle:
        """End the run and have RQ kill its process. Idempotent.

        If a caller or a reason is given, the audit event RunTerminated records it.

        Args:
            reason: Why.
            context: The caller, for the audit events.
        """
        return self._end(AttemptOutcome.TERMINATED, reason, context)

    def _end(self, outcome: AttemptOutcome, reason: str | None, context: CommandContext | None) -> RunHandle:
        require_note(reason, "reason")
        self._run = settle.end_run(self._runtime, self._run.uid, outcome, reason=reason, context=context)
        return self


def trigger_result(runtime: Runtime, outcome: StartResult) -> TriggerResult[RunHandle]:
    """Convert the outcome of a trigger to its public result."""
    run = RunHandle(runtime, outcome.run) if outcome.run else None
    return TriggerResult(outcome.outcome, run, outcome.reason, outcome.buffer_depth)


class Runs(Group):
    """The runs of all schedules, even of deleted schedules. `ScheduleHandle.runs` has the runs of one schedule.

    >>> [schedule_id for schedule_id, run in scheduler.runs.list(status="failed").items]
    []
    """

    def get(self, uid: str, *, namespace: str | None = None) -> RunHandle:
        """Find a run of any schedule by its uid; raises RunNotFoundError."""
        found = self.runtime.database.read(lambda c: run_queries.find_run_in(c, self._namespace(namespace), uid))
        if found is None:
            raise RunNotFoundError(uid)
        return RunHandle(self.runtime, found)

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        schedule_id: str | None = None,
        workflow: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[tuple[str, RunHandle]]:
        """Read a page of the runs of all schedules, even of deleted schedules, each with the id of its schedule.

        Args:
            status: One status or several; `blocked` means the pending runs that are blocked.
            schedule_id: Only runs of schedules that have, or had, this id.
            workflow: The name of the workflow.
            since: Created at this instant or later; with `-ended`, ended at this instant or later.
            until: Created before this instant; with `-ended`, ended before it.
            error: A part of the text of their error, in any case; only failed and lost runs match.
            sort: `-created` (newest first), `created`, or `-ended` (only failed and lost runs, by their end). Default:
                `-ended` if `error` is given, else `-created`.
            namespace: Default: RQSCHED_NAMESPACE.
            limit: The size of the page, 1 to 500.
            cursor: `next_cursor` of the previous page.
        """
        require_limit(limit)
        asked = {"schedule_id": schedule_id, "workflow": workflow, "since": since, "until": until, "error": error}
        wanted = to_run_filters(self._namespace(namespace), status, **asked)
        page = run_pages.fill_runs(self.runtime.database, wanted, limit=limit, cursor=cursor, sort=sort)
        return page.map(lambda found: (found[0], RunHandle(self.runtime, found[1])))

    def iter(
        self,
        *,
        status: str | Sequence[str] | None = None,
        schedule_id: str | None = None,
        workflow: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        sort: str | None = None,
        namespace: str | None = None,
    ) -> Iterator[tuple[str, RunHandle]]:
        """Read all runs that `list` shows with these arguments, page by page."""
        asked: dict[str, Any] = {"schedule_id": schedule_id, "workflow": workflow, "since": since, "until": until}
        asked |= {"status": status, "error": error, "sort": sort, "namespace": namespace}
        return pages(lambda cursor: self.list(**asked, limit=MAX_PAGE, cursor=cursor))

    def retry_failed(
        self,
        since: datetime | SpanLike,
        *,
        until: datetime | None = None,
        schedule_id: str | None = None,
        workflow: str | None = None,
        namespace: str | None = None,
        bound: int = retrying.DEFAULT_BOUND,
        dry_run: bool = False,
        reason: str | None = None,
        progress: Callable[[RetryRow], None] | None = None,
        context: CommandContext | None = None,
    ) -> Sequence[RetryRow]:
        """Retry every run that failed or was lost since an instant, as `RunHandle.retry` does.

        >>> scheduler.runs.retry_failed("1h", reason="the mail server is back", dry_run=True)
        []

        The run that ended first is retried first; if the overlap policy allows one run at a time, the runs of a
        schedule follow one another. Returns a row for each run. If there are more than `bound` runs, none is retried.
        After an interruption, call it again: a retried run no longer counts as failed. Raises InvalidLimitError.

        Args:
            since: Only runs that ended at or after this instant, or within this length of time.
            until: Only runs that ended before this instant.
            schedule_id: Only runs of this schedule.
            workflow: Only runs of this workflow.
            namespace: The namespace; default that of the scheduler.
            bound: Refuse more runs than this; over HTTP at most 1000.
            dry_run: Return what would be retried; write nothing.
            reason: Why; recorded with each audit event.
            progress: Called with each row.
            context: The caller, for the audit events.
        """
        require_note(reason, "reason")
        begin = since if isinstance(since, datetime) else self.runtime.now() - to_span(since)
        wanted = FailedRuns(begin, self._namespace(namespace), until, schedule_id, workflow)
        if dry_run:
            return retrying.find_failed(self.runtime, wanted, bound)
        rows = []
        for row in retrying.retry_failed(self.runtime, wanted, bound=bound, reason=reason, context=context):
            rows.append(row)
            if progress is not None:
                progress(row)
        return rows
