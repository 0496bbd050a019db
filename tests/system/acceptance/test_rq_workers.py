"""`rq worker -w rqsched.rq.Worker` and its flavours: a dispatcher beside RQ's worker, whatever dies."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from datetime import timedelta

import psutil
import pytest

from rqsched import Every
from tests.support.env import ONCE, SECOND
from tests.support.narrow import present
from tests.support.processes import SOON, is_gone, kill_all, process_tree, wait_until
from tests.support.servers import PostgresServer
from tests.system.acceptance.live import RQ_KINDS, LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
PROVEN = [pytest.mark.postgres, pytest.mark.nightly]
each_kind = pytest.mark.parametrize("kind", RQ_KINDS)
each_kind_on_each_database = pytest.mark.parametrize(
    ("database_kind", "kind"),
    [
        *[("sqlite", kind) for kind in RQ_KINDS],
        pytest.param("postgres", "fork", marks=pytest.mark.postgres),
        *[pytest.param("postgres", kind, marks=PROVEN) for kind in RQ_KINDS if kind != "fork"],
    ],
)
"""On PostgreSQL the other kinds start the same dispatcher as `fork`, so only `make nightly` tests them."""


@each_kind_on_each_database
def test_schedules_fire_and_runs_succeed_without_rqs_scheduler(any_live: LiveEnv, kind: str) -> None:
    live = any_live
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    live.start_rq(*RQ_KINDS[kind])

    live.wait_for_successes(schedule, more=2)
    schedule.pause()
    live.check()


def test_the_redis_that_rq_was_given_is_the_dispatchers_too(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    live.start_rq(*RQ_KINDS["fork"], RQSCHED_REDIS_URL="")

    live.wait_for_successes(schedule, more=2)


@pytest.mark.parametrize("name", ["rqsched-dispatcher", "rqsched-keeper"])
@pytest.mark.parametrize("kind", ["fork", "simple", "spawn"])
def test_a_dispatcher_or_keeper_that_dies_comes_back(live: LiveEnv, kind: str, name: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    live.start_rq(*RQ_KINDS[kind])
    live.wait_for_fires(schedule)
    killed = live.wait_beside_rq(name)

    killed.kill()

    live.wait_beside_rq(name, other_than=killed.pid)
    live.wait_for_fires(schedule)
    wait_until(lambda: len(live.beside_rq("rqsched-dispatcher")) == 1, timeout=SOON, what="one dispatcher")
    schedule.pause()
    live.check()


@pytest.mark.parametrize("kind", ["fork", "simple"])
def test_a_dispatcher_and_its_keeper_that_die_at_once_come_back(live: LiveEnv, kind: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    live.start_rq(*RQ_KINDS[kind])
    killed = [live.wait_beside_rq("rqsched-keeper"), live.wait_beside_rq("rqsched-dispatcher")]

    kill_all(killed)

    live.wait_for_fires(schedule)
    assert live.wait_beside_rq("rqsched-dispatcher") not in killed


def test_a_keeper_that_dies_during_a_run_comes_back_before_the_run_has_ended(live: LiveEnv) -> None:
    live.start_rq(*RQ_KINDS["fork"])
    run = live.hold_now()
    live.wait_for_execution(run)
    killed = live.wait_beside_rq("rqsched-keeper")

    killed.kill()

    live.wait_beside_rq("rqsched-keeper", other_than=killed.pid)
    assert run.refresh().status == "running"
    live.open_gate()
    live.wait_for_status(run, "succeeded")


@pytest.mark.parametrize("name", ["rqsched-dispatcher", "rqsched-keeper"])
def test_schedules_fire_while_a_simple_worker_executes_whoever_dies(live: LiveEnv, name: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    live.start_rq(*RQ_KINDS["simple"])
    run = live.hold_now()
    live.wait_for_execution(run)

    live.wait_beside_rq(name).kill()

    live.wait_for_fires(schedule, more=4)
    assert run.refresh().status == "running"


@each_kind
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_keeper_and_dispatcher_end_with_their_worker(live: LiveEnv, kind: str, end: signal.Signals) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    worker = live.start_rq(*RQ_KINDS[kind])
    live.wait_for_fires(schedule)
    live.wait_beside_rq("rqsched-keeper")
    kept = [*live.beside_rq("rqsched-keeper"), *live.beside_rq("rqsched-dispatcher")]
    workers = [worker.pid] if kind != "pool" else [one.pid for one in psutil.Process(worker.pid).children()]
    assert len(kept) >= 2

    for pid in workers if end is signal.SIGKILL else [worker.pid]:
        os.kill(pid, end)

    wait_until(lambda: all(is_gone(process) for process in kept), timeout=SOON, what=f"the end of {kept}")


def test_a_worker_that_is_asked_to_end_finishes_its_run_and_schedules_fire_meanwhile(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    worker = live.start_rq(*RQ_KINDS["fork"])
    run = live.hold_now()
    live.wait_for_execution(run)

    worker.signal(signal.SIGTERM)

    live.wait_for_fires(schedule, more=3)
    assert run.refresh().status == "running"
    live.open_gate()
    assert worker.wait() == 0
    assert run.refresh().status == "succeeded"


@pytest.mark.postgres
def test_a_worker_starts_while_sql_is_away_and_its_schedules_fire_when_it_is_back(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    """The worker executes other jobs of RQ meanwhile."""
    live = make_live(own_postgres_url)
    own_postgres.kill()
    worker = live.start_rq(*RQ_KINDS["fork"])
    worker.wait_for_log("Listening on default")

    own_postgres.start()

    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    live.wait_for_successes(schedule, more=1, timeout=120)


def test_a_burst_makes_one_pass_and_executes_what_it_fired(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    first_at = present(schedule.next_run_at)
    wait_until(lambda: live.scheduler.runtime.now() > first_at, timeout=SOON, what="the first due time")

    worker = live.start_rq("worker", "--burst", "-w", "rqsched.rq.Worker")

    assert worker.wait() == 0
    assert schedule.refresh().run_count >= 1
    assert len(live.executions()) == schedule.run_count


WORKERS_THAT_RECOVER = {
    "rqsched.rq.Worker": ("worker", "-w", "rqsched.rq.Worker"),
    "preload": ("worker", "-c", "rqsched.preload", "--with-scheduler"),
}


@pytest.mark.parametrize("words", WORKERS_THAT_RECOVER.values(), ids=WORKERS_THAT_RECOVER.keys())
def test_a_worker_that_starts_after_a_flush_fires_everything_again(live: LiveEnv, words: Sequence[str]) -> None:
    """Redis is empty, so the worker reads SQL when it boots."""
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    live.redis.flushall()

    live.start_rq(*words)

    live.wait_for_successes(schedule, more=2)


def test_a_bare_rq_worker_executes_what_lies_on_its_lists(live: LiveEnv) -> None:
    """The worker promotes nothing and only repairs through its links, so another process must make a pass."""
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    live.start_rq("worker")

    def passes() -> bool:
        live.scheduler.recover(deep=True)
        return schedule.refresh().state.success_count >= 2

    wait_until(passes, timeout=SOON, interval=0.5, what="two runs")


def test_a_run_whose_horse_died_is_settled_by_the_worker_that_saw_it(live: LiveEnv) -> None:
    run = live.hold_now(retry=ONCE)
    live.start_rq(*RQ_KINDS["fork"])
    execution = live.wait_for_execution(run)

    os.kill(execution.pid, signal.SIGKILL)

    live.wait_for_status(run, "lost")
    assert run.error is not None
    assert "horse" in run.error


CHAINS = 13
STRIKES = 20


@pytest.mark.nightly
@pytest.mark.timeout(600)
@each_kind
def test_no_chain_is_dead_ten_seconds_after_the_last_kill(live: LiveEnv, kind: str) -> None:
    """Any process of two workers is killed, again and again; a killed parent process is started anew.

    On a busy machine the test waits longer for the last chain, and prints how long it took.
    """
    chance = random.Random(kind)
    schedules = [
        live.note_every(f"s{number}", Every(timedelta(seconds=1 + number % 3)), overlap="allow_all")
        for number in range(CHAINS)
    ]
    workers = [live.start_rq(*RQ_KINDS[kind]) for _ in range(2)]
    live.wait_for_fires(schedules[0])

    for _ in range(STRIKES):
        number = chance.randrange(len(workers))
        tree = process_tree(workers[number].pid)
        victim = chance.choice(tree)
        if victim.pid == workers[number].pid:
            workers[number].kill_tree()
            workers[number] = live.start_rq(*RQ_KINDS[kind])
        elif not is_gone(victim):
            victim.kill()
        live.wait_for_fires(schedules[number], more=1)

    struck_at, slowest = time.monotonic(), 0.0
    fired = {schedule.schedule_id: schedule.refresh().run_count for schedule in schedules}
    for schedule in schedules:
        wait_until(
            lambda schedule=schedule: schedule.refresh().run_count > fired[schedule.schedule_id] + 1,  # type: ignore[misc]
            timeout=SOON,
            what=f"two fires of {schedule.schedule_id}",
        )
        slowest = max(slowest, time.monotonic() - struck_at)
    print(f"{kind}: every chain has fired twice {slowest:.1f} s after the last of {STRIKES} kills")
    for schedule in schedules:
        schedule.pause()
    live.check()
