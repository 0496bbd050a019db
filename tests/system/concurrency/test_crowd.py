"""Eight processes fire, tick, recover, trigger, upsert, update, pause, resume and re-create the same schedules."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from rqsched.clock import SystemClock
from rqsched.config import Settings
from rqsched.kernel.decide import audit
from rqsched.testing import ManualClock
from tests.support.children import FORK, in_children
from tests.support.invariants import check_invariants, i8_executions
from tests.support.sizes import sized
from tests.support.stories import read_stories
from tests.system.concurrency.crowd import DECLARATIONS, Crowd, FastClock, Member, come_to_rest, declare, seed_of

PROCESSES = 8
OPERATIONS = int(os.environ.get("CROWD_OPERATIONS", sized(100, 300)))
"""Operations of each process. All processes together make thousands."""
SPEED = 20


@pytest.fixture
def crowd(database_url: str, redis_url: str, tmp_path: Path) -> Crowd:
    clock = FastClock(SystemClock().now(), SPEED)
    return Crowd(Settings(database_url=database_url, redis_url=redis_url), clock, tmp_path / "executed")


@pytest.mark.timeout(240)
def test_eight_processes_at_once_leave_every_invariant_whole(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        for index in range(len(DECLARATIONS)):
            declare(scheduler, index)
    numbers = FORK.Value("i", 0)

    def act() -> Counter[str]:
        with numbers.get_lock():
            numbers.value += 1
            index = numbers.value
        return Member(crowd.scheduler(), Random(seed_of(index))).act(OPERATIONS)

    done: Counter[str] = sum(in_children(PROCESSES, act), Counter())

    with crowd.scheduler() as scheduler:
        now = ManualClock(crowd.clock.now())
        scheduler.runtime.use_clock(now)
        come_to_rest(scheduler, now)
        check_invariants(scheduler.runtime)
        i8_executions(scheduler.runtime, crowd.executed())
        fired = sum(event.event_type == audit.TRIGGERED for s in read_stories(scheduler.runtime) for event in s.events)
    assert done.total() >= PROCESSES * OPERATIONS
    assert fired > PROCESSES * OPERATIONS / 20, done
    assert done["timeout"] < PROCESSES, done
