"""The decision after an attempt of a target: its end, another attempt, or an offer to other workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.kernel.decide.blocked import out_of_time
from rqsched.kernel.decide.delays import base_of, offer_delay, retry_at
from rqsched.kernel.decide.model import OPEN_TARGETS, Schedule, TargetStatus
from rqsched.kernel.decide.policy import LOST, NO_TYPES, ErrorTypes, rule_against
from rqsched.kernel.decide.settle_decision import cut_error, is_withdrawn


@dataclass(frozen=True, slots=True)
class TargetEnd:
    """The state of a target after an attempt: its end, or the time of its next attempt or offer."""

    status: TargetStatus
    """The status of the ended target, or `retrying` or `blocked`."""
    error: str | None = None
    """The error of this attempt; None without one."""
    retry_at: datetime | None = None
    """When it is put on its queue again; None if it has ended."""
    blocked_at: datetime | None = None
    """When a worker first could not find the workflow of the target; None unless the target is blocked."""

    @property
    def has_ended(self) -> bool:
        """Whether the target has ended for good."""
        return self.status not in OPEN_TARGETS


def decide_failed(
    schedule: Schedule | None,
    uid: str,
    attempt: int,
    error: str,
    *,
    now: datetime,
    is_lost: bool = False,
    error_types: ErrorTypes = NO_TYPES,
) -> TargetEnd:
    """Decide after an attempt that failed, or whose process vanished: another attempt if the policy allows, or the end.

    If `schedule` is None, no attempt follows: the run has ended, or the fan-out was started by hand.
    """
    error = cut_error(error)
    again_at = None
    if schedule is not None and not is_withdrawn(schedule) and not schedule.policies.is_final(error_types):
        retry, interval = schedule.policies.target_retry, base_of(schedule.spec)
        if rule_against(retry, LOST if is_lost else error_types) is None:
            again_at = retry_at(retry, attempt, now=now, interval=interval, salt=uid)
    if again_at is not None:
        return TargetEnd(TargetStatus.RETRYING, error, again_at)
    return TargetEnd(TargetStatus.LOST if is_lost else TargetStatus.FAILED, error)


def decide_blocked(blocked_at: datetime | None, reason: str, *, now: datetime, timeout: timedelta) -> TargetEnd:
    """Decide what follows if a worker could not find the workflow of a target. This is not a failed attempt.

    Like a blocked run, the target is offered again after a delay. If it has been blocked for `timeout`, it has failed.
    """
    since = blocked_at or now
    if now - since >= timeout:
        return TargetEnd(TargetStatus.FAILED, cut_error(out_of_time(reason, timeout).error or reason))
    return TargetEnd(TargetStatus.BLOCKED, cut_error(reason), now + offer_delay(now - since), since)
