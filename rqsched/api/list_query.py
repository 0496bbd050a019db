"""A list's query as Durable Workflow's clients write it: `WorkflowType = "invoice-sync" AND region = "eu"`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rqsched.core.payload import MEMO_BYTES, json_text
from rqsched.errors import InvalidInputError, InvalidPayloadError
from rqsched.store.schedule_queries import Filters

_TERM = re.compile(r"""\s*([A-Za-z_][\w.-]*)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[-\w.:]+)\s*""")
_AND = re.compile(r"AND\b", re.IGNORECASE)
_FIELDS = {"ScheduleId": "schedule_id", "WorkflowType": "workflow", "TaskQueue": "queue", "Note": "note"}
_NO_MATCH = ("none",)
"""A status that no schedule has."""


def narrowed(filters: Filters, query: str, statuses_of: Callable[[str], tuple[str, ...]]) -> Filters:
    """Return the filters that let through what these do and the query too; raises InvalidInputError.

    A query is an AND of equalities over ScheduleId, Status, WorkflowType, TaskQueue, Note, and search attributes by
    their own names. Equalities that contradict each other or the filters match nothing.
    """
    for name, value in _terms(query):
        filters = _with(filters, name, value, statuses_of)
    return filters


def _terms(query: str) -> Iterator[tuple[str, Any]]:
    position = 0
    while query[position:].strip():
        match = _TERM.match(query, position)
        if match is None:
            raise InvalidInputError("query", 'use Field = "value" AND Field = "value".')
        yield match[1], _value(match[2])
        position = match.end()
        if not query[position:].strip():
            break
        following = _AND.match(query, position)
        if following is None:
            raise InvalidInputError("query", "equalities may only be joined by AND.")
        position = following.end()
        if not query[position:].strip():
            raise InvalidInputError("query", "an equality is missing after AND.")


def _value(text: str) -> Any:
    value = _read_value(text)
    try:
        json_text("query", value, MEMO_BYTES)  # a driver may refuse to compare with what cannot be stored
    except InvalidPayloadError as error:
        raise InvalidInputError("query", error.reason) from None
    return value


def _read_value(text: str) -> Any:
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            raise InvalidInputError("query", f"{text} is not a valid string.") from None
    if text.startswith("'"):
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with(filters: Filters, name: str, value: Any, statuses_of: Callable[[str], tuple[str, ...]]) -> Filters:
    if name == "Status":
        asked = statuses_of(str(value).lower())
        both = tuple(set(asked) & set(filters.statuses)) if filters.statuses else asked
        return replace(filters, statuses=both or _NO_MATCH)
    if name in _FIELDS:
        known, field = getattr(filters, _FIELDS[name]), {_FIELDS[name]: str(value)}
        found: Filters = replace(filters, **field)  # type: ignore[arg-type]
        return found if known in {None, str(value)} else replace(found, statuses=_NO_MATCH)
    attributes = filters.search_attributes
    found = replace(filters, search_attributes={**attributes, name: value})
    return found if attributes.get(name, value) == value else replace(found, statuses=_NO_MATCH)
