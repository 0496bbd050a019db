"""Jitter: when an occurrence is due, given its nominal time.

A hash, not a random draw: every process computes the same due time for the same occurrence, and reading it again
never moves it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b

from rqsched.errors import InvalidDurationError

_RESOLUTION = 1 << 64


def jittered(uid: str, nominal_at: datetime, jitter: timedelta, gap: timedelta | None) -> datetime:
    """Return the instant in [nominal_at, nominal_at + min(jitter, gap)) at which the occurrence is due.

    `uid` is the schedule's; `gap` is the time to its next nominal occurrence, None when there is none. The delay is
    scaled to the smaller of the two, not cut: cutting would pile up every longer delay at the end of the gap.
    Raises InvalidDurationError for a negative jitter.
    """
    if jitter < timedelta(0):
        raise InvalidDurationError("jitter", f"{jitter} is negative; jitter only delays, write a positive length")
    width = jitter if gap is None else min(jitter, max(gap, timedelta(0)))
    drawn = _drawn(f"{uid}:{nominal_at.timestamp():.6f}")
    # Whole microseconds by integers: rounding up could reach the next nominal time.
    return nominal_at + timedelta(microseconds=(width // timedelta(microseconds=1)) * drawn // _RESOLUTION)


def fraction(*parts: object) -> float:
    """Return the number in [0, 1) that belongs to `parts`: the same parts give the same number everywhere."""
    return _drawn(":".join(map(str, parts))) / _RESOLUTION


def _drawn(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
