"""A hold: while there is one, nothing begins, whatever is due. Also the values that describe a release. Pure.

A freeze is the hold of one namespace, and its end a thaw.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.payload import dumps

_INSTANTS = ("since", "released_at")


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing begins, and since when."""

    uid: str
    """The identity of the hold."""
    since: datetime | None = None
    """When it was set, aware UTC; None for a hold by the settings of a process."""
    by: str | None = None
    """The actor that set it; None if unknown."""
    reason: str | None = None
    """Why, in the words of who set it."""
    kept_in: tuple[str, ...] = ()
    """The places that keep it now: `redis`, `sql`, or `process` (RQSCHED_HOLD, `--hold`); empty when it is over."""
    released_at: datetime | None = None
    """When it was released, aware UTC; None while it lasts, and where SQL went back and has not seen its release."""
    released_by: str | None = None
    """The actor that released it; None if unknown."""
    release_reason: str | None = None
    """Why, in the words of who released it."""
    namespace: str | None = None
    """The namespace that is frozen; None where everything is held."""

    @classmethod
    def from_text(cls, text: str, *kept_in: str) -> Hold:
        """Return the hold that `to_text` wrote; values that a newer release added are ignored."""
        stored = json.loads(text)
        since, released = (None if at is None else datetime.fromisoformat(at) for at in map(stored.get, _INSTANTS))
        names = ("released_by", "release_reason", "namespace")
        by, reason, namespace = (stored.get(name) for name in names)
        set_by, why = stored.get("by"), stored.get("reason")
        return cls(stored["uid"], since, set_by, why, kept_in, released, by, reason, namespace)

    def to_text(self) -> str:
        """Write it as Redis and SQL keep it."""
        values = self.to_dict()
        del values["kept_in"]
        return dumps({"uid": self.uid, **values})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-native values."""
        since, released = (None if at is None else iso_utc(at) for at in (self.since, self.released_at))
        return {
            "since": since,
            "by": self.by,
            "reason": self.reason,
            "kept_in": [*self.kept_in],
            "released_at": released,
            "released_by": self.released_by,
            "release_reason": self.release_reason,
            "namespace": self.namespace,
        }

    def covers(self, at: datetime) -> bool:
        """Return whether this hold was on at an instant, as far as it is recorded."""
        ends_later = bool(self.kept_in) if self.released_at is None else at < self.released_at
        return self.since is not None and self.since <= at and ends_later

    def told(self, say: Callable[[datetime], str]) -> str:
        """Return a clause that says what was on hold, when and by whom; `say` writes an instant."""
        what, held = "everything", "held"
        if self.namespace is not None:
            what, held = f"the namespace {self.namespace}", "frozen"
        since, until = (None if at is None else say(at) for at in (self.since, self.released_at))
        when = f"has been {held} since {since}" if until is None else f"was {held} from {since} to {until}"
        return f"{what} {when}" + (f", by {self.by}" if self.by else "")

    def __str__(self) -> str:
        """Say since when, by whom and why."""
        since = "" if self.since is None else f" since {iso_utc(self.since)}"
        what = "held" if self.namespace is None else "frozen"
        return f"{what}{since}{f' by {self.by}' if self.by else ''}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class HeldSchedule:
    """The outcomes of the due occurrences of one schedule when a hold is released."""

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
    """Why its outcome is not known; it stays due until that is mended, and a release leaves it alone."""


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run whose next attempt begins when a hold is released."""

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
class ReleasePreview:
    """The effects that a release would have now."""

    hold: Hold | None
    """The hold; None when nothing is held, and due schedules fire anyway."""
    schedules: list[HeldSchedule]
    """The schedules that are due, the earliest first."""
    runs: list[HeldRun]
    """The runs that wait, the oldest first."""
    has_more: bool
    """Whether there are more of either than are listed."""


@dataclass(frozen=True, slots=True)
class Released:
    """The effects of a release."""

    hold: Hold | None
    """The hold that has ended; None when there was none."""
    schedules: int
    """How many due schedules were dealt with first."""
    missed: int
    """How many occurrences were recorded as missed."""
    cancelled: int
    """How many waiting runs were cancelled."""
    fired: int = 0
    """How many occurrences started a run, or wait behind one, because the thaw said so."""
