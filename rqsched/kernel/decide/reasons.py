"""Why something did not run or ended, in words: the recorded codes as phrases. Pure."""

from __future__ import annotations

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.fire_decision import FROZEN
from rqsched.kernel.decide.occurrences import MISSED_WHILE_PAUSED, ON_REQUEST
from rqsched.kernel.decide.policy import MissedPolicy
from rqsched.kernel.decide.schedule_endings import EXHAUSTED, SPEC_ENDED

_ENDS = {
    EXHAUSTED: "its max_runs are used up",
    SPEC_ENDED: "its timing has no further occurrence",
    "total_repeats_reached": "it has succeeded as often as it was to",
    "retries_exhausted": "too many runs in a row failed",
}

ASKED = {
    audit.CREATED: "created",
    audit.UPDATED: "changed",
    audit.PAUSED: "paused",
    audit.RESUMED: "resumed or restarted",
    audit.SKIPS_SET: "chose what is skipped",
    audit.DELETED: "deleted",
    audit.TRIGGERED: "started a run",
    audit.BUFFERED: "asked for a run, which waits",
    audit.SKIPPED: "asked for a run, which was skipped",
    audit.RUN_RETRY_REQUESTED: "retried a run",
    audit.RUN_CANCELLED: "cancelled a run",
    audit.RUN_TERMINATED: "terminated a run",
    audit.BACKFILL_STOPPED: "stopped a backfill",
}
"""The operations in words, by the type of their audit event."""
_SKIPS = {
    "overlap_policy_skip": "an earlier run was unfinished",
    "buffer_full": "as many runs waited as may wait",
    audit.REMAINING_EXHAUSTED: "its max_runs were used up",
    audit.NOT_TRIGGERABLE: "its status starts no run",
    "environment": "RQSCHED_ENVIRONMENT of the process that fired it is not one of its environments",
    "dst_skip": "the clocks went forward past it",
    ON_REQUEST: "somebody asked for that",
    "disabled": "it was paused",
    "deleted": "it was deleted",
    FROZEN: "it was frozen, and the thaw counted it as missed",
    MISSED_WHILE_PAUSED: "it was paused, and a later one came meanwhile",
}
NOTHING_FIRED = "nothing fired in time"
"""Why occurrences were missed, unless more is known."""
_MISSES: dict[str, str] = {
    MissedPolicy.FIRE_ONCE: f"{NOTHING_FIRED}, and one run makes up for all",
    MissedPolicy.SKIP: f"{NOTHING_FIRED}, and what is late is left out",
    MissedPolicy.ALL: f"{NOTHING_FIRED}, and more were late than are made up for",
}


def end_in_words(reason: str) -> str:
    """Return why a schedule ended as a phrase; a reason that a person typed stays as it is."""
    return _ENDS.get(reason, reason)


def skip_in_words(reason: str) -> str:
    """Return the reason of a skipped occurrence or trigger as a phrase; an unknown code stays as it is."""
    return _SKIPS.get(reason, reason)


def miss_in_words(policy: str, *, has_fired: bool) -> str:
    """Return why occurrences were missed as a phrase; `has_fired` says that others fired in their place.

    For occurrences that were due at the moment of a pause or a deletion, the pause or the deletion is the reason.
    """
    if policy in _SKIPS:
        return _SKIPS[policy]
    return _MISSES.get(policy, policy) if has_fired else NOTHING_FIRED
