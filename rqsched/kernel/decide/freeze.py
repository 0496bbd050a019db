"""A freeze, of everything or of one namespace: nothing begins there, whatever is due. Its end is a thaw. Pure."""

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
    """Why nothing begins, and since when."""

    uid: str
    """The identity of the freeze."""
    since: datetime | None = None
    """When it began, aware UTC; None for the freeze of a process by its settings."""
    by: str | None = None
    """The actor that began it; None if unknown."""
    reason: str | None = None
    """Why, in the words of who began it."""
    kept_in: tuple[str, ...] = ()
    """The places that keep it now: `redis`, `sql`, or `process` (RQSCHED_FREEZE, `--freeze`); empty when it is over."""
    thawed_at: datetime | None = None
    """When it was thawed, aware UTC; None while it lasts, and where SQL went back and has not seen the thaw."""
    thawed_by: str | None = None
    """The actor that thawed it; None if unknown."""
    thaw_reason: str | None = None
    """Why, in the words of who thawed it."""
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
        """Write it as Redis and SQL keep it."""
        values = self.to_dict()
        del values["kept_in"]
        return dumps({"uid": self.uid, **values})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-native values."""
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
        """Return whether this freeze lasted at an instant, as far as it is recorded."""
        ends_later = bool(self.kept_in) if self.thawed_at is None else at < self.thawed_at
        return self.since is not None and self.since <= at and ends_later

    def told(self, say: Callable[[datetime], str]) -> str:
        """Return a clause that says what was frozen, when and by whom; `say` writes an instant."""
        what = "everything" if self.namespace is None else f"the namespace {self.namespace}"
        since, until = (None if at is None else say(at) for at in (self.since, self.thawed_at))
        when = f"has been frozen since {since}" if until is None else f"was frozen from {since} to {until}"
        return f"{what} {when}" + (f", by {self.by}" if self.by else "")

    def __str__(self) -> str:
        """Say since when, by whom and why."""
        since = "" if self.since is None else f" since {iso_utc(self.since)}"
        return f"frozen{since}{f' by {self.by}' if self.by else ''}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """The outcomes of the due occurrences of one schedule at a thaw."""

    namespace: str
    """Its namespace."""
    schedule_id: str
    """Its id."""
    due_at: datetime
    """When the first of them was due."""
    fires: list[datetime]
    """The occurrences that start a run, or wait behind one, by its policies."""
    missed: int
    """How many are counted as missed."""
    skipped: int
    """How many its overlap policy or its environments skip."""
    next_at: datetime | None
    """When it is due next after that; None when it is over, or waits for a run."""
    error: str | None = None
    """Why its outcome is not known; it stays due until that is mended, and a thaw leaves it alone."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run whose next attempt begins after a thaw."""

    namespace: str
    """Of its schedule."""
    schedule_id: str
    """Its schedule."""
    uid: str
    """The run."""
    status: str
    """`pending`, `retrying` or `buffered`."""
    attempt: int
    """The attempt that begins, or that failed last."""
    occurrence_at: datetime | None
    """The occurrence it stands for; None for a run that was started by hand."""


@dataclass(frozen=True, slots=True)
class ThawPreview:
    """The effects that a thaw would have now."""

    freeze: Freeze | None
    """The freeze; None if there is none, and due schedules fire anyway."""
    schedules: list[DueSchedule]
    """The schedules that are due, the earliest first."""
    runs: list[WaitingRun]
    """The runs that wait, the oldest first."""
    has_more: bool
    """Whether there are more of either than are listed."""


@dataclass(frozen=True, slots=True)
class Thawed:
    """The effects of a thaw."""

    freeze: Freeze | None
    """The freeze that has ended; None when there was none."""
    schedules: int
    """How many due schedules were dealt with first."""
    missed: int
    """How many occurrences were recorded as missed."""
    cancelled: int
    """How many waiting runs were cancelled."""
    fired: int = 0
    """How many occurrences started a run, or wait behind one, because the thaw said so."""
