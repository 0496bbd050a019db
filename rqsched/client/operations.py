"""Operations of both clients, each a request of one entry of the native surface.

Written by `python -m tests.support.operations`: change the entry, or the scheduler's method, and write it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from rqsched.api.values import MAX_PAGE
from rqsched.client import responses
from rqsched.client.groups import AsyncGroup, Group, Sender, awaited, iterated
from rqsched.client.requests import Request, get, many, path_of, sent
from rqsched.client.views import RunView, ScheduleView
from rqsched.types import (
    BackfillProgress,
    DeliveryDescription,
    Freeze,
    LimitDescription,
    Load,
    Page,
    RetryRow,
    SpanLike,
    Thawed,
    ThawPreview,
    Usage,
    Why,
)
from rqsched.when.calendars import Calendar

if TYPE_CHECKING:
    from rqsched import OnResume


class Backfills(Group):
    """The backfills of a client; see `rqsched.types.Backfills`."""

    def list(
        self, *, schedule_id: str | None = None, status: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[BackfillProgress]:
        """Read a page of backfills, newest first.

        Args:
            schedule_id: Of this schedule only.
            status: In this status only: `running`, `done` or `stopped`.
            limit: The size of the page, 1 to 500; large items make shorter ones.
            cursor: The next_cursor of the previous page.
        """
        return self._client.send(
            get(
                path_of("backfills"),
                responses.page(BackfillProgress),
                sent({"schedule_id": schedule_id, "status": status, "limit": limit, "cursor": cursor}),
            )
        )

    def iter(self, *, schedule_id: str | None = None, status: str | None = None) -> Iterator[BackfillProgress]:
        """Read all that `list` shows with these arguments, page by page."""
        return self._client._pages(
            lambda cursor: self.list(schedule_id=schedule_id, status=status, limit=MAX_PAGE, cursor=cursor)
        )

    def cancel(self, uid: str, reason: str | None = None) -> BackfillProgress:
        """Stop a backfill. Its started runs continue; the rest of its range does not fire. Idempotent.

        Args:
            uid: The uid of the backfill.
            reason: Why; recorded with the caller.
        """
        return self._client.send(
            Request(
                "POST",
                path_of("backfills", uid, "cancel"),
                responses.one(BackfillProgress),
                sent({"reason": reason}),
                is_repeatable=True,
            )
        )

    def get(self, uid: str) -> BackfillProgress:
        """Read the progress of a backfill; raises BackfillNotFoundError.

        Args:
            uid: The uid of the backfill.
        """
        return self._client.send(get(path_of("backfills", uid), responses.one(BackfillProgress)))


class AsyncBackfills(AsyncGroup):
    """Backfills whose operations are awaited."""

    list = awaited(Backfills.list)
    iter = iterated(Backfills.iter)
    cancel = awaited(Backfills.cancel)
    get = awaited(Backfills.get)


class Calendars(Group):
    """The calendars of a client; see `rqsched.types.Calendars`."""

    def list(self) -> Sequence[Calendar]:
        """Return the calendars that schedules of the namespace may name, with shared calendars, sorted by name."""
        return self._client.send(get(path_of("calendars"), responses.calendars))

    def get(self, name: str, *, shared: bool | None = None) -> Calendar:
        """Return the calendar that a schedule of the namespace means by a name; raises CalendarNotFoundError.

        Args:
            name: The name that schedules give in `exclude`.
            shared: True finds only a calendar that all namespaces share, False only a calendar of the
                namespace.
        """
        return self._client.send(get(path_of("calendars", name), responses.calendar, sent({"shared": shared})))

    def delete(
        self, name: str, *, shared: bool = False, revision: int | None = None, reason: str | None = None
    ) -> None:
        """Delete a calendar that no schedule names.

        Raises CalendarInUseError with the first schedules that name it, CalendarNotFoundError and CalendarChangedError.

        Args:
            name: The name that schedules give in `exclude`.
            shared: Delete the calendar that all namespaces share; over HTTP the token must see all namespaces.
            revision: Refuse to delete another revision.
            reason: Why; recorded with the caller.
        """
        return self._client.send(
            Request(
                "DELETE",
                path_of("calendars", name),
                responses.nothing,
                params=sent({"shared": shared, "revision": revision, "reason": reason}),
            )
        )


class AsyncCalendars(AsyncGroup):
    """Calendars whose operations are awaited."""

    list = awaited(Calendars.list)
    get = awaited(Calendars.get)
    delete = awaited(Calendars.delete)


class Limits(Group):
    """The limits of a client; see `rqsched.types.Limits`."""

    def list(self, *, limit: int = 100, cursor: str | None = None) -> Page[LimitDescription]:
        """Read a page of a namespace's groups, sorted by name, with the numbers of their running and waiting runs.

        Args:
            limit: The size of a page; large items make shorter ones.
            cursor: The next_cursor of the previous page.
        """
        return self._client.send(
            get(path_of("limits"), responses.page(LimitDescription), sent({"limit": limit, "cursor": cursor}))
        )

    def iter(self) -> Iterator[LimitDescription]:
        """Read all that `list` shows with these arguments, page by page."""
        return self._client._pages(lambda cursor: self.list(limit=MAX_PAGE, cursor=cursor))

    def set(
        self,
        name: str,
        number: int | None = None,
        *,
        rate: str | None = None,
        unset: Sequence[str] = (),
        reason: str | None = None,
    ) -> LimitDescription:
        """Change how many runs of a group may run at once, or start in a window of time, or both. Return the group.

        Arguments that are not given change nothing. `unset` removes the `number` or the `rate`, not both. Running runs
        continue. If more runs are running than the new number allows, no run begins until enough of them have ended.
        The group records the caller and the reason. Raises LimitNotFoundError.

        Args:
            name: The name of the group, as in `limit` of a schedule.
            number: How many runs may run at once.
            rate: How many attempts may start in any window of time, such as `100/min`.
            unset: `number` or `rate`, to remove that limit.
            reason: Why; recorded with the caller.
        """
        return self._client.send(
            Request(
                "PUT",
                path_of("limits"),
                responses.one(LimitDescription),
                sent({"name": name, "number": number, "rate": rate, "unset": many(unset), "reason": reason}),
                is_repeatable=True,
            )
        )


class AsyncLimits(AsyncGroup):
    """Limits whose operations are awaited."""

    list = awaited(Limits.list)
    iter = iterated(Limits.iter)
    set = awaited(Limits.set)


class Namespaces(Group):
    """The namespaces of a client; see `rqsched.types.Namespaces`."""

    def usage(self) -> Usage:
        """Count a namespace's schedules and the bytes of their declarations. Also return its quota (RQSCHED_QUOTAS)."""
        return self._client.send(get(path_of("usage"), responses.usage))


class AsyncNamespaces(AsyncGroup):
    """Namespaces whose operations are awaited."""

    usage = awaited(Namespaces.usage)


class Operations(Sender):
    """The operations of a client; operations on the client itself."""

    def load(self, hours: int = 24) -> Load:
        """Count the fires of each minute of the next hours (1 to 744), with the peaks, their schedules, and the queues.

        Reads the stored schedules without a lock, and computes the rest; `assumed` lists the assumptions.

        Args:
            hours: How many hours ahead.
        """
        return self.send(get(path_of("load"), responses.one(Load), sent({"hours": hours})))

    def freeze(self, reason: str | None = None, *, everything: bool = False) -> Freeze:
        """Let nothing begin in a namespace, or in all namespaces (`everything`), until `thaw`. Idempotent.

        No fire, first attempt, retry, backfill or claim of an external worker begins, and a start by hand raises
        FrozenError. This includes schedules that are created meanwhile. Attempts that have begun continue, and their
        targets, too. No notification about an overdue schedule is made. Schedules can be changed.

        SQL stores the freeze of a namespace: fires and claims see it at once, even without Redis. Other processes
        refuse a start by hand within a second, or within 15 s if Redis does not answer. A freeze of everything is
        stored in Redis and in SQL, and either one is enough. Dispatchers and claims see it at once. If one of the two
        was down, processes that read only that one follow within 15 s. Raises DatabaseUnavailableError if SQL does not
        answer; for everything, only if Redis does not answer, either.

        Args:
            reason: Shown with the freeze.
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
        """
        return self.send(
            Request(
                "POST",
                path_of("freeze"),
                responses.freeze,
                sent({"reason": reason, "everything": everything}),
                is_repeatable=True,
            )
        )

    def frozen(self) -> Sequence[Freeze]:
        """Return the current freezes: first the freeze of everything, then the newest. Each says who, why and when.

        Over HTTP, it leaves out the freezes of namespaces that the token does not see.

        Raises DatabaseUnavailableError if SQL does not answer, unless everything is known to be frozen.
        """
        return self.send(get(path_of("frozen"), responses.freezes))

    def freezes(self, *, everything: bool = False) -> Sequence[Freeze]:
        """Return the current and past freezes of a namespace, or of `everything`, the newest first.

        Each says when, by whom and why it began and ended. SQL stores the last 100 freezes of each namespace and of
        everything. A restored backup lacks the thaws that were made after the backup.

        Args:
            everything: The freezes of everything, instead of the freezes of one namespace.
        """
        return self.send(get(path_of("freeze", "history"), responses.freezes, sent({"everything": everything})))

    def preview_thaw(
        self,
        *,
        everything: bool = False,
        missed: Literal["one", "all", "none"] | None = None,
        since: datetime | None = None,
    ) -> ThawPreview:
        """Return the effect of `thaw` with the same arguments: the due schedules, and the runs that wait to begin.

        At most 500 schedules and 500 runs are listed. Nothing is written. It also works without a freeze.

        Args:
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
            missed: The occurrences that each due schedule fires: the oldest occurrence (`one`), all up to its
                `missed_limit`, or none; the rest is recorded as missed. Default: each schedule's own policy.
            since: With `missed="none"`: only what is due since then is recorded as missed.
        """
        return self.send(
            get(
                path_of("thaw", "preview"),
                responses.thaw_preview,
                sent({"everything": everything, "missed": missed, "since": since}),
            )
        )

    def thaw(
        self,
        *,
        everything: bool = False,
        missed: Literal["one", "all", "none"] | None = None,
        since: datetime | None = None,
        cancel_pending: bool = False,
        reason: str | None = None,
    ) -> Thawed:
        """End the freeze of a namespace or of `everything`. Paused schedules and frozen namespaces stay as they are.

        Due schedules fire by their own `missed` policy. The argument `missed` replaces this policy for all of them, and
        then occurrences fire however late they are:

        - `one`: the oldest occurrence fires; the others are recorded as missed;
        - `all`: the newest occurrences fire, up to the schedule's `missed_limit`. If `overlap` would not let each of
          them run, `all` is the same as `one`;
        - `none`: no occurrence fires; all are recorded as missed. With `since`, occurrences before that instant still
          fire by the policy, because after a restore only later occurrences may have run already.

        With `cancel_pending`, every run that waits for an attempt to begin is cancelled. All this is written before
        anything can begin, in one transaction per schedule. If the thaw is interrupted, the freeze continues: call
        `thaw` again. Due occurrences and waiting runs begin within 20 s. If there is no freeze, nothing is done. Raises
        InvalidInputError, DatabaseUnavailableError, and for everything RedisUnavailableError.

        Args:
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
            missed: The occurrences that each due schedule fires: the oldest occurrence (`one`), all up to its
                `missed_limit`, or none; the rest is recorded as missed. Default: each schedule's own policy.
            since: With `missed="none"`: only what is due since then is recorded as missed.
            cancel_pending: Cancel every run that waits to begin.
            reason: Why; recorded with the audit events.
        """
        return self.send(
            Request(
                "POST",
                path_of("thaw"),
                responses.thawed,
                sent(
                    {
                        "everything": everything,
                        "missed": missed,
                        "since": since,
                        "cancel_pending": cancel_pending,
                        "reason": reason,
                    }
                ),
                is_repeatable=True,
            )
        )


class AsyncOperations:
    """Operations whose operations are awaited."""

    load = awaited(Operations.load)
    freeze = awaited(Operations.freeze)
    frozen = awaited(Operations.frozen)
    freezes = awaited(Operations.freezes)
    preview_thaw = awaited(Operations.preview_thaw)
    thaw = awaited(Operations.thaw)


class RunOperations(RunView):
    """Operations on what a handle stands for."""

    _client: Sender

    def cancel(self, reason: str | None = None) -> Self:
        """End the run: a waiting run never starts, a running workflow stops at its next checkpoint. Idempotent.

        If a caller or a reason is given, the audit event RunCancelled records it.

        Args:
            reason: Why.
        """
        return self._client.send(self._edit("cancel", sent({"reason": reason}), is_repeatable=True))

    def terminate(self, reason: str | None = None) -> Self:
        """End the run and have RQ kill its process. Idempotent.

        If a caller or a reason is given, the audit event RunTerminated records it.

        Args:
            reason: Why.
        """
        return self._client.send(self._edit("terminate", sent({"reason": reason}), is_repeatable=True))

    def retry(self, reason: str | None = None, *, failed_targets: bool = False) -> Self:
        """Start one more attempt of a run that failed, was lost, cancelled or terminated.

        A blocked run is offered to the workers now instead of after its delay.

        The run keeps its uid, its occurrence and its earlier attempts, and does not count for `max_runs`. It starts
        when the overlap policy allows; until then it is `buffered`. A run that is already being retried on request is
        left unchanged. In a run with targets, only the failed and lost targets are handled again, and the resolver is
        not called; `failed_targets=True` also allows this for a run that has succeeded, and refuses a run without
        failed or lost targets. Raises RunStateError for a run that has succeeded or not ended, or whose schedule is
        deleted.

        Args:
            reason: Why; recorded with the audit event.
            failed_targets: Only its targets that failed or were lost; also of a run that has succeeded.
        """
        return self._client.send(
            self._edit("retry", sent({"reason": reason, "failed_targets": failed_targets}), is_repeatable=False)
        )

    def run_again(
        self,
        reason: str | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        downstream: bool = False,
        idempotency_key: str | None = None,
    ) -> Self:
        """Run an ended run again, also a successful one, as a new manual run; returns the new run.

        The new run is for the same occurrence: `occurrence_at` is that of this run, and `copied_from` its uid. It has
        the arguments of this run, and all else as the schedule has it now; targets are named again. It starts when the
        overlap policy allows, even if the schedule is paused, done or dead; until then it is `buffered`. It moves no
        time of the schedule, counts neither for `max_runs` nor for `max_successes`, and never makes the schedule dead.
        A second call with the same `idempotency_key` returns the run of the first call. Raises RunStateError if the
        run has not ended, if its schedule is deleted, or if its schedule executes another workflow now.

        Args:
            reason: Why; recorded with the audit event. Required if the arguments differ.
            args: Other positional arguments; over HTTP this needs the role admin.
            kwargs: Other keyword arguments; over HTTP this needs the role admin.
            downstream: Whether its end also starts the schedules that run after this one.
            idempotency_key: A text that is the same in each call for the same new run.
        """
        return self._client.send(
            self._make(
                "again",
                sent(
                    {
                        "reason": reason,
                        "args": args,
                        "kwargs": kwargs,
                        "downstream": downstream,
                        "idempotency_key": idempotency_key,
                    }
                ),
            )
        )


class Runs(Group):
    """The runs of a client; see `rqsched.types.Runs`."""

    def retry_failed(
        self,
        since: datetime | SpanLike,
        *,
        until: datetime | None = None,
        schedule_id: str | None = None,
        workflow: str | None = None,
        bound: int = 1000,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> Sequence[RetryRow]:
        """Retry every run that failed or was lost since an instant, as `RunHandle.retry` does.

        The run that ended first is retried first; if the overlap policy allows one run at a time, the runs of a
        schedule follow one another. Returns a row for each run. If there are more than `bound` runs, none is retried.
        After an interruption, call it again: a retried run no longer counts as failed. Raises InvalidLimitError.

        Args:
            since: Only runs that ended at or after this instant, or within this length of time.
            until: Only runs that ended before this instant.
            schedule_id: Only runs of this schedule.
            workflow: Only runs of this workflow.
            bound: Refuse more runs than this; over HTTP at most 1000.
            dry_run: Return what would be retried; write nothing.
            reason: Why; recorded with each audit event.
        """
        return self._client.send(
            Request(
                "POST",
                path_of("runs", "retry"),
                responses.listed(RetryRow),
                sent(
                    {
                        "since": since,
                        "until": until,
                        "schedule_id": schedule_id,
                        "workflow": workflow,
                        "bound": bound,
                        "dry_run": dry_run,
                        "reason": reason,
                    }
                ),
                is_repeatable=dry_run,
            )
        )


class AsyncRuns(AsyncGroup):
    """Runs whose operations are awaited."""

    retry_failed = awaited(Runs.retry_failed)


class ScheduleOperations(ScheduleView):
    """Operations on what a handle stands for."""

    _client: Sender

    def pause(
        self,
        note: str | None = None,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        on_resume: OnResume | str | None = None,
        if_version: int | None = None,
    ) -> Self:
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
            if_version: The version that it must have.
        """
        return self._client.send(
            self._edit(
                "pause", sent({"note": note, "reason": reason, "until": until, "on_resume": on_resume}), if_version
            )
        )

    def resume(
        self, on_resume: OnResume | str | None = None, *, note: str | None = None, if_version: int | None = None
    ) -> Self:
        """Fire again; see OnResume for the first occurrence. Raises ScheduleStateError unless paused.

        Args:
            on_resume: next, once or from_now; default: the schedule's own option.
            note: A note for the next operator.
            if_version: The version that it must have.
        """
        return self._client.send(self._edit("resume", sent({"on_resume": on_resume, "note": note}), if_version))

    def skip_next(self, count: int = 1, *, reason: str | None = None, if_version: int | None = None) -> Self:
        """Skip the next `count` (1 to 100) occurrences that are not due yet.

        The call stores their times (`skips`) and replaces earlier skips. So a repetition skips no further occurrence,
        and `skip_next(0)` removes all skips. `reason` is recorded with each skip. A change of the timing drops skips
        that are no longer occurrences. Raises ScheduleStateError unless active; `skip_next(0)` also works on a paused
        schedule. Raises InvalidInputError for a `from_completion` interval, and if there is no next occurrence.

        Args:
            count: How many occurrences to skip, 1 to 100; 0 removes all skips.
            reason: Why; recorded with the audit event.
            if_version: The version that it must have.
        """
        return self._client.send(self._edit("skip-next", sent({"count": count, "reason": reason}), if_version))

    def restart(self, *, note: str | None = None, if_version: int | None = None) -> Self:
        """Revive a done or dead schedule with counters at zero. Raises ScheduleStateError in any other status.

        Args:
            note: A note for the next operator.
            if_version: The version that it must have.
        """
        return self._client.send(self._edit("restart", sent({"note": note}), if_version))

    def deliveries(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[DeliveryDescription]:
        """Read a page (1 to 500) of its notifications, newest first; works after delete too.

        Args:
            limit: The size of the page.
            cursor: The next_cursor of the previous page.
            status: `pending`, `running`, `succeeded` or `failed`; default: any.
        """
        return self._client.send(
            get(
                self._path("deliveries"),
                responses.page(DeliveryDescription),
                sent({"limit": limit, "cursor": cursor, "status": status}),
            )
        )

    def upcoming(self, count: int = 5) -> Sequence[datetime]:
        """Return the next `count` (1 to 1000) instants at which it fires, with jitter.

        Returns fewer if no more follow, or if the search takes too many steps.

        Args:
            count: How many.
        """
        return self._client.send(get(self._path("upcoming"), responses.instants, sent({"count": count})))

    def why(self, at: datetime | None = None) -> Why:
        """Return why it ran or did not run at a past instant, or whether it will run at a future instant.

        The answer covers the minute of `at`, or its second if `at` has seconds. Without `at` it is about the newest
        occurrence up to now. Works after delete too. Raises InvalidSpecError for a naive instant.

        Args:
            at: An instant; default: the newest occurrence up to now.
        """
        return self._client.send(get(self._path("why"), responses.one(Why), sent({"at": at})))
