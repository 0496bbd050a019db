"""The dashboard's sessions in SQL: the secret that signs them, and the sessions that were logged out.

All web processes share the secret. The first log-in writes it, and no page shows it. A session that is logged out has a
row until its cookie expires. Every web process reads the row within seconds, and refuses the session. Without the row,
a copy of the cookie would be accepted until it expires.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from rqsched.api.database import (
    SESSION_KEY,
    Connection,
    claim_value,
    find_value,
    remove_values,
    set_value,
    values_under,
)
from rqsched.api.runtime import Runtime

FRESH = timedelta(seconds=2)
"""How long the rows are cached. Every process must refuse an ended session within 5 s, including the time to read."""
_PREFIX = "logout:"


class EndedSessions:
    """The ended sessions of one database, as one process knows them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended = frozenset[str]()
        self._secret: bytes | None = None
        self._read_at: datetime | None = None

    def end(self, key: str, expires_at: int) -> None:
        """Refuse a session from now on. `key` has at most 57 characters; `expires_at` is in seconds since the epoch.

        Also deletes the rows of sessions that have expired. Raises DatabaseUnavailableError.
        """

        def write(connection: Connection) -> None:
            now, known = self._runtime.now().timestamp(), values_under(connection, _PREFIX)
            remove_values(connection, sorted(name for name, until in known.items() if int(until) <= now))
            set_value(connection, _PREFIX + key, str(expires_at))

        self._runtime.database.transact(write)
        self._ended |= {key}

    def secret(self) -> bytes | None:
        """Return the secret that signs sessions, as read within the last two seconds; None before the first log-in.

        Raises DatabaseUnavailableError.
        """
        self._look()
        return self.known_secret

    def make_secret(self) -> bytes:
        """Return the secret that signs sessions; store a random one if there is none.

        Processes that call this at the same time get the same secret. Raises DatabaseUnavailableError.
        """
        if (known := self.secret()) is not None:
            return known
        drawn = secrets.token_hex(32)
        self._secret = self._runtime.database.transact(
            lambda connection: claim_value(connection, SESSION_KEY, drawn)
        ).encode()
        return self._secret

    @property
    def known_secret(self) -> bytes | None:
        """The secret from the last read, however old. Event loops use it, because they must not wait for SQL."""
        return self._secret

    def has(self, key: str) -> bool:
        """Return whether a session has ended, according to a read that is at most two seconds old.

        Raises DatabaseUnavailableError.
        """
        self._look()
        return key in self._ended

    def had(self, key: str) -> bool:
        """Return whether a session had ended at the last read, however old. Event loops use this to avoid SQL."""
        return key in self._ended

    def _look(self) -> None:
        now = self._runtime.now()
        if self._read_at is None or not self._read_at <= now < self._read_at + FRESH:  # clocks may be set back

            def read(connection: Connection) -> tuple[str | None, frozenset[str]]:
                ended = (name.removeprefix(_PREFIX) for name in values_under(connection, _PREFIX))
                return find_value(connection, SESSION_KEY), frozenset(ended)

            secret, self._ended = self._runtime.database.read(read)
            self._secret, self._read_at = secret.encode() if secret else None, now
