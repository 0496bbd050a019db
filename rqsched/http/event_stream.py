"""Stream audit events as server-sent events: events after a reader's position, then new events as they are recorded.

Delivery is at least once: a reader that reconnects gets the events shortly before its position again, because
transactions do not commit in the order in which they read the clock. (schedule_uid, sequence) identifies an event.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rqsched.api import events as event_queries
from rqsched.api.cursors import PAGE_CHARACTERS
from rqsched.api.database import Connection, DatabaseError
from rqsched.api.events import SETTLING, FoundEvent
from rqsched.api.values import iso_utc
from rqsched.errors import RqschedError
from rqsched.http.event_feed import PAGE, EventFeed, Reader
from rqsched.http.middleware import IS_HEAD
from rqsched.types import AuditRecord, Page

_log = logging.getLogger(__name__)
MEDIA_TYPE = "text/event-stream"
RECONNECT_MS = 3_000
"""How long a browser waits before it reconnects."""
_STALLED = 30.0
"""Seconds after which a reader that receives nothing is disconnected."""
_ENDING = 1.0
"""Seconds in which a reader must take the end of the stream."""
_HEARTBEAT = b":\n\n"
Fields = Callable[[FoundEvent, str], dict[str, Any]]
"""Builds the fields that a reader gets, from an event and its id for `Last-Event-ID`."""


class Cursor(Protocol):
    """A reader's position."""

    def read(self, connection: Connection) -> Page[FoundEvent]:
        """Read the next page of the events that were recorded before the stream began."""
        ...

    def take(self, events: list[FoundEvent]) -> list[FoundEvent]:
        """Return the events that are new to the reader, and move the position after them."""
        ...

    def rewind(self) -> None:
        """Move the position back, because events before it may still appear. Later events come from the feed."""
        ...

    def id_of(self, event: FoundEvent) -> str:
        """Return the id with which a reader continues after an event."""
        ...


class NamespaceCursor:
    """The position of a reader of a namespace."""

    def __init__(self, namespace: str, floor: datetime) -> None:
        self._namespace = namespace
        self._position = event_queries.position_before(floor)
        self._floor = self._position.recorded_at
        self._had: dict[tuple[str, int], datetime] | None = {}
        self._until: datetime | None = None

    def read(self, connection: Connection) -> Page[FoundEvent]:
        """Read the next page of the namespace."""
        return event_queries.read_after(connection, [self._namespace], self._position, limit=PAGE)

    def take(self, events: list[FoundEvent]) -> list[FoundEvent]:
        """Return the events that are new to the reader. Some time after the start, the feed alone removes repeats."""
        if not events:
            return []
        self._position = max(self._position, events[-1].position)
        had, newest = self._had, self._position.recorded_at
        if had is None:
            return events
        fresh = [event for event in events if event.key not in had and event.record.recorded_at >= self._floor]
        had.update((event.key, event.record.recorded_at) for event in fresh)
        self._had = {key: recorded_at for key, recorded_at in had.items() if recorded_at >= newest - 2 * SETTLING}
        if self._until is not None and newest > self._until:
            self._had = None
        return fresh

    def rewind(self) -> None:
        """Move the position back, because events before it may still appear."""
        newest = self._position.recorded_at
        self._until = newest + 2 * SETTLING
        self._position = event_queries.position_before(newest - SETTLING)

    def id_of(self, event: FoundEvent) -> str:
        """Return the position of an event."""
        return str(event.position)


class ScheduleCursor:
    """The position of a reader of one schedule. The sequences of a schedule have no gaps and appear in order."""

    def __init__(self, namespace: str, schedule_id: str, uid: str, sequence: int) -> None:
        self._names = schedule_id, namespace
        self._uid, self._sequence = uid, sequence

    def read(self, connection: Connection) -> Page[FoundEvent]:
        """Read the next page of the schedule's history."""
        page = event_queries.history(
            connection, self._uid, limit=PAGE, after_sequence=self._sequence, most=PAGE_CHARACTERS
        )
        return page.map(lambda record: FoundEvent(record, *self._names))

    def take(self, events: list[FoundEvent]) -> list[FoundEvent]:
        """Return the events after the last one that the reader got."""
        fresh = [event for event in events if event.record.sequence > self._sequence]
        if fresh:
            self._sequence = fresh[-1].record.sequence
        return fresh

    def rewind(self) -> None:
        """Do nothing, because no event appears before a known sequence."""

    def id_of(self, event: FoundEvent) -> str:
        """Return the uid of the schedule and the sequence of the event."""
        return f"{self._uid}.{event.record.sequence}"


def event_fields(event: FoundEvent, id_: str) -> dict[str, Any]:
    """Return an event as it was recorded, with the id with which a reader continues after this event."""
    record = asdict(event.record) | {"recorded_at": iso_utc(event.record.recorded_at)}
    return {"id": id_, "schedule_id": event.schedule_id, **record}


class Wanted(NamedTuple):
    """A reader's filter of events."""

    event_types: Collection[str] = frozenset()
    """The types that pass. If this is empty, all types pass."""
    principal: str | None = None
    """A part of the principal's name, in any case; None lets all events pass, also those without a principal."""

    def has(self, record: AuditRecord) -> bool:
        """Return whether an event passes."""
        if self.event_types and record.event_type not in self.event_types:
            return False
        asked_by = (record.payload.get("command_context") or {}).get("principal") or ""
        return self.principal is None or self.principal.lower() in asked_by.lower()


EVERYTHING = Wanted()
"""The filter that every event passes."""


async def open_stream(
    feed: EventFeed,
    reader: Reader,
    cursor: Cursor,
    *,
    is_new: bool,
    wanted: Wanted = EVERYTHING,
    fields: Fields = event_fields,
) -> EventStream:
    """Return the response of a stream. A new reader gets only events that are recorded from now on.

    `fields` builds the fields of each event. Raises TooManyStreamsError or DatabaseUnavailableError before the response
    begins.
    """
    feed.require_room()
    while is_new:
        page = await feed.read(cursor.read)
        cursor.take(page.items)
        is_new = page.next_cursor is not None
    return EventStream(feed, reader, cursor, wanted, fields)


class EventStream(Response):
    """The response of a stream; `open_stream` makes it."""

    def __init__(self, feed: EventFeed, reader: Reader, cursor: Cursor, wanted: Wanted, fields: Fields) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._reader, self._cursor = feed, reader, cursor
        self._wanted, self._fields = wanted, fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader disconnects, does not keep up, or has used up its time."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with anyio.create_task_group() as group:

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            async def behind() -> None:
                await self._reader.behind.wait()
                _log.info("a reader of events does not keep up", extra={"action": "event_reader_behind"})
                group.cancel_scope.cancel()

            group.start_soon(gone)
            group.start_soon(behind)
            if not scope.get(IS_HEAD):
                await self._send_all(send)
            group.cancel_scope.cancel()
        # Complete the response, also of a reader that is behind: a browser shows a cut response as an error. A reader
        # that takes nothing any more is disconnected.
        with anyio.move_on_after(_ENDING):
            await send({"type": "http.response.body", "body": b""})

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                with anyio.move_on_after(_STALLED) as scope:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if scope.cancelled_caught:
                    return

    async def _chunks(self) -> AsyncGenerator[bytes]:
        yield f"retry: {RECONNECT_MS}\n\n".encode()
        try:
            async for chunk in self._backlog():
                yield chunk
            self._feed.subscribe(self._reader)
            self._cursor.rewind()
            async for chunk in self._backlog():
                yield chunk
            async for chunk in self._live():
                yield chunk
        except (RqschedError, DatabaseError):
            yield b": the events cannot be read now; come back later\n\n"
        finally:
            self._feed.unsubscribe(self._reader)

    async def _backlog(self) -> AsyncIterator[bytes]:
        while True:
            page = await self._feed.read(self._cursor.read)
            if chunk := self._render(self._cursor.take(page.items)):
                yield chunk
            if page.next_cursor is None or self._reader.is_over:
                return

    async def _live(self) -> AsyncIterator[bytes]:
        limits, sent_at = self._feed.limits, time.monotonic()
        ends_at = sent_at + limits.stream_seconds
        while not self._reader.is_over and (now := time.monotonic()) < ends_at:
            found = await self._reader.take(max(0.0, min(ends_at, sent_at + limits.heartbeat) - now))
            chunk = self._render(self._cursor.take(found))
            if not chunk and time.monotonic() - sent_at >= limits.heartbeat:
                chunk = _HEARTBEAT  # also while all new events fail the filter of the reader
            if chunk:
                yield chunk
                sent_at = time.monotonic()

    def _render(self, events: list[FoundEvent]) -> bytes:
        chunk = ""
        for event in events:
            if self._wanted.has(event.record):
                id_ = self._cursor.id_of(event)
                text = json.dumps(self._fields(event, id_), ensure_ascii=False, separators=(",", ":"))
                chunk += f"id: {id_}\ndata: {text}\n\n"
        return chunk.encode()
