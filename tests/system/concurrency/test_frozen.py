"""Processes that freeze (SIGSTOP) in the middle of their work, beyond every lease, and wake up when others did it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy.engine import Connection

from rqsched import RetryPolicy
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.kernel.chain import execution
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.decide.ids import parse_run_job_id
from rqsched.kernel.decide.model import Change
from rqsched.kernel.store.database import Database
from rqsched.kernel.transport.transport import Transport
from rqsched.testing import ManualClock
from tests.support.children import freeze, frozen
from tests.support.env import MINUTE
from tests.support.invariants import check_invariants, i8_executions
from tests.support.stories import read_stories
from tests.system.concurrency.crowd import RUN_LIST, Crowd, come_to_rest, work_off

T = TypeVar("T")
SCHEDULES = 12


class _Leasing(Transport):
    """Freezes with its links leased and nothing decided."""

    def lease(self, **arguments: object) -> list[str]:
        taken = super().lease(**arguments)  # type: ignore[arg-type]
        freeze()
        return taken


class _Following(Transport):
    """Freezes with everything committed and nothing of it in Redis."""

    def follow(self, changes: Sequence[Change], *, now: datetime) -> None:
        freeze()
        super().follow(changes, now=now)


class _Dropping(Transport):
    """Freezes with everything done but its links removed."""

    def drop(self, ids: object) -> None:
        freeze()
        super().drop(ids)  # type: ignore[arg-type]


class _Committing(Database):
    """Freezes inside the transaction, with the rows locked."""

    def transact(self, work: Callable[[Connection], T], **options: object) -> T:
        def then_freeze(connection: Connection) -> T:
            result = work(connection)
            freeze()
            return result

        return super().transact(then_freeze, **options)  # type: ignore[arg-type]


def _leased(scheduler: Scheduler) -> None:
    scheduler.runtime.transport.__class__ = _Leasing


def _committed(scheduler: Scheduler) -> None:
    scheduler.runtime.transport.__class__ = _Following


def _published(scheduler: Scheduler) -> None:
    scheduler.runtime.transport.__class__ = _Dropping


def _locked(scheduler: Scheduler) -> None:
    scheduler.runtime.database.__class__ = _Committing


def crowd_of(database_url: str, redis_url: str, tmp_path: Path) -> Crowd:
    clock = ManualClock(datetime(2026, 1, 15, 12, 0, 0, 7, tzinfo=UTC))
    return Crowd(Settings(database_url=database_url, redis_url=redis_url), clock, tmp_path / "executed")


def clock_of(crowd: Crowd) -> ManualClock:
    assert isinstance(crowd.clock, ManualClock)
    return crowd.clock


def make_due(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        for number in range(SCHEDULES):
            scheduler.create(f"s{number}", "note", MINUTE)
    clock_of(crowd).advance(MINUTE)


def dispatch_freezing(crowd: Crowd, prepare: Callable[[Scheduler], None]) -> Callable[[], None]:
    def work() -> None:
        with crowd.scheduler() as scheduler:
            prepare(scheduler)
            Dispatcher(scheduler.runtime).run_once()

    return work


def runs_per_schedule(scheduler: Scheduler) -> list[int]:
    return [len(story.runs) for story in read_stories(scheduler.runtime)]


def fire_after_the_lease(crowd: Crowd) -> None:
    clock_of(crowd).advance(crowd.settings.link_lease + timedelta(milliseconds=1))
    with crowd.scheduler() as scheduler:
        dispatcher = Dispatcher(scheduler.runtime)
        while dispatcher.run_once():
            continue


@pytest.mark.parametrize("moment", [_leased, _committed, _published], ids=["leased", "committed", "published"])
def test_links_of_a_frozen_dispatcher_are_fired_by_another_and_not_again_when_it_wakes(
    database_url: str, redis_url: str, tmp_path: Path, moment: Callable[[Scheduler], None]
) -> None:
    crowd = crowd_of(database_url, redis_url, tmp_path)
    make_due(crowd)

    with frozen(dispatch_freezing(crowd, moment)) as wake:
        fire_after_the_lease(crowd)
        with crowd.scheduler() as scheduler:
            assert runs_per_schedule(scheduler) == [1] * SCHEDULES
            work_off(scheduler)
        wake()

    with crowd.scheduler() as scheduler:
        assert runs_per_schedule(scheduler) == [1] * SCHEDULES
        come_to_rest(scheduler, clock_of(crowd))
        check_invariants(scheduler.runtime)
        i8_executions(scheduler.runtime, crowd.executed())


@pytest.mark.postgres
def test_schedules_that_a_frozen_dispatcher_holds_wait_and_hold_up_no_others(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    crowd = crowd_of(postgres_url, redis_url, tmp_path)
    make_due(crowd)

    with frozen(dispatch_freezing(crowd, _locked)) as wake:
        with crowd.scheduler() as scheduler:
            scheduler.create("free", "note", timedelta(seconds=1))
            clock_of(crowd).advance(timedelta(seconds=1))
        clock_of(crowd).advance(crowd.settings.link_lease + timedelta(milliseconds=1))
        with crowd.scheduler() as scheduler:
            Dispatcher(scheduler.runtime).run_once()
            assert scheduler.get("free").run_count == 1
            assert scheduler.get("s0").run_count == 0
        wake()

    with crowd.scheduler() as scheduler:
        come_to_rest(scheduler, clock_of(crowd))
        check_invariants(scheduler.runtime)
        i8_executions(scheduler.runtime, crowd.executed())


def test_a_run_whose_horse_froze_goes_on_elsewhere_and_its_late_end_is_not_recorded(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    crowd = crowd_of(database_url, redis_url, tmp_path)
    with crowd.scheduler() as scheduler:
        retry = RetryPolicy(1, base=timedelta(seconds=5))
        schedule = scheduler.create("s0", "note", timedelta(days=1), retry=retry)
        schedule.trigger()

    with frozen(lambda: _execute_freezing(crowd)) as wake:
        with crowd.scheduler() as scheduler:
            for _ in range(5):
                clock_of(crowd).advance(timedelta(seconds=16))
                scheduler.recover()
            assert schedule_runs(scheduler) == [("retrying", 1)]
            come_to_rest(scheduler, clock_of(crowd))
            assert schedule_runs(scheduler) == [("succeeded", 2)]
        wake()

    with crowd.scheduler() as scheduler:
        assert schedule_runs(scheduler) == [("succeeded", 2)]
        assert scheduler.get("s0").state.success_count == 1
        check_invariants(scheduler.runtime)


def schedule_runs(scheduler: Scheduler) -> list[tuple[str, int]]:
    return [(run.status.value, run.attempt) for story in read_stories(scheduler.runtime) for run in story.runs]


def _execute_freezing(crowd: Crowd) -> None:
    with crowd.scheduler(freeze) as scheduler:
        entry = scheduler.runtime.transport.redis.lpop(RUN_LIST)
        job = parse_run_job_id(entry.decode())  # type: ignore[union-attr]
        assert job is not None
        execution.execute(scheduler.runtime, job)
