"""The database's time as this process knows it: measured each minute, monotonic in between."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from rqsched.clock import Clock, DatabaseClock, HostClock, Measurement
from rqsched.errors import BackendUnavailableError
from rqsched.store.database import Database

_log = logging.getLogger(__name__)


class DatabaseTime(Clock):
    """Measures this host's clock against the database's.

    A wall clock that is set changes nothing but the moment of the next measurement, which is never made inside a
    transaction. SQLite has no clock of its own: there it is the host's wall clock.
    """

    def __init__(self, database: Database, host: HostClock, *, refresh: timedelta) -> None:
        self._database = database
        self._host = host
        self._refresh = refresh
        self._clock = DatabaseClock(host)

    def now(self) -> datetime:
        """Return the present instant; raises BackendUnavailableError when it was never measured and SQL is away."""
        if not self._database.dialect.has_server:
            return self._host.now()
        clock = self._clock
        if clock.is_due(self._refresh) and not (clock.is_measured and self._database.is_in_transaction):
            self._measure()
        return clock.now()

    def _measure(self) -> None:
        """Measure; while the database is away what was measured before holds. Raises when there is nothing yet."""
        try:
            self._clock.measure(lambda: self._database.now(self._host.now()))
        except BackendUnavailableError:
            if not self._clock.is_measured:
                raise
            self._clock.keep()
            _log.warning("the clock was not measured anew", extra={"action": "clock_unmeasured"})

    @property
    def measured(self) -> Measurement | None:
        """How this host's clock was measured against the database's; None when it was not."""
        return self._clock.measured

    def take_over(self, measured: Measurement | None) -> None:
        """Go by what another process of this host has measured."""
        if measured is not None:
            self._clock.measured = measured
