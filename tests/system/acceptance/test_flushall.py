"""FLUSHALL under a working worker: Redis is transport, and SQL knows everything that was in it."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import pytest
from redis import Redis
from rq import Worker

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.kernel.decide.model import RunKind
from tests.support.narrow import present
from tests.support.processes import BIN, SOON, wait_until
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
LATER = timedelta(seconds=12)


@pytest.mark.parametrize(
    "flushes", [pytest.param(1, marks=pytest.mark.nightly), pytest.param(3, marks=pytest.mark.once)]
)
def test_schedules_go_on_after_a_flush_and_none_fires_twice(any_live: LiveEnv, flushes: int) -> None:
    often = [any_live.note_every(f"often-{n}", Every(timedelta(seconds=1)), overlap="allow_all") for n in range(5)]
    seldom = any_live.note_every("seldom", Every(LATER), overlap="allow_all")
    held = any_live.hold_now(retry=RetryPolicy(max_retries=2))
    any_live.start_worker()
    any_live.wait_for_execution(held)

    for _ in range(flushes):
        planned = present(seldom.refresh().next_run_at)
        any_live.redis.flushall()
        flushed_at = any_live.scheduler.runtime.now()
        wait_for_occurrences(often, flushed_at)
    wait_for_occurrences([seldom], planned - timedelta(microseconds=1))
    any_live.open_gate()
    any_live.wait_for_status(held, "succeeded")

    assert held.attempt == 1
    assert [one.attempt for one in any_live.executions() if one.run_uid == held.uid] == [1]
    assert lateness(seldom, planned) < any_live.scheduler.settings.reconcile_interval
    any_live.started[-1].terminate()
    any_live.check()


def test_a_run_that_waits_on_its_queue_survives_a_flush(live: LiveEnv) -> None:
    waiting = live.run_now("waiting")

    live.redis.flushall()
    live.start_worker()

    live.wait_for_status(waiting, "succeeded")
    live.check()


@pytest.mark.parametrize(
    "words",
    [
        ("rqsched", "worker"),
        ("rqsched", "worker", "--concurrency", "1"),
        ("rq", "worker", "-w", "rqsched.rq.Worker", "default"),
    ],
    ids=["forks", "runners", "class"],
)
def test_a_worker_is_listed_by_rq_again_after_a_flush(live: LiveEnv, words: tuple[str, ...]) -> None:
    url = live.environment["RQSCHED_REDIS_URL"]
    more = ("-c", "rqsched.preload", "--url", url) if words[0] == "rq" else ()
    live.start([BIN / words[0], *words[1:], *more])
    with Redis.from_url(url) as redis:

        def listed() -> list[tuple[str, list[str]]]:
            return [(worker.name, worker.queue_names()) for worker in Worker.all(redis)]

        before = wait_until(listed, timeout=SOON, what="a worker")
        live.redis.flushall()

        assert wait_until(listed, timeout=SOON, what="the worker again") == before


def wait_for_occurrences(schedules: list[ScheduleHandle], after: datetime) -> None:
    """Wait until each has started a run for an occurrence after the instant."""
    for schedule in schedules:
        wait_until(
            partial(occurrences, schedule, after),
            timeout=SOON,
            what=f"a run of {schedule.schedule_id} after {after}",
        )


def occurrences(schedule: ScheduleHandle, after: datetime) -> list[datetime]:
    runs = [run.state for run in schedule.runs(limit=100).items if run.kind == RunKind.SCHEDULED]
    return [run.occurrence_at for run in runs if run.occurrence_at > after]


def lateness(schedule: ScheduleHandle, occurrence_at: datetime) -> timedelta:
    run = next(run.state for run in schedule.runs().items if run.occurrence_at == occurrence_at)
    return run.created_at - occurrence_at
