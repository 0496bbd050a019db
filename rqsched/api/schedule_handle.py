"""Schedule handles: the fields and operations of a schedule. `description` defines the fields.

A handle belongs to one schedule, not to its id. If the schedule is deleted and another one is created with the same id,
the operations of the old handle raise ScheduleNotFoundError. So an old handle never changes the new schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import starmap
from typing import Any, Unpack

from rqsched.api.build_description import (
    describe,
    describe_backfill,
    describe_delivery,
    describe_preview,
    upcoming,
    upstream_warnings,
)
from rqsched.api.description import BackfillProgress, DeliveryDescription, Description, ScheduleFields, TriggerResult
from rqsched.api.run_handle import RunHandle, trigger_result
from rqsched.api.shown import Shown
from rqsched.errors import InvalidInputError, RunNotFoundError, ScheduleNotFoundError
from rqsched.features.backfill import chain as backfill
from rqsched.features.backfill.chain import DEFAULT_BOUND, BackfillRange
from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import require_delivery_status
from rqsched.kernel.chain import operations, option_checks
from rqsched.kernel.chain import trigger as triggering
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import AuditRecord, CommandContext
from rqsched.kernel.decide.define import require_known
from rqsched.kernel.decide.ids import is_uid, new_uid
from rqsched.kernel.decide.model import Change, Run, Schedule, ScheduleStatus
from rqsched.kernel.decide.options import require_key, require_note
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.policy import OnResume, OverlapPolicy, Rerun
from rqsched.kernel.decide.results import MAX_PAGE, BackfillRow, Page, Why, pages
from rqsched.kernel.queries import events as event_queries
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.pages import bind_cursor, malformed_cursor, unbind_cursor
from rqsched.kernel.store import changes, named_calendars
from rqsched.kernel.store.caller_transaction import (
    CallerTransaction,
    ConnectionLike,
    SessionLike,
    WritingOptions,
    caller_transaction,
    split_transaction,
)
from rqsched.timing import When
from rqsched.when.spec import Spec
from rqsched.when.timeline import require_utc
from rqsched.when.zones import tzdata_version

__all__ = ["RunHandle", "ScheduleHandle", "TriggerResult"]


class ScheduleView(ScheduleFields, ABC):
    """The fields of a schedule as last read; the handle's `refresh()` reads them again. Instants are aware UTC."""

    @property
    @abstractmethod
    def state(self) -> Schedule:
        """The whole row as a frozen value."""

    @property
    def _record(self) -> Schedule:
        return self.state

    schedule_id = Shown[str]("The id its owner chose.")
    spec = Shown[Spec]("When it happens.")
    status = ScheduleFields.status.of("status.value")
    workflow = ScheduleFields.workflow.of("definition.workflow")
    labels = ScheduleFields.labels.of("definition.labels", loads)
    memo = ScheduleFields.memo.of("definition.memo", loads)
    search_attributes = ScheduleFields.search_attributes.of("definition.search_attributes", loads)
    position = ScheduleFields.position.of("n")
    remaining_runs = ScheduleFields.remaining_runs.of("remaining")
    last_outcome = ScheduleFields.last_outcome.of("last_outcome")
    skips = ScheduleFields.skips.of("skipped_at")


class ScheduleHandle(ScheduleView):
    """One schedule: its fields as last read, and its operations.

    >>> schedule = scheduler.get("nightly")
    >>> schedule.pause(note="maintenance").status
    'paused'
    >>> schedule.resume(on_resume="once").status
    'active'

    Each operation is one transaction that also writes an audit event, and it updates the handle. With `session` or
    `connection` the operation is part of your transaction, and Redis is written after your commit. After a rollback the
    handle shows fields that were never stored; call `refresh()`.
    """

    def __init__(self, runtime: Runtime, schedule: Schedule) -> None:
        self._runtime = runtime
        self._schedule = schedule

    def __repr__(self) -> str:
        return f"<Schedule {self.namespace}/{self.schedule_id} {self.status} next={self.next_run_at}>"

    @property
    def runtime(self) -> Runtime:
        """The runtime of this process: settings, SQL, Redis."""
        return self._runtime

    @property
    def state(self) -> Schedule:
        """The whole row as a frozen value."""
        return self._schedule

    def refresh(self) -> ScheduleHandle:
        """Read the schedule again; a deleted one has the status `deleted`. Raises ScheduleNotFoundError if purged."""
        found = self._runtime.database.read(lambda connection: changes.find(connection, self.uid))
        if found is None:
            raise ScheduleNotFoundError(self.schedule_id, self.namespace)
        self._schedule = found
        return self

    def describe(self) -> Description:
        """Read the schedule again, and return its description with its last run and its upstream warnings."""
        self.refresh()
        schedule, latest = self._schedule, self._schedule.last_run_uid

        def read(connection: Any) -> tuple[Run | None, list[str]]:
            run = None if latest is None else changes.find_run(connection, latest)
            return run, upstream_warnings(connection, schedule)

        return describe(schedule, *self._runtime.database.read(read))

    def history(self, limit: int = 100, after_sequence: int = 0) -> list[AuditRecord]:
        """Read up to `limit` (1 to 500) audit events after a sequence number, oldest first; works after delete too."""
        schedule_queries.require_limit(limit)
        event_queries.require_sequence(after_sequence)
        return self._runtime.database.read(
            lambda c: event_queries.history(c, self.uid, limit=limit, after_sequence=after_sequence).items
        )

    def iter_history(self, after_sequence: int = 0) -> Iterator[AuditRecord]:
        """Read all audit events after a sequence number, page by page."""
        while page := self.history(limit=MAX_PAGE, after_sequence=after_sequence):
            yield from page
            after_sequence = page[-1].sequence

    def deliveries(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[DeliveryDescription]:
        """Read a page (1 to 500) of its notifications, newest first; works after delete too.

        Args:
            limit: The size of the page.
            cursor: The next_cursor of the previous page.
            status: `pending`, `running`, `succeeded` or `failed`; default: any.
        """
        schedule_queries.require_limit(limit)
        require_delivery_status(status)
        of = "deliveries", self.uid
        if (before := unbind_cursor(cursor, *of)) is not None and not is_uid(before):
            raise malformed_cursor()
        found = self._runtime.database.read(
            lambda connection: deliveries.newest(connection, self.uid, status=status, before=before, limit=limit)
        )
        following = bind_cursor(found[-1].uid, *of) if len(found) == limit else None
        return Page([describe_delivery(one) for one in found], following)

    def runs(self, limit: int = 100, cursor: str | None = None, statuses: tuple[str, ...] = ()) -> Page[RunHandle]:
        """Read a page of runs, newest first. `statuses` takes run statuses and `blocked` (see `RunHandle`)."""
        schedule_queries.require_limit(limit)
        of = "runs", self.uid
        place = unbind_cursor(cursor, *of)
        page = self._runtime.database.read(
            lambda c: run_queries.list_runs(c, self.uid, limit=limit, cursor=place, statuses=statuses)
        )
        return Page([RunHandle(self._runtime, run) for run in page.items], bind_cursor(page.next_cursor, *of))

    def iter_runs(self, statuses: tuple[str, ...] = ()) -> Iterator[RunHandle]:
        """Read all runs, newest first, page by page."""
        return pages(lambda cursor: self.runs(MAX_PAGE, cursor, statuses))

    def run(self, run: str) -> RunHandle:
        """Find one run by uid, number or instance id; raises RunNotFoundError."""
        found = self._runtime.database.read(lambda connection: run_queries.find_run_of(connection, self.uid, run))
        if found is None:
            raise RunNotFoundError(run)
        return RunHandle(self._runtime, found)

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Return the next `count` (1 to 1000) instants at which it fires, with jitter.

        Returns fewer if no more follow, or if the search takes too many steps.

        Args:
            count: How many.
        """
        schedule_queries.require_limit(count, 1_000)
        self.refresh()
        return upcoming(self._schedule, count=count, now=self._runtime.now())

    def why(self, at: datetime | None = None) -> Why:
        """Return why it ran or did not run at a past instant, or whether it will run at a future instant.

        The answer covers the minute of `at`, or its second if `at` has seconds. Without `at` it is about the newest
        occurrence up to now. Works after delete too. Raises InvalidSpecError for a naive instant.

        Args:
            at: An instant; default: the newest occurrence up to now.
        """
        from rqsched.api.why import why  # noqa: PLC0415 - as in Scheduler.recover

        instant = None if at is None else require_utc(at, "at")
        schedule, now = self.refresh().state, self._runtime.now()
        default = self._runtime.settings.default_queue
        return self._runtime.database.read(lambda connection: why(connection, schedule, instant, now, default))

    def _operate(
        self,
        decide: operations.Decide,
        version: int | None,
        within: CallerTransaction | None,
        *,
        stops: bool = False,
        upstream: str | None = None,
        foresee: operations.Decide | None = None,
    ) -> ScheduleHandle:
        after = None if upstream is None else (self.namespace, self.schedule_id, upstream)
        self._schedule = operations.operate(
            self._runtime, self.uid, decide, version=version, stops=stops, within=within, after=after, foresee=foresee
        )
        return self

    def pause(
        self,
        note: str | None = None,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        on_resume: OnResume | str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Stop firing. Runs and retries continue, buffered runs wait. Raises ScheduleStateError unless active.

        With `until` it resumes by itself within `reconcile_interval` after that time, even after crashes. `on_resume`
        determines how it continues; the default is the schedule's own option at the time of this call. A `resume()`
        before `until` cancels the automatic resume. On a paused schedule, `until` sets a new end of the pause.
        Occurrences that are due between `until` and the actual resume fire late, by the schedule's `missed` policy.
        Raises InvalidInputError if `until` has passed.

        Args:
            note: A note for the next operator.
            reason: Why; recorded with the audit event.
            until: When it resumes by itself; for a paused schedule, the new end of its pause.
            on_resume: How it continues at `until`: next, once or from_now; default: the schedule's own option.
            context: The caller, for the audit events.
            if_version: The version that the schedule must have.
            connection: A connection of the caller; the operation is written in its transaction.
            session: A session of the caller, instead of a connection.
        """
        require_note(note)
        require_note(reason, "reason")
        end = None if until is None else require_utc(until, "until")
        mode = None if on_resume is None else OnResume.of(on_resume)
        within = caller_transaction(connection, session)
        return self._operate(
            lambda _, schedule, operation: lifecycle.decide_pause(
                schedule,
                now=self._runtime.now(),
                note=note,
                reason=reason,
                until=end,
                on_resume=mode,
                context=context,
                operation=operation,
            ),
            if_version,
            within,
            stops=True,
        )

    def skip_next(
        self,
        count: int = 1,
        *,
        reason: str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Skip the next `count` (1 to 100) occurrences that are not due yet.

        The call stores their times (`skips`) and replaces earlier skips. So a repetition skips no further occurrence,
        and `skip_next(0)` removes all skips. `reason` is recorded with each skip. A change of the timing drops skips
        that are no longer occurrences. Raises ScheduleStateError unless active; `skip_next(0)` also works on a paused
        schedule. Raises InvalidInputError for a `from_completion` interval, and if there is no next occurrence.

        Args:
            count: How many occurrences to skip, 1 to 100; 0 removes all skips.
            reason: Why; recorded with the audit event.
            context: The caller, for the audit events.
            if_version: The version that the schedule must have.
            connection: A connection of the caller; the operation is written in its transaction.
            session: A session of the caller, instead of a connection.
        """
        require_note(reason, "reason")
        within = caller_transaction(connection, session)
        return self._operate(
            lambda _, schedule, operation: lifecycle.decide_skip_next(
                schedule, count, now=self._runtime.now(), reason=reason, context=context, operation=operation
            ),
            if_version,
            within,
        )

    def resume(
        self,
        on_resume: OnResume | str | None = None,
        *,
        note: str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Fire again; see OnResume for the first occurrence. Raises ScheduleStateError unless paused.

        Args:
            on_resume: next, once or from_now; default: the schedule's own option.
            note: A note for the next operator.
            context: The caller, for the audit events.
            if_version: The version that the schedule must have.
            connection: A connection of the caller; the operation is written in its transaction.
            session: A session of the caller, instead of a connection.
        """
        require_note(note)
        mode = None if on_resume is None else OnResume.of(on_resume)
        within = caller_transaction(connection, session)
        return self._operate(
            lambda connection, schedule, operation: lifecycle.decide_resume(
                schedule,
                operations.open_runs(connection, schedule),
                now=self._runtime.now(),
                on_resume=mode,
                note=note,
                context=context,
                operation=operation,
            ),
            if_version,
            within,
        )

    def restart(
        self,
        *,
        note: str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Revive a done or dead schedule with counters at zero. Raises ScheduleStateError in any other status.

        Args:
            note: A note for the next operator.
            context: The caller, for the audit events.
            if_version: The version that the schedule must have.
            connection: A connection of the caller; the operation is written in its transaction.
            session: A session of the caller, instead of a connection.
        """
        require_note(note)
        within = caller_transaction(connection, session)
        return self._operate(
            lambda connection, schedule, operation: lifecycle.decide_restart(
                schedule,
                operations.open_runs(connection, schedule),
                now=self._runtime.now(),
                note=note,
                context=context,
                operation=operation,
            ),
            if_version,
            within,
        )

    def update(
        self,
        workflow: str | Callable[..., Any] | None = None,
        spec: When | None = None,
        *,
        note: str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        paused: bool | None = None,
        session: SessionLike | None = None,
        **options: Unpack[WritingOptions],
    ) -> ScheduleHandle:
        """Change the given fields and leave the rest. The next time moves only if the spec or the jitter changes.

        In the same transaction, `paused=True` also pauses the schedule, and `paused=False` makes a paused or dead
        schedule fire again. Raises VersionConflictError if the schedule's version is no longer `if_version`.
        """
        require_known(options, ScheduleHandle.update)
        require_note(note)
        within, given = split_transaction(options, session)
        wanted = option_checks.redefine(self._runtime, self._schedule.definition, workflow, spec, given)
        timing = wanted.of(self._schedule.definition).parsed_spec

        def decide(connection: Any, schedule: Schedule, operation: str, *, locks: bool = True) -> Change:
            definition = wanted.of(schedule.definition)
            names = definition.parsed_spec.calendars if definition.spec != schedule.definition.spec else ()
            calendars = named_calendars.require(connection, schedule.namespace, names, locks=locks) if names else ()
            now = self._runtime.now()
            change = lifecycle.decide_update(
                schedule,
                definition,
                now=now,
                note=note,
                tzdata=tzdata_version(),
                context=context,
                operation=operation,
                calendars=calendars,
                ran_of=partial(changes.nominals_run, connection),
            )
            return lifecycle.decide_switch(
                change,
                partial(operations.open_runs, connection),
                paused=paused,
                revives={ScheduleStatus.DEAD},
                now=now,
                context=context,
                operation=operation,
            )

        after = None if wanted.spec is None else timing.after
        # `paused` needs the open runs, which stay unchanged only under a lock.
        foresee = partial(decide, locks=False) if timing.exclude and paused is None else None
        return self._operate(
            decide, if_version, within, upstream=None if after is None else after.schedule_id, foresee=foresee
        )

    def delete(
        self,
        *,
        purge: bool = False,
        reason: str | None = None,
        context: CommandContext | None = None,
        if_version: int | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Delete the schedule: its id is free again, its history stays. `purge` removes its runs and history too.

        A purge cannot be undone, and is always a separate transaction. In your transaction, delete without `purge`, and
        purge after the commit.
        """
        require_note(reason, "reason")
        within = caller_transaction(connection, session)
        if purge and within is not None:
            raise InvalidInputError("purge", "is a transaction of its own; delete in yours, and purge after its commit")
        if within is not None or self.refresh().state.status is not ScheduleStatus.DELETED or not purge:
            self._operate(
                lambda _, schedule, operation: lifecycle.decide_delete(
                    schedule, now=self._runtime.now(), reason=reason, context=context, operation=operation
                ),
                if_version,
                within,
                stops=True,
            )
        if purge:
            operations.purge(self._runtime, self.uid)
        return self

    def trigger(
        self,
        overlap: OverlapPolicy | str | None = None,
        *,
        force: bool = False,
        idempotency_key: str | None = None,
        context: CommandContext | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> TriggerResult[RunHandle]:
        """Start a run now, as the overlap policy (or `overlap`) allows; the schedule's times do not move.

        A paused schedule refuses unless `force` is set. A second call with the same `idempotency_key` returns the run
        of the first call.
        """
        policy = None if overlap is None else OverlapPolicy.of(overlap)
        key = None if idempotency_key is None else require_key(idempotency_key)
        self._schedule, outcome = triggering.trigger(
            self._runtime,
            self.uid,
            overlap=policy,
            is_forced=force,
            idempotency_key=key,
            context=context,
            within=caller_transaction(connection, session),
        )
        return trigger_result(self._runtime, outcome)

    def backfill(
        self,
        start: datetime,
        end: datetime,
        *,
        overlap: OverlapPolicy | str | None = None,
        rerun: Rerun | str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        progress: Callable[[BackfillProgress], None] | None = None,
        context: CommandContext | None = None,
    ) -> BackfillProgress:
        """Fire the occurrences of [start, end) that have passed and have no run yet, at their nominal times.

        `rerun="failed"` also retries failed and lost runs, as `RunHandle.retry` does. Every occurrence up to the newest
        pruned run counts as an occurrence with a run; `rerun="all"` fires these, too. Raises InvalidLimitError if there
        are more than `bound` occurrences. `dry_run` writes nothing. `progress` is called after each chunk.
        """
        policy = None if overlap is None else OverlapPolicy.of(overlap)
        wanted = BackfillRange(start, end, policy, bound, context, None if rerun is None else Rerun.of(rerun))
        if dry_run:
            chunks = backfill.preview(self._runtime, self.refresh().state, wanted)
            return describe_preview(self._schedule, wanted, chunks)
        rows: list[BackfillRow] = []
        for step in self.backfill_in_chunks(wanted):  # even an empty range makes one step
            rows += step.rows
            if progress is not None:
                progress(step)
        self.refresh()
        return replace(step, rows=rows)

    def backfill_in_chunks(self, wanted: BackfillRange) -> Generator[BackfillProgress]:
        """Fire a range chunk by chunk, in bounded memory. Yields the progress after each chunk, with the chunk's rows.

        If you stop iterating, the next `recover()` of any process fires the rest.
        """
        schedule = self.refresh().state
        if schedule.status is ScheduleStatus.DELETED:
            raise ScheduleNotFoundError(self.schedule_id, self.namespace)
        opened = backfill.open_backfill(self._runtime, schedule, wanted, new_uid(self._runtime.now()))
        yield from starmap(describe_backfill, backfill.iterate(self._runtime, opened))
