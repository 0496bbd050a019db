"""The targets of a simulated run, as `store.fan_out_targets` has them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from typing import NamedTuple

from rqsched.core.ids import derived_uid
from rqsched.core.model import OPEN_TARGETS, Run, TargetStatus
from rqsched.core.target_decision import TargetEnd


class FanOut(NamedTuple):
    """The targets that each run of a schedule names."""

    number: int
    """How many."""
    chunk: int
    """How many are put on their queue at a time."""


@dataclass(slots=True, eq=False)
class Target:
    """One target."""

    uid: str
    """Computed from the run and the target's id, which is its number here."""
    number: int
    """1, 2, 3 ... within its run."""
    of: Targets
    """Those of its run."""
    status: TargetStatus = TargetStatus.WAITING
    """Where it is in its life."""
    attempt: int = 1
    """The current attempt."""
    delivery: int = 1
    """Which job carries it."""
    limit_at: datetime | None = None
    """Since when it is in its group's line; None before that, or without a group."""
    granted_at: datetime | None = None
    """When it got a place in its group."""
    passed_at: datetime | None = None
    """When nobody had claimed that, and it was passed over."""
    passed_count: int | None = None
    """How often a worker then came to it and its group was full."""
    is_rated: bool = False
    """Whether its start counts in a rate."""
    retry_at: datetime | None = None
    """When the next attempt is due; None unless retrying."""
    error: str | None = None
    """The error of its newest attempt."""

    @property
    def is_in_line(self) -> bool:
        """Whether it waits for a place in its group."""
        is_waiting = self.of.group is not None and self.granted_at is None and self.passed_at is None
        return is_waiting and self.status is TargetStatus.PENDING

    @property
    def takes_place(self) -> bool:
        """Whether it has one of its group's places."""
        is_claimed = self.status is TargetStatus.RUNNING or (
            self.status is TargetStatus.PENDING and self.granted_at is not None
        )
        return self.of.group is not None and is_claimed

    def is_late(self, _now: datetime) -> bool:
        """Return that it may start whenever it is its turn."""
        return False


class Targets:
    """The targets of one run: which of them wait, are put off, are handled, and how many ended in each way."""

    def __init__(self, run: Run, fan_out: FanOut, group: str | None, most: int | None) -> None:
        self.run_uid, self.group, self.most, self.chunk = run.uid, group, most, fan_out.chunk
        self.all = [
            Target(derived_uid(run.occurrence_at, run.uid, str(number)), number, self)
            for number in range(1, fan_out.number + 1)
        ]
        self.open = len(self.all)
        """How many have not ended."""
        self.retrying = dict[str, Target]()
        """Those that wait for their next attempt, by uid."""
        self._waiting = [target.number for target in self.all]
        self._handled = 0

    @property
    def first_waiting(self) -> int | None:
        """The number of the first that is not on its queue yet; None when all are."""
        return self._waiting[0] if self._waiting else None

    @property
    def free(self) -> int:
        """How many more may be handled beside the others."""
        return self.chunk if self.most is None else min(self.most - self._handled, self.chunk)

    def take(self, most: int, now: datetime) -> list[Target]:
        """Make the next ones that wait pending, at most so many."""
        taken = [self.all[heappop(self._waiting) - 1] for _ in range(min(most, len(self._waiting)))]
        for target in taken:
            self._make_pending(target, now)
        return taken

    def _make_pending(self, target: Target, now: datetime) -> None:
        target.status = TargetStatus.PENDING
        if self.group is not None:
            target.limit_at = target.limit_at or now
        self._handled += 1

    def note(self, target: Target, end: TargetEnd) -> None:
        """Note how an attempt of one ended."""
        if target.status in {TargetStatus.PENDING, TargetStatus.RUNNING}:
            self._handled -= 1
        self.retrying.pop(target.uid, None)
        target.status, target.retry_at, target.error = end.status, end.retry_at, end.error
        if end.has_ended:
            self.open -= 1
        else:
            self.retrying[target.uid] = target

    def promote(self, now: datetime, most: int) -> list[Target]:
        """Let those whose time has come be handled again, which wait where `max_parallel` says when; return them."""
        due = [one for _, one in sorted(self.retrying.items()) if one.retry_at is not None and one.retry_at <= now]
        for target in due[:most]:
            del self.retrying[target.uid]
            target.attempt, target.delivery = target.attempt + 1, target.delivery + 1
            target.granted_at = target.passed_at = target.retry_at = None
            if self.most is None:
                self._make_pending(target, now)
            else:
                target.status = TargetStatus.WAITING
                heappush(self._waiting, target.number)
        return due[:most]

    def give_up(self) -> list[Target]:
        """Return those that no process handles and that have not ended; none of them waits any more."""
        self._waiting.clear()
        return [one for one in self.all if one.status in OPEN_TARGETS and one.status is not TargetStatus.RUNNING]

    def counts(self) -> dict[str, int]:
        """Count them by status."""
        return dict(Counter(one.status.value for one in self.all))

    def first_error(self) -> str | None:
        """Return the error of the first that failed; None when none did."""
        failed = (one.error for one in self.all if one.status in {TargetStatus.FAILED, TargetStatus.LOST})
        return next(failed, None)
