"""The clock: the package's one wall-clock read, and the offset that makes every host agree with the database.

Core takes `now` as an argument; the chain and the surfaces hold a `Clock`. This file knows nothing of SQL:
the caller passes the function that reads the database's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

_NO_OFFSET = timedelta(0)
STEP = timedelta(milliseconds=100)
"""If wall clock and monotonic time drift apart by more than this, the clock was set or the host suspended."""


def offset_of(before: datetime, theirs: datetime, after: datetime) -> timedelta:
    """Return how far their clock is ahead of ours: the least that our readings around it allow (Cristian's bounds).

    Hosts whose clocks agree find an offset of zero, and not a share of their round trips.
    """
    return max(theirs - after, _NO_OFFSET) + min(theirs - before, _NO_OFFSET)


class Clock(Protocol):
    """A source of the present time."""

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC."""
        ...


class SystemClock(Clock):
    """The host's wall clock, at microsecond precision."""

    def now(self) -> datetime:
        """Read the wall clock; it may jump when the host's clock is set."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Read the seconds since a fixed moment; they are never set, and stand still while the host is suspended."""
        return time.monotonic()


class HostClock(Clock, Protocol):
    """A wall clock, and a second one that is never set."""

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        ...


class DatabaseClock(Clock):
    """The database's time as this host knows it: the last measurement plus the monotonic time since.

    Hosts disagree by more than a fire may be early, so they all follow the database they share. The wall clock may be
    set at any moment; that changes no time here, but causes a new measurement. A fork keeps the measurement.
    """

    def __init__(self, host: HostClock) -> None:
        self._host = host
        self.measured: Measurement | None = None
        """The newest measurement; it holds for every process of the host."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a measurement; without one this is the wall clock."""
        return self.measured is not None

    def is_due(self, refresh: timedelta) -> bool:
        """Return whether a measurement is missing, older than `refresh`, or older than a setting of the wall clock."""
        measured = self.measured
        if measured is None:
            return True
        elapsed = timedelta(seconds=self._host.monotonic() - measured.monotonic)
        stepped = self._host.now() - measured.wall - elapsed
        return elapsed >= refresh or abs(stepped) >= STEP

    def measure(self, read: Callable[[], datetime]) -> None:
        """Compare the wall clock with theirs, which `read` returns, by the shorter of two round trips.

        Connecting, or waiting for a database that comes back, makes the first round trip a long one.
        """
        trips = [self._round_trip(read) for _ in range(2)]
        wall, monotonic, theirs, seconds = min(trips, key=lambda trip: trip[3])
        offset = offset_of(wall, theirs, wall + timedelta(seconds=seconds))
        self.measured = Measurement(wall + offset, wall, monotonic)

    def keep(self) -> None:
        """Treat the newest measurement as new, because the database does not answer now; it is asked again later."""
        if self.measured is not None:
            self.measured = Measurement(self.now(), self._host.now(), self._host.monotonic())

    def now(self) -> datetime:
        """Return the database's present instant as far as this host knows."""
        measured = self.measured
        if measured is None:
            return self._host.now()
        return measured.database + timedelta(seconds=self._host.monotonic() - measured.monotonic)

    def _round_trip(self, read: Callable[[], datetime]) -> tuple[datetime, float, datetime, float]:
        wall, monotonic = self._host.now(), self._host.monotonic()
        theirs = read()
        return wall, monotonic, theirs, self._host.monotonic() - monotonic


class Measurement(NamedTuple):
    """The same moment by three clocks."""

    database: datetime
    """By the database's clock."""
    wall: datetime
    """By the host's wall clock."""
    monotonic: float
    """By the host's clock that is never set."""
