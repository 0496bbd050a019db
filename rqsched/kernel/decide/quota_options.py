"""Read the quotas of namespaces from the setting RQSCHED_QUOTAS. Pure.

The decisions about quotas are in `features/quotas/decide.py`. This module is in the kernel, because the settings need
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rqsched.errors import did_you_mean

EVERY = "*"
"""The key of the default quota. It applies to namespaces without a quota, and to limits that a quota leaves out."""
RESOURCES = ("schedules", "bytes")
"""The limited resources: the fields of a Quota."""
MOST = 2**53
"""The greatest limit."""
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(?P<number>[0-9]{1,16})\s*(?P<unit>[A-Za-z]*)")
_HOW = 'write {"*": {"schedules": 1000, "bytes": "10MiB"}, "NAMESPACE": {"schedules": 50}}; null is no limit'


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one namespace; None is no limit."""

    schedules: int | None = None
    """The maximum number of schedules that are not deleted."""
    bytes: int | None = None
    """The maximum number of bytes in the definitions of these schedules."""

    @property
    def is_unlimited(self) -> bool:
        """Whether the quota limits nothing."""
        return self.schedules is None and self.bytes is None


def parse_quotas(given: object) -> dict[str, Quota]:
    """Read the quotas by namespace from a JSON object; raises ValueError with the expected form.

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
