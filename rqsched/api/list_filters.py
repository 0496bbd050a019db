"""What `Scheduler.list` may be asked: filters of schedules, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from rqsched.api.list_query import narrowed
from rqsched.core.model import LastOutcome, ScheduleStatus
from rqsched.errors import InvalidInputError
from rqsched.store.schedule_queries import Filters


class ListFilters(TypedDict, total=False):
    """Which schedules `list` and `iter` show; everything given must match."""

    status: str | Sequence[str] | None
    """One status or several; without it every schedule that is not deleted."""
    outcome: str | Sequence[str] | None
    """How the newest run ended: `succeeded`, `failed` or `lost`, one or several."""
    workflow: str | None
    """The name of the workflow."""
    namespace: str | None
    """Default: RQSCHED_NAMESPACE."""
    labels: Mapping[str, str] | None
    """Labels the schedule has, perhaps among others."""
    search_attributes: Mapping[str, Any] | None
    """Search attributes the schedule has, perhaps among others."""
    owner: str | None
    """Who owns it."""
    managed_by: str | None
    """`sync`: the schedules that a sync made."""
    text: str | None
    """A part of the id, in any case."""
    overdue: bool | None
    """True: without a success for as long as it allows (`expect_success_within`); False: any other."""
    created_since: datetime | None
    """Created then or later."""
    created_until: datetime | None
    """Created before."""
    next_since: datetime | None
    """Fires next at this instant or later."""
    next_until: datetime | None
    """Fires next before this instant."""
    query: str | None
    """An AND of equalities over ScheduleId, Status, WorkflowType, TaskQueue, Note and search attributes, such as
    `WorkflowType = "invoice-sync" AND region = "eu"`."""


def to_filters(
    where: str,
    /,
    *,
    status: str | Sequence[str] | None = None,
    outcome: str | Sequence[str] | None = None,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    search_attributes: Mapping[str, Any] | None = None,
    query: str | None = None,
    **others: Any,
) -> Filters:
    """Return the filters of one namespace (`where`, whatever was named); raises InvalidInputError."""
    del namespace
    statuses, outcomes = _words("status", status, ScheduleStatus), _words("outcome", outcome, LastOutcome)
    for name in ("created_since", "created_until", "next_since", "next_until"):
        instant = others.get(name)
        if instant is not None and instant.tzinfo is None:
            raise InvalidInputError(name, "is naive; pass an aware datetime, such as one with tzinfo=UTC")
    filters = Filters(
        namespace=where,
        statuses=statuses,
        outcomes=outcomes,
        labels=labels or {},
        search_attributes=search_attributes or {},
        **others,
    )
    return narrowed(filters, query or "", lambda status: _words("query", status, ScheduleStatus))


def _words(field: str, given: str | Sequence[str] | None, known: type[StrEnum]) -> tuple[str, ...]:
    words = (given,) if isinstance(given, str) else tuple(given or ())
    allowed = [one.value for one in known]
    for word in words:
        if word not in allowed:
            raise InvalidInputError(field, f"{word!r} is not one of {', '.join(allowed)}")
    return words
