"""Give new audit events to any number of readers. Each process polls the database once a second.

A thread polls while there are readers, and gives each event once to every reader that wants it. The buffer of a reader
is limited, and a reader that does not keep up is disconnected. While the database does not answer, readers get no
events. Afterwards, polling continues where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from rqsched.api import events as event_queries
from rqsched.api.database import Connection, DatabaseError
from rqsched.api.events import SETTLING, FoundEvent, Position
from rqsched.api.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.http.errors import TooManyStreamsError
from rqsched.http.limits import Limits
from rqsched.types import Page

T = TypeVar("T")
_log = logging.getLogger(__name__)
PAGE = 100
"""How many events are read at once. The number is small, because a payload may have 256 KiB."""
_MOST_EVENTS, _MOST_CHARACTERS = 1_000, 8_000_000
_THREADS = 4
_RECENT, _POLLS = timedelta(seconds=2), 10
"""How far the range of each poll overlaps the previous range. Every tenth poll overlaps by `SETTLING` instead."""


_READS: RunVar[CapacityLimiter] = RunVar("rqsched_stream_reads")  # each event loop has a separate limiter


def _reads() -> CapacityLimiter:
    try:
        return _READS.get()
    except LookupError:
        _READS.set(CapacityLimiter(_THREADS))
        return _READS.get()


class Reader:
    """One stream, with a limited buffer of events. It belongs to the event loop in which it was created.

    The polling thread calls `may_read` at each poll. If `may_read` returns False, the stream ends.
    """

    def __init__(
        self,
        namespace: str,
        since: datetime,
        schedule_uid: str | None = None,
        may_read: Callable[[], bool] = lambda: True,
    ) -> None:
        self.namespace = namespace
        self.may_read = may_read
        self.schedule_uid = schedule_uid
        self.since = since
        self.is_over = False
        self.behind = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._events: deque[FoundEvent] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def wants(self, event: FoundEvent) -> bool:
        """Return whether an event belongs to the namespace and the schedule of this reader."""
        return event.namespace == self.namespace and self.schedule_uid in {None, event.record.schedule_uid}

    def give(self, events: Sequence[FoundEvent]) -> bool:
        """Give events to the reader, from any thread. Return False if its event loop has ended."""
        return self._call(lambda: self._keep(events))

    def end(self) -> bool:
        """End the stream, from any thread."""
        return self._call(self._end)

    def _call(self, work: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _keep(self, events: Sequence[FoundEvent]) -> None:
        self._events.extend(events)
        self._size += sum(event.size for event in events)
        if len(self._events) > _MOST_EVENTS or self._size > _MOST_CHARACTERS:
            self._events.clear()
            self.behind.set()  # the client reconnects and resumes at its position
            return
        self._changed.set()

    def _end(self) -> None:
        self.is_over = True
        self._changed.set()

    async def take(self, seconds: float) -> list[FoundEvent]:
        """Wait for events for up to `seconds`, and return the events that have arrived."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return []
        self._changed.clear()
        found = list(self._events)
        self._events.clear()
        self._size = 0
        if self.schedule_uid is not None:
            found.sort(key=lambda event: event.record.sequence)
        return found


class EventFeed:
    """The audit events of the namespaces that have readers."""

    def __init__(self, runtime: Runtime, limits: Limits) -> None:
        self.limits = limits
        """The maximum number of streams, how long each lasts, and the interval between polls."""
        self._runtime = runtime
        self._readers: set[Reader] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def subscribe(self, reader: Reader) -> None:
        """Give events to a reader from now on; raises TooManyStreamsError."""
        with self._lock:
            self.require_room()
            self._readers.add(reader)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rqsched-events", daemon=True)
                self._thread.start()

    def unsubscribe(self, reader: Reader) -> None:
        """Give no more events to a reader. Without any reader the polling ends."""
        with self._lock:
            self._readers.discard(reader)
            if not self._readers:
                self._wake.set()

    def close(self) -> None:
        """End every stream and refuse new streams, because the process stops."""
        with self._lock:
            self._is_closed = True
            readers = list(self._readers)
        for reader in readers:
            reader.end()
        self._wake.set()

    @property
    def readers(self) -> int:
        """The number of readers."""
        return len(self._readers)

    def require_room(self) -> None:
        """Raise TooManyStreamsError unless there is room for one more reader."""
        if self._is_closed or len(self._readers) >= self.limits.streams:
            raise TooManyStreamsError(self.limits.streams)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read in a thread of a separate pool, so that a database that hangs occupies no thread of other requests."""
        return await to_thread.run_sync(self._runtime.database.read, work, limiter=_reads())

    def _run(self) -> None:
        polled_at, number = None, 0
        seen: dict[tuple[str, int], datetime] = {}
        while readers := self._current():
            polled_at = polled_at or min(reader.since for reader in readers)
            reach = SETTLING if number == 0 else _RECENT
            try:
                started_at = self._runtime.now()
                self._poll(readers, seen, polled_at - reach)
            except (RqschedError, DatabaseError) as error:
                _log.warning("audit events cannot be read: %s", error, extra={"action": "event_feed_failed"})
                number = 0  # makes the next poll overlap by `SETTLING`
            except Exception:  # noqa: BLE001 - a thread's boundary
                _log.exception("audit events cannot be read", extra={"action": "event_feed_failed"})
                number = 0
            else:
                polled_at, number = started_at, (number + 1) % _POLLS
                for key in [key for key, recorded_at in seen.items() if recorded_at < polled_at - 2 * SETTLING]:
                    del seen[key]
            self._wake.wait(self.limits.stream_poll)

    def _current(self) -> list[Reader]:
        """Return the readers; without any, end the polling thread."""
        with self._lock:
            readers = [] if self._is_closed else list(self._readers)
            self._wake.clear()  # if the last reader has left and a new one has come, the event is still set
            if not readers:
                self._thread = None
            return readers

    def _poll(self, readers: Sequence[Reader], seen: dict[tuple[str, int], datetime], since: datetime) -> None:
        """Give the events that are new since the last poll to the readers, page by page."""
        for reader in readers:
            if not reader.may_read():
                reader.end()
        namespaces = sorted({reader.namespace for reader in readers})
        position = event_queries.position_before(since)
        while True:
            page = self._read(namespaces, position)
            fresh = [event for event in page.items if event.key not in seen]
            seen.update((event.key, event.record.recorded_at) for event in fresh)
            for reader in readers:
                if (wanted := [event for event in fresh if reader.wants(event)]) and not reader.give(wanted):
                    self.unsubscribe(reader)
            if page.next_cursor is None:
                return
            position = page.items[-1].position

    def _read(self, namespaces: Sequence[str], position: Position) -> Page[FoundEvent]:
        return self._runtime.database.read(
            lambda connection: event_queries.read_after(connection, namespaces, position, limit=PAGE)
        )
