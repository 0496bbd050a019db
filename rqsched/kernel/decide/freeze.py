"""Values that describe a freeze and its end, the thaw. Pure.

A freeze covers everything or one namespace. While it lasts, no fire and no attempt begins there, and due work waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.payload import dumps

_INSTANTS = ("since", "thawed_at")


@dataclass(frozen=True, slots=True)
class Freeze:
    """One freeze: when, by whom and why it began, and how it ended."""

    uid: str
    """The identity of the freeze."""
    since: datetime | None = None
    """When it began, aware UTC; None if the settings freeze this process."""
    by: str | None = None
    """The actor that began the freeze; None if unknown."""
    reason: str | None = None
    """The reason that the actor gave; None without a reason."""
    kept_in: tuple[str, ...] = ()
    """Where it is stored now: `redis`, `sql`, or `process` (RQSCHED_FREEZE, `--freeze`); empty if it is over."""
    thawed_at: datetime | None = None
    """When it ended, aware UTC; None while it lasts. It is None also if SQL was restored to a state before the thaw."""
    thawed_by: str | None = None
    """The actor of the thaw; None if unknown."""
    thaw_reason: str | None = None
    """The reason that this actor gave; None without a reason."""
    namespace: str | None = None
    """The namespace that is frozen; None if everything is."""

    @classmethod
    def from_text(cls, text: str, *kept_in: str) -> Freeze:
        """Return the freeze that `to_text` wrote; values that a newer release added are ignored."""
        stored = json.loads(text)
        since, thawed = (None if at is None else datetime.fromisoformat(at) for at in map(stored.get, _INSTANTS))
        names = ("thawed_by", "thaw_reason", "namespace")
        by, reason, namespace = (stored.get(name) for name in names)
        begun_by, why = stored.get("by"), stored.get("reason")
        return cls(stored["uid"], since, begun_by, why, kept_in, thawed, by, reason, namespace)

    def to_text(self) -> str:
        """Return the text that Redis and SQL store."""
        values = self.to_dict()
        del values["kept_in"]
        return dumps({"uid": self.uid, **values})

    def to_dict(self) -> dict[str, Any]:
        """Return the freeze as JSON-native values."""
        since, thawed = (None if at is None else iso_utc(at) for at in (self.since, self.thawed_at))
        return {
            "since": since,
            "by": self.by,
            "reason": self.reason,
            "kept_in": [*self.kept_in],
            "thawed_at": thawed,
            "thawed_by": self.thawed_by,
            "thaw_reason": self.thaw_reason,
            "namespace": self.namespace,
        }

    def covers(self, at: datetime) -> bool:
        """Return whether this freeze was in effect at an instant, by its recorded times."""
        ends_later = bool(self.kept_in) if self.thawed_at is None else at < self.thawed_at
        return self.since is not None and self.since <= at and ends_later

    def told(self, say: Callable[[datetime], str]) -> str:
        """Return a clause about what was frozen, when and by whom. `say` renders an instant."""
        what = "everything" if self.namespace is None else f"the namespace {self.namespace}"
        since, until = (None if at is None else say(at) for at in (self.since, self.thawed_at))
        when = f"has been frozen since {since}" if until is None else f"was frozen from {since} to {until}"
        return f"{what} {when}" + (f", by {self.by}" if self.by else "")

    def __str__(self) -> str:
        """Return the start, the actor and the reason as text."""
        since = "" if self.since is None else f" since {iso_utc(self.since)}"
        return f"frozen{since}{f' by {self.by}' if self.by else ''}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """The outcomes that a thaw gives to the due occurrences of one schedule."""

    namespace: str
    """The namespace of the schedule."""
    schedule_id: str
    """The id of the schedule."""
    due_at: datetime
    """When the first due occurrence was due."""
    fires: list[datetime]
    """The occurrences that get a run by the policies of the schedule. The run starts, or waits for another run."""
    missed: int
    """How many occurrences are counted as missed."""
    skipped: int
    """How many occurrences are skipped by the overlap policy or the option `environments`."""
    next_at: datetime | None
    """When the schedule is due next; None if its spec is over, or if it waits for the end of a run."""
    error: str | None = None
    """The error that prevented the evaluation; None without an error. After an error, the schedule stays due, and the
    thaw does not change it."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run whose next attempt begins after a thaw."""

    namespace: str
    """The namespace of the run."""
    schedule_id: str
    """The id of its schedule."""
    uid: str
    """The uid of the run."""
    status: str
    """`pending`, `retrying` or `buffered`."""
    attempt: int
    """The number of the attempt that begins after the thaw. For a retrying run, the number of the attempt that
    failed."""
    occurrence_at: datetime | None
    """The occurrence of the run; for a manual run the moment of the trigger."""


@dataclass(frozen=True, slots=True)
class ThawPreview:
    """The effects that a thaw would have now."""

    freeze: Freeze | None
    """The freeze; None if nothing is frozen."""
    schedules: list[DueSchedule]
    """The schedules that are due, the earliest first."""
    runs: list[WaitingRun]
    """The runs that wait, the oldest first."""
    has_more_schedules: bool
    """Whether more schedules are due than are listed."""
    has_more_runs: bool
    """Whether more runs wait than are listed."""


@dataclass(frozen=True, slots=True)
class Thawed:
    """The effects of a thaw."""

    freeze: Freeze | None
    """The freeze that has ended; None if there was no freeze."""
    schedules: int
    """How many due schedules the thaw handled before it ended the freeze."""
    missed: int
    """How many occurrences were recorded as missed."""
    cancelled: int
    """How many waiting runs were cancelled."""
    fired: int = 0
    """How many missed occurrences got a run because the caller of the thaw requested it."""
