"""The list's `query` and page tokens. A query is an AND of equalities; a token is bound to namespace and filters."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import replace
from typing import Any

from rqsched.api.list_query import narrowed
from rqsched.core.ids import iso_utc
from rqsched.core.model import ScheduleStatus
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.http.durable_workflow.errors import PageTokenError, ReasonError
from rqsched.store.pages import read_cursor
from rqsched.store.schedule_queries import Filters

_STATUSES = {"active": ScheduleStatus.ACTIVE.value, "paused": ScheduleStatus.PAUSED.value}
SHOWN = ("active", "paused", "dead")
"""The statuses of listed schedules; a done schedule appears as deleted, and deleted ones are not listed."""


def filters_of(namespace: str, status: str | None, workflow_type: str | None, query: str | None) -> Filters:
    """Read the filters of a list; raises ReasonError 422."""
    filters = Filters(namespace=namespace, statuses=_statuses(status), workflow=workflow_type)
    try:
        return narrowed(filters, query or "", _statuses)
    except InvalidInputError as error:
        raise ReasonError(422, "invalid_query", str(error), field="query") from None


def _statuses(status: str | None) -> tuple[str, ...]:
    if status is None:
        return SHOWN
    if status not in _STATUSES:
        raise ReasonError(422, "invalid_status", f"status: {status!r} is not one of active, paused.", field="status")
    # A dead schedule shows as paused.
    return (_STATUSES[status], "dead") if status == "paused" else (_STATUSES[status],)


def encode_token(cursor: str | None, namespace: str, filters: Filters) -> str | None:
    """Return the page token of a cursor, bound to namespace and filters."""
    if cursor is None:
        return None
    text = json.dumps([cursor, namespace, _digest(filters)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_token(token: str | None, namespace: str, filters: Filters) -> str | None:
    """Return the cursor of a page token; raises ReasonError: malformed 400, other namespace 403, other filters 409."""
    if not token:
        return None
    try:
        cursor, of_namespace, digest = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise PageTokenError(400, "invalid_page_token", "next_page_token is malformed.") from None
    if not isinstance(cursor, str):
        raise PageTokenError(400, "invalid_page_token", "next_page_token is malformed.")
    if of_namespace != namespace:
        raise PageTokenError(403, "page_token_namespace_mismatch", "next_page_token belongs to another namespace.")
    if digest != _digest(filters):
        raise PageTokenError(
            409,
            "page_token_filter_mismatch",
            "next_page_token belongs to other filters; start again without it.",
            last_safe_cursor=_position(cursor),
        )
    return cursor


def _position(cursor: str) -> dict[str, Any] | None:
    """Return where the other list stood, for a client that wants to go on from there."""
    try:
        created_at, uid = read_cursor(cursor)
    except InvalidLimitError:
        return None
    return {"created_at": iso_utc(created_at), "schedule_ulid": uid}


def _digest(filters: Filters) -> str:
    statuses = sorted(filters.statuses)
    return hashlib.sha256(repr(replace(filters, statuses=statuses)).encode()).hexdigest()[:16]
