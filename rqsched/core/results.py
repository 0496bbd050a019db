"""What operations on many return: the same values from a scheduler and from a client of its HTTP API. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BulkRow:
    """What a bulk operation did with one schedule."""

    schedule_id: str
    """The schedule."""
    outcome: str
    """`paused`, `resumed`, `triggered`, `buffered`, `skipped`; `would_pause` and so on in a dry run."""
    reason: str | None = None
    """Why it was skipped; None otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RetryRow:
    """What a bulk retry did with one run."""

    run_uid: str
    """The run."""
    schedule_id: str
    """Its schedule."""
    instance_id: str
    """Its instance id."""
    outcome: str
    """`started`, `buffered` (it waits for the run ahead of it) or `skipped`; `would_retry` in a dry run."""
    reason: str | None = None
    """Why it was skipped: it was retried or deleted meanwhile."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did, as schedule ids."""

    created: list[str]
    """New ones."""
    updated: list[str]
    """Known ones that were declared differently."""
    unchanged: list[str]
    """Known ones as declared."""
    removed: list[str]
    """Deleted by `prune`."""
