"""Which sources there are, and what opens each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rqsched.coming_over import apscheduler, celery_beat, celery_tasks, rq_cron, rq_scheduler
from rqsched.coming_over.source import Reading, Source

OPENERS: Mapping[str, Callable[[str, Reading], Source]] = {
    rq_scheduler.KIND: rq_scheduler.open_source,
    rq_cron.KIND: rq_cron.open_source,
    celery_tasks.KIND: celery_beat.open_source,
    apscheduler.KIND: apscheduler.open_source,
}
"""What opens a source, by what the command calls it. Each takes an address, and raises what is wrong with it."""
