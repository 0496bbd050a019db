"""`rq worker -c rqsched.preload`: RQ's own classes, with a dispatcher beside them whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from rq import Worker

from rqsched import Every
from tests.support.env import SECOND
from tests.support.narrow import present
from tests.support.processes import BIN, SOON, Process, is_gone, process_tree, wait_until
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
BOOT = 5.0 + 15.0
"""The bound of a boot, and what Python may take to start on a busy machine."""
FLUSH = 20.0
REPLACED = 30.0
LEFT_TO_FORKS = 15.0
"""At least so many seconds the second place is left to a worker that starts, whose dispatcher is a fork."""
SLACK = 15.0
END = 5.0
PRELOAD = ("worker", "-c", "rqsched.preload")
KINDS = {
    "fork": PRELOAD,
    "scheduler": (*PRELOAD, "--with-scheduler"),
    "simple": (*PRELOAD, "-w", "rq.SimpleWorker"),
    "spawn": (*PRELOAD, "-w", "rq.worker.SpawnWorker"),
    "pool": ("worker-pool", "-c", "rqsched.preload", "-n", "2"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def start_preloaded(live: LiveEnv, *words: str) -> Process:
    """A command of RQ's whose module of settings says which Redis it is, unless the words do."""
    command: Sequence[str | Path] = [BIN / "rq", *words, "rqsched", "default"]
    return live.start(command)


def dispatchers(workers: Sequence[Process]) -> list[psutil.Process]:
    """The dispatchers below these workers, and keepers of their own, whether they answer pings or not."""
    return [one for worker in workers for one in process_tree(worker.pid) if _is_dispatcher(one)]


def _is_dispatcher(process: psutil.Process) -> bool:
    try:
        return process.name() == "rqsched-dispatcher"[:15] and not is_gone(process)
    except psutil.NoSuchProcess:
        return False


@each_kind
def test_schedules_fire_again_at_once_after_a_kill_of_the_whole_group_and_after_a_flush(
    live: LiveEnv, kind: str
) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    killed = start_preloaded(live, *KINDS[kind])
    live.wait_for_fires(schedule)
    kept = [live.wait_beside_rq("rqsched-keeper"), live.wait_beside_rq("rqsched-dispatcher")]
    os.killpg(killed.pid, signal.SIGKILL)
    wait_until(lambda: all(is_gone(one) for one in kept), timeout=BOOT, what=f"the end of {kept}")

    start_preloaded(live, *KINDS[kind])

    live.wait_for_fires(schedule, timeout=BOOT)
    live.redis.flushall()
    live.wait_for_fires(schedule, timeout=FLUSH)
    live.wait_for_successes(schedule, more=1)
    schedule.pause()
    live.check()


@pytest.mark.parametrize("kind", ["fork", "simple"])
@pytest.mark.parametrize("name", ["rqsched-dispatcher", "rqsched-keeper"])
def test_schedules_fire_beside_a_long_job_whoever_dies(live: LiveEnv, kind: str, name: str) -> None:
    """The worker itself is busy with the job, so keeper and dispatcher watch each other."""
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    worker = start_preloaded(live, *KINDS[kind])
    run = live.hold_now()
    live.wait_for_execution(run)
    live.wait_for_fires(schedule)

    for _ in range(2):
        killed = live.wait_beside_rq(name)
        killed.kill()
        live.wait_beside_rq(name, other_than=killed.pid, timeout=REPLACED)
        live.wait_for_fires(schedule, more=3)

    assert run.refresh().status == "running"
    assert len(live.beside_rq("rqsched-keeper")) == len(live.beside_rq("rqsched-dispatcher")) == 1
    kept = [*live.beside_rq("rqsched-keeper"), *live.beside_rq("rqsched-dispatcher")]
    worker.kill_tree()
    wait_until(lambda: all(is_gone(one) for one in kept), timeout=BOOT, what=f"the end of {kept}")


def test_dispatcher_that_stands_still_is_replaced_by_its_keeper(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    start_preloaded(live, *PRELOAD)
    stopped = live.wait_beside_rq("rqsched-dispatcher")
    live.wait_for_fires(schedule)

    stopped.suspend()

    live.wait_beside_rq("rqsched-dispatcher", other_than=stopped.pid, timeout=REPLACED + SLACK)
    assert is_gone(stopped)
    live.wait_for_fires(schedule)


@each_kind
def test_everything_ends_with_a_worker_that_is_asked_to(live: LiveEnv, kind: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    worker = start_preloaded(live, *KINDS[kind])
    run = live.hold_now()
    live.wait_for_execution(run)
    kept = [live.wait_beside_rq("rqsched-keeper"), live.wait_beside_rq("rqsched-dispatcher")]

    worker.signal(signal.SIGTERM)

    live.wait_for_fires(schedule)
    live.open_gate()
    assert worker.wait() == 0
    wait_until(lambda: all(is_gone(one) for one in kept), timeout=END, what=f"the end of {kept}")
    assert run.refresh().status == "succeeded"


SETTINGS = "REDIS_URL = {url!r}\nfrom rqsched.preload import *\n"


@pytest.mark.parametrize("given", ["--url", "RQ_REDIS_URL", "REDIS_URL", "module"])
def test_redis_that_rq_was_given_is_the_dispatchers_too(live: LiveEnv, given: str, tmp_path: Path) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    url = live.environment["RQSCHED_REDIS_URL"]
    live.environment |= {"RQSCHED_REDIS_URL": "", "RQSCHED_DATA_DIR": str(tmp_path / "embedded")}
    (tmp_path / "rq_settings.py").write_text(SETTINGS.format(url=url))
    words = [*PRELOAD] if given != "module" else ["worker", "-c", "rq_settings", "-P", str(tmp_path)]
    if given == "--url":
        words += ["--url", url]
    elif given != "module":
        live.environment[given] = url

    start_preloaded(live, *words)

    live.wait_for_successes(schedule, more=2)
    assert not (tmp_path / "embedded").exists()


def test_worker_without_a_database_says_what_to_set_and_starts_nothing(live: LiveEnv, tmp_path: Path) -> None:
    url = live.environment["RQSCHED_REDIS_URL"]
    live.environment |= {
        "RQSCHED_REDIS_URL": "",
        "RQSCHED_DATABASE_URL": "",
        "RQSCHED_DATA_DIR": str(tmp_path / "embedded"),
    }

    worker = start_preloaded(live, *PRELOAD, "--url", url)

    assert worker.wait() == 1
    assert "RQSCHED_DATABASE_URL is unset" in worker.log()
    assert "Traceback" not in worker.log()
    assert not (tmp_path / "embedded").exists()


@pytest.mark.parametrize("words", [PRELOAD, KINDS["pool"]], ids=["worker", "pool"])
def test_burst_makes_one_pass_and_keeps_nothing(live: LiveEnv, words: Sequence[str]) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")
    first_at = present(schedule.next_run_at)
    wait_until(lambda: live.scheduler.runtime.now() > first_at, timeout=SOON, what="the first due time")
    live.redis.flushall()

    worker = start_preloaded(live, *words, "--burst")

    assert worker.wait() == 0
    assert schedule.refresh().run_count >= 1
    assert len(live.executions()) == schedule.run_count
    assert not Path(live.environment["RQSCHED_RUN_DIR"]).exists()


def test_commands_of_rq_that_are_no_workers_start_nothing(live: LiveEnv) -> None:
    live.note_every("tick", Every(SECOND), overlap="allow_all")
    command: list[str | Path] = [BIN / "rq", "info", "-c", "rqsched.preload"]

    subprocess.run(command, env={**os.environ, **live.environment}, check=True, timeout=SOON, stdout=subprocess.DEVNULL)

    assert not Path(live.environment["RQSCHED_RUN_DIR"]).exists()


@pytest.mark.parametrize("name", ["Worker", "SimpleWorker"])
def test_class_that_has_a_dispatcher_gets_no_second_one(live: LiveEnv, name: str) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    worker = start_preloaded(live, *PRELOAD, "-w", f"rqsched.rq.{name}")

    live.wait_for_fires(schedule)
    assert len(dispatchers([worker])) == 1


@pytest.mark.parametrize("words", [PRELOAD, ("worker", "-w", "rqsched.rq.Worker")], ids=["preload", "class"])
def test_of_many_workers_two_have_a_dispatcher_and_another_takes_the_place_of_one_that_dies(
    live: LiveEnv, words: Sequence[str]
) -> None:
    live.environment["RQ_REDIS_URL"] = live.environment["RQSCHED_REDIS_URL"]
    schedule = live.note_every("tick", Every(SECOND), overlap="skip")
    workers = [start_preloaded(live, *words) for _ in range(4)]
    wait_until(lambda: len(Worker.all(live.redis)) == len(workers), timeout=SOON, what="all workers")
    wait_until(lambda: len(dispatchers(workers)) == 2, timeout=SOON, what="two dispatchers")
    with_one = [worker for worker in workers if dispatchers([worker])]
    assert len(with_one) == 2

    for worker in with_one:
        os.killpg(worker.pid, signal.SIGKILL)

    killed_at = time.monotonic()
    others = [worker for worker in workers if worker not in with_one]
    wait_until(lambda: dispatchers(others), timeout=BOOT, what="a dispatcher in the first place")
    live.wait_for_fires(schedule)
    wait_until(lambda: len(dispatchers(others)) == 2, timeout=REPLACED + SLACK, what="one in the second place")
    assert time.monotonic() - killed_at > LEFT_TO_FORKS
    schedule.pause()
    live.check()


def test_workers_that_dispatch_something_else_have_places_of_their_own(live: LiveEnv) -> None:
    workers = [start_preloaded(live, *PRELOAD) for _ in range(2)]
    wait_until(lambda: len(dispatchers(workers)) == 2, timeout=SOON, what="two dispatchers")
    live.environment["RQSCHED_CONTROL_QUEUE"] = "other"

    worker = start_preloaded(live, *PRELOAD)

    wait_until(lambda: dispatchers([worker]), timeout=SOON, what="a third one")
