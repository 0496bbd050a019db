"""What tells a page that something changed: the event stream, with the least of each event.

A browser's EventSource complains on its console of an error; 204 tells it without one that there is no stream now.
The page is then read again every few seconds, as it is where no stream can be (`rqsched.dashboard.wsgi()`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.http.dependencies import wiring_of
from rqsched.http.event_feed import Reader
from rqsched.http.event_stream import EventStream, NamespaceCursor, open_stream
from rqsched.store.event_feed import SETTLING, FoundEvent


async def follow(visit: Visit) -> EventStream:
    """Return the stream of what changes in the viewer's namespace since the page was read.

    Raises InvalidInputError, TooManyStreamsError and DatabaseUnavailableError.
    """
    cursor, reader = NamespaceCursor(visit.namespace, _since(visit)), Reader(visit.namespace, visit.now)
    return await open_stream(wiring_of(visit.request).feed, reader, cursor, is_new=False, fields=_least)


def none_now() -> Response:
    """Return the answer that makes a browser stop asking for the stream without a complaint."""
    return Response(status_code=204)


def _since(visit: Visit) -> datetime:
    """Read since when; a page that was read long ago, or comes back after a lost connection, is read anew instead."""
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
