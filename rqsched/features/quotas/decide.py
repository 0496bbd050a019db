"""Quotas: how many schedules a namespace may hold, and how many bytes they may declare. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rqsched.errors import QuotaExceededError, did_you_mean

if TYPE_CHECKING:  # a client shows a Usage and need not load what evaluates a spec
    from rqsched.kernel.decide.model import Change, Definition

EVERY = "*"
"""The key for the namespaces that are not named, and for the values that the named ones leave out."""
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
RESOURCES = ("schedules", "bytes")
"""What is limited: the fields of a Quota."""
MOST = 2**53
"""The greatest limit."""
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(?P<number>[0-9]{1,16})\s*(?P<unit>[A-Za-z]*)")
_HOW = 'write {"*": {"schedules": 1000, "bytes": "10MiB"}, "NAMESPACE": {"schedules": 50}}; null is no limit'


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one namespace; None is no limit."""

    schedules: int | None = None
    """How many schedules that are not deleted."""
    bytes: int | None = None
    """How many bytes these may declare."""

    @property
    def is_unlimited(self) -> bool:
        """Whether there is nothing to hold to."""
        return self.schedules is None and self.bytes is None


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


def parse_quotas(given: object) -> dict[str, Quota]:
    """Read the quotas by namespace from a JSON object; raises ValueError, which says how to write them.

    >>> parse_quotas({"*": {"schedules": 10}, "acme": {"bytes": "1MiB"}})["acme"]
    Quota(schedules=10, bytes=1048576)
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"is not an object; {_HOW}")  # noqa: TRY004 - pydantic reports ValueErrors
    usual = _limits(EVERY, given.get(EVERY) or {})
    return {str(name): Quota(**(usual | _limits(str(name), limits))) for name, limits in given.items()}


def _limits(namespace: str, given: object) -> dict[str, int | None]:
    if not isinstance(given, Mapping):
        raise ValueError(f"the quota of {namespace!r} is not an object; {_HOW}")  # noqa: TRY004
    for name in given:
        if name not in RESOURCES:
            hint = did_you_mean(str(name), RESOURCES)
            raise ValueError(f"the quota of {namespace!r} has {name!r}, which is neither schedules nor bytes{hint}")
    return {name: None if value is None else _limit(namespace, name, value) for name, value in given.items()}


def _limit(namespace: str, name: str, value: object) -> int:
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) and name == "bytes" else None
    if found is not None and found["unit"].lower() in _UNITS:
        value = int(found["number"]) * _UNITS[found["unit"].lower()]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        how = "a number, or one with KiB, MiB, GiB, kB, MB or GB" if name == "bytes" else "a whole number"
        raise ValueError(f"{name} of the quota of {namespace!r} must be {how}, 0 or more; {_HOW}")
    return value
