"""Quotas: how many schedules a namespace may hold, and how many bytes they may declare. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rqsched.errors import QuotaExceededError
from rqsched.kernel.decide.quota_options import RESOURCES, Quota

if TYPE_CHECKING:  # a client shows a Usage and need not load what evaluates a spec
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
"""The fields of a declaration whose UTF-8 bytes count: what a caller may make large."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The contents of a namespace, and its quota.

    >>> Usage("acme", schedules=90, bytes=1_000, limits=Quota(schedules=100)).share
    0.9
    """

    namespace: str
    """The namespace."""
    schedules: int
    """How many schedules it has that are not deleted."""
    bytes: int
    """How many bytes they declare; 0 when that was not asked for."""
    limits: Quota
    """Its quota; see RQSCHED_QUOTAS."""

    @property
    def share(self) -> float:
        """How much of the quota is used: 1.0 is all of it; it is more where the quota was lowered since."""
        pairs = ((self.schedules, self.limits.schedules), (self.bytes, self.limits.bytes))
        return max((used / limit if limit else float("inf") for used, limit in pairs if limit is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a namespace by Changes; negative where it shrinks."""

    schedules: int = 0
    """How many schedules."""
    bytes: int = 0
    """How many bytes of declarations."""

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.schedules + other.schedules, self.bytes + other.bytes)

    def may_exceed(self, quota: Quota) -> bool:
        """Return whether this adds anything that the quota limits."""
        return (self.schedules > 0 and quota.schedules is not None) or (self.bytes > 0 and quota.bytes is not None)


def declared_bytes(definition: Definition) -> int:
    """Count the bytes of a declaration, as the store counts those it holds."""
    texts = (getattr(definition, name) for name in COUNTED)
    return sum(len(text.encode()) for text in texts if text is not None)


def growth_of(changes: Sequence[Change]) -> Growth:
    """Return what Changes of one namespace add to it."""
    total = Growth()
    for change in changes:
        before, after = change.before, change.after
        if before is None:
            total += Growth(1, declared_bytes(after.definition))
        elif before.definition is not after.definition:
            total += Growth(0, declared_bytes(after.definition) - declared_bytes(before.definition))
    return total


def require_room(usage: Usage, growth: Growth) -> None:
    """Raise QuotaExceededError when a growth goes beyond the quota; what does not grow is never refused."""
    for resource in RESOURCES:
        limit, used, more = (getattr(one, resource) for one in (usage.limits, usage, growth))
        if limit is not None and more > 0 and used + more > limit:
            raise QuotaExceededError(usage.namespace, resource, limit=limit, used=used, wanted=more)
