"""What time it is: the package's one wall-clock read, and the offset that makes every host agree with the database.

Core takes `now` as an argument; the chain and the surfaces hold a `Clock`. This file knows nothing of SQL:
the caller measures the offset and sets it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

_NO_OFFSET = timedelta(0)


def offset_of(before: datetime, theirs: datetime, after: datetime) -> timedelta:
    """Return how far their clock is ahead of ours: the least that our readings around it allow (Cristian's bounds).

    So hosts whose clocks agree all find an offset of zero, instead of a share of each one's round trip.
    """
    return max(theirs - after, _NO_OFFSET) + min(theirs - before, _NO_OFFSET)


class Clock(Protocol):
    """Anything that says what time it is."""

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC."""
        ...


class SystemClock(Clock):
    """The host's wall clock, at microsecond precision."""

    def now(self) -> datetime:
        """Read the wall clock; it may jump when the host's clock is set."""
        return datetime.now(UTC)


class DatabaseClock(Clock):
    """The database's time as this host knows it: a base clock plus the offset last measured.

    Hosts disagree by more than a fire may be early, and the database is what they share. Between two
    measurements the base clock's own drift applies. Safe to read while another thread sets the offset.
    """

    def __init__(self, base: Clock, offset: timedelta = _NO_OFFSET) -> None:
        self._base = base
        self._offset = offset

    @property
    def base(self) -> Clock:
        """The host's own clock, without the offset: what an offset is measured against."""
        return self._base

    @property
    def offset(self) -> timedelta:
        """Database time minus host time; positive when the host is behind."""
        return self._offset

    def set_offset(self, offset: timedelta) -> None:
        """Every later `now()` is the base clock plus `offset`, so time may step either way once."""
        self._offset = offset

    def now(self) -> datetime:
        """Return the database's present instant as far as this host knows."""
        return self._base.now() + self._offset
