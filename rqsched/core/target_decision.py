"""What follows an attempt of a target: its end, another attempt, or an offer to other workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rqsched.core.blocked import out_of_time
from rqsched.core.delays import backoff, base_of, offer_delay
from rqsched.core.model import OPEN_TARGETS, Schedule, TargetStatus
from rqsched.core.policy import Policies
from rqsched.core.settle_decision import is_withdrawn

MAX_ERROR = 8_192
"""Characters of an error that are kept as a target's error."""


@dataclass(frozen=True, slots=True)
class TargetEnd:
    """What an attempt of a target leaves: the target's end, or when it is attempted or offered again."""

    status: TargetStatus
    """How it ended, or `retrying` or `blocked`."""
    error: str | None = None
    """What went wrong in this attempt; None when nothing did."""
    retry_at: datetime | None = None
    """When it is put on its queue again; None when it has ended."""
    blocked_at: datetime | None = None
    """Since when no worker that took it could find its workflow; None unless it is blocked."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing changes any more."""
        return self.status not in OPEN_TARGETS


def decide_failed(
    schedule: Schedule | None,
    uid: str,
    attempt: int,
    error: str,
    *,
    now: datetime,
    is_lost: bool = False,
    error_types: tuple[str, ...] = (),
) -> TargetEnd:
    """Decide what follows an attempt that failed, or whose process vanished: another one, as long as the policy allows.

    `schedule` is None when nothing is tried again: its run has ended, or the fan-out was started by hand.
    """
    status, error = (TargetStatus.LOST if is_lost else TargetStatus.FAILED), cut(error)
    if schedule is None or is_withdrawn(schedule) or not _is_tried_again(schedule.policies, attempt, error_types):
        return TargetEnd(status, error)
    delay = backoff(schedule.policies.target_retry, attempt, interval=base_of(schedule.spec), salt=uid)
    return TargetEnd(TargetStatus.RETRYING, error, now + delay)


def _is_tried_again(policies: Policies, attempt: int, error_types: tuple[str, ...]) -> bool:
    return attempt <= policies.target_retry.max_retries and not policies.is_final(error_types)


def decide_blocked(blocked_at: datetime | None, reason: str, *, now: datetime, timeout: timedelta) -> TargetEnd:
    """Decide what follows when a worker cannot find the workflow of a target; that is no failed attempt.

    It is offered again after a delay, as a blocked run is. Once it was blocked for `timeout` it has failed.
    """
    since = blocked_at or now
    if now - since >= timeout:
        return TargetEnd(TargetStatus.FAILED, cut(out_of_time(reason, timeout).error or reason))
    return TargetEnd(TargetStatus.BLOCKED, cut(reason), now + offer_delay(now - since), since)


def cut(error: str) -> str:
    """Cut the middle out of a long error: the exception stands in the first line, where it was raised at the end."""
    head = MAX_ERROR // 3
    return error if len(error) <= MAX_ERROR else f"{error[:head]}\n... [cut] ...\n{error[head - MAX_ERROR :]}"
