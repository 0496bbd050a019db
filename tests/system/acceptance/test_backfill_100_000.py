"""A backfill of 100 000 occurrences: the bound raised, memory that does not grow, every occurrence once."""

from __future__ import annotations

from datetime import timedelta

import psutil
import pytest
import sqlalchemy as sa

from rqsched import Cron
from rqsched.api.scheduler import Scheduler
from rqsched.features.backfill.chain import BackfillRange
from rqsched.kernel.store.tables import runs
from rqsched.testing import ManualClock

COUNT = 100_000
MEBIBYTE = 2**20


@pytest.mark.acceptance
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_hundred_thousand_occurrences_are_backfilled_in_bounded_memory(
    clock: ManualClock, redis_url: str, sqlite_url: str
) -> None:
    minutes = timedelta(minutes=1)
    with Scheduler(database_url=sqlite_url, redis_url=redis_url, clock=clock) as scheduler:
        schedule = scheduler.create("minutely", "builtins.len", Cron("* * * * *"))
        steps = schedule.backfill_in_chunks(BackfillRange(clock.now() - COUNT * minutes, clock.now(), bound=COUNT))
        memory = psutil.Process().memory_info
        grown = {done.attempted: memory().rss for done in steps}
        counted = sa.select(sa.func.count(), sa.func.count(runs.c.occurrence_at.distinct()))
        rows, instants = scheduler.runtime.database.read(lambda c: tuple(c.execute(counted).one()))

    assert max(grown) == COUNT
    assert (rows, instants) == (COUNT, COUNT), "each occurrence has one run"
    after_some = grown[COUNT // 10]
    assert max(grown.values()) - after_some < 32 * MEBIBYTE, "it holds a chunk, not the range"
