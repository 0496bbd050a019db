"""The write gate: a process takes no work while its database takes no writes, because it could not record the work.

A standby, or a replica that a worker uses by mistake, answers reads. So a worker would take links and jobs, and each of
them would be delayed until its next delivery. The same is true of a primary during a failover, of a user that lacks a
privilege, and of a read-only file of SQLite. While writes succeed, the server is not asked. After a refusal
(`Database.refuses_writes`) the server is asked again and again until it takes writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.store.database import Database, Patience

_log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""While a server takes no writes, it is asked again after this many seconds."""
_ONCE = Patience(total=timedelta(0))
_TELL_SECONDS = 600.0
"""While the process waits for the server, this is logged again after this many seconds."""


class WriteGate:
    """Whether this process may take work, which needs a database that takes writes."""

    def __init__(self, database: Database, on_open: Callable[[], None]) -> None:
        """Take the database, and a function to call when it takes writes again."""
        self._database = database
        self._on_open = on_open
        self._ask_at = self._tell_at = 0.0
        self.is_closed = False
        """Whether the database took no writes when it was last asked."""

    def is_open(self) -> bool:
        """Return whether the database takes writes. The database is asked at the first call, and while it takes none.

        A database that does not answer does not close the gate. The next statement waits for the end of the outage.
        """
        if self._database.refuses_writes is False and not self.is_closed:
            return True
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._ask(now)
        return not self.is_closed

    def wait(self) -> None:
        """Wait until the gate is open, then close all connections to the database."""
        while not self.is_open():
            time.sleep(ASK_SECONDS)
        self._database.close()

    def _ask(self, now: float) -> None:
        try:
            takes_writes = self._database.takes_writes(patience=_ONCE)
            if takes_writes and self.is_closed:
                self._on_open()
        except BackendUnavailableError as error:
            _log.debug("not asked for writes: %s", error, extra={"action": "backend_wait"})
            return
        was_closed, self.is_closed = self.is_closed, not takes_writes
        if self.is_closed and now >= self._tell_at:
            self._tell_at = now + _TELL_SECONDS
            grants = self._database.lacking.text
            why = "its user lacks privileges" if grants else "a standby, or read-only"
            until = f"somebody has run: {grants}" if grants else "it was promoted; RQSCHED_DATABASE_URL names it"
            text = "the database takes no writes (%s): this process fires, starts and repairs nothing until %s"
            _log.warning(text, why, until, extra={"action": "database_read_only"})
        elif was_closed and takes_writes:
            self._tell_at = 0.0
            _log.info("the database takes writes", extra={"action": "database_writable"})
