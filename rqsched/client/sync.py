"""The synchronous client and its handles. Each operation is written here once, for both clients.

An operation returns the result of its client's `send`. In the asynchronous client this is a coroutine (see `aio`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import httpx
import tenacity

from rqsched.api.description import BackfillProgress, Description, RunDescription, TriggerResult
from rqsched.api.groups import Grouped
from rqsched.api.values import MAX_PAGE, pages
from rqsched.api.waiting import looks
from rqsched.client import http, operations, requests, responses
from rqsched.client.event_stream import EventStream
from rqsched.client.groups import Group
from rqsched.client.http import Retries
from rqsched.client.requests import Request, get, given, instant, path_of
from rqsched.client.responses import EventRecord
from rqsched.errors import RqschedError
from rqsched.types import (
    AuditRecord,
    BulkProgress,
    NamespaceData,
    Page,
    Synced,
    TargetDescription,
    TargetProgress,
)
from rqsched.when.calendars import Calendar, require_entries

if TYPE_CHECKING:
    from rqsched import Declaration
    from rqsched.api.list_filters import ListFilters, RunListFilters
    from rqsched.types import Options
    from rqsched.when.exclusion import ExcludeLike
    from rqsched.when.spec import SpecLike

T = TypeVar("T")


class _Group(Group):
    _client: Client


class Runs(operations.Runs):
    """The runs of all schedules; see `rqsched.types.Runs`."""

    _client: Client

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
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[tuple[str, RunHandle]]:
        """Read a page (1 to 500) of the runs of all schedules, even deleted ones. Each run has its schedule's id.

        `sort` is `-created` (the newest first), `created` or `-ended`. `error` is a part of the error's text. With
        `error` or `-ended`, only failed and lost runs are read, ordered by their end. `since` and `until` limit the
        time of creation, or with `-ended` the time of the end.
        """
        params = {
            "status": [status] if isinstance(status, str) else status,
            "schedule_id": schedule_id,
            "workflow": workflow,
            "since": since and instant("since", since),
            "until": until and instant("until", until),
            "error": error,
            "sort": sort,
            "limit": limit,
            "cursor": cursor,
        }
        request = get(path_of("runs"), responses.found_runs, params)
        return self._client.send(request.then(lambda page: page.map(self._client._found_run)))

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
    ) -> Iterator[tuple[str, RunHandle]]:
        """Read all runs that `list` shows with these arguments, page by page."""
        asked: dict[str, Any] = {"status": status, "schedule_id": schedule_id, "workflow": workflow, "since": since}
        asked |= {"until": until, "error": error, "sort": sort}
        return self._client._pages(lambda cursor: self.list(**asked, limit=MAX_PAGE, cursor=cursor))


class BulkOperations(_Group):
    """Operations on every schedule or run that matches the filters, in chunks; see `rqsched.types.BulkOperations`.

    The first step of the iteration sends a request that counts them. Each further step sends a request that
    handles a chunk. If a response is lost, its request is sent again.
    """

    def pause(
        self,
        *,
        note: str | None = None,
        reason: str | None = None,
        until: datetime | None = None,
        on_resume: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Pause every schedule that matches; without `status`, the active ones."""
        end = None if until is None else instant("until", until)
        more = {"note": note, "reason": reason, "until": end, "on_resume": on_resume}
        return self._do("pause", filters, more, dry_run=dry_run, bound=bound, cursor=cursor)

    def resume(
        self,
        on_resume: str | None = None,
        *,
        note: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Resume every schedule that matches; without `status`, the paused ones."""
        more = {"on_resume": on_resume, "note": note}
        return self._do("resume", filters, more, dry_run=dry_run, bound=bound, cursor=cursor)

    def trigger(
        self,
        overlap: str | None = None,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Start a run of every schedule that matches; without `status`, of the active ones."""
        more = {"overlap": overlap, "idempotency_key": idempotency_key}
        return self._do("trigger", filters, more, dry_run=dry_run, bound=bound, cursor=cursor)

    def skip_next(
        self,
        count: int = 1,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Skip the next `count` occurrences of every schedule that matches; without `status`, of the active ones."""
        more = {"count": count, "reason": reason}
        return self._do("skip-next", filters, more, dry_run=dry_run, bound=bound, cursor=cursor)

    def cancel_runs(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[RunListFilters],
    ) -> Iterator[BulkProgress]:
        """Cancel every run that matches, the newest first; without `status`, every run that has not ended."""
        return self._do("runs/cancel", filters, {"reason": reason}, dry_run=dry_run, bound=bound, cursor=cursor)

    def retry_runs(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        bound: int = 500,
        cursor: str | None = None,
        **filters: Unpack[RunListFilters],
    ) -> Iterator[BulkProgress]:
        """Give every run that matches one more attempt, the oldest first; without `status`, failed and lost runs."""
        return self._do("runs/retry", filters, {"reason": reason}, dry_run=dry_run, bound=bound, cursor=cursor)

    def _do(
        self, path: str, filters: ListFilters | RunListFilters, more: Mapping[str, Any], **how: Any
    ) -> Iterator[BulkProgress]:
        body, read = requests.bulk_body(filters, **more, **how), responses.one(BulkProgress)
        where = path_of("bulk", *path.split("/"))
        return self._client._chunks(Request("POST", where, read, body, is_repeatable=True))


class Calendars(operations.Calendars):
    """Named exclusions that many schedules use; see `rqsched.types.Calendars`."""

    def set(
        self,
        name: str,
        exclude: ExcludeLike,
        *,
        shared: bool = False,
        description: str | None = None,
        source: str | None = None,
        reaches: date | None = None,
        revision: int | None = None,
        reason: str | None = None,
    ) -> Calendar:
        """Create a calendar or replace its content; see `rqsched.types.Calendars.set`."""
        body = given(
            {
                "exclude": list(require_entries(exclude)),
                "description": description,
                "source": source,
                "reaches": reaches and reaches.isoformat(),
                "revision": revision,
                "reason": reason,
            }
        )
        path, params = path_of("calendars", name), {"shared": "true"} if shared else {}
        return self._client.send(Request("PUT", path, responses.calendar, body, params, is_repeatable=revision is None))

    def used_by(self, calendar: Calendar) -> Sequence[tuple[str, str]]:
        """Read the namespace and id of each schedule that names the calendar and that the token may see."""
        return self._client.send(get(path_of("calendars", calendar.name), responses.calendar_users))

    def history(self, calendar: Calendar) -> Sequence[dict[str, Any]]:
        """Read the newest 50 changes of a calendar, the newest first; see `rqsched.types.Calendars.history`."""
        return self._client.send(
            get(path_of("calendars", calendar.name), lambda response: list(response.json()["history"]))
        )


class Namespaces(operations.Namespaces):
    """Whole namespaces; see `rqsched.types.Namespaces`."""

    def preview_delete(self, name: str) -> NamespaceData:
        """Read the amount of data that `delete` would delete; see `rqsched.types.Namespaces.preview_delete`."""
        read = responses.one(NamespaceData)
        return self._client.send(
            Request("GET", path_of("namespace"), read, headers={"X-Namespace": name}, is_repeatable=True)
        )

    def delete(self, name: str, reason: str | None = None, *, terminate: bool = False) -> NamespaceData:
        """Delete some thousand rows of a frozen namespace for good; see `rqsched.types.Namespaces.delete`.

        Repeat the call until the result's `is_over` is true.
        """
        params = given({"confirm": name, "reason": reason, "terminate": "true" if terminate else None})
        headers, read = {"X-Namespace": name}, responses.one(NamespaceData)
        return self._client.send(Request("DELETE", path_of("namespace"), read, params=params, headers=headers))


class Client(operations.Operations):
    """Schedules over HTTP. Threads may share a client. Close it, or use it in a `with`.

    Raises the errors of the in-process API, and ResponseError for errors that only HTTP has. Raises
    BackendUnavailableError if the server does not respond within `timeout` seconds, even to the retries.
    """

    runs = Grouped(Runs)
    """The runs of all schedules."""
    backfills = Grouped(operations.Backfills)
    """The backfills of all schedules."""
    bulk = Grouped(BulkOperations)
    """The operations on every schedule that matches filters."""
    calendars = Grouped(Calendars)
    """Named exclusions that many schedules use."""
    limits = Grouped(operations.Limits)
    """The limits of groups: how many of their runs may run at once, or start within a length of time."""
    namespaces = Grouped(Namespaces)
    """Whole namespaces: their usage, and their deletion."""

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
        """Connect at the first request. `namespace` applies to all requests; None lets the server choose it."""
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
        """Send one request, retry it if that is safe, and return the value of its response."""
        try:
            for attempt in tenacity.Retrying(**self._retries.options(request)):
                with attempt:
                    response = self._http.request(**http.arguments(request))
                    is_repeated = attempt.retry_state.attempt_number > 1
                    return http.read(request, response, is_repeated=is_repeated)
        except httpx.TransportError as error:
            raise http.unreachable(error) from error
        raise AssertionError("tenacity raises the last error")  # pragma: no cover

    def _chunks(self, first: Request[BulkProgress]) -> Iterator[BulkProgress]:
        chunk: Request[BulkProgress] | None = first
        while chunk is not None:
            progress = self.send(chunk)
            yield progress
            chunk = requests.next_chunk(chunk, progress)

    def _pages(self, read: Callable[[str | None], Page[T]]) -> Iterator[T]:
        return pages(read)

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
        """Create a schedule; raises ScheduleExistsError if the id is taken. The request has an idempotency key."""
        body = requests.declaration(workflow, spec, options, {"note": note, "paused": paused})
        request = Request(
            "POST",
            path_of("schedules"),
            responses.one(Description),
            {"schedule_id": schedule_id, **body},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            is_repeatable=True,
        )
        return self.send(request.then(self._handle))

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

        def read(response: httpx.Response) -> tuple[ScheduleHandle, str]:
            return self._handle(responses.one(Description)(response)), response.headers["x-outcome"]

        return self.send(Request("PUT", path_of("schedules", schedule_id), read, body, is_repeatable=True))

    def get(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError."""
        return self.send(get(path_of("schedules", schedule_id), responses.one(Description)).then(self._handle))

    def handle(self, schedule_id: str) -> ScheduleHandle:
        """Return a handle without a request. The handle can also read the history and runs of a deleted schedule."""
        return ScheduleHandle(self, schedule_id)

    def list(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        sort: str = "created",
        **filters: Unpack[ListFilters],
    ) -> Page[ScheduleHandle]:
        """Read a page (1 to 500) of schedules in the order they were created; see ListFilters for the filters.

        `sort` is `created`, `next` (only schedules that have a next fire) or `id`. A `-` before the name reverses the
        order. If the schedules are large, a page has fewer than `limit` schedules and a `next_cursor`.
        """
        params = requests.list_params(filters, sort=sort, limit=limit, cursor=cursor)
        request = get(path_of("schedules"), responses.page(Description), params)
        return self.send(request.then(lambda page: page.map(self._handle)))

    def iter(self, *, sort: str = "created", **filters: Unpack[ListFilters]) -> Iterator[ScheduleHandle]:
        """Read all schedules that match the filters of `list`, in this order, page by page."""
        return self._pages(lambda cursor: self.list(limit=MAX_PAGE, cursor=cursor, sort=sort, **filters))

    def count(self, **filters: Unpack[ListFilters]) -> int:
        """Count the schedules that match the filters of `list`."""
        params = requests.list_params(filters, limit=1, total=True)
        return self.send(get(path_of("schedules"), lambda response: int(response.json()["total"]), params))

    def batch_delete(self, schedule_ids: Sequence[str]) -> None:
        """Delete up to 500 schedules; ids that do not exist are ignored."""
        path, body = path_of("schedules", "batch-delete"), {"schedule_ids": list(schedule_ids)}
        return self.send(Request("POST", path, responses.nothing, body, is_repeatable=True))

    def workflows(self) -> Sequence[dict[str, Any]]:
        """List the registered workflows with their defaults. A token of some namespaces gets only workflows in use."""
        return self.send(get(path_of("workflows"), lambda response: list(response.json()["items"])))

    def events(
        self,
        *,
        follow: bool = False,
        after: str | None = None,
        since: datetime | None = None,
        event_types: Sequence[str] = (),
        principal: str | None = None,
    ) -> Iterator[EventRecord]:
        """Read the audit events of all schedules in the order they were recorded: after an event's id, or an instant.

        `principal` is a part of the caller's name, in any case. This filter omits events without a caller, such as
        fires.

        With `follow`, the iterator also yields new events as they are recorded, until it is closed. With `follow` but
        without `after` and `since`, it yields new events only. If a connection is lost, the iterator opens another one
        and continues at its position. Raises the errors of `get` if the first connection is refused.
        """
        params = requests.event_params(after, since, event_types, principal)
        if follow:
            return self.follow(path_of("events", "stream"), params)
        return self._pages(lambda cursor: self.send(requests.events(params, cursor)))

    def follow(self, path: str, params: Mapping[str, Any]) -> Iterator[EventRecord]:
        """Read a stream of events. If a connection ends, open the next one."""
        stream = EventStream(path, params, self._retries)
        while not self._http.is_closed:
            error: Exception | None = None
            try:
                with self._http.stream(**stream.arguments(self._http.timeout)) as response:
                    if not response.is_success:
                        response.read()
                        raise http.error_of(response)
                    stream.begin()
                    for line in response.iter_lines():
                        if (event := stream.read(line)) is not None:
                            yield event
            except (httpx.TransportError, RqschedError) as caught:
                error = caught
            time.sleep(stream.pause_after(error))

    def _found_run(self, found: tuple[str, RunDescription]) -> tuple[str, RunHandle]:
        return found[0], RunHandle(self, *found)

    def sync(
        self,
        declarations: Iterable[Declaration],
        *,
        delete_removed: bool = False,
        dry_run: bool = False,
        progress: Callable[[str, str], None] | None = None,
    ) -> Synced:
        """Upsert a set of declarations. With `delete_removed`, delete schedules of earlier syncs that this set lacks.

        The whole set is checked, here and by the server, before anything is written. A large set is sent in several
        requests. If a request fails, the earlier requests have taken effect; repeat the call to do the rest. `progress`
        is called with each id and its outcome. `dry_run` makes the same checks, returns the effect, and writes nothing.
        """
        parts = requests.sync_requests(declarations, delete_removed=delete_removed)
        if dry_run:
            return requests.joined([self.send(part) for part in requests.rehearsed(parts)])
        for rehearsal in requests.rehearsed(parts if len(parts) > 1 else []):
            self.send(rehearsal)
        return requests.joined([requests.told(self.send(part), progress) for part in parts])


class RunHandle(operations.RunOperations):
    """One run: its description as it was last read, and the operations on it."""

    _client: Client

    def __init__(self, client: Client, schedule_id: str, description: RunDescription) -> None:
        self._client = client
        self._schedule_id = schedule_id
        self.description = description

    def refresh(self) -> RunHandle:
        """Read the run again."""
        return self._client.send(get(self._path(), responses.one(RunDescription)).then(self._keep))

    def wait(self, timeout: float | None = None) -> RunHandle:
        """Read the run repeatedly until it has ended; raises TimeoutError after `timeout` seconds (None: never).

        >>> run.wait(timeout=60).result  # doctest: +SKIP
        """
        pauses = looks(timeout, time.monotonic)
        while not self.refresh().has_ended:
            time.sleep(next(pauses))
        return self

    def progress(self) -> TargetProgress | None:
        """Read the progress of the run's targets; None if it has no targets."""

        def read(response: httpx.Response) -> TargetProgress | None:
            found = response.json()["progress"]
            return found and responses.read(TargetProgress, found)

        return self._client.send(get(self._path("targets"), read, {"limit": 1}))

    def targets(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[TargetDescription]:
        """Read a page (1 to 500) of the run's targets, in the order in which they were named."""
        params = {"limit": limit, "cursor": cursor, "status": status}
        return self._client.send(get(self._path("targets"), responses.page(TargetDescription), params))


class ScheduleHandle(operations.ScheduleOperations):
    """One schedule by its id: its description as it was last read, and the operations on it."""

    _client: Client

    def __init__(self, client: Client, schedule_id: str, description: Description | None = None) -> None:
        super().__init__(schedule_id, description)
        self._client = client

    @property
    def description(self) -> Description:
        """Every field of the schedule as it was last read. The first access reads the schedule."""
        return self._description or self.describe()

    def _run_handle(self, description: RunDescription) -> RunHandle:
        return RunHandle(self._client, self.schedule_id, description)

    def describe(self) -> Description:
        """Read the schedule's description; raises ScheduleNotFoundError."""
        return self._client.send(get(self._path(), responses.one(Description)).then(self._keep_description))

    def refresh(self) -> ScheduleHandle:
        """Read the schedule again; raises ScheduleNotFoundError."""
        return self._client.send(get(self._path(), responses.one(Description)).then(self._keep))

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
        """Change the given fields and keep the rest; raises VersionConflictError when `if_version` is not current.

        `paused=True` also pauses the schedule; `paused=False` makes a paused or dead schedule fire again.
        """
        body = requests.changes(workflow, spec, options, {"note": note, "paused": paused})
        # With If-Match, a repeated request would take its own first change for the change of another caller.
        headers, is_repeatable = self._if_match(if_version), if_version is None
        read = responses.one(Description)
        request = Request("PATCH", self._path(), read, body, headers=headers, is_repeatable=is_repeatable)
        return self._client.send(request.then(self._keep))

    def delete(
        self, *, purge: bool = False, reason: str | None = None, if_version: int | None = None
    ) -> ScheduleHandle:
        """Delete the schedule. Its id becomes free; its history stays unless `purge` is True.

        If the handle has a description, its status becomes `deleted` without a next fire; its other fields stay.
        """
        params, headers = given({"purge": "true" if purge else None, "reason": reason}), self._if_match(if_version)
        read, path = responses.nothing, self._path()
        request = Request("DELETE", path, read, params=params, headers=headers, is_repeatable=True)
        return self._client.send(request.then(self._keep_deleted))

    def trigger(
        self, overlap: str | None = None, *, force: bool = False, idempotency_key: str | None = None
    ) -> TriggerResult[RunHandle]:
        """Start a run now, if the overlap policy allows it. The request has an idempotency key."""

        def read(response: httpx.Response) -> TriggerResult[RunHandle]:
            fields = response.json()
            run = fields["run"] and self._run_handle(responses.read(RunDescription, fields["run"]))
            return TriggerResult(fields["outcome"], run, fields["reason"], fields["buffer_depth"])

        body, headers = (
            given({"overlap": overlap, "force": force}),
            {"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
        )
        return self._client.send(
            Request("POST", self._path("trigger"), read, body, headers=headers, is_repeatable=True)
        )

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
        """Fire the occurrences of [start, end) that have passed and have no run yet; a long backfill continues later.

        `rerun="failed"` also retries failed and lost runs; `"all"` also fires occurrences whose runs were pruned.
        """
        span = {"start": instant("start", start), "end": instant("end", end)}
        body = given({**span, "overlap": overlap, "rerun": rerun, "dry_run": dry_run, "bound": bound})
        path, read = self._path("backfill"), responses.one(BackfillProgress)
        return self._client.send(Request("POST", path, read, body, is_repeatable=dry_run))

    def history(self, limit: int = 100, after_sequence: int = 0) -> list[AuditRecord]:
        """Read audit events (1 to 500) after a sequence, oldest first, even if the schedule is deleted."""
        params = {"limit": limit, "after_sequence": after_sequence}
        return self._client.send(get(self._path("history"), responses.listed(AuditRecord), params))

    def iter_history(self, after_sequence: int = 0, *, follow: bool = False) -> Iterator[AuditRecord]:
        """Read all audit events after a sequence, page by page. With `follow`, also yield new events."""
        if follow:
            yield from self._client.follow(self._path("history", "stream"), {"after": after_sequence})
            return
        while page := self.history(MAX_PAGE, after_sequence):
            yield from page
            after_sequence = page[-1].sequence

    def runs(self, limit: int = 100, cursor: str | None = None, statuses: Sequence[str] = ()) -> Page[RunHandle]:
        """Read a page of runs, newest first; `statuses` are statuses of runs, or `blocked` (see `RunHandle`)."""
        params = {"limit": limit, "cursor": cursor, "status": list(statuses)}
        request = get(self._path("runs"), responses.page(RunDescription), params)
        return self._client.send(request.then(lambda page: page.map(self._run_handle)))

    def iter_runs(self, statuses: Sequence[str] = ()) -> Iterator[RunHandle]:
        """Read all runs, newest first, page by page."""
        return self._client._pages(lambda cursor: self.runs(MAX_PAGE, cursor, statuses))

    def run(self, run: str) -> RunHandle:
        """Find one run by uid, number or instance id; raises RunNotFoundError."""
        return self._client.send(get(self._path("runs", run), responses.one(RunDescription)).then(self._run_handle))
