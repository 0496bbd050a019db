"""Sessions that were ended before their time: a row for each, as long as its cookie would be accepted.

Every web process obeys the row within seconds; without it a copy of the cookie would be accepted until it expires.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from rqsched.chain.runtime import Runtime
from rqsched.store.database import Connection
from rqsched.store.metadata import remove_values, set_value, values_under

FRESH = timedelta(seconds=2)
"""How long what was read of the rows counts; with the time that a read takes, a log-out is obeyed within 5 s."""
_PREFIX = "logout:"


class EndedSessions:
    """The ended sessions of one database, as one process knows them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended = frozenset[str]()
        self._read_at: datetime | None = None

    def end(self, key: str, expires_at: int) -> None:
        """Refuse a session from now on; `key` has at most 57 characters, `expires_at` is in seconds of the epoch.

        Rows of which the time is over are deleted with it. Raises DatabaseUnavailableError.
        """

        def write(connection: Connection) -> None:
            now, known = self._runtime.now().timestamp(), values_under(connection, _PREFIX)
            remove_values(connection, sorted(name for name, until in known.items() if int(until) <= now))
            set_value(connection, _PREFIX + key, str(expires_at))

        self._runtime.database.transact(write)
        self._ended |= {key}

    def has(self, key: str) -> bool:
        """Return whether a session was ended, by what was read in the last two seconds, or is read now.

        Raises DatabaseUnavailableError.
        """
        now = self._runtime.now()
        if self._read_at is None or not self._read_at <= now < self._read_at + FRESH:  # clocks may be set back
            found = self._runtime.database.read(lambda connection: values_under(connection, _PREFIX))
            self._ended, self._read_at = frozenset(name.removeprefix(_PREFIX) for name in found), now
        return key in self._ended

    def had(self, key: str) -> bool:
        """Return whether a session was ended by what was read last, however long ago: for an event loop."""
        return key in self._ended
