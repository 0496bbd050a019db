"""How the supervisor treats its children, without processes."""

from __future__ import annotations

from rqsched.processes.supervisor import Silence, restart_delay

SIGKILL, CRASHED = -9, 1


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
    """The supervisor itself was stopped, or its host suspended: it cannot say that the child stood still."""
    silence = Silence(_looked_at=0.0)
    silence.look(1, 0.1)
    assert silence.look(1, 3600.0) == 1.0
