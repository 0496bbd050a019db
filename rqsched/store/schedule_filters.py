"""Which schedules a list shows, as conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from rqsched.core.model import LastOutcome, ScheduleStatus
from rqsched.store.dialect import Dialect
from rqsched.store.tables import ENDED_BADLY, IS_LIVE, IS_RESTING, RESTING, constant, schedules

TIMES = {"created": schedules.c.created_at, "next": schedules.c.due_at}
"""The instants that filters bound, and by which lists are ordered."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which schedules a list shows: those that match every filter that is given. None does not filter."""

    namespace: str | None = None
    """The namespace, exactly."""
    statuses: Sequence[str] = ()
    """One of these statuses; empty shows every schedule that is not deleted."""
    outcomes: Sequence[str] = ()
    """The newest run ended in one of these ways (`LastOutcome`); empty is any way, and that none has ended."""
    workflow: str | None = None
    """The name of the workflow."""
    owner: str | None = None
    """The owner."""
    managed_by: str | None = None
    """What created the schedule, such as `sync`."""
    schedule_id: str | None = None
    """The id, exactly."""
    queue: str | None = None
    """The queue that the schedule names itself."""
    note: str | None = None
    """The note, exactly."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Labels that the schedule has, among others."""
    search_attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Search attributes that the schedule has, among others; values and their JSON types are equal."""
    text: str | None = None
    """A part of the id, in upper or lower case."""
    overdue: bool | None = None
    """Whether it has been without a success for as long as it allows."""
    created_since: datetime | None = None
    """Created then or later."""
    created_until: datetime | None = None
    """Created before."""
    next_since: datetime | None = None
    """Fires next at this instant or later."""
    next_until: datetime | None = None
    """Fires next before this instant."""

    @property
    def is_plain(self) -> bool:
        """Whether others will ask with the same values: no objects, no instants."""
        times = (self.created_since, self.created_until, self.next_since, self.next_until)
        is_fixed = isinstance(self.statuses, tuple) and isinstance(self.outcomes, tuple)
        return is_fixed and not (self.labels or self.search_attributes or any(times))

    def within(self, name: str) -> list[sa.ColumnElement[bool]]:
        """Return what bounds an instant, `created` or `next`."""
        column, start, end = TIMES[name], getattr(self, f"{name}_since"), getattr(self, f"{name}_until")
        return [*([] if start is None else [column >= start]), *([] if end is None else [column < end])]


def conditions_of(
    dialect: Dialect, filters: Filters, *, is_walked: bool = False, hidden: frozenset[str] = frozenset()
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that the filters stand for.

    Walked, they are told by the row: no index of exceptions is offered, and none may hold the `hidden` columns.
    """
    columns = {name: dialect.unindexed(column) if name in hidden else column for name, column in schedules.c.items()}
    is_named = not dialect.has_statistics and not is_walked
    found = [has_status(filters.statuses, columns["status"], is_named=is_named)] if filters.statuses else [IS_LIVE]
    if filters.outcomes:
        found.append(ended_so(filters.outcomes, columns["last_outcome"], is_named=is_named))
    for name in ("namespace", "workflow", "owner", "managed_by", "schedule_id", "queue", "note"):
        value = getattr(filters, name)
        if value is not None:
            found.append(columns[name] == value)
    if filters.overdue is not None:
        since = schedules.c.overdue_since
        found.append(since.is_not(None) if filters.overdue else since.is_(None))
    for name in TIMES:
        found += filters.within(name)
    if filters.text:
        found.append(schedules.c.schedule_id.icontains(filters.text, autoescape=True))
    found += [dialect.has_member(schedules.c.labels, name, value) for name, value in filters.labels.items()]
    attributes = filters.search_attributes.items()
    return found + [dialect.has_member(schedules.c.search_attributes, name, value) for name, value in attributes]


def _is_one_of(words: Sequence[str], known: type[StrEnum], column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition of literals: with values bound later, no plan could use the partial index of exceptions."""
    wanted = [constant(one) for one in known if one in words]
    return column == wanted[0] if len(wanted) == 1 else column.in_(wanted)


def has_status(
    statuses: Sequence[str], column: sa.ColumnElement[Any] = schedules.c.status, *, is_named: bool
) -> sa.ColumnElement[bool]:
    """Return the condition; `is_named` names the partial index that holds all it is true of.

    SQLite finds such an index only by its own words. PostgreSQL finds it by itself, and would take a condition that is
    said twice for one that fewer rows meet.
    """
    found = _is_one_of(statuses, ScheduleStatus, column)
    if ScheduleStatus.DELETED not in statuses:
        found &= IS_LIVE
    return found & IS_RESTING if {*statuses} <= {*RESTING} and is_named else found


def ended_so(
    outcomes: Sequence[str], column: sa.ColumnElement[Any] = schedules.c.last_outcome, *, is_named: bool
) -> sa.ColumnElement[bool]:
    """Return the condition; `is_named` as in `has_status`."""
    is_one = _is_one_of(outcomes, LastOutcome, column)
    if LastOutcome.SUCCEEDED not in outcomes:
        return is_one & ENDED_BADLY if is_named else is_one
    return is_one | (schedules.c.last_outcome.is_(None) & (schedules.c.success_count > 0))  # an older release's row
