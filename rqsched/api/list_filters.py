"""The filters of `Scheduler.list` and `Runs.list`: keyword arguments, and a query as text.

Durable Workflow's clients write queries: `WorkflowType = "invoice-sync" AND region = "eu"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rqsched.errors import InvalidInputError, InvalidPayloadError
from rqsched.kernel.decide.model import RUN_FILTERS, LastOutcome, Schedule, ScheduleStatus
from rqsched.kernel.decide.payload import MEMO_BYTES, json_text
from rqsched.kernel.decide.results import Page
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.schedules import Filters
from rqsched.kernel.store.database import Database

if TYPE_CHECKING:
    from rqsched.kernel.queries.run_pages import RunFilters

_TERM = re.compile(r"""\s*([A-Za-z_][\w.-]*)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[-\w.:]+)\s*""")
_AND = re.compile(r"AND\b", re.IGNORECASE)
_FIELDS = {"ScheduleId": "schedule_id", "WorkflowType": "workflow", "TaskQueue": "queue", "Note": "note"}
_MOST_MEMBERS = 64
"""The maximum number of members of an object in a query. Each becomes a condition, and a statement of SQLite takes a
thousand."""
_NO_MATCH = ("none",)
"""A status that no schedule has."""


class ListFilters(TypedDict, total=False):
    """The filters of `list`, `iter`, `count` and the operations of `bulk`; a schedule must match all of them."""

    status: str | Sequence[str] | None
    """One status or several; without this filter, all schedules that are not deleted."""
    outcome: str | Sequence[str] | None
    """How the newest run ended: `succeeded`, `failed` or `lost`, one or several."""
    workflow: str | None
    """The name of the workflow."""
    labels: Mapping[str, str] | None
    """Labels that the schedule must have; it may have others, too."""
    search_attributes: Mapping[str, Any] | None
    """Search attributes that the schedule must have; it may have others, too."""
    owner: str | None
    """Who owns it."""
    managed_by: str | None
    """`sync`, `import`: the schedules that a sync, or an import, made."""
    text: str | None
    """A part of the id, in any case."""
    overdue: bool | None
    """True: only overdue schedules (`expect_success_within`); False: only schedules that are not overdue."""
    created_since: datetime | None
    """Created at this instant or later."""
    created_until: datetime | None
    """Created before this instant."""
    next_since: datetime | None
    """Fires next at this instant or later."""
    next_until: datetime | None
    """Fires next before this instant."""
    query: str | None
    """An AND of equalities over ScheduleId, Status, WorkflowType, TaskQueue, Note and search attributes, such as
    `WorkflowType = "invoice-sync" AND region = "eu"`."""


class RunListFilters(TypedDict, total=False):
    """The filters of `bulk.cancel_runs` and `bulk.retry_runs`; a run must match all of them."""

    status: str | Sequence[str] | None
    """One status or several; `blocked` means the pending runs that are blocked. Default: every run that has not ended
    for `cancel_runs`, and failed and lost runs for `retry_runs`."""
    schedule_id: str | None
    """Only runs of schedules that have, or had, this id."""
    workflow: str | None
    """The name of the workflow."""
    limit: str | None
    """The name of the group whose limit applies to them."""
    in_line: bool | None
    """True: only pending runs that wait for a place of their group. False: only pending runs that wait for a worker."""
    since: datetime | None
    """Created at this instant or later. If only failed and lost runs match: ended at this instant or later."""
    until: datetime | None
    """Created before this instant. If only failed and lost runs match: ended before it."""
    error: str | None
    """A part of the text of their error, in any case; only failed and lost runs match."""
    backfill_uid: str | None
    """The uid of the backfill that created them."""


def to_filters(
    namespace: str,
    *,
    status: str | Sequence[str] | None = None,
    outcome: str | Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    search_attributes: Mapping[str, Any] | None = None,
    query: str | None = None,
    **others: Any,
) -> Filters:
    """Return the filters of one namespace; raises InvalidInputError."""
    for name, members in (("labels", labels or {}), ("search_attributes", search_attributes or {})):
        _require_few(name, members)
        json_text(name, dict(members), MEMO_BYTES)
    statuses, outcomes = _words("status", status, ScheduleStatus), _words("outcome", outcome, LastOutcome)
    for name in ("created_since", "created_until", "next_since", "next_until"):
        _require_aware(name, others.get(name))
    filters = Filters(
        namespace=namespace,
        statuses=statuses,
        outcomes=outcomes,
        labels=labels or {},
        search_attributes=search_attributes or {},
        **others,
    )
    return narrowed(filters, query or "", lambda status: _words("query", status, ScheduleStatus))


def read_page(
    database: Database, namespace: str, *, limit: int, cursor: str | None, sort: str, **filters: Unpack[ListFilters]
) -> Page[Schedule]:
    """Read the page of schedules that `Scheduler.list` shows; raises InvalidInputError. It needs no Redis."""
    schedule_queries.require_limit(limit)
    schedule_queries.require_sort(sort)
    wanted = to_filters(namespace, **filters)
    return schedule_queries.fill_page(database, wanted, limit=limit, cursor=cursor, sort=sort)


def to_run_filters(namespace: str, status: str | Sequence[str] | None, **others: Any) -> RunFilters:
    """Return the filters of runs of one namespace; raises InvalidInputError."""
    from rqsched.kernel.queries.run_pages import RunFilters  # noqa: PLC0415 - filters of schedules need no queries of runs

    for name in ("since", "until"):
        _require_aware(name, others.get(name))
    return RunFilters(namespace, _words("status", status, RUN_FILTERS), **others)


def _require_aware(name: str, instant: datetime | None) -> None:
    if instant is not None and instant.tzinfo is None:
        raise InvalidInputError(name, "is naive; pass an aware datetime, such as one with tzinfo=UTC")


def _words(field: str, given: str | Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    words, allowed = (given,) if isinstance(given, str) else tuple(given or ()), [str(one) for one in known]
    for word in words:
        if word not in allowed:
            raise InvalidInputError(field, f"{word!r} is not one of {', '.join(allowed)}")
    return words


def narrowed(filters: Filters, query: str, statuses_of: Callable[[str], tuple[str, ...]]) -> Filters:
    """Return the filters narrowed by a query; raises InvalidInputError.

    A query is an AND of equalities over ScheduleId, Status, WorkflowType, TaskQueue, Note, and search attributes by
    their own names. Equalities that contradict each other or the filters match nothing.
    """
    for name, value in _terms(query):
        filters = _with(filters, name, value, statuses_of)
    _require_few("query", filters.search_attributes)
    return filters


def _require_few(field: str, members: Mapping[str, Any]) -> None:
    if len(members) > _MOST_MEMBERS:
        raise InvalidInputError(field, f"names {len(members)} values to search for; name at most {_MOST_MEMBERS}")


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
            raise InvalidInputError("query", "an equality is missing after AND; add it, or remove AND.")


def _value(text: str) -> Any:
    value = _read_value(text)
    try:
        json_text("query", value, MEMO_BYTES)  # a driver may refuse to compare with a value that cannot be stored
    except InvalidPayloadError as error:
        raise InvalidInputError("query", error.reason) from None
    return value


def _read_value(text: str) -> Any:
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            raise InvalidInputError("query", f'{text} is not a valid string; write "text".') from None
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
