"""The clock. Only this module reads the wall clock, and it adds an offset so that every host agrees with the database.

Decisions take `now` as an argument; the chain and the surfaces hold a `Clock`. This file does not use SQL: the caller
passes the function that reads the database's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

_NO_OFFSET = timedelta(0)
STEP = timedelta(milliseconds=100)
"""If wall clock and monotonic time drift apart by this much, the clock was set or the host was suspended."""


def offset_of(before: datetime, theirs: datetime, after: datetime) -> timedelta:
    """Return how far another clock is ahead of ours. It showed `theirs` between our readings `before` and `after`.

    This is the smallest offset that the readings allow (Cristian's bounds). If the clocks agree, the offset is zero,
    and not a part of the round trip.
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
        """Return the seconds since a fixed moment. They cannot be set, and stand still while the host is suspended."""
        return time.monotonic()


class HostClock(Clock, Protocol):
    """A wall clock, and a monotonic clock that nobody can set."""

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        ...


class DatabaseClock(Clock):
    """The database's time as this host knows it: the newest measurement plus the monotonic time since.

    A fire may be only slightly early, but the clocks of hosts differ by more than that. So all hosts follow the clock
    of their common database. If somebody sets the wall clock, the time here does not change, but a new measurement is
    due. A fork keeps the measurement.
    """

    def __init__(self, host: HostClock) -> None:
        self._host = host
        self.measured: Measurement | None = None
        """The newest measurement, which every process of this host may use; None before the first."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a measurement. Without one, `now` is the wall clock."""
        return self.measured is not None

    def is_due(self, refresh: timedelta) -> bool:
        """Return whether to measure: there is no measurement, it is `refresh` old, or the wall clock was set since."""
        measured = self.measured
        if measured is None:
            return True
        elapsed = timedelta(seconds=self._host.monotonic() - measured.monotonic)
        stepped = self._host.now() - measured.wall - elapsed
        return elapsed >= refresh or abs(stepped) >= STEP

    def measure(self, read: Callable[[], datetime]) -> None:
        """Compare the wall clock with the database's clock twice, and keep the comparison with the shorter round trip.

        `read` reads the database's clock. The first round trip may be long, because it may include connecting, or
        waiting for a database that comes back.
        """
        trips = [self._round_trip(read) for _ in range(2)]
        wall, monotonic, theirs, seconds = min(trips, key=lambda trip: trip[3])
        offset = offset_of(wall, theirs, wall + timedelta(seconds=seconds))
        self.measured = Measurement(wall + offset, wall, monotonic)

    def keep(self) -> None:
        """Treat the newest measurement as new, because the database does not answer; the next one is due later."""
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
    """One moment as three clocks show it."""

    database: datetime
    """By the database's clock."""
    wall: datetime
    """By the host's wall clock."""
    monotonic: float
    """By the host's monotonic clock."""
