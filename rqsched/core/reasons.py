"""Reasons in words: why nothing ran, and why a schedule ended. Codes are stored and sent; people read these. Pure."""

from __future__ import annotations

from rqsched.core import audit
from rqsched.core.policy import MissedPolicy
from rqsched.core.schedule_endings import EXHAUSTED, SPEC_ENDED

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
_ENDS = {
    EXHAUSTED: "its max_runs are used up",
    SPEC_ENDED: "its timing has no further occurrence",
    "total_repeats_reached": "it has succeeded as often as it was to",
    "retries_exhausted": "too many runs in a row failed",
}
_WORDS: dict[str, str] = {**_SKIPS, **_MISSES, **_ENDS}


def reason_in_words(reason: str) -> str:
    """Return a reason as a phrase; what is no code of ours, such as what somebody typed, as it is."""
    return _WORDS.get(reason, reason)
