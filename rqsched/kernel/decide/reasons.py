"""Phrases for the recorded codes that say why a run did not start, or why a schedule ended. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.policy import MissedPolicy


class _Reason(StrEnum):
    """A recorded code and its phrase."""

    phrase: str

    def __new__(cls, code: str, phrase: str) -> Self:
        reason = str.__new__(cls, code)
        reason._value_, reason.phrase = code, phrase
        return reason


class SkipReason(_Reason):
    """Why an occurrence, a trigger or the end of an upstream run started no run.

    To add a reason, add a line here. If it depends only on the schedule, return it from `reason_not_to_start`
    (`occurrences.py`); otherwise pass it to `skip` or `refuse` where the decision is made.
    """

    OVERLAP = "overlap_policy_skip", "an earlier run was unfinished"
    BUFFER_FULL = "buffer_full", "the greatest number of runs waited already"
    MAX_RUNS = "remaining_actions_exhausted", "its max_runs were used up"
    STATUS = "status_not_triggerable", "its status starts no run"
    ENVIRONMENT = "environment", "RQSCHED_ENVIRONMENT of the process that fired it is not one of its environments"
    CLOCK_CHANGE = "dst_skip", "the clocks went forward past it"
    ON_REQUEST = "skip_next", "somebody asked for that"
    PAUSED = "disabled", "it was paused"
    DELETED = "deleted", "it was deleted"
    FROZEN = "frozen", "it was frozen, and the thaw counted it as missed"
    MISSED_WHILE_PAUSED = "paused", "it was paused, and a later one came meanwhile"


class EndReason(_Reason):
    """Why a schedule ended by itself."""

    MAX_RUNS = "max_runs_exhausted", "its max_runs are used up"
    SPEC_ENDED = "spec_ended", "its timing has no further occurrence"
    MAX_SUCCESSES = "total_repeats_reached", "it has succeeded as often as it was to"
    FAILURES = "retries_exhausted", "its runs failed as often as its retry policy allows"


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
    audit.RUN_COPIED: "ran a run again",
    audit.RUN_CANCELLED: "cancelled a run",
    audit.RUN_TERMINATED: "terminated a run",
    audit.BACKFILL_STOPPED: "stopped a backfill",
}
"""The operations in words, by the type of their audit event."""
EVENTS = {
    audit.CREATED: "created",
    audit.PAUSED: "paused",
    audit.RESUMED: "active again",
    audit.UPDATED: "changed",
    audit.TRIGGERED: "run queued",
    audit.SKIPPED: "skipped",
    audit.DELETED: "deleted",
    audit.BUFFERED: "run waits for an earlier run",
    audit.FIRE_FAILED: "could not fire, and tries again",
    audit.MISSED: "missed",
    audit.SKIPS_SET: "occurrences to skip were chosen",
    audit.EXCLUDED: "excluded occurrences passed",
    audit.CALENDAR_CHANGED: "a calendar moved the next occurrence",
    audit.COMPLETED: "done: nothing more to start",
    audit.DIED: "dead: failed for good",
    audit.RECOVERED: "the next occurrence was computed again",
    audit.OVERDUE: "no success in time",
    audit.RUN_LONG: "run takes too long",
    audit.RUN_FAILED: "run failed",
    audit.RUN_RETRYING: "attempt failed, and another follows",
    audit.RUN_LOST: "run lost: its worker died",
    audit.RUN_EXPIRED: "run expired: it did not start in time",
    audit.RUN_BLOCKED: "run blocked: a worker lacked its code",
    audit.RUN_RETRY_REQUESTED: "retry requested",
    audit.RUN_RETRY_STARTED: "requested retry queued",
    audit.RUN_COPIED: "copy of an earlier run requested",
    audit.RUN_SUCCEEDED: "run succeeded after failures",
    audit.RUN_CANCELLED: "run cancelled",
    audit.RUN_TERMINATED: "run terminated",
    audit.BACKFILL_STOPPED: "backfill stopped",
    audit.FAN_OUT_ENDED: "all targets of the run have ended",
}
"""Each type of audit event in words."""
_ENDS = {reason.value: reason.phrase for reason in EndReason}
_SKIPS = {reason.value: reason.phrase for reason in SkipReason}
NOTHING_FIRED = "nothing fired in time"
"""Why occurrences were missed, if nothing more is known."""
_MISSES: dict[str, str] = {
    MissedPolicy.FIRE_ONCE: f"{NOTHING_FIRED}, and one run makes up for all",
    MissedPolicy.SKIP: f"{NOTHING_FIRED}, and what is late is left out",
    MissedPolicy.ALL: f"{NOTHING_FIRED}, and more were late than are made up for",
}


def end_in_words(reason: str) -> str:
    """Return a phrase that says why a schedule ended. A reason that a person typed stays as it is."""
    return _ENDS.get(reason, reason)


def skip_in_words(reason: str) -> str:
    """Return the reason of a skipped occurrence or trigger as a phrase; an unknown code stays as it is."""
    return _SKIPS.get(reason, reason)


def miss_in_words(policy: str, *, has_fired: bool) -> str:
    """Return a phrase that says why occurrences were missed. `has_fired`: others fired in their place.

    For occurrences that were due at the moment of a pause or a deletion, the pause or the deletion is the reason.
    """
    if policy in _SKIPS:
        return _SKIPS[policy]
    return _MISSES.get(policy, policy) if has_fired else NOTHING_FIRED
