"""The progress of a run's targets, as plain values. The HTTP client imports this module, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.policy import count_failed

WINDOW = timedelta(seconds=60)
"""The time over which the pace is measured."""
_OPEN = ("waiting", "pending", "running", "retrying", "blocked")


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """The progress of a run's targets."""

    counts: dict[str, int]
    """The number of targets by status, for each status that occurs."""
    total: int
    """The number of all targets."""
    ended: int
    """The number of targets that have ended."""
    failed: int
    """The number of targets that failed or were lost."""
    per_second: float | None = None
    """The targets that ended per second in the last minute; None if none did, or if all have ended."""
    ends_at: datetime | None = None
    """When the last target will end, computed from `per_second`; None if `per_second` is None."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values; instants as ISO 8601 UTC."""
        same = {name: getattr(self, name) for name in ("counts", "total", "ended", "failed", "per_second")}
        return same | {"ends_at": self.ends_at and iso_utc(self.ends_at)}


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """One target of a run as people see it. Instants are aware UTC."""

    number: int
    """Its number in the order in which the targets were named, from 1."""
    target_id: str
    """Its id, which the resolver named."""
    status: str
    """Its TargetStatus: `waiting`, `pending`, `running`, `retrying`, `blocked`, or the status after its end."""
    attempt: int
    """The current attempt, from 1."""
    error: str | None
    """The error of the newest failed attempt, or why it is blocked."""
    worker: str | None
    """The worker that handles or handled it; None before it began."""
    started_at: datetime | None
    """When the newest attempt began."""
    ended_at: datetime | None
    """When it ended; None before its end."""
    retry_at: datetime | None
    """When it is tried or offered again; None if no further attempt or offer is planned."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-native values; instants as ISO 8601 UTC."""
        values = {name: getattr(self, name) for name in TargetDescription.__dataclass_fields__}
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in values.items()}


def progress_of(counts: Mapping[str, int], lately: int, began_at: datetime | None, now: datetime) -> TargetProgress:
    """Return the progress of targets, given their counts by status. `lately` is how many ended within WINDOW."""
    total, still = sum(counts.values()), sum(counts.get(status, 0) for status in _OPEN)
    elapsed = WINDOW if began_at is None else min(max(now - began_at, timedelta(seconds=1)), WINDOW)
    pace = lately / elapsed.total_seconds() if still else 0.0
    ends_at = now + timedelta(seconds=still / pace) if pace else None
    return TargetProgress(dict(counts), total, total - still, count_failed(counts), pace or None, ends_at)
