"""Calendars: exclusions that many schedules share, under one name and in one place.

A spec holds the names alone. `Spec.with_calendars` gives it their contents, one value for each revision: nothing is
read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from rqsched.errors import InvalidIdError, InvalidSpecError
from rqsched.when.exclusion import ExcludeLike, canonical_exclusions, is_name

MAX_ENTRIES = 5_000
"""The most dates, ranges and weekly windows of a calendar."""


@dataclass(frozen=True)
class Calendar:
    """One revision of a calendar. Immutable, safe to share between threads."""

    name: str
    """Its name, by which schedules exclude its contents."""
    exclude: tuple[str, ...]
    """Its dates, ranges of dates and weekly windows as canonical texts, in the time zone of each schedule."""
    namespace: str | None = None
    """The namespace it belongs to; None for one that is shared by all."""
    revision: int = 1
    """Grows by one with every change."""
    edit: str = ""
    """The uid of the change that made it so: no two contents ever have the same."""
    since: datetime | None = None
    """When the first change was made that some schedule may not have been planned with yet; None when there is none."""
    reaches: date | None = None
    """The last day about which it says anything, for one that was imported; None for one without an end."""
    source: str | None = None
    """The source it was imported from; None for a calendar that was written by hand."""
    description: str | None = None
    """Its purpose."""
    created_at: datetime | None = None
    """When it was created."""
    changed_at: datetime | None = None
    """When it was changed last."""
    changed_by: str | None = None
    """The actor of its last change; None when that was not said."""

    def __hash__(self) -> int:
        """Hash what tells it from every other one: it may have thousands of dates, and is asked for at each fire."""
        return hash((self.name, self.edit))

    @property
    def is_shared(self) -> bool:
        """Whether schedules of every namespace may name it."""
        return self.namespace is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; which change made it so, and since when, stays with the database."""
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
        """Return what it excludes and another one does not."""
        return self.exclude if other is None else tuple(sorted({*self.exclude} - {*other.exclude}))


def _text_of(instant: datetime) -> str:
    # A copy of the function in spec.members, which loads croniter: the client reads calendars and must not import that.
    return instant.isoformat().replace("+00:00", "Z")


def require_name(value: object, field: str = "name") -> str:
    """Check the name of a calendar; raises InvalidIdError."""
    if isinstance(value, str) and is_name(value):
        return value
    told = f"{str(value)[:64]!r} is refused; use 1 to 63 of A-Z a-z 0-9 . _ -, a letter first, and no day of the week"
    raise InvalidIdError(field, told)


def require_entries(value: ExcludeLike, field: str = "exclude") -> tuple[str, ...]:
    """Return what a calendar holds as canonical texts, each once, sorted.

    Raises InvalidSpecError, which says what to write instead: for a name, too, for no calendar holds another one.
    """
    found = canonical_exclusions(value, field, most=MAX_ENTRIES)
    if names := [text for text in found if is_name(text)]:
        told = f"{names[0]!r} is not a date, a range or a weekly window, and a calendar holds no other one"
        raise InvalidSpecError(field, f"{told}; name both in the schedule's exclude")
    return found


def stamp_of(calendars: Sequence[Calendar]) -> str | None:
    """Return the stamp that a row keeps of the calendars its next time was planned with; None where it names none."""
    return " ".join(one.edit for one in calendars) or None


def holding_since(calendars: Iterable[Calendar], stamp: str | None, now: datetime) -> datetime:
    """Return since when calendars hold that a schedule was not planned with; now when it was planned with all."""
    known = {*(stamp or "").split()}
    return min((one.since for one in calendars if one.edit not in known and one.since is not None), default=now)
