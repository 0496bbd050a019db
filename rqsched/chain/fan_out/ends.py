"""The end of a fan-out: its run ends when its last target has ended, whichever process sees that.

No target locks the row of its run. Each asks, after its own end is committed, whether others are open; the last one
finds none and settles the run. A process that dies between the two leaves that to reconcile.
"""

from __future__ import annotations

import logging

from rqsched.chain.runtime import Runtime
from rqsched.chain.settling import settle_run
from rqsched.core.model import Change, Run, RunStatus, dumps
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult
from rqsched.errors import BackendUnavailableError
from rqsched.store import changes, fan_out_targets
from rqsched.store.database import Connection

_log = logging.getLogger(__name__)


def end_if_over(runtime: Runtime, run_uid: str, *, skip_locked: bool = False) -> Change | None:
    """End a dispatched run that has no open target.

    Returns None when it has some, or another process ended it or holds the lock (`skip_locked`).
    """
    ended = runtime.database.read(lambda connection: _read_end(connection, run_uid))
    if ended is None:
        return None
    return settle_run(runtime, run_uid, ended, fence=is_dispatched, skip_locked=skip_locked)


def try_to_end(runtime: Runtime, run_uid: str) -> None:
    """Do as `end_if_over`, and leave it to reconcile while SQL is away: the target itself has ended."""
    try:
        end_if_over(runtime, run_uid)
    except BackendUnavailableError as error:
        text = "the end of run %s is left to reconcile: %s"
        _log.warning(text, run_uid, error, extra={"action": "fan_out_unsettled"})


def is_dispatched(run: Run) -> bool:
    """Return whether a run's workflow has returned and the run waits for its targets."""
    return run.status is RunStatus.RUNNING and run.dispatched_at is not None


def _read_end(connection: Connection, run_uid: str) -> AttemptResult | None:
    run = changes.find_run(connection, run_uid)
    if run is None or not is_dispatched(run) or fan_out_targets.has_open(connection, run_uid):
        return None
    counts = fan_out_targets.count(connection, run_uid)
    error = fan_out_targets.first_error(connection, run_uid)
    return AttemptResult(AttemptOutcome.TARGETS_ENDED, result=run.result, error=error, target_counts=dumps(counts))
