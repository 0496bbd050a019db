"""A claimed attempt, and the worker that may write to SQL for the process that executes it."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol

from rqsched.core.ids import RunJobId
from rqsched.core.model import Change, Run, Schedule
from rqsched.core.settle_decision import AttemptResult


class Claim(NamedTuple):
    """A run attempt that this process executes."""

    run: Run
    """The run as it was started."""
    schedule: Schedule
    """The schedule that started it."""
    token: str
    """Drawn by this process for this attempt: only its holder may end it."""
    owed: tuple[str, ...] = ()
    """The pings that its start owes, by uid."""
    version: str | None = None
    """Which version of the schedule's row that is (`StartedRun`)."""


class NotAnsweredError(Exception):
    """The parent did not do what it was asked, or did and its answer was lost: this process does it itself."""


class ParentWorker(Protocol):
    """The worker that forked this process, which writes to SQL for it on a connection that is open already.

    Both methods raise NotAnsweredError. What is then repeated by this process is recognised by its token, as after any
    answer of SQL that was lost.
    """

    def claim(self, job: RunJobId, token: str, worker: str) -> Claim | None:
        """Claim the attempt that this process was forked for; None when it could not be claimed."""
        ...

    def end(self, attempt_result: AttemptResult, at: datetime) -> tuple[Change | None, bool]:
        """Record how the claimed attempt ended; returns what `write_end` does. Nothing is published."""
        ...
