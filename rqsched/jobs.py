"""The functions RQ calls. Their dotted paths are stored in Redis: they are API."""

from __future__ import annotations

import math

from rq import Retry

from . import links, runs
from .ids import parse_run_job_id
from .reconcile import reconcile_in_turn
from .runtime import current_runtime

_WAITS = 1_000_000


def fire(link_id: str) -> Retry | None:
    """Fire one link under a plain `rq worker`, and reconcile now and then on the way.

    A link that came early, or whose schedule is held by somebody else, comes again: RQ is told when.
    """
    runtime = current_runtime()
    fired = links.fire(runtime, [link_id])[0]
    reconcile_in_turn(runtime)
    if fired.again_at is None:
        return None
    wait = (fired.again_at - runtime.now()).total_seconds()
    return Retry(max=_WAITS, interval=max(1, math.ceil(wait)))


def execute(job_id: str) -> None:
    """Execute one delivery of a run's attempt. Its result is kept in SQL: nothing of the user's goes through Redis."""
    job = parse_run_job_id(job_id)
    if job is None:
        raise ValueError(f"{job_id!r} is no run job of ours")
    runs.execute(current_runtime(), job)
