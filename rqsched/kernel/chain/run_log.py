"""Log each start and each end of an attempt once, in the process that commits it, and call the subscribers of ends.

The fields are API: `--log-format json` writes them under the names used here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rqsched.errors import error_line
from rqsched.kernel.decide.model import OPEN, Change, Run, RunStatus, Schedule
from rqsched.kernel.fork_guard import call_in_this_process

_log = logging.getLogger("rqsched.runs")

_BAD = frozenset({RunStatus.FAILED, RunStatus.RETRYING, RunStatus.LOST})


def log_start(schedule: Schedule, run: Run) -> None:
    """Log that an attempt began."""
    text = "run started: %s/%s, run %s, attempt %d (%s)"
    fields = {"action": "run_started", **_fields(schedule, run)}
    named = schedule.namespace, schedule.schedule_id, run.uid, run.attempt, run.workflow
    _log.info(text, *named, extra=fields)


Ended = Callable[[Schedule, Run], Any]
"""A subscriber: it is called with a schedule and one of its runs, which has ended. The result is ignored."""
_ended: list[Ended] = []


def on_end(subscriber: Ended) -> Ended:
    """Call a function for every run whose end this process commits, even if no audit event is recorded."""
    _ended.append(subscriber)
    return subscriber


def log_ends(change: Change) -> None:
    """Log every attempt that a committed Change ended. If its run has ended, call the subscribers."""
    schedule = change.after
    for before, after in change.changed_runs:
        awaits_retry = after.status is RunStatus.RETRYING and before.status is RunStatus.RUNNING
        if after.status is before.status or (after.status in OPEN and not awaits_retry):
            continue
        fields = {"action": "run_ended", **_fields(schedule, before), "outcome": after.status.value}
        named = f"{schedule.namespace}/{schedule.schedule_id}, run {before.uid}, attempt {before.attempt}"
        told = f"{after.status.value}: {named}"
        ended_at = after.ended_at or schedule.updated_at
        if before.status is RunStatus.RUNNING and before.started_at is not None:
            fields["duration"] = round((ended_at - before.started_at).total_seconds(), 6)
            told += f", {fields['duration']:.3f} s"
        if after.status is not RunStatus.SUCCEEDED and after.error:
            fields["error"] = error_line(after.error)
            told += f": {fields['error']}"
        _log.log(logging.WARNING if after.status in _BAD else logging.INFO, "run %s", told, extra=fields)
        for subscriber in () if after.status in OPEN else _ended:
            _tell(subscriber, schedule, after)


def _tell(subscriber: Ended, schedule: Schedule, run: Run) -> None:
    try:
        call_in_this_process(subscriber, schedule, run)
    except Exception:  # noqa: BLE001 - a subscriber that raises harms nothing
        _log.exception("a subscriber of ends failed", extra={"action": "subscriber_failed"})


def _fields(schedule: Schedule, run: Run) -> dict[str, Any]:
    return {
        "schedule": schedule.schedule_id,
        "namespace": schedule.namespace,
        "run": run.uid,
        "attempt": run.attempt,
        "workflow": run.workflow,
    }
