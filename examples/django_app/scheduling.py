"""The project's scheduler."""

from functools import cache

from rqsched import Scheduler


@cache
def get_scheduler() -> Scheduler:
    """Return the scheduler of this process, opened from `RQSCHED_*` at its first use."""
    return Scheduler.from_env()
