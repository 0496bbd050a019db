"""The supervisor kills a runner for the job it is meant for, and for no other."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from typing import Any

import pytest

from rqsched.run.runner_slot import DAMAGED, Cause, RunnerJob, RunnerWatch, Slot, Trouble
from rqsched.run.supervisor import FORK, restart_delay
from tests.support.processes import wait_until


@pytest.fixture
def runner() -> Iterator[ForkProcess]:
    """A child in a group of its own, which does nothing."""
    process = begin_child()
    yield process
    process.kill()
    process.join()


def begin_child() -> ForkProcess:
    """A child that does nothing and has become the leader of its group."""
    process = FORK.Process(target=_wait)
    process.start()
    assert process.pid is not None
    wait_until(lambda: os.getpgid(process.pid or 0) == process.pid, what="its group")
    return process


def _wait() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever a worker in the process of the tests has left
    os.setsid()
    while True:
        signal.pause()


def job_of(runner: ForkProcess, job_id: str = "run-1", **changes: Any) -> RunnerJob:
    assert runner.pid is not None
    return RunnerJob(job_id, runner.pid, "default", **{"is_ours": True, **changes})


def ask(slot: Slot, command: str, job_id: str | None = None) -> None:
    slot.request = {"number": time.monotonic_ns(), "command": command, "job_id": job_id}


def look(slot: Slot, runner: ForkProcess) -> None:
    assert runner.pid is not None
    RunnerWatch(slot).look(runner.pid)


def test_a_runner_is_killed_for_the_job_that_a_person_stops(runner: ForkProcess) -> None:
    slot = Slot("here")
    slot.job = job_of(runner)
    ask(slot, "stop-job", "run-1")

    look(slot, runner)

    runner.join(30)
    assert runner.exitcode == -signal.SIGKILL
    assert slot.cause == Cause(slot.job.pid, "stopped by RQ's command", "run-1", is_stopped=True)


@pytest.mark.parametrize("job_id", ["run-2", None], ids=["the next job", "no job"])
def test_a_runner_that_has_left_the_stopped_job_lives_and_is_not_held(runner: ForkProcess, job_id: str | None) -> None:
    slot = Slot("here")
    slot.job = None if job_id is None else job_of(runner, job_id)
    ask(slot, "stop-job", "run-1")

    look(slot, runner)
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGTERM)

    runner.join(30)
    assert runner.exitcode == -signal.SIGTERM  # it was woken again, and nothing else had killed it
    assert slot.cause is None


def test_a_command_is_obeyed_once(runner: ForkProcess) -> None:
    slot = Slot("here")
    slot.job = job_of(runner)
    ask(slot, "stop-job", "another")
    assert runner.pid is not None
    watch = RunnerWatch(slot)
    watch.look(runner.pid)
    slot.job = job_of(runner, "another")

    watch.look(runner.pid)

    assert runner.is_alive()


def test_a_runner_whose_job_takes_far_too_long_is_killed(runner: ForkProcess) -> None:
    slot = Slot("here")
    slot.job = job_of(runner, kill_at=time.monotonic() - 1)

    look(slot, runner)

    runner.join(30)
    assert runner.exitcode == -signal.SIGKILL
    assert slot.cause is not None
    assert slot.cause.why == "it took far longer than its timeout and was killed"


def test_a_runner_whose_code_has_ended_before_it_is_held_lives_on(runner: ForkProcess) -> None:
    """By then the runner writes the end of its attempt, which may take longer."""
    overrun = job_of(runner, kill_at=time.monotonic() - 1)

    class Noted(Slot):
        """A slot with a new note of the runner at each look."""

        notes = iter([overrun, overrun._replace(kill_at=time.monotonic() + 600)])

        @property  # type: ignore[misc]  # nothing is noted here by hand
        def job(self) -> RunnerJob | None:
            return next(self.notes, None)

    slot = Noted("here")
    look(slot, runner)
    os.kill(overrun.pid, signal.SIGTERM)

    runner.join(30)
    assert runner.exitcode == -signal.SIGTERM
    assert slot.cause is None


def test_what_the_runner_before_left_in_the_slot_kills_nobody(runner: ForkProcess) -> None:
    assert runner.pid is not None
    slot = Slot("here")
    slot.job = RunnerJob("run-1", runner.pid + 1, "default", is_ours=True, kill_at=time.monotonic() - 1)

    look(slot, runner)

    assert runner.is_alive()


def test_of_a_job_that_is_not_ours_the_work_horse_is_killed_and_the_runner_lives(runner: ForkProcess) -> None:
    horse = begin_child()
    slot = Slot("here")
    slot.job = job_of(runner, "theirs", is_ours=False, horse_pid=horse.pid)
    ask(slot, "stop-job", "theirs")

    look(slot, runner)

    horse.join(30)
    assert horse.exitcode == -signal.SIGKILL
    assert runner.is_alive()


def test_the_cause_of_a_death_is_that_which_the_supervisor_had_and_else_its_status(runner: ForkProcess) -> None:
    slot, watch = Slot("here"), None
    slot.job = job_of(runner)
    watch = RunnerWatch(slot)
    watch.note_end(-9)
    assert slot.cause is not None
    assert slot.cause.why == "its runner died (signal 9)"

    watch.note_end(1)  # of the runner after it, which died before it had settled anything

    assert slot.cause.why == "its runner died (signal 9)"


def test_a_runner_that_dies_after_the_work_horse_of_another_job_was_stopped_is_not_taken_for_stopped(
    runner: ForkProcess,
) -> None:
    horse = begin_child()
    slot = Slot("here")
    slot.job = job_of(runner, "theirs", is_ours=False, horse_pid=horse.pid)
    ask(slot, "stop-job", "theirs")
    look(slot, runner)
    horse.join(30)
    slot.job = job_of(runner, "run-1")

    RunnerWatch(slot).note_end(-9)

    assert slot.cause == Cause(slot.job.pid, "its runner died (signal 9)", "run-1")


def test_a_last_runner_is_needed_only_for_a_run_of_ours_that_was_left(runner: ForkProcess) -> None:
    slot = Slot("here")
    watch = RunnerWatch(slot)
    needs = [watch.prepares_last()]
    for is_ours in (False, True):
        slot.job = job_of(runner, is_ours=is_ours)
        needs.append(watch.prepares_last())
    assert needs == [False, False, True]
    assert slot.is_closing


def trouble_of(runner: ForkProcess, *, is_certain: bool) -> Trouble:
    assert runner.pid is not None
    return Trouble(runner.pid, time.monotonic(), "its files were closed", is_certain)


def test_damaged_runner_is_killed_and_its_job_is_to_be_put_back(runner: ForkProcess) -> None:
    slot = Slot("here")
    slot.job, slot.trouble = job_of(runner), trouble_of(runner, is_certain=True)

    look(slot, runner)
    runner.join()
    status = RunnerWatch(slot).note_end(runner.exitcode)

    assert slot.cause == Cause(slot.job.pid, "its files were closed", "run-1", is_damage=True)
    assert status == DAMAGED
    assert restart_delay(4.0, status=status, lived=1.0) == 8.0, "unlike one that was killed, it is started later"


def test_runner_whose_server_is_silent_is_killed_only_where_the_server_answers_the_supervisor(
    runner: ForkProcess,
) -> None:
    slot = Slot("here")
    away, back = RunnerWatch(slot, lambda: sys.exit(1)), RunnerWatch(slot, lambda: sys.exit(0))

    def judge(watch: RunnerWatch) -> bool:
        """Let the runner report again and the supervisor look; return whether the runner has tested itself."""
        slot.trouble = trouble_of(runner, is_certain=False)
        watch.look(runner.pid or 0)
        return watch._tester is None and watch._tested_at > 0

    wait_until(lambda: judge(away), what="the end of a test that failed")
    judge(away)
    assert runner.is_alive()
    wait_until(lambda: judge(back) or not runner.is_alive(), what="the end of a test that passed")
    judge(back)
    runner.join()
    assert runner.exitcode == -signal.SIGKILL


def test_trouble_of_an_earlier_runner_is_not_that_of_the_next(runner: ForkProcess) -> None:
    slot = Slot("here")
    slot.trouble = trouble_of(runner, is_certain=True)._replace(pid=1)

    look(slot, runner)

    assert runner.is_alive()
