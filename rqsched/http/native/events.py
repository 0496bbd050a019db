"""Audit events of a namespace: pages, and streams (server-sent events) of a namespace and of one schedule."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, Response

from rqsched.api import events as event_queries
from rqsched.api.events import SETTLING
from rqsched.api.states import CONTRACT
from rqsched.api.values import is_uid
from rqsched.errors import InvalidInputError, ScheduleNotFoundError
from rqsched.http.dependencies import Read, wiring_of
from rqsched.http.errors import TooManyStreamsError
from rqsched.http.event_feed import Reader
from rqsched.http.event_stream import MEDIA_TYPE, NamespaceCursor, ScheduleCursor, Wanted, event_fields, open_stream
from rqsched.http.native.requests import Instant, Limit, ScheduleId
from rqsched.http.native.responses import FoundEventsResponse
from rqsched.http.openapi import PROBLEM
from rqsched.http.request_bodies import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["events"])

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATA = {
    "type": "string",
    "contentMediaType": "application/json",
    "contentSchema": {"$ref": "#/components/schemas/FoundEventResponse"},
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; the schema is that of each.",
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "data": _DATA},
                    "required": ["id", "data"],
                },
                "example": {"id": "01KG8J6R00V4ZQ3N7M5T2X9C1B.3", "data": '{"schedule_id": "nightly", "sequence": 3}'},
            }
        },
    }
}
After = Annotated[str | None, Query(max_length=100, description="The id of an event: only what follows it.")]
EventTypes = Annotated[list[str] | None, Query(description="Only these types, such as RunFailed.")]
Principal = Annotated[
    str | None,
    Query(min_length=1, max_length=255, description="Asked for by somebody whose name has this part, in any case."),
]
Since = Annotated[Instant | None, Query(description="Recorded then or later.")]
LastEventId = Annotated[
    str | None, Header(max_length=100, description="The same; a browser that comes back sends it, and it wins.")
]


@router.get("/events/", response_model=FoundEventsResponse)
def list_events(
    call: Read,
    event_type: EventTypes = None,
    principal: Principal = None,
    since: Since = None,
    until: Annotated[Instant | None, Query(description="Recorded before.")] = None,
    limit: Limit = 100,
    after: After = None,
    cursor: Annotated[str | None, Query(max_length=100, description="The next_cursor of the previous page.")] = None,
) -> Response:
    """Read the audit events of all schedules of the namespace, in the order they were recorded.

    With the filter `principal`, a page searches 5 000 events. It may be empty although `next_cursor` leads to more.
    """
    start = event_queries.position_before(since or _EPOCH)
    for name, text in (("after", after), ("cursor", cursor)):
        if text is not None:
            start = max(start, event_queries.read_position(name, text))
    types = _types_of(event_type)
    page = call.read(
        lambda connection: event_queries.read_after(
            connection, [call.namespace], start, limit=limit, event_types=types, until=until, principal=principal
        )
    )
    items = [event_fields(event, str(event.position)) for event in page.items]
    return JSONResponse({"items": items, "next_cursor": page.next_cursor})


def _types_of(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Read a filter by type, repeated or comma-separated; raises InvalidInputError for an unknown type."""
    types = tuple(name for text in texts or () for name in text.split(",") if name)
    if unknown := [name for name in types if name not in CONTRACT]:
        raise InvalidInputError("event_type", f"{unknown[0]!r} is not one of {', '.join(CONTRACT)}")
    return types


@router.get("/events/stream/", response_class=Response, responses={**_STREAM, **PROBLEM.of(TooManyStreamsError)})
async def stream_events(
    call: Read,
    request: Request,
    event_type: EventTypes = None,
    principal: Principal = None,
    since: Since = None,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the audit events of the namespace: those after an event or an instant, then new events."""
    feed, text = wiring_of(request).feed, last_event_id or after
    now = await to_thread.run_sync(call.scheduler.runtime.now)
    floor = now - SETTLING if since is None else since
    if text is not None:
        floor = max(since or _EPOCH, event_queries.read_position("after", text).recorded_at - SETTLING)
    cursor, is_new = NamespaceCursor(call.namespace, floor), text is None and since is None
    wanted = Wanted(frozenset(_types_of(event_type)), principal)
    return await open_stream(feed, Reader(call.namespace, now), cursor, is_new=is_new, wanted=wanted)


@router.get(
    "/schedules/{schedule_id}/history/stream/",
    response_class=Response,
    responses={**_STREAM, **PROBLEM.of(ScheduleNotFoundError, TooManyStreamsError)},
)
async def stream_history(
    call: Read,
    schedule_id: ScheduleId,
    request: Request,
    after: Annotated[str | None, Query(max_length=100, description="A sequence, or the id of an event.")] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the audit events of one schedule, in order and without gaps: after a sequence, or from now on."""
    feed, text = wiring_of(request).feed, last_event_id or after
    now = await to_thread.run_sync(call.scheduler.runtime.now)
    handle = await to_thread.run_sync(call.newest, schedule_id)
    start = handle.state.event_sequence if text is None else _sequence_of(text, handle.uid)
    cursor = ScheduleCursor(call.namespace, schedule_id, handle.uid, start)
    return await open_stream(feed, Reader(call.namespace, now, handle.uid), cursor, is_new=text is None)


def _sequence_of(text: str, uid: str) -> int:
    """Read the sequence after which to continue. If `text` belongs to an earlier schedule of this id, return 0."""
    before, separator, sequence = text.rpartition(".")
    is_known = is_uid(before) if separator else True
    if not (is_known and sequence.isascii() and sequence.isdigit() and len(sequence) <= 18):
        raise InvalidInputError("after", "is neither a sequence nor an event of this schedule; pass the id of one")
    return int(sequence) if before in {"", uid} else 0
