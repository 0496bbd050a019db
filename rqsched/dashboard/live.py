"""The event stream by which a page learns that something changed; an event names the schedule and what happened.

Where there is no stream the page is loaded again every few seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import wiring_of
from rqsched.http.event_feed import Reader
from rqsched.http.event_stream import EventStream, NamespaceCursor, open_stream
from rqsched.store.event_queries import SETTLING, FoundEvent


async def follow(visit: Visit) -> EventStream:
    """Return the stream of what changes in the viewer's namespace since the page was read.

    Raises InvalidInputError, TooManyStreamsError and DatabaseUnavailableError.
    """
    cursor, reader = NamespaceCursor(visit.namespace, _since(visit)), Reader(visit.namespace, visit.now)
    return await open_stream(wiring_of(visit.request).feed, reader, cursor, is_new=False, fields=_least)


def _since(visit: Visit) -> datetime:
    """Read since when; a page from long ago needs no older events, for it is loaded again."""
    text = visit.query("since")
    try:
        at = datetime.fromisoformat(text) if text else visit.now
    except ValueError:
        raise InvalidInputError("since", f"{text[:64]!r} is not a time; load the page again") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at, visit.now - SETTLING), visit.now)


def _least(event: FoundEvent, id_: str) -> dict[str, Any]:
    """Return which schedule changed and how: what changed is read with the page."""
    return {"id": id_, "schedule_id": event.schedule_id, "event_type": event.record.event_type}
