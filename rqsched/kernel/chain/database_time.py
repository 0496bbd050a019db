"""The database's time as this process knows it: measured each minute, and monotonic between two measurements."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from rqsched.clock import Clock, DatabaseClock, HostClock
from rqsched.errors import BackendUnavailableError
from rqsched.kernel.store.database import Database

_log = logging.getLogger(__name__)


class DatabaseTime(Clock):
    """Measures this host's clock against the database's clock.

    If somebody sets the host's wall clock, the next measurement is made earlier, and nothing else changes. Inside a
    transaction, no measurement is repeated. SQLite has no clock. There the host's clock is used instead of this class.
    """

    def __init__(self, database: Database, host: HostClock, *, refresh: timedelta) -> None:
        self._database = database
        self._host = host
        self._refresh = refresh
        self.clock = DatabaseClock(host)
        """The clock with the newest measurement. A measurement of another process of this host may replace it."""

    def now(self) -> datetime:
        """Return the present instant. Raises BackendUnavailableError if SQL is away and nothing was measured before."""
        clock = self.clock
        if clock.is_due(self._refresh) and not (clock.is_measured and self._database.is_in_transaction):
            try:
                clock.measure(lambda: self._database.now(self._host.now()))
            except BackendUnavailableError:
                if not clock.is_measured:
                    raise
                clock.keep()
                _log.warning("the clock was not measured anew", extra={"action": "clock_unmeasured"})
        return clock.now()
