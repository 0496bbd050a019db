"""How the supervisor treats its children, without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rqsched.run.supervisor import DONE, RENEW, Silence, restart_delay
from rqsched.run.worker import WorkerOptions, exit_status

SIGKILL, CRASHED = -9, 1
MIB = 1 << 20


@pytest.mark.parametrize(
    ("options", "jobs", "status"),
    [
        pytest.param(WorkerOptions(concurrency=2), 1_000, RENEW, id="a runner after 1 000 jobs"),
        pytest.param(WorkerOptions(concurrency=2), 999, 0, id="not before"),
        pytest.param(WorkerOptions(concurrency=2, max_jobs=7), 7, RENEW, id="after as many as was asked for"),
        pytest.param(WorkerOptions(concurrency=2, burst=True), 1_000, RENEW, id="a burst goes on with another"),
        pytest.param(WorkerOptions(concurrency=2, burst=True, max_jobs=7), 7, DONE, id="and ends where that was asked"),
        pytest.param(WorkerOptions(concurrency=2, isolate=True), 5_000, 0, id="one that forks for each run lives on"),
        pytest.param(WorkerOptions(), 5_000, 0, id="without runners"),
    ],
)
def test_a_process_that_has_executed_so_many_jobs_is_renewed(options: WorkerOptions, jobs: int, status: int) -> None:
    ended = SimpleNamespace(jobs_done=jobs, is_idle=False)

    assert exit_status(cast("Any", ended), options) == status


def test_a_runner_may_hold_512_mib_or_twice_what_it_began_with_or_as_much_as_was_asked_for() -> None:
    assert WorkerOptions(concurrency=1).most_memory(60 * MIB) == 512 * MIB
    assert WorkerOptions(concurrency=1).most_memory(600 * MIB) == 1200 * MIB
    assert WorkerOptions(concurrency=1, max_memory=100 * MIB).most_memory(600 * MIB) == 100 * MIB


def test_a_child_killed_again_and_again_soon_after_its_start_comes_back_at_once() -> None:
    delay = 0.25
    for _ in range(10):
        delay = restart_delay(delay, status=SIGKILL, lived=0.1)
        assert delay == 0.25


def test_a_child_that_fails_by_itself_waits_longer_each_time_up_to_half_a_minute() -> None:
    delays, delay = [], 0.25
    for _ in range(8):
        delay = restart_delay(delay, status=CRASHED, lived=0.1)
        delays.append(delay)
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_child_that_lived_well_comes_back_at_once_whatever_ended_it() -> None:
    assert restart_delay(30.0, status=CRASHED, lived=60.0) == 0.25


def test_silence_is_the_time_since_the_last_turn() -> None:
    silence = Silence(_looked_at=0.0)
    assert silence.look(1, 0.5) == 0
    assert [silence.look(1, now) for now in (1.0, 1.5, 2.0)] == [0.5, 1.0, 1.5]
    assert silence.look(2, 2.5) == 0


def test_the_time_in_which_nobody_looked_is_not_silence() -> None:
    """The supervisor itself was stopped, or its host suspended, so it cannot know that the child stood still."""
    silence = Silence(_looked_at=0.0)
    silence.look(1, 0.1)
    assert silence.look(1, 3600.0) == 1.0
