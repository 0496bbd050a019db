"""Calendars: named sets of exclusions that many schedules share.

A spec holds only the names of calendars; `Spec.with_calendars` adds their contents. This file reads no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from rqsched.errors import InvalidIdError, InvalidSpecError
from rqsched.when.exclusion import ExcludeLike, canonical_exclusions, is_name

MAX_ENTRIES = 5_000
"""The maximum number of dates, ranges and weekly windows of a calendar."""


@dataclass(frozen=True)
class Calendar:
    """One revision of a calendar. Immutable, safe to share between threads."""

    name: str
    """The name that schedules give in their `exclude`."""
    exclude: tuple[str, ...]
    """The excluded dates, ranges of dates and weekly windows, as canonical texts. Each schedule reads them in its own
    time zone."""
    namespace: str | None = None
    """The namespace it belongs to; None for a calendar that all namespaces share."""
    revision: int = 1
    """Grows by one with every change."""
    edit: str = ""
    """The uid of the change that wrote this revision."""
    since: datetime | None = None
    """If some schedules may still be planned without a change, the time of the oldest such change; else None."""
    reaches: date | None = None
    """The last day that an imported calendar covers; None for a calendar without an end."""
    source: str | None = None
    """The source it was imported from; None for a calendar that was written by hand."""
    description: str | None = None
    """Its purpose."""
    created_at: datetime | None = None
    """When it was created."""
    changed_at: datetime | None = None
    """When it was changed last."""
    changed_by: str | None = None
    """The actor of its last change; None if the change named none."""

    def __hash__(self) -> int:
        """Hash only the name and the edit: they are unique, and hashing thousands of dates would slow each fire."""
        return hash((self.name, self.edit))

    @property
    def is_shared(self) -> bool:
        """Whether schedules of every namespace may name it."""
        return self.namespace is None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without `edit` and `since`, which only the planner needs."""
        return {
            "name": self.name,
            "shared": self.is_shared,
            "namespace": self.namespace,
            "revision": self.revision,
            "exclude": list(self.exclude),
            "reaches": self.reaches and self.reaches.isoformat(),
            "source": self.source,
            "description": self.description,
            "created_at": self.created_at and _text_of(self.created_at),
            "changed_at": self.changed_at and _text_of(self.changed_at),
            "changed_by": self.changed_by,
        }

    def without(self, other: Calendar | None) -> tuple[str, ...]:
        """Return the entries of this calendar that are not in `other`."""
        return self.exclude if other is None else tuple(sorted({*self.exclude} - {*other.exclude}))


def _text_of(instant: datetime) -> str:
    # A copy of `members.iso_text`. The client imports this module and must not load croniter, which `members` loads.
    return instant.isoformat().replace("+00:00", "Z")


def require_name(value: object, field: str = "name") -> str:
    """Check the name of a calendar; raises InvalidIdError."""
    if isinstance(value, str) and is_name(value):
        return value
    told = f"{str(value)[:64]!r} is refused; use a letter, then up to 62 of A-Z a-z 0-9 . _ -, and no day of the week"
    raise InvalidIdError(field, told)


def require_entries(value: ExcludeLike, field: str = "exclude") -> tuple[str, ...]:
    """Return the entries of a calendar as canonical texts, each once, sorted.

    Raises InvalidSpecError, which says what to write instead. The name of a calendar is refused too, because a calendar
    cannot contain another calendar.
    """
    found = canonical_exclusions(value, field, most=MAX_ENTRIES)
    if names := [text for text in found if is_name(text)]:
        told = f"{names[0]!r} is not a date, a range or a weekly window, and a calendar cannot contain a calendar"
        raise InvalidSpecError(field, f"{told}; name both in the schedule's exclude")
    return found


def stamp_of(calendars: Sequence[Calendar]) -> str | None:
    """Return the uids of these revisions as one text, which each schedule stores; None for no calendars."""
    return " ".join(one.edit for one in calendars) or None


def holding_since(calendars: Iterable[Calendar], stamp: str | None, now: datetime) -> datetime:
    """Return the oldest `since` of the calendars that are missing from a schedule's stamp.

    The schedule was planned without these calendars. Return `now` if no calendar is missing.
    """
    known = {*(stamp or "").split()}
    return min((one.since for one in calendars if one.edit not in known and one.since is not None), default=now)
