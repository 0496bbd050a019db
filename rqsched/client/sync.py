"""The synchronous client and its handles. Each operation sends one request; the asynchronous client awaits the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import httpx
import tenacity

from rqsched.api.description import DeliveryDescription, Description
from rqsched.client import http, requests
from rqsched.client.errors import error_of
from rqsched.client.following import Following
from rqsched.client.http import Retries
from rqsched.client.requests import Request
from rqsched.client.responses import (
    BackfillProgress,
    BulkRow,
    EventRecord,
    RetriedRun,
    RunDescription,
    TriggerResult,
)
from rqsched.client.syncing import Syncing
from rqsched.client.views import RunView, ScheduleView
from rqsched.core.audit import AuditRecord
from rqsched.core.page import MAX_PAGE, Page
from rqsched.core.quota import Usage
from rqsched.core.target_progress import TargetDescription, TargetProgress
from rqsched.core.waiting import looks
from rqsched.errors import RqschedError

if TYPE_CHECKING:
    from rqsched.core.option_table import Options
    from rqsched.spec.spec import SpecLike

T = TypeVar("T")


class Client(Syncing):
    """Schedules over HTTP. Safe to share between threads; close it, or use it in a `with`.

    Raises the errors of the in-process API, ResponseError for those that only HTTP has, and BackendUnavailableError
    when the server does not respond within `timeout` seconds and the retries.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        timeout: float | httpx.Timeout = http.TIMEOUT,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect lazily. `namespace` holds for all requests; None is the server's default, or the token's own."""
        headers = http.headers(token, namespace)
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._retries = retries or Retries()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def send(self, request: Request[T]) -> T:
        """Send one request, again where that is safe, and return what its response means."""
        try:
            for attempt in tenacity.Retrying(**self._retries.options(request)):
                with attempt:
                    response = self._http.request(**http.arguments(request))
                    is_repeated = attempt.retry_state.attempt_number > 1
                    return http.read(request, response, is_repeated=is_repeated)
        except httpx.TransportError as error:
            raise http.unreachable(error) from error
        raise AssertionError("tenacity raises the last error")  # pragma: no cover

    def _handle(self, description: Description) -> ScheduleHandle:
        return ScheduleHandle(self, description.schedule_id, description)

    def create(
        self,
        schedule_id: str,
        workflow: str,
        spec: SpecLike,
        *,
        note: str | None = None,
        paused: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> ScheduleHandle:
        """Create a schedule; raises ScheduleExistsError when the id is taken. Safe to repeat: it is sent with a key."""
        body = requests.declaration(workflow, spec, options, {"note": note, "paused": paused})
        return self.send(requests.create(schedule_id, body, idempotency_key).then(self._handle))

    def upsert(
        self,
        schedule_id: str,
        workflow: str,
        spec: SpecLike,
        *,
        note: str | None = None,
        paused: bool | None = None,
        **options: Unpack[Options],
    ) -> tuple[ScheduleHandle, str]:
        """Create a schedule or replace its definition; the outcome is `created`, `updated` or `unchanged`."""
        body = requests.declaration(workflow, spec, options, {"note": note, "paused": paused})
        return self.send(requests.upsert(schedule_id, body).then(lambda made: (self._handle(made[0]), made[1])))

    def get(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError."""
        return self.send(requests.get(schedule_id).then(self._handle))

    def handle(self, schedule_id: str) -> ScheduleHandle:
        """Return a handle without a request: for the history and runs of a schedule that may be deleted."""
        return ScheduleHandle(self, schedule_id)

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        outcome: str | Sequence[str] | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        owner: str | None = None,
        text: str | None = None,
        overdue: bool | None = None,
        created_since: datetime | None = None,
        created_until: datetime | None = None,
        next_since: datetime | None = None,
        next_until: datetime | None = None,
        sort: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ScheduleHandle]:
        """Read a page (1 to 500) of schedules in the order they were created, or `sort`: created, next, id; - reverses.

        Where schedules are large a page has fewer than `limit`, and a `next_cursor`.
        """
        filters = {"status": status, "outcome": outcome, "workflow": workflow, "labels": labels}
        filters |= {"owner": owner, "text": text}
        times = {"created_since": created_since, "created_until": created_until}
        times |= {"next_since": next_since, "next_until": next_until}
        more = {"overdue": overdue, "sort": sort, "limit": limit, "cursor": cursor}
        request = requests.list_schedules({**filters, **times, **more})
        return self.send(request.then(lambda page: page.map(self._handle)))

    def iter(self, **filters: Any) -> Iterator[ScheduleHandle]:
        """Read all schedules that `list` shows with these filters, page by page."""
        cursor: str | None = None
        while True:
            page = self.list(limit=MAX_PAGE, cursor=cursor, **filters)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def count(self, /, **filters: Any) -> int:
        """Count the schedules that `list` shows with these filters."""
        return self.send(requests.count(filters))

    def batch_delete(self, schedule_ids: Sequence[str]) -> None:
        """Delete up to 500 schedules; ids that do not exist are ignored."""
        return self.send(requests.batch_delete(schedule_ids))

    def workflows(self) -> Sequence[dict[str, Any]]:
        """List the registered workflows, with their defaults; only those in use here for a token of some namespaces."""
        return self.send(requests.workflows())

    def usage(self) -> Usage:
        """Read what the namespace holds and what its quota allows: schedules, and the bytes they declare."""
        return self.send(requests.usage())

    def retry_failed(
        self,
        since: datetime | timedelta,
        *,
        until: datetime | None = None,
        schedule_id: str | None = None,
        workflow: str | None = None,
        bound: int = 500,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> Sequence[RetriedRun]:
        """Retry every run that failed or was lost since an instant, or so long ago; returns a row for each.

        Raises InvalidLimitError, with nothing retried, when there are more than `bound` (at most 1000).
        """
        more = {"schedule_id": schedule_id, "workflow": workflow, "bound": bound, "dry_run": dry_run}
        return self.send(requests.retry_failed(since, {"until": until, **more, "reason": reason}))

    def bulk(
        self,
        operation: str,
        /,
        *,
        reason: str | None = None,
        note: str | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        **filters: Any,
    ) -> Sequence[BulkRow]:
        """Pause, resume or trigger every schedule that `list` shows with these filters; returns a row for each.

        Without `status` it is those that are active (pause, trigger) or paused (resume). Raises InvalidLimitError, with
        nothing done, when more than `bound` (at most 1000) match.
        """
        more = {"catch_up": catch_up, "overlap": overlap, "idempotency_key": idempotency_key}
        body = {"reason": reason, "note": note, "dry_run": dry_run, "bound": bound, **more, **filters}
        return self.send(requests.bulk(operation, body))

    def events(
        self,
        *,
        follow: bool = False,
        after: str | None = None,
        since: datetime | None = None,
        event_types: Sequence[str] = (),
    ) -> Iterator[EventRecord]:
        """Read the audit events of all schedules in the order they were recorded: after an event's id, or an instant.

        With `follow` it goes on with each as it is recorded, only new ones when nothing says where to begin, until it
        is closed; a lost connection is opened again where it was. It raises what `get` does when the first is refused.
        """
        params = requests.event_params(after, since, event_types)
        if follow:
            yield from self.follow(requests.stream(None), params)
            return
        cursor: str | None = None
        while True:
            page = self.send(requests.events(params, cursor))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def follow(self, path: str, params: Mapping[str, Any]) -> Iterator[EventRecord]:
        """Read a stream of events, connection after connection."""
        following = Following(path, params, self._retries)
        while not self._http.is_closed:
            error: Exception | None = None
            try:
                with self._http.stream(**following.arguments(self._http.timeout)) as response:
                    if not response.is_success:
                        response.read()
                        raise error_of(response)
                    following.begin()
                    for line in response.iter_lines():
                        if (event := following.read(line)) is not None:
                            yield event
            except (httpx.TransportError, RqschedError) as caught:
                error = caught
            time.sleep(following.pause_after(error))

    def backfill(self, uid: str) -> BackfillProgress:
        """Read the progress of a backfill; raises BackfillNotFoundError."""
        return self.send(requests.backfill_progress(uid))

    def cancel_backfill(self, uid: str, reason: str | None = None) -> BackfillProgress:
        """Stop a backfill: what it has started goes on, the rest of its range is left. Idempotent.

        The reason is recorded, as who stopped it is.
        """
        return self.send(requests.cancel_backfill(uid, reason))

    def backfills(
        self,
        *,
        schedule_id: str | None = None,
        status: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BackfillProgress]:
        """Read a page of backfills, newest first."""
        return self.send(requests.backfills({"schedule_id": schedule_id, "status": status}, limit, cursor))

    def iter_backfills(
        self, *, schedule_id: str | None = None, status: str | None = None
    ) -> Iterator[BackfillProgress]:
        """Read all backfills, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.backfills(schedule_id=schedule_id, status=status, limit=MAX_PAGE, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return


class RunHandle(RunView):
    """One run: its description as it was last read, and the operations on it."""

    def __init__(self, client: Client, schedule_id: str, description: RunDescription) -> None:
        self._client = client
        self._schedule_id = schedule_id
        self.description = description

    def refresh(self) -> RunHandle:
        """Read the run again."""
        return self._client.send(requests.run(self._schedule_id, self.uid).then(self._keep))

    def wait(self, timeout: float | None = None) -> RunHandle:
        """Read the run until it has ended; raises TimeoutError after `timeout` seconds (None waits without end).

        >>> run.wait(timeout=60).result  # doctest: +SKIP
        """
        pauses = looks(timeout, time.monotonic)
        while not self.refresh().has_ended:
            time.sleep(next(pauses))
        return self

    def retry(self, reason: str | None = None, *, failed_targets: bool = False) -> RunHandle:
        """Run it again: one more attempt. Raises RunStateError unless it failed, was lost, cancelled or terminated.

        With `failed_targets`, its targets that failed or were lost, also of a run that has succeeded.
        """
        request = requests.retry_run(self._schedule_id, self.uid, reason, failed_targets=failed_targets)
        return self._client.send(request.then(self._keep))

    def progress(self) -> TargetProgress | None:
        """Read how far its targets are; None when it has no targets."""
        return self._client.send(requests.progress(self._schedule_id, self.uid))

    def targets(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[TargetDescription]:
        """Read a page (1 to 500) of its targets in the order they were named, such as those of status `failed`."""
        return self._client.send(requests.targets(self._schedule_id, self.uid, limit, cursor, status))

    def cancel(self, reason: str | None = None) -> RunHandle:
        """End the run: a waiting one never starts, a running one sees it at its next checkpoint. Idempotent."""
        return self._client.send(requests.end_run(self._schedule_id, self.uid, "cancel", reason).then(self._keep))

    def terminate(self, reason: str | None = None) -> RunHandle:
        """End the run and have its process killed. Idempotent."""
        return self._client.send(requests.end_run(self._schedule_id, self.uid, "terminate", reason).then(self._keep))


class ScheduleHandle(ScheduleView):
    """One schedule by its id: its description as it was last read, and the operations on it."""

    def __init__(self, client: Client, schedule_id: str, description: Description | None = None) -> None:
        super().__init__(schedule_id, description)
        self._client = client

    @property
    def description(self) -> Description:
        """Every field of the schedule as it was last read; reads it when that has not happened yet."""
        return self._description or self.describe()

    def _run_handle(self, description: RunDescription) -> RunHandle:
        return RunHandle(self._client, self.schedule_id, description)

    def describe(self) -> Description:
        """Read the schedule's description; raises ScheduleNotFoundError."""
        return self._client.send(requests.get(self.schedule_id).then(self._keep_description))

    def update(
        self,
        workflow: str | None = None,
        spec: SpecLike | None = None,
        *,
        note: str | None = None,
        if_version: int | None = None,
        paused: bool | None = None,
        **options: Unpack[Options],
    ) -> ScheduleHandle:
        """Change what is given and keep the rest; raises VersionConflictError when `if_version` is not current.

        `paused` also pauses it, or makes a paused or dead one fire again.
        """
        match = self._match(if_version)
        body = requests.changes(workflow, spec, options, {"note": note, "paused": paused})
        return self._client.send(requests.update(self.schedule_id, body, match).then(self._keep))

    def pause(
        self, note: str | None = None, *, reason: str | None = None, if_version: int | None = None
    ) -> ScheduleHandle:
        """Stop firing; raises ScheduleStateError unless active, VersionConflictError as `update` does."""
        body, match = {"note": note, "reason": reason}, self._match(if_version)
        return self._client.send(requests.operate(self.schedule_id, "pause", body, match).then(self._keep))

    def resume(
        self, catch_up: str | None = None, *, note: str | None = None, if_version: int | None = None
    ) -> ScheduleHandle:
        """Fire again; raises ScheduleStateError unless paused, VersionConflictError as `update` does."""
        body, match = {"catch_up": catch_up, "note": note}, self._match(if_version)
        return self._client.send(requests.operate(self.schedule_id, "resume", body, match).then(self._keep))

    def restart(self, *, note: str | None = None, if_version: int | None = None) -> ScheduleHandle:
        """Revive a done or dead schedule; raises ScheduleStateError in any other status."""
        match = self._match(if_version)
        return self._client.send(requests.operate(self.schedule_id, "restart", {"note": note}, match).then(self._keep))

    def delete(self, *, purge: bool = False, reason: str | None = None, if_version: int | None = None) -> None:
        """Delete softly: the id becomes free, history stays unless purged."""
        match = self._match(if_version)
        return self._client.send(requests.delete(self.schedule_id, purge=purge, reason=reason, match=match))

    def _match(self, version: int | None) -> str | None:
        """Return the ETag of this incarnation at a version."""
        return None if version is None else f'"{self.uid}.{version}"'

    def trigger(
        self, overlap: str | None = None, *, force: bool = False, idempotency_key: str | None = None
    ) -> TriggerResult:
        """Start a run now as the overlap policy allows. Safe to repeat: it is sent with a key."""
        body = {"overlap": overlap, "force": force}
        return self._client.send(requests.trigger(self.schedule_id, body, idempotency_key))

    def backfill(
        self,
        start: datetime,
        end: datetime,
        *,
        overlap: str | None = None,
        rerun: str | None = None,
        dry_run: bool = False,
        bound: int = 10_000,
    ) -> BackfillProgress:
        """Fire the occurrences of [start, end) that have passed and have no run yet; a long one continues later.

        `rerun="failed"` also retries those whose run failed or was lost, `"all"` also fires what was pruned.
        """
        options = {"overlap": overlap, "rerun": rerun, "dry_run": dry_run, "bound": bound}
        return self._client.send(requests.backfill(self.schedule_id, start, end, options))

    def history(self, limit: int = 100, after_sequence: int = 0) -> list[AuditRecord]:
        """Read audit events (1 to 500) after a sequence, oldest first; works after delete too."""
        return self._client.send(requests.history(self.schedule_id, limit, after_sequence))

    def deliveries(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[DeliveryDescription]:
        """Read a page (1 to 500) of what was owed to whom about it, newest first; works after delete too.

        `status` is one of `pending`, `running`, `succeeded` and `failed`.
        """
        return self._client.send(requests.deliveries(self.schedule_id, limit, cursor, status))

    def iter_history(self, after_sequence: int = 0, *, follow: bool = False) -> Iterator[AuditRecord]:
        """Read all audit events after a sequence, page by page; with `follow` also each as it is recorded."""
        if follow:
            yield from self._client.follow(requests.stream(self.schedule_id), {"after": after_sequence})
            return
        while page := self.history(MAX_PAGE, after_sequence):
            yield from page
            after_sequence = page[-1].sequence

    def runs(self, limit: int = 100, cursor: str | None = None, statuses: Sequence[str] = ()) -> Page[RunHandle]:
        """Read a page of runs, newest first; `statuses` are those of runs, and `blocked` (see `RunHandle`)."""
        request = requests.runs(self.schedule_id, limit, cursor, statuses)
        return self._client.send(request.then(lambda page: page.map(self._run_handle)))

    def iter_runs(self, statuses: Sequence[str] = ()) -> Iterator[RunHandle]:
        """Read all runs, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.runs(MAX_PAGE, cursor, statuses)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def run(self, run: str) -> RunHandle:
        """Find one run by uid, number or instance id; raises RunNotFoundError."""
        return self._client.send(requests.run(self.schedule_id, run).then(self._run_handle))

    def upcoming(self, count: int = 5) -> list[datetime]:
        """List the next instants (1 to 1000) at which the schedule fires."""
        return self._client.send(requests.upcoming(self.schedule_id, count))
