"""The identity of a database: a copy becomes a database of its own."""

from __future__ import annotations

from rqsched.features.notifications import store as deliveries
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection, Database


def renew_identity(database: Database, uid: str) -> tuple[str | None, int]:
    """Give a copy of a database an id of its own, and delete its waiting notifications, which the original sends.

    Returns the previous id, and how many notifications were deleted.
    """
    before = database.read(lambda connection: metadata.find_value(connection, metadata.DATABASE_ID))

    def renew(connection: Connection) -> int:
        metadata.renew_id(connection, uid)
        return deliveries.drop_open(connection)

    return before, database.transact(renew)
