"""The list's `query` and page tokens. A query is an AND of equalities; a token is bound to namespace and filters."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

from rqsched.core.ids import iso_utc
from rqsched.core.model import ScheduleStatus
from rqsched.core.payload import MEMO_BYTES, json_text
from rqsched.errors import InvalidLimitError, InvalidPayloadError
from rqsched.http.durable_workflow.errors import PageTokenError, ReasonError
from rqsched.store.cursors import read_cursor
from rqsched.store.schedule_filters import Filters

_TERM = re.compile(r"""\s*([A-Za-z_][\w.-]*)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[-\w.:]+)\s*""")
_AND = re.compile(r"AND\b", re.IGNORECASE)
_FIELDS = {"ScheduleId": "schedule_id", "WorkflowType": "workflow", "TaskQueue": "queue", "Note": "note"}
_STATUSES = {"active": ScheduleStatus.ACTIVE.value, "paused": ScheduleStatus.PAUSED.value}
_NO_MATCH = ("none",)
"""A status that no schedule has."""
SHOWN = ("active", "paused", "dead")
"""The statuses of listed schedules; a done schedule appears as deleted, and deleted ones are not listed."""


def filters_of(namespace: str, status: str | None, workflow_type: str | None, query: str | None) -> Filters:
    """Read the filters of a list; raises ReasonError 422."""
    filters = Filters(namespace=namespace, statuses=_statuses(status), workflow=workflow_type)
    for name, value in _terms(query or ""):
        filters = _narrowed(filters, name, value)
    return filters


def _statuses(status: str | None) -> tuple[str, ...]:
    if status is None:
        return SHOWN
    if status not in _STATUSES:
        raise ReasonError(422, "invalid_status", f"status: {status!r} is not one of active, paused.", field="status")
    # A dead schedule shows as paused.
    return (_STATUSES[status], "dead") if status == "paused" else (_STATUSES[status],)


def _invalid_query(message: str) -> ReasonError:
    return ReasonError(422, "invalid_query", message, field="query")


def _terms(query: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    position = 0
    while query[position:].strip():
        match = _TERM.match(query, position)
        if match is None:
            raise _invalid_query('query: use Field = "value" AND Field = "value".')
        found.append((match[1], _value(match[2])))
        position = match.end()
        if not query[position:].strip():
            break
        following = _AND.match(query, position)
        if following is None:
            raise _invalid_query("query: equalities may only be joined by AND.")
        position = following.end()
        if not query[position:].strip():
            raise _invalid_query("query: an equality is missing after AND.")
    return found


def _value(text: str) -> Any:
    value = _read_value(text)
    try:
        json_text("query", value, MEMO_BYTES)  # a driver may refuse to compare with what cannot be stored
    except InvalidPayloadError as error:
        raise _invalid_query(str(error)) from None
    return value


def _read_value(text: str) -> Any:
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            raise _invalid_query(f"query: {text} is not a valid string.") from None
    if text.startswith("'"):
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _narrowed(filters: Filters, name: str, value: Any) -> Filters:
    """Add an equality; two that contradict each other match nothing."""
    if name == "Status":
        wanted = set(_statuses(str(value).lower())) & set(filters.statuses)
        return replace(filters, statuses=tuple(wanted) or _NO_MATCH)
    if name in _FIELDS:
        known, field = getattr(filters, _FIELDS[name]), {_FIELDS[name]: str(value)}
        found: Filters = replace(filters, **field)  # type: ignore[arg-type]
        return found if known in {None, str(value)} else replace(found, statuses=_NO_MATCH)
    asked = filters.search_attributes
    found = replace(filters, search_attributes={**asked, name: value})
    return found if asked.get(name, value) == value else replace(found, statuses=_NO_MATCH)


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
