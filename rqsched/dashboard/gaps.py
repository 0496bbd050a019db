"""Occurrences for which nothing ran, as pages show them: when they were, why, and which run blocked them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from rqsched.core import audit
from rqsched.core.audit import MISSED, SKIPPED, AuditRecord
from rqsched.core.policy import MissedPolicy

_SKIPS = {
    "overlap_policy_skip": "an earlier run was unfinished",
    "buffer_full": "as many runs waited as may wait",
    audit.REMAINING_EXHAUSTED: "its max_runs were used up",
    audit.NOT_TRIGGERABLE: "its status starts no run",
    "environment": "it does not fire in this environment",
    "dst_skip": "the clocks went forward past it",
    "disabled": "it was paused",
    "deleted": "it was deleted",
}
_MISSES: dict[str, str] = {
    MissedPolicy.FIRE_ONCE: "nothing fired in time, and one run makes up for all",
    MissedPolicy.SKIP: "nothing fired in time, and what is late is left out",
    MissedPolicy.ALL: "nothing fired in time, and more were late than are made up for",
}
_MISSED = "nothing fired in time"


@dataclass(frozen=True, slots=True)
class Gap:
    """One skip, or misses in a row."""

    is_missed: bool
    """Whether nothing fired in time; False for a skip."""
    count: str
    """How many occurrences, `+` after it where more were not counted."""
    first: datetime
    """The nominal time of the first."""
    last: datetime
    """That of the last; the first again for one."""
    why: str
    """Why, in words."""
    blocking_run: str | None
    """The uid of the run that blocked it."""
    recorded_at: datetime
    """When it was recorded."""

    def label(self, zone: ZoneInfo) -> str:
        """Return it as one line, with its times in a zone."""
        first, last = (f"{at.astimezone(zone):%a %d %b %H:%M}" for at in (self.first, self.last))
        times = first if first == last else f"{first} to {last}"
        return f"missed {self.count}, {times}: {self.why}" if self.is_missed else f"skipped {times}: {self.why}"


def gap_of(event: AuditRecord) -> Gap | None:
    """Read a skip or misses from their event; None for any other."""
    payload = event.payload
    if event.event_type == SKIPPED:
        at = _instant(payload.get("occurrence_time")) or event.recorded_at
        why = skip_in_words(str(payload.get("reason", "")))
        return Gap(False, "1", at, at, why, payload.get("blocking_run_id"), event.recorded_at)
    if event.event_type == MISSED:
        first = _instant(payload.get("first")) or event.recorded_at
        count = f"{payload.get('count')}{'+' if payload.get('count_capped') else ''}"
        why = miss_in_words(str(payload.get("policy", "")), has_fired=bool(payload.get("fired")))
        return Gap(True, count, first, _instant(payload.get("last")) or first, why, None, event.recorded_at)
    return None


def skip_in_words(reason: str) -> str:
    """Return why an occurrence was skipped, or a trigger started nothing, as a phrase; an unknown code as it is."""
    return _SKIPS.get(reason, reason)


def miss_in_words(policy: str, *, has_fired: bool) -> str:
    """Return why occurrences were missed as a phrase; `has_fired` says that others fired in their place.

    What was due when an owner paused or deleted the schedule was missed for that.
    """
    if policy in _SKIPS:
        return _SKIPS[policy]
    return _MISSES.get(policy, policy) if has_fired else _MISSED


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
