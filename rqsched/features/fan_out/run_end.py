"""The end of a run with targets: it has ended when its workflow has returned and no target is open."""

from __future__ import annotations

import logging

from rqsched.features.fan_out import store as fan_out_targets
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.model import Change, Run, RunStatus, dumps
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import FAILURES, Connection

_log = logging.getLogger(__name__)


def end_if_over(runtime: Runtime, run_uid: str, *, skip_locked: bool = False) -> Change | None:
    """End a run whose workflow has returned and that has no open target.

    Returns None if the run has open targets, if another process has ended it, or (with `skip_locked`) if another
    process holds its lock.
    """
    ended = runtime.database.read(lambda connection: _read_end(connection, run_uid))
    if ended is None:
        return None
    return settle_run(runtime, run_uid, ended, fence=is_dispatched, skip_locked=skip_locked)


def try_to_end(runtime: Runtime, run_uid: str, *, skip_locked: bool = False) -> None:
    """Call `end_if_over`. If SQL is down, raise no error: reconcile ends the run."""
    try:
        end_if_over(runtime, run_uid, skip_locked=skip_locked)
    except FAILURES as error:
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
