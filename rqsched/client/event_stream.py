"""Read a stream of audit events (server-sent events) line by line, and continue it with the next connection."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from rqsched.client.http import ResponseError, Retries, unreachable
from rqsched.client.responses import EventRecord, read
from rqsched.errors import BackendUnavailableError

SILENCE = 60.0
"""Seconds without a byte after which a stream counts as dead. A server sends a heartbeat every 15 s."""
_KNOWN = 5_000


@dataclass
class EventStream:
    """The position of one reader, over all its connections."""

    path: str
    """The path of the stream."""
    params: Mapping[str, Any]
    """The query of the first connection."""
    retries: Retries
    """How long to wait before the next connection."""
    last_id: str | None = None
    """The id of the newest event that was read."""
    _failures: int = 0
    _was_connected: bool = False
    _data: list[str] = field(default_factory=list)
    _id: str | None = None
    _had: dict[tuple[str, int], None] = field(default_factory=dict)

    def arguments(self, timeout: httpx.Timeout) -> dict[str, Any]:
        """Return the arguments of httpx for the next connection."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        quiet = httpx.Timeout(**{**timeout.as_dict(), "read": SILENCE})
        self._data.clear()
        return {"method": "GET", "url": self.path, "params": self.params, "headers": headers, "timeout": quiet}

    def begin(self) -> None:
        """Record that the server has accepted. From now on, a lost connection is reopened any number of times."""
        self._was_connected, self._failures = True, 0

    def read(self, line: str) -> EventRecord | None:
        """Read one line. If the line completes an event that was not returned before, return the event."""
        if line.startswith("id:"):
            self._id = line[3:].strip()
        elif line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            text, self.last_id = "\n".join(self._data), self._id or self.last_id
            self._data.clear()
            return self._new(read(EventRecord, json.loads(text)))
        return None

    def _new(self, event: EventRecord) -> EventRecord | None:
        key = event.schedule_uid, event.sequence
        if key in self._had:
            return None
        self._had[key] = None
        if len(self._had) > _KNOWN:
            del self._had[next(iter(self._had))]
        return event

    def pause_after(self, error: Exception | None) -> float:
        """Return the seconds to wait before the next connection. If there is no next connection, raise the error."""
        self._failures += 1
        passes = error is None or isinstance(error, httpx.TransportError | BackendUnavailableError)
        passes = passes or (isinstance(error, ResponseError) and error.code == "rate_limited")
        if error is not None and not (passes and (self._was_connected or self._failures <= self.retries.most)):
            raise unreachable(error) if isinstance(error, httpx.TransportError) else error
        longest = min(self.retries.longest, self.retries.first * 2 ** min(self._failures, 30))
        asked: float = getattr(error, "retry_after", None) or 0.0
        return max(min(asked, self.retries.longest), random.uniform(longest / 2, longest))  # noqa: S311 - no secret
