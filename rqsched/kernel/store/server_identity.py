"""The server that a connection has reached (PostgreSQL): the rows of a clone, and of an old primary, have the
original's id.

`pg_control_checkpoint()` would name the timeline only after the first checkpoint of a promoted server, so the name of
the file that is being written is asked for. Parts that the role may not read, or that a standby does not know, are left
open.
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
"""Each reads less than the one before, for roles that may not read it all."""
_UNREADABLE = ("0A", "42", "55")
"""How the SQLSTATE begins of what is not supported, not permitted or not there, and not to be had in this state."""


class ServerIdentity(NamedTuple):
    """The parts of an identity; as text, one word each."""

    system: str
    """The identifier that a cluster draws when it is made; its replicas and the copies of its files have it, too."""
    database: str
    """The OID of the database in it."""
    timeline: str
    """The number that each promotion makes larger."""

    def __str__(self) -> str:
        return " ".join(self)

    def is_same(self, other: ServerIdentity) -> bool:
        """Return whether both may be one server: a primary and its replicas are, whose timeline is open."""
        return all(OPEN in {mine, theirs} or mine == theirs for mine, theirs in zip(self, other, strict=True))

    def is_before(self, other: ServerIdentity) -> bool:
        """Return whether this is the same database on an earlier timeline than another."""
        is_known = OPEN not in {*self, *other}
        return is_known and self[:2] == other[:2] and int(self.timeline) < int(other.timeline)


class IdentityReader:
    """Reads identities, each in one round trip; it remembers what the role of the connections may not read."""

    def __init__(self) -> None:
        self._place = 0

    @property
    def query(self) -> str:
        """The query for the identity."""
        return QUERIES[self._place]

    def of_new(self, raw: Any) -> ServerIdentity:
        """Ask over a driver's connection that was opened just now; its errors are raised."""
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
    """Return the identity that a text holds, as Redis records it; None for a text that is none."""
    parts = text.split()
    return ServerIdentity(*parts) if len(parts) == len(ServerIdentity._fields) else None


def to_identity(row: Sequence[Any]) -> ServerIdentity:
    """Make an identity of what `query` returned."""
    return ServerIdentity(*(OPEN if part is None else str(part) for part in row))
