"""The project's scheduler."""

from functools import cache

from rqsched import Scheduler


@cache
def get_scheduler() -> Scheduler:
    """Give the scheduler of this process, made from `RQSCHED_*` when it is first asked for."""
    return Scheduler.from_env()
