"""The kinds of sources, and their openers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rqsched.importers import apscheduler, celery_beat, celery_tasks, rq_cron, rq_scheduler
from rqsched.importers.source import Reading, Source

OPENERS: Mapping[str, Callable[[str, Reading], Source]] = {
    rq_scheduler.KIND: rq_scheduler.open_source,
    rq_cron.KIND: rq_cron.open_source,
    celery_tasks.KIND: celery_beat.open_source,
    apscheduler.KIND: apscheduler.open_source,
}
"""The function that opens each kind of source. It takes an address, and raises if the address is not valid."""
