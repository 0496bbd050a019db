"""What operations on many return: the same values from a scheduler and from a client of its HTTP API. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rqsched.core.ids import iso_utc


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
class BackfillRow:
    """What a backfill did with one occurrence."""

    occurrence_at: datetime
    """Its nominal time."""
    instance_id: str | None
    """The instance id of its run; None when this backfill made none."""
    outcome: str
    """`started`, `buffered` (it waits its turn), `skipped`, `already_run`; `would_start` in a dry run."""
    reason: str | None = None
    """Why it was skipped; `pruned` when it counts as run because history up to there is gone; `rerun` when its run had
    failed and is run again."""
    run_uid: str | None = None
    """The uid of its run; None when this backfill made none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values, in the durable-workflow document's words."""
        return {
            "occurrence_time": iso_utc(self.occurrence_at),
            "instance_id": self.instance_id,
            "outcome": self.outcome,
            "reason": self.reason,
        }


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
