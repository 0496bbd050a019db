"""Quotas: how many schedules a namespace may have, and how many bytes their declarations may have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rqsched.errors import QuotaExceededError
from rqsched.kernel.decide.quota_options import RESOURCES, Quota

if TYPE_CHECKING:  # the HTTP client imports Usage, and must not load the code that evaluates specs
    from rqsched.kernel.decide.model import Change, Definition

COUNTED = (
    "spec",
    "action",
    "policies",
    "labels",
    "memo",
    "search_attributes",
    "description",
    "surface",
    "notifications",
)
"""The fields of a declaration whose UTF-8 bytes count. These are the fields that a caller can make large."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a namespace, and its quota.

    >>> Usage("acme", schedules=90, bytes=1_000, limits=Quota(schedules=100)).share
    0.9
    """

    namespace: str
    """The namespace."""
    schedules: int
    """The number of its schedules that are not deleted."""
    bytes: int
    """The bytes of their declarations; 0 if they were not counted."""
    limits: Quota
    """Its quota; see RQSCHED_QUOTAS."""

    @property
    def share(self) -> float:
        """The fraction of the quota that is used. It exceeds 1.0 if the quota was lowered below the usage."""
        pairs = ((self.schedules, self.limits.schedules), (self.bytes, self.limits.bytes))
        return max((used / limit if limit else float("inf") for used, limit in pairs if limit is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a namespace by Changes; negative if it shrinks."""

    schedules: int = 0
    """The number of schedules."""
    bytes: int = 0
    """The number of bytes of declarations."""

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.schedules + other.schedules, self.bytes + other.bytes)

    def may_exceed(self, quota: Quota) -> bool:
        """Return whether the growth adds something that the quota limits."""
        return (self.schedules > 0 and quota.schedules is not None) or (self.bytes > 0 and quota.bytes is not None)


def declared_bytes(definition: Definition) -> int:
    """Return the bytes of a declaration, counted in the same way as the SQL of the store counts them."""
    texts = (getattr(definition, name) for name in COUNTED)
    return sum(len(text.encode()) for text in texts if text is not None)


def growth_of(changes: Sequence[Change]) -> Growth:
    """Return the growth of a namespace by Changes of its schedules."""
    total = Growth()
    for change in changes:
        before, after = change.before, change.after
        if before is None:
            total += Growth(1, declared_bytes(after.definition))
        elif before.definition is not after.definition:
            total += Growth(0, declared_bytes(after.definition) - declared_bytes(before.definition))
    return total


def require_room(usage: Usage, growth: Growth) -> None:
    """Raise QuotaExceededError if a growth exceeds the quota. A resource that does not grow is never refused."""
    for resource in RESOURCES:
        limit, used, more = (getattr(one, resource) for one in (usage.limits, usage, growth))
        if limit is not None and more > 0 and used + more > limit:
            raise QuotaExceededError(usage.namespace, resource, limit=limit, used=used, wanted=more)
