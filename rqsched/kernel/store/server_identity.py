"""The identity of the PostgreSQL server that a connection has reached.

The id that is stored in the database's tables is not enough, because a clone and an old primary have the same id.

`pg_control_checkpoint()` would show the timeline only after the first checkpoint of a promoted server, so the timeline
is read from the name of the current WAL file. A part of the identity is `OPEN` if the role may not read it, or a
standby does not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

OPEN = "-"
"""The value of a part that cannot be read; it equals everything."""
_SYSTEM = "(SELECT system_identifier FROM pg_catalog.pg_control_system())"
_DATABASE = "(SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
_NUMBER = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
_TIMELINE = f"CASE WHEN pg_is_in_recovery() THEN NULL ELSE {_NUMBER} END"
QUERIES = (
    f"SELECT {_SYSTEM}, {_DATABASE}, {_TIMELINE}",
    f"SELECT NULL, {_DATABASE}, {_TIMELINE}",
    f"SELECT NULL, {_DATABASE}, NULL",
    "SELECT NULL, NULL, NULL",
)
"""Each query reads less than the query before it, for roles that may not read everything."""
_UNREADABLE = ("0A", "42", "55")
"""The first two characters of the SQLSTATE when a part is not supported (0A), is not permitted or does not exist (42),
or cannot be read in the server's state (55)."""


class ServerIdentity(NamedTuple):
    """The parts of an identity; as text, one word each."""

    system: str
    """The identifier that a database cluster gets when it is created; replicas and copies of its files share it."""
    database: str
    """The OID of the database in the cluster."""
    timeline: str
    """The number of the timeline, which each promotion increases."""

    def __str__(self) -> str:
        return " ".join(self)

    def is_same(self, other: ServerIdentity) -> bool:
        """Return whether both may be one server. An OPEN part equals everything, so a replica may be its primary."""
        return all(OPEN in {mine, theirs} or mine == theirs for mine, theirs in zip(self, other, strict=True))

    def is_before(self, other: ServerIdentity) -> bool:
        """Return whether both are the same database, and this identity has the earlier timeline."""
        is_known = OPEN not in {*self, *other}
        return is_known and self[:2] == other[:2] and int(self.timeline) < int(other.timeline)


class IdentityReader:
    """Reads identities, each in one round trip. It remembers which parts the role may not read."""

    def __init__(self) -> None:
        self._place = 0

    @property
    def query(self) -> str:
        """The query for the identity."""
        return QUERIES[self._place]

    def of_new(self, raw: Any) -> ServerIdentity:
        """Read the identity over a new connection of the driver; raises the driver's errors."""
        usual, raw.autocommit = raw.autocommit, True
        try:
            while True:
                try:
                    return to_identity(raw.execute(self.query).fetchone())
                except Exception as error:
                    state = getattr(error, "sqlstate", None) or ""
                    if not state.startswith(_UNREADABLE) or self.query == QUERIES[-1]:
                        raise
                    self._place += 1
        finally:
            raw.autocommit = usual


def parse_identity(text: str) -> ServerIdentity | None:
    """Return the identity that a text from Redis stands for, or None for any other text."""
    parts = text.split()
    return ServerIdentity(*parts) if len(parts) == len(ServerIdentity._fields) else None


def to_identity(row: Sequence[Any]) -> ServerIdentity:
    """Make an identity from the row that `query` returned."""
    return ServerIdentity(*(OPEN if part is None else str(part) for part in row))
