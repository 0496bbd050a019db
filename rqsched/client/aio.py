"""The asynchronous client. Its operations are the functions of the module `sync`, so no operation is written twice.

An operation sends one request through its client's `send` and returns the result of `send`. Here `send` returns a
coroutine, so the caller awaits the result of the operation. `awaited` declares this to type checkers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import httpx
import tenacity

from rqsched.api.description import Description, RunDescription
from rqsched.api.groups import Grouped
from rqsched.api.values import MAX_PAGE
from rqsched.api.waiting import looks
from rqsched.client import http, operations, requests, sync
from rqsched.client.event_stream import EventStream
from rqsched.client.groups import AsyncGroup, Awaited, Operation, awaited, iterated
from rqsched.client.http import Retries
from rqsched.client.requests import Request, path_of
from rqsched.client.responses import EventRecord
from rqsched.client.views import RunView, ScheduleView
from rqsched.errors import RqschedError
from rqsched.types import AuditRecord, BulkProgress, Page, Synced, TriggerResult

if TYPE_CHECKING:
    from rqsched import Declaration

P = ParamSpec("P")
T = TypeVar("T")


@overload
def _awaited(call: Operation[P, sync.ScheduleHandle]) -> Operation[P, Awaited[AsyncScheduleHandle]]: ...
@overload
def _awaited(
    call: Operation[P, tuple[sync.ScheduleHandle, str]],
) -> Operation[P, Awaited[tuple[AsyncScheduleHandle, str]]]: ...
@overload
def _awaited(call: Operation[P, Page[sync.ScheduleHandle]]) -> Operation[P, Awaited[Page[AsyncScheduleHandle]]]: ...
@overload
def _awaited(
    call: Operation[P, TriggerResult[sync.RunHandle]],
) -> Operation[P, Awaited[TriggerResult[AsyncRunHandle]]]: ...
@overload
def _awaited(call: Operation[P, sync.RunHandle]) -> Operation[P, Awaited[AsyncRunHandle]]: ...
@overload
def _awaited(
    call: Operation[P, Page[tuple[str, sync.RunHandle]]],
) -> Operation[P, Awaited[Page[tuple[str, AsyncRunHandle]]]]: ...
@overload
def _awaited(call: Operation[P, Page[sync.RunHandle]]) -> Operation[P, Awaited[Page[AsyncRunHandle]]]: ...
@overload
def _awaited(call: Operation[P, T]) -> Operation[P, Awaited[T]]: ...
def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that the caller awaits. Its result contains asynchronous handles."""
    return awaited(call)


@overload
def _iterated(
    call: Operation[P, Iterator[sync.ScheduleHandle]],
) -> Operation[P, AsyncGenerator[AsyncScheduleHandle]]: ...
@overload
def _iterated(call: Operation[P, Iterator[sync.RunHandle]]) -> Operation[P, AsyncGenerator[AsyncRunHandle]]: ...
@overload
def _iterated(
    call: Operation[P, Iterator[tuple[str, sync.RunHandle]]],
) -> Operation[P, AsyncGenerator[tuple[str, AsyncRunHandle]]]: ...
@overload
def _iterated(call: Operation[P, Iterator[T]]) -> Operation[P, AsyncGenerator[T]]: ...
def _iterated(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that returns an asynchronous iterator. It yields asynchronous handles."""
    return iterated(call)


class AsyncRuns(operations.AsyncRuns):
    """Runs whose operations are awaited."""

    list = _awaited(sync.Runs.list)
    iter = _iterated(sync.Runs.iter)


class AsyncBulkOperations(AsyncGroup):
    """BulkOperations with asynchronous iterators of chunks."""

    pause = _iterated(sync.BulkOperations.pause)
    resume = _iterated(sync.BulkOperations.resume)
    trigger = _iterated(sync.BulkOperations.trigger)
    skip_next = _iterated(sync.BulkOperations.skip_next)
    cancel_runs = _iterated(sync.BulkOperations.cancel_runs)
    retry_runs = _iterated(sync.BulkOperations.retry_runs)
    _do = sync.BulkOperations._do


class AsyncCalendars(operations.AsyncCalendars):
    """Calendars whose operations are awaited."""

    set = _awaited(sync.Calendars.set)
    used_by = _awaited(sync.Calendars.used_by)
    history = _awaited(sync.Calendars.history)


class AsyncNamespaces(operations.AsyncNamespaces):
    """Namespaces whose operations are awaited."""

    preview_delete = _awaited(sync.Namespaces.preview_delete)
    delete = _awaited(sync.Namespaces.delete)


class AsyncClient(operations.AsyncOperations):
    """Schedules over HTTP, for one event loop. Close the client, or use it in an `async with`.

    Raises the errors of the in-process API, and ResponseError for errors that only HTTP has. Raises
    BackendUnavailableError if the server does not respond within `timeout` seconds, even to the retries.
    """

    runs = Grouped(AsyncRuns)
    """The runs of all schedules."""
    backfills = Grouped(operations.AsyncBackfills)
    """The backfills of all schedules."""
    bulk = Grouped(AsyncBulkOperations)
    """The operations on every schedule that matches filters."""
    calendars = Grouped(AsyncCalendars)
    """Named exclusions that many schedules use."""
    limits = Grouped(operations.AsyncLimits)
    """The limits of groups: how many of their runs may run at once, or start within a length of time."""
    namespaces = Grouped(AsyncNamespaces)
    """Whole namespaces: their usage, and their deletion."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        timeout: float | httpx.Timeout = http.TIMEOUT,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect at the first request. `namespace` applies to all requests; None lets the server choose it."""
        headers = http.headers(token, namespace)
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._retries = retries or Retries()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def send(self, request: Request[T]) -> T:
        """Send one request, retry it if that is safe, and return the value of its response."""
        try:
            async for attempt in tenacity.AsyncRetrying(**self._retries.options(request)):
                with attempt:
                    response = await self._http.request(**http.arguments(request))
                    is_repeated = attempt.retry_state.attempt_number > 1
                    return http.read(request, response, is_repeated=is_repeated)
        except httpx.TransportError as error:
            raise http.unreachable(error) from error
        raise AssertionError("tenacity raises the last error")  # pragma: no cover

    async def _pages(self, read: Callable[[str | None], Awaited[Page[T]]]) -> AsyncGenerator[T]:
        cursor: str | None = None
        while True:
            page = await read(cursor)
            for found in page.items:
                yield found
            cursor = page.next_cursor
            if cursor is None:
                return

    def _handle(self, description: Description) -> AsyncScheduleHandle:
        return AsyncScheduleHandle(self, description.schedule_id, description)

    def _found_run(self, found: tuple[str, RunDescription]) -> tuple[str, AsyncRunHandle]:
        return found[0], AsyncRunHandle(self, *found)

    def handle(self, schedule_id: str) -> AsyncScheduleHandle:
        """Return a handle without a request. The handle can also read the history and runs of a deleted schedule."""
        return AsyncScheduleHandle(self, schedule_id)

    create = _awaited(sync.Client.create)
    upsert = _awaited(sync.Client.upsert)
    get = _awaited(sync.Client.get)
    list = _awaited(sync.Client.list)
    iter = _iterated(sync.Client.iter)
    count = _awaited(sync.Client.count)
    batch_delete = _awaited(sync.Client.batch_delete)
    workflows = _awaited(sync.Client.workflows)

    async def _chunks(self, first: Request[BulkProgress]) -> AsyncGenerator[BulkProgress]:
        chunk: Request[BulkProgress] | None = first
        while chunk is not None:
            progress = await self.send(chunk)
            yield progress
            chunk = requests.next_chunk(chunk, progress)

    async def sync(
        self,
        declarations: Iterable[Declaration],
        *,
        delete_removed: bool = False,
        dry_run: bool = False,
        progress: Callable[[str, str], None] | None = None,
    ) -> Synced:
        """Upsert a set of declarations; see `Client.sync`."""
        parts = requests.sync_requests(declarations, delete_removed=delete_removed)
        if dry_run:
            return requests.joined([await self.send(part) for part in requests.rehearsed(parts)])
        for rehearsal in requests.rehearsed(parts if len(parts) > 1 else []):
            await self.send(rehearsal)
        return requests.joined([requests.told(await self.send(part), progress) for part in parts])

    def events(
        self,
        *,
        follow: bool = False,
        after: str | None = None,
        since: datetime | None = None,
        event_types: Sequence[str] = (),
        principal: str | None = None,
    ) -> AsyncGenerator[EventRecord]:
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

    async def follow(self, path: str, params: Mapping[str, Any]) -> AsyncGenerator[EventRecord]:
        """Read a stream of events. If a connection ends, open the next one."""
        stream = EventStream(path, params, self._retries)
        while not self._http.is_closed:
            error: Exception | None = None
            try:
                async with self._http.stream(**stream.arguments(self._http.timeout)) as response:
                    if not response.is_success:
                        await response.aread()
                        raise http.error_of(response)
                    stream.begin()
                    async for line in response.aiter_lines():
                        if (event := stream.read(line)) is not None:
                            yield event
            except (httpx.TransportError, RqschedError) as caught:
                error = caught
            await asyncio.sleep(stream.pause_after(error))


class AsyncRunHandle(RunView):
    """One run: its description as it was last read, and the operations on it."""

    def __init__(self, client: AsyncClient, schedule_id: str, description: RunDescription) -> None:
        self._client = client
        self._schedule_id = schedule_id
        self.description = description

    async def wait(self, timeout: float | None = None) -> AsyncRunHandle:  # noqa: ASYNC109 - as the other client has it
        """Read the run repeatedly until it has ended; raises TimeoutError after `timeout` seconds (None: never)."""
        pauses = looks(timeout, time.monotonic)
        while not (await self.refresh()).has_ended:  # noqa: ASYNC110 - the run is on a server
            await asyncio.sleep(next(pauses))
        return self

    refresh = _awaited(sync.RunHandle.refresh)
    retry = _awaited(sync.RunHandle.retry)
    run_again = _awaited(sync.RunHandle.run_again)
    progress = _awaited(sync.RunHandle.progress)
    targets = _awaited(sync.RunHandle.targets)
    cancel = _awaited(sync.RunHandle.cancel)
    terminate = _awaited(sync.RunHandle.terminate)


class AsyncScheduleHandle(ScheduleView):
    """One schedule by its id: its description as it was last read, and the operations on it."""

    def __init__(self, client: AsyncClient, schedule_id: str, description: Description | None = None) -> None:
        super().__init__(schedule_id, description)
        self._client = client

    @property
    def description(self) -> Description:
        """Every field of the schedule as it was last read; raises LookupError if it was not read yet."""
        if self._description is None:
            raise LookupError("the schedule has not been read yet; await describe() first")
        return self._description

    def _run_handle(self, description: RunDescription) -> AsyncRunHandle:
        return AsyncRunHandle(self._client, self.schedule_id, description)

    refresh = _awaited(sync.ScheduleHandle.refresh)
    describe = _awaited(sync.ScheduleHandle.describe)
    update = _awaited(sync.ScheduleHandle.update)
    pause = _awaited(sync.ScheduleHandle.pause)
    skip_next = _awaited(sync.ScheduleHandle.skip_next)
    resume = _awaited(sync.ScheduleHandle.resume)
    restart = _awaited(sync.ScheduleHandle.restart)
    delete = _awaited(sync.ScheduleHandle.delete)
    trigger = _awaited(sync.ScheduleHandle.trigger)
    backfill = _awaited(sync.ScheduleHandle.backfill)
    history = _awaited(sync.ScheduleHandle.history)
    deliveries = _awaited(sync.ScheduleHandle.deliveries)
    runs = _awaited(sync.ScheduleHandle.runs)
    iter_runs = _iterated(sync.ScheduleHandle.iter_runs)
    run = _awaited(sync.ScheduleHandle.run)
    upcoming = _awaited(sync.ScheduleHandle.upcoming)
    why = _awaited(sync.ScheduleHandle.why)

    async def iter_history(self, after_sequence: int = 0, *, follow: bool = False) -> AsyncGenerator[AuditRecord]:
        """Read all audit events after a sequence, page by page. With `follow`, also yield new events."""
        if follow:
            async with aclosing(
                self._client.follow(self._path("history", "stream"), {"after": after_sequence})
            ) as events:
                async for followed in events:
                    yield followed
            return
        while page := await self.history(MAX_PAGE, after_sequence):
            for event in page:
                yield event
            after_sequence = page[-1].sequence
