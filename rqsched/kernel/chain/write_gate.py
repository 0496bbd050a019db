"""The write gate: a process whose database takes no writes takes no work that it could not record, and waits.

A standby, or a replica that a worker was given by mistake, answers reads, so a worker would take links and jobs and
lose each of them to the next attempt. A primary that fails over is the same for a while, and so are a database whose
user lacks a privilege and a file of SQLite that is read-only. Nothing is asked while writes succeed: the database notes
a refusal (`Database.refuses_writes`), and only then is the server asked, anew each time, until it takes writes.
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
"""How often a server that takes no writes is asked again."""
_ONCE = Patience(total=timedelta(0))
_TELL_SECONDS = 600.0
"""How often the log repeats that the process waits for the server."""


class WriteGate:
    """Whether this process may take work, which needs a database that takes writes."""

    def __init__(self, database: Database, on_open: Callable[[], None]) -> None:
        """`on_open` is called when a database that was waited for takes writes."""
        self._database = database
        self._on_open = on_open
        self._ask_at = self._tell_at = 0.0
        self.is_closed = False
        """Whether the database took no writes when it was asked last."""

    def is_open(self) -> bool:
        """Return whether the database takes writes: asked at the first call, and while it takes none.

        A database that does not answer is not known to refuse: an outage is waited out where it is met.
        """
        if self._database.refuses_writes is False and not self.is_closed:
            return True
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._ask(now)
        return not self.is_closed

    def wait(self) -> None:
        """Return when it is open, with no connection left to the database."""
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
            text = "the database takes no writes (%s): nothing fires, starts or is repaired from here until %s"
            _log.warning(text, why, until, extra={"action": "database_read_only"})
        elif was_closed and takes_writes:
            self._tell_at = 0.0
            _log.info("the database takes writes", extra={"action": "database_writable"})
