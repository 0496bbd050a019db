"""Quotas of namespaces: check them before a write, and report the usage to operators.

Only operations that add schedules or bytes are checked, and only if RQSCHED_QUOTAS has a limit. A fire, a pause or a
run costs no query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

from rqsched.config import Settings
from rqsched.features.quotas import store
from rqsched.features.quotas.decide import Growth, Usage, declared_bytes, growth_of, require_room
from rqsched.kernel.chain.feature import Feature
from rqsched.kernel.decide.model import Change, Definition
from rqsched.kernel.decide.quota_options import EVERY, Quota
from rqsched.kernel.store.database import Connection, Database


class Parts(Protocol):
    """The parts of a process's runtime that quotas use."""

    settings: Settings
    """The settings, which hold the quotas."""
    database: Database
    """The database."""


class Quotas(Feature):
    """Refuse Changes that would exceed the quota of a namespace."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_always_involved = not all(quota.is_unlimited for quota in parts.settings.quotas.values())

    def require(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Check that the quota of a namespace has room for Changes; raises QuotaExceededError.

        If a quota is set and the Changes add something, this locks the quota of the namespace and counts its usage.
        Other callers that add something wait until this transaction has ended.
        """
        if not changes:
            return
        namespace = changes[0].after.namespace
        limits = quota_of(self._parts, namespace)
        if limits.is_unlimited:
            return
        growth = growth_of(changes)
        if not growth.may_exceed(limits):
            return
        store.lock_quota(connection, namespace)
        require_room(_usage(connection, namespace, limits, with_bytes=limits.bytes is not None), growth)


def require_room_for_batches(parts: Parts, namespace: str, batches: Iterable[Sequence[tuple[str, Definition]]]) -> None:
    """Check that a namespace has room for all batches of declarations, given as pairs (id, definition).

    Raises QuotaExceededError before the first batch is written. Each batch is checked again when it is written, because
    other processes may use up the room meanwhile.
    """
    limits = quota_of(parts, namespace)
    if limits.is_unlimited:
        return
    listed = [list(batch) for batch in batches]
    ids = [schedule_id for batch in listed for schedule_id, _ in batch]
    known, now = parts.database.read(
        lambda c: (store.definitions(c, namespace, ids), _usage(c, namespace, limits, with_bytes=True))
    )
    growths = [sum((_growth(known.get(id_), new) for id_, new in batch), Growth()) for batch in listed]
    for growth in accumulate(growths):
        require_room(now, growth)


def _growth(known: Definition | None, declared: Definition) -> Growth:
    size = declared_bytes(declared)
    return Growth(1, size) if known is None else Growth(0, size - declared_bytes(known))


def usage_of(parts: Parts, namespace: str) -> Usage:
    """Return the usage of a namespace, with its quota."""
    limits = quota_of(parts, namespace)
    return parts.database.read(lambda connection: _usage(connection, namespace, limits, with_bytes=True))


def usages(
    parts: Parts, connection: Connection, namespace: str | None = None, *, with_bytes: bool = False
) -> list[Usage]:
    """Return the usage of each namespace with a quota, or only of `namespace`. Without quotas, do not read SQL.

    Schedules are counted in an index. Their bytes are counted only if a quota limits bytes, or if `with_bytes` is set,
    because that reads every row.
    """
    quotas = parts.settings.quotas
    if namespace is not None:
        limits = quota_of(parts, namespace)
        with_bytes = with_bytes or limits.bytes is not None
        return [] if limits.is_unlimited else [_usage(connection, namespace, limits, with_bytes=with_bytes)]
    if all(quota.is_unlimited for quota in quotas.values()):
        return []
    with_bytes = with_bytes or any(quota.bytes is not None for quota in quotas.values())
    counted = store.count_all_declared(connection, with_bytes=with_bytes)
    found = {name: (count, size) for name, count, size in counted}
    names = sorted([*found, *(name for name in quotas if name not in found and name != EVERY)])
    listed = [Usage(name, *found.get(name, (0, 0)), quota_of(parts, name)) for name in names]
    return [one for one in listed if not one.limits.is_unlimited]


def quota_of(parts: Parts, namespace: str) -> Quota:
    """Return the quota of a namespace: its own, else the default quota of RQSCHED_QUOTAS."""
    quotas = parts.settings.quotas
    return quotas.get(namespace) or quotas.get(EVERY) or Quota()


def _usage(connection: Connection, namespace: str, limits: Quota, *, with_bytes: bool) -> Usage:
    return Usage(namespace, *store.count_declared(connection, namespace, with_bytes=with_bytes), limits)
