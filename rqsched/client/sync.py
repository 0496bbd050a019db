"""The synchronous client and its handles. Each operation is declared here once: arguments, request, result.

An operation returns the result of its client's `send`, so that the asynchronous client can await it (see `aio`).
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
    from rqsched.api.list_filters import ListFilters
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
        """Read a page (1 to 500) of the runs of all schedules, deleted ones too, each with the id of its schedule.

        `since` and `until` bound the time of creation. `error` is a part of the text of the error. With it, and with
        the order `-ended`, only failed and lost runs are read, by the time of their end. Other orders are `-created`,
        the newest first, and `created`.
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
    """The operations on every schedule that matches the filters, in chunks; see `rqsched.types.BulkOperations`.

    The first step of the iteration sends a request that counts the schedules, and each further step a request that
    handles a chunk. A request whose response is lost is sent again.
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

    def _do(self, operation: str, filters: ListFilters, more: Mapping[str, Any], **how: Any) -> Iterator[BulkProgress]:
        body, read = requests.bulk_body(filters, **more, **how), responses.one(BulkProgress)
        return self._client._chunks(Request("POST", path_of("bulk", operation), read, body, is_repeatable=True))


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
        """Create a calendar, or replace what it holds; see `Calendars.set`."""
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
        """Read the namespace and id of the schedules that name it and that the token sees."""
        return self._client.send(get(path_of("calendars", calendar.name), responses.calendar_users))

    def history(self, calendar: Calendar) -> Sequence[dict[str, Any]]:
        """Read its newest 50 changes, the newest first; see `Calendars.history`."""
        return self._client.send(
            get(path_of("calendars", calendar.name), lambda response: list(response.json()["history"]))
        )


class Namespaces(operations.Namespaces):
    """Whole namespaces; see `rqsched.types.Namespaces`."""

    def preview_delete(self, name: str) -> NamespaceData:
        """Read the data that `delete` would delete; see `Namespaces.preview_delete`."""
        read = responses.one(NamespaceData)
        return self._client.send(
            Request("GET", path_of("namespace"), read, headers={"X-Namespace": name}, is_repeatable=True)
        )

    def delete(self, name: str, reason: str | None = None, *, terminate: bool = False) -> NamespaceData:
        """Delete some thousand rows of a frozen namespace for good; see `Namespaces.delete`.

        Call it again until `is_over`.
        """
        params = given({"confirm": name, "reason": reason, "terminate": "true" if terminate else None})
        headers, read = {"X-Namespace": name}, responses.one(NamespaceData)
        return self._client.send(Request("DELETE", path_of("namespace"), read, params=params, headers=headers))


class Client(operations.Operations):
    """Schedules over HTTP. Safe to share between threads; close it, or use it in a `with`.

    Raises the errors of the in-process API, ResponseError for errors that only HTTP has, and BackendUnavailableError
    when the server does not respond within `timeout` seconds and the retries.
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
    """The groups of runs of which only some run at once, or start in a time."""
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
        """Create a schedule; raises ScheduleExistsError when the id is taken. Safe to repeat: it is sent with a key."""
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
        """Return a handle without a request: for the history and runs of a schedule that may be deleted."""
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

        `sort` is `created`, `next` (only schedules that have a next fire) or `id`; a `-` before it reverses the order.
        A page of large schedules has fewer than `limit`, and a `next_cursor`.
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
        """List the registered workflows, with their defaults; a token of some namespaces gets those in use here."""
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

        `principal` is a part of the caller's name, in any case; it leaves out events without a caller, such as fires.

        With `follow` it also yields each event as it is recorded (without `after` and `since` only new ones) until it
        is closed. A lost connection is opened again at its position. Raises the errors of `get` when the first
        connection is refused.
        """
        params = requests.event_params(after, since, event_types, principal)
        if follow:
            return self.follow(path_of("events", "stream"), params)
        return self._pages(lambda cursor: self.send(requests.events(params, cursor)))

    def follow(self, path: str, params: Mapping[str, Any]) -> Iterator[EventRecord]:
        """Read a stream of events, connection after connection."""
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
        """Upsert a declared set; with `delete_removed`, delete schedules of earlier syncs that this set lacks.

        The whole set is checked, here and by the server, before anything is written. A large set is sent in several
        requests; when one fails, the earlier ones are done, and the same call again does the rest. `progress` is called
        with each id and its outcome. `dry_run` makes the same checks, returns the effect, and writes nothing.
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
        """Read the run until it has ended; raises TimeoutError after `timeout` seconds (None waits without end).

        >>> run.wait(timeout=60).result  # doctest: +SKIP
        """
        pauses = looks(timeout, time.monotonic)
        while not self.refresh().has_ended:
            time.sleep(next(pauses))
        return self

    def progress(self) -> TargetProgress | None:
        """Read the progress of its targets; None when it has no targets."""

        def read(response: httpx.Response) -> TargetProgress | None:
            found = response.json()["progress"]
            return found and responses.read(TargetProgress, found)

        return self._client.send(get(self._path("targets"), read, {"limit": 1}))

    def targets(
        self, limit: int = 100, cursor: str | None = None, *, status: str | None = None
    ) -> Page[TargetDescription]:
        """Read a page (1 to 500) of its targets in the order they were named, such as those of status `failed`."""
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
        """Every field of the schedule as it was last read; the first access reads it."""
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

        `paused` also pauses it, or makes a paused or dead one fire again.
        """
        body = requests.changes(workflow, spec, options, {"note": note, "paused": paused})
        # With a condition it is not repeatable: its own lost change would look like another's.
        headers, is_repeatable = self._if_match(if_version), if_version is None
        read = responses.one(Description)
        request = Request("PATCH", self._path(), read, body, headers=headers, is_repeatable=is_repeatable)
        return self._client.send(request.then(self._keep))

    def delete(
        self, *, purge: bool = False, reason: str | None = None, if_version: int | None = None
    ) -> ScheduleHandle:
        """Delete softly: the id becomes free, history stays unless purged.

        A handle that was read before gets the status `deleted` and no next fire; its other fields stay.
        """
        params, headers = given({"purge": "true" if purge else None, "reason": reason}), self._if_match(if_version)
        read, path = responses.nothing, self._path()
        request = Request("DELETE", path, read, params=params, headers=headers, is_repeatable=True)
        return self._client.send(request.then(self._keep_deleted))

    def trigger(
        self, overlap: str | None = None, *, force: bool = False, idempotency_key: str | None = None
    ) -> TriggerResult[RunHandle]:
        """Start a run now as the overlap policy allows. Safe to repeat: it is sent with a key."""

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
        """Read audit events (1 to 500) after a sequence, oldest first; works after delete too."""
        params = {"limit": limit, "after_sequence": after_sequence}
        return self._client.send(get(self._path("history"), responses.listed(AuditRecord), params))

    def iter_history(self, after_sequence: int = 0, *, follow: bool = False) -> Iterator[AuditRecord]:
        """Read all audit events after a sequence, page by page; with `follow` also each as it is recorded."""
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
