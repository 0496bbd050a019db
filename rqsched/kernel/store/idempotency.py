"""Idempotency keys of creates. A row has the created schedule and the digest of the request, for one day.

Every function works inside the transaction of the create.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.errors import IdempotencyConflictError
from rqsched.kernel.decide.model import dumps
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.store.tables import idempotency_keys as table

KEPT = timedelta(days=1)
"""How long a key returns its first result. After that time the key counts as new."""
_PRUNED_AT_ONCE = 100
"""The maximum number of expired keys that one create deletes."""


class Key(NamedTuple):
    """An idempotency key, and the digest of its request."""

    namespace: str
    """The namespace of the key. Equal texts in different namespaces are different keys."""
    text: str
    """The key as the caller sent it."""
    digest: str
    """The digest of the request. Another digest under the same key is a conflict."""


def digest_of(*parts: object) -> str:
    """Compute the digest of a request's JSON-native parts."""
    return hashlib.sha256(dumps(parts).encode()).hexdigest()


def made_by(connection: Connection, key: Key, now: datetime) -> str | None:
    """Return the uid of the schedule that a create with the key made, or None for a new key.

    Raises IdempotencyConflictError if the request of that create was different.
    """
    wanted = (table.c.namespace == key.namespace, table.c.key == key.text, table.c.created_at > now - KEPT)
    row = connection.execute(sa.select(table.c.digest, table.c.schedule_uid).where(*wanted)).first()
    if row is None:
        return None
    if row.digest != key.digest:
        raise IdempotencyConflictError(key.text)
    uid: str = row.schedule_uid
    return uid


def answer_of(connection: Connection, namespace: str, text: str, schedule_uid: str) -> str | None:
    """Return the answer to the create of a schedule under a key; None if the answer was not kept."""
    mine = table.c.namespace == namespace, table.c.key == text, table.c.schedule_uid == schedule_uid
    found: str | None = connection.execute(sa.select(table.c.answer).where(*mine)).scalar()
    return found


def hold(connection: Connection, key: Key, schedule_uid: str, now: datetime, answer: str | None = None) -> None:
    """Record the schedule that a create with the key made, and the answer to the create. Delete some expired keys."""
    old = sa.select(table.c.namespace, table.c.key).where(table.c.created_at <= now - KEPT).limit(_PRUNED_AT_ONCE)
    for row in connection.execute(old).all():
        connection.execute(sa.delete(table).where(table.c.namespace == row.namespace, table.c.key == row.key))
    named = {"namespace": key.namespace, "key": key.text, "digest": key.digest}
    connection.execute(
        dialect_of(connection).insert(table).values(**named, schedule_uid=schedule_uid, created_at=now, answer=answer)
    )
