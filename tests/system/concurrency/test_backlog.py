"""Many late links, several dispatchers at once, and a recover in the middle of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rqsched.config import Settings
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.testing import ManualClock
from tests.support.children import FORK, in_children
from tests.support.invariants import check_invariants
from tests.support.stories import read_stories
from tests.system.concurrency.crowd import Crowd

NOON = datetime(2026, 1, 15, 12, 0, 0, 123_457, tzinfo=UTC)
BACKLOG = 150
DISPATCHERS = 5


@pytest.fixture
def backlog(database_url: str, redis_url: str, tmp_path: Path) -> Crowd:
    """Schedules whose first occurrence has passed by an hour; their links are armed."""
    clock = ManualClock(NOON)
    settings = Settings(database_url=database_url, redis_url=redis_url, fire_batch=20)
    crowd = Crowd(settings, clock, tmp_path / "executed")
    with crowd.scheduler() as scheduler:
        scheduler.sync(Declaration(f"s{number}", "note", timedelta(minutes=1)) for number in range(BACKLOG))
    clock.advance(timedelta(hours=1))
    return crowd


def test_a_backlog_is_fired_once_however_many_fire_and_recover_it(backlog: Crowd) -> None:
    roles = FORK.Value("i", 0)

    def act() -> int:
        with roles.get_lock():
            roles.value += 1
            role = roles.value
        with backlog.scheduler() as scheduler:
            if role <= 2:
                return sum(scheduler.recover(deep=role == 1).links for _ in range(3))
            dispatcher, fired = Dispatcher(scheduler.runtime), 0
            while batch := dispatcher.run_once():
                fired += batch
            return fired

    in_children(DISPATCHERS + 2, act)

    with backlog.scheduler() as scheduler:
        first_runs = [len(story.runs) for story in read_stories(scheduler.runtime)]
        assert max(first_runs) == 1, "an occurrence of the backlog was fired twice"
        assert isinstance(backlog.clock, ManualClock)
        backlog.clock.advance(timedelta(seconds=16))
        scheduler.recover()
        while Dispatcher(scheduler.runtime).run_once():
            continue
        check_invariants(scheduler.runtime)
        assert {len(story.runs) for story in read_stories(scheduler.runtime)} == {1}
        assert {story.schedule.missed_count for story in read_stories(scheduler.runtime)} == {59}
