"""Blocked runs: if a process has claimed a run but cannot find the workflow, it gives the run back for another worker.

If the process dies or hangs before it gives the run back, the run is lost like any other, because no other process
knows that the workflow had not begun.
"""

from __future__ import annotations

import logging
from datetime import datetime

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import change_run, settle_run
from rqsched.kernel.decide.blocked import decide_block, out_of_time
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.store import claims
from rqsched.kernel.store.database import Patience

_log = logging.getLogger(__name__)


def block_run(runtime: Runtime, run: Run, reason: str, *, patience: Patience) -> Change | None:
    """Undo this process's claim of a run and record why; None if this process no longer holds the run."""
    timeout = runtime.settings.blocked_timeout

    def decide(schedule: Schedule, runs: list[Run], current: Run, now: datetime) -> Change:
        return decide_block(schedule, runs, current, reason, now=now, timeout=timeout)

    _log.warning("run %s is blocked: %s", run.uid, reason, extra={"action": "run_blocked"})
    return change_run(runtime, run.uid, decide, fence=lambda current: current.is_held_by(run.token), patience=patience)


def unblock_run(runtime: Runtime, run: Run) -> None:
    """Record that a run is no longer blocked, because its workflow was found.

    If SQL is away, this is left to the end of the run.
    """
    try:
        runtime.database.transact(lambda connection: claims.unblock_run(connection, run.uid, run.token))
    except BackendUnavailableError as error:
        _log.warning("run %s still shows as blocked: %s", run.uid, error, extra={"action": "unblock_failed"})


def fail_blocked(runtime: Runtime, run: Run) -> bool:
    """Fail a run that was blocked for too long; returns False if a worker has taken it meanwhile."""

    def is_still_blocked(current: Run) -> bool:
        return current.is_blocked and not current.is_in_line and current.blocked_at == run.blocked_at

    result = out_of_time(run.blocked_reason, runtime.settings.blocked_timeout)
    return settle_run(runtime, run.uid, result, fence=is_still_blocked, skip_locked=True) is not None
