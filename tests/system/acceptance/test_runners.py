"""`rqsched worker --concurrency N`, runners that live or a fork for each run: one that dies costs its own run only."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from rq import Worker
from rq.command import send_kill_horse_command, send_shutdown_command, send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from tests.support.env import ONCE, job_id
from tests.support.narrow import present
from tests.support.processes import SOON, is_gone, process_tree, rqsched_command, wait_until
from tests.support.sizes import sized
from tests.system.acceptance.chores import CONNECTIONS, DEAFEN, HOLD, HOLD_INTERPRETER
from tests.system.acceptance.live import LATER, LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
CHAINS = 6
STRIKES = sized(6, 20)


MODELS = {"runners": (), "isolated": ("--isolate",)}
each_model = pytest.mark.parametrize("words", MODELS.values(), ids=MODELS.keys())


@pytest.mark.once
def test_runs_are_executed_one_after_the_other_in_as_many_processes_as_asked_for(any_live: LiveEnv) -> None:
    live = any_live
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")

    worker = live.start_runners(2)

    live.wait_for_successes(schedule, more=5)
    assert {execution.pid for execution in live.executions()} <= {one.pid for one in process_tree(worker.pid)}
    assert len({execution.pid for execution in live.executions()}) <= 2
    assert worker.terminate(timeout=SOON) == 0
    live.check()


@pytest.mark.postgres
def test_runner_keeps_its_connection_from_the_end_of_a_run_to_the_claim_of_the_next(
    make_live: Callable[..., LiveEnv], postgres_url: str
) -> None:
    live = make_live(postgres_url)
    live.start_runners(1)

    runs = [live.run_now(f"one-{number}", CONNECTIONS) for number in range(6)]

    taken = sorted(present(live.wait_for_status(run, "succeeded").result) for run in runs)
    assert len({execution.pid for execution in live.executions()}) == 1
    assert taken[-1] < len(runs) - 1


@each_model
@pytest.mark.parametrize(("retry", "status"), [(LATER, "retrying"), (ONCE, "lost")], ids=["with attempts", "without"])
def test_a_process_that_is_killed_costs_its_own_run_only(
    any_live: LiveEnv, retry: RetryPolicy, status: str, words: Sequence[str]
) -> None:
    live = any_live
    live.start_runners(2, *words)
    killed, other = live.hold_now("killed", retry=retry), live.hold_now("other")
    runner = live.executor_of(killed)
    assert live.executor_of(other).pid != runner.pid

    runner.kill()

    live.wait_for_status(killed, status)
    assert killed.error is not None
    assert killed.error == ("its work horse died" if words else "its runner died (signal 9)")
    assert other.refresh().status == "running"
    live.open_gate()
    live.wait_for_status(other, "succeeded")
    live.check()


def test_a_runner_that_died_has_a_successor_at_once_which_executes_the_next_attempt(live: LiveEnv) -> None:
    live.start_runners(1)
    run = live.hold_now(retry=RetryPolicy(max_retries=1, base=timedelta(seconds=1)))
    live.executor_of(run).kill()
    live.open_gate()

    live.wait_for_status(run, "succeeded")

    assert [one.attempt for one in live.executions()] == [1, 2]
    assert len({one.pid for one in live.executions()}) == 2
    live.check()


def test_nothing_is_left_in_redis_of_a_run_that_succeeded(live: LiveEnv) -> None:
    live.start_runners(1, "--name", "here")
    run = live.run_now("now")

    live.wait_for_status(run, "succeeded")

    redis = live.redis

    def left() -> set[str]:
        keys: Any = redis.keys("rq:*")
        return {name for name in (key.decode() for key in keys) if run.uid in name}

    wait_until(lambda: not left(), timeout=SOON, what="an end without keys")
    assert StartedJobRegistry("default", connection=redis).count == 0
    assert redis.scard("rq:worker:here-1:executions") == 0
    assert redis.hget("rq:worker:here-1", "state") == b"idle"


def test_rqs_job_of_a_run_whose_runner_died_has_failed_and_the_runners_name_is_registered_again(live: LiveEnv) -> None:
    live.start_runners(1, "--name", "here")
    run = live.hold_now(retry=ONCE)
    runner = live.executor_of(run)
    runner.kill()

    live.wait_for_status(run, "lost")

    job = Job.fetch(str(job_id(run.refresh().state)), connection=live.redis)
    wait_until(lambda: job.get_status() is JobStatus.FAILED, timeout=SOON, what="a failed job")

    def successor() -> bool:
        found = Worker.all(connection=live.redis)
        return [worker.name for worker in found] == ["here-1"] and found[0].pid != runner.pid

    wait_until(successor, timeout=SOON, what="the successor at RQ")


@each_model
def test_a_run_that_is_terminated_ends_with_its_runner_and_the_others_continue(
    live: LiveEnv, words: Sequence[str]
) -> None:
    live.start_runners(2, *words)
    run, other = live.hold_now("terminated"), live.hold_now("other")
    runner = live.executor_of(run)
    live.executor_of(other)

    run.terminate()

    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    assert run.refresh().status == "terminated"
    assert other.refresh().status == "running"
    after = live.note_every("after", Every(timedelta(seconds=1)))
    live.wait_for_successes(after, more=1)
    live.check()


@each_model
def test_a_run_that_holds_its_interpreter_is_terminated_all_the_same(live: LiveEnv, words: Sequence[str]) -> None:
    live.start_runners(1, *words)
    run = live.run_now("hold", HOLD_INTERPRETER, kwargs={"gate": str(live.gate)})
    runner = live.executor_of(run)

    run.terminate()

    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    assert run.refresh().status == "terminated"


@each_model
def test_terminate_other_kills_the_runner_of_the_run_before(live: LiveEnv, words: Sequence[str]) -> None:
    live.start_runners(2, *words)
    run = live.hold_now("held", overlap="terminate_other")
    runner = live.executor_of(run)

    live.scheduler.get("held").trigger()

    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    assert run.refresh().status == "terminated"


@each_model
def test_rqs_stop_command_kills_the_runner_and_terminates_the_run(live: LiveEnv, words: Sequence[str]) -> None:
    live.start_runners(1, *words)
    run = live.hold_now(retry=LATER)
    runner = live.executor_of(run)

    send_stop_job_command(live.redis, str(job_id(run.refresh().state)))
    live.wait_for_status(run, "terminated")
    job = Job.fetch(str(job_id(run.refresh().state)), connection=live.redis)
    wait_until(lambda: job.get_status() is JobStatus.STOPPED, timeout=SOON, what="a stopped job")

    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    assert run.error == "stopped by RQ's command"
    live.check()


@pytest.mark.parametrize("send", [send_kill_horse_command, send_shutdown_command], ids=["kill-horse", "shutdown"])
def test_rqs_other_commands_reach_a_runner(live: LiveEnv, send: Callable[[Redis, str], None]) -> None:
    live.start_runners(1, "--name", "here")
    run = live.hold_now(retry=LATER)
    runner = live.executor_of(run)

    send(live.redis, "here-1")

    if send is send_shutdown_command:
        live.open_gate()
    wait_until(lambda: is_gone(runner), timeout=SOON, what="the runner's end")
    live.wait_for_status(run, "succeeded" if send is send_shutdown_command else "retrying")
    after = live.note_every("after", Every(timedelta(seconds=1)))
    live.wait_for_successes(after, more=1)


def test_a_run_beyond_its_timeout_fails_and_its_runner_continues(live: LiveEnv) -> None:
    live.start_runners(1)
    run = live.hold_now(timeout=1, retry=ONCE)

    live.wait_for_status(run, "failed")

    assert run.error is not None
    assert run.error.startswith("timeout: Task exceeded maximum timeout value (1 seconds)")
    live.open_gate()
    after = live.hold_now("after")
    assert live.executor_of(after).pid == live.executions()[0].pid


@each_model
def test_a_run_that_its_timeout_does_not_end_is_killed(live: LiveEnv, words: Sequence[str]) -> None:
    kwargs = {"log": str(live.log), "gate": str(live.gate), "deaf": True}
    every = Every(timedelta(seconds=1))
    schedule = live.scheduler.create("deaf", HOLD, every, kwargs=kwargs, timeout=1, max_runs=1, retry=ONCE)
    live.start_runners(2, *words)
    [run] = wait_until(lambda: schedule.runs().items, timeout=SOON, what="its run")
    other = live.hold_now("other")
    runner = live.executor_of(run)
    live.executor_of(other)

    live.wait_for_status(run, "lost", timeout=180)

    assert run.error == "it took far longer than its timeout and was killed"
    assert is_gone(runner)
    assert other.refresh().status == "running"


def test_a_runner_that_stands_still_is_replaced_and_its_run_is_settled(live: LiveEnv) -> None:
    """It is stopped as by a debugger. This takes a minute; reconcile may notice the missing heartbeats earlier."""
    worker = live.start_runners(1)
    run = live.hold_now(retry=RetryPolicy(max_retries=1, base=timedelta(seconds=1)))
    runner = live.executor_of(run)

    runner.suspend()

    wait_until(lambda: is_gone(runner), timeout=180, what=f"the end of {runner}")
    assert "has made no progress" in worker.log()
    live.open_gate()
    live.wait_for_status(run, "succeeded")
    live.check()


@each_model
def test_a_worker_that_is_asked_to_end_finishes_the_runs_of_its_runners(live: LiveEnv, words: Sequence[str]) -> None:
    worker = live.start_runners(2, *words)
    runs = [live.hold_now(name) for name in ("one", "other")]
    for run in runs:
        live.executor_of(run)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.child("dispatcher") is None, timeout=SOON, what="the dispatcher's end")
    live.open_gate()

    assert worker.wait() == 0
    assert [run.refresh().status for run in runs] == ["succeeded", "succeeded"]
    live.check()


def test_a_worker_that_is_asked_twice_kills_its_runners_and_settles_their_runs(live: LiveEnv) -> None:
    worker = live.start_runners(2)
    run = live.hold_now(retry=ONCE)
    runner = live.executor_of(run)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.child("dispatcher") is None, timeout=SOON, what="the dispatcher's end")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert is_gone(runner)
    assert run.refresh().status == "lost"
    assert run.error == "its worker was told to end at once"
    live.check()


@each_model
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_a_worker_with_runners_that_ended(
    live: LiveEnv, end: signal.Signals, words: Sequence[str]
) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")
    worker = live.start_runners(2, *words)
    live.wait_for_successes(schedule, more=1)
    tree = process_tree(worker.pid)

    worker.signal(end)

    wait_until(lambda: all(is_gone(process) for process in tree), timeout=SOON, what=f"the end of {tree}")


def test_a_runner_is_renewed_after_so_many_jobs(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")

    worker = live.start_runners(1, "--max-jobs", "2")

    wait_until(lambda: len(live.executions()) >= 5, timeout=SOON, what="five runs")
    each = Counter(one.pid for one in live.executions())
    assert len(each) > 2, f"{each}: so many jobs later another process executes"
    assert max(each.values()) <= 2, f"{each}: no process executes more; a job that finds nothing left to do counts, too"
    assert worker.terminate(timeout=SOON) == 0
    schedule.pause()
    live.check()


def test_a_runner_is_renewed_once_it_has_grown_beyond_its_memory(live: LiveEnv) -> None:
    live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all")

    worker = live.start_runners(1, "--max-memory", "1M")

    wait_until(lambda: len(live.executions()) >= 3, timeout=SOON, what="three runs")
    assert len({one.pid for one in live.executions()}) == len(live.executions())
    assert worker.terminate(timeout=SOON) == 0
    live.check()


@pytest.mark.timeout(600)
@each_model
def test_chains_and_runs_continue_whichever_process_is_killed_again_and_again(
    any_live: LiveEnv, words: Sequence[str]
) -> None:
    """The supervisor, the dispatcher, the one that hears RQ's commands, RQ's scheduler, runners and horses."""
    live, chance = any_live, random.Random(len(words))
    schedules = [
        live.note_every(f"s{number}", Every(timedelta(seconds=1 + number % 3)), overlap="allow_all")
        for number in range(CHAINS)
    ]
    worker = live.start_runners(2, *words)
    live.wait_for_successes(schedules[0], more=1)

    for number in range(STRIKES):
        victim = chance.choice(process_tree(worker.pid))
        if victim.pid == worker.pid:
            worker.kill_tree()
            worker = live.start_runners(2, *words)
        elif not is_gone(victim):
            victim.kill()
        live.wait_for_successes(schedules[number % CHAINS], more=1, timeout=120)

    for schedule in schedules:
        live.wait_for_successes(schedule, more=2, timeout=120)
        schedule.pause()
    wait_until(lambda: not any(has_open(schedule) for schedule in schedules), timeout=180, what="the end of every run")
    live.check()


def has_open(schedule: ScheduleHandle) -> bool:
    return bool(schedule.runs(statuses=("pending", "running", "buffered")).items)


DJANGO = """
import os

from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["OWN_FILE"]}})

from django.db import connection

from rqsched import workflow


@workflow("look")
def look(log):
    was_open = connection.connection is not None
    connection.cursor().execute("SELECT 1")
    with open(log, "a") as lines:
        lines.write(f"{os.getpid()} {was_open}\\n")
"""


def test_djangos_connections_are_those_of_one_run(live: LiveEnv) -> None:
    """Django's settings limit the age of a connection, by default to one request or run."""
    (live.folder / "looking.py").write_text(DJANGO)
    live.environment |= {"RQSCHED_IMPORTS": "looking", "OWN_FILE": str(live.folder / "own.db")}
    log = live.folder / "looks"
    worker = live.start(rqsched_command("worker", "--concurrency", "1"), cwd=live.folder)
    worker.wait_for_log("run-1 started")

    kwargs = {"log": str(log)}
    live.scheduler.create("look", "look", Every(timedelta(seconds=1)), kwargs=kwargs, overlap="allow_all")

    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, timeout=SOON, what="three runs")
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len({pid for pid, _ in lines}) == 1
    assert {was_open for _, was_open in lines} == {"False"}


def test_what_a_run_does_to_the_signals_of_its_process_is_undone(live: LiveEnv) -> None:
    """A workflow ignores SIGTERM and leaves it ignored. The worker still ends in order."""
    worker = live.start_runners(1)
    live.run_now("deafen", DEAFEN)
    run = live.hold_now()
    live.wait_for_execution(run)
    live.open_gate()
    live.wait_for_status(run, "succeeded")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
