"""Heartbeats of a process: one thread calls them all, and a forked process has its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from rqsched.kernel.chain.heartbeats import Heartbeats, Pulse
from tests.support.children import in_children
from tests.support.processes import wait_until

QUICK = 0.01
NEVER = 3_600.0


def counter() -> tuple[list[int], Callable[[], bool]]:
    numbers, found = count(), [0]

    def beat() -> bool:
        found[0] = next(numbers) + 1
        return True

    return found, beat


def reached(found: list[int], calls: int) -> bool:
    return found[0] >= calls


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "rqsched-heartbeats"]


def test_block_that_runs_is_beaten_again_and_again_and_one_that_has_ended_no_more() -> None:
    found, beat = counter()
    with Heartbeats(QUICK, beat):
        wait_until(lambda: found[0] >= 3)
    other, beat = counter()
    with Heartbeats(QUICK, beat):
        ended = found[0]
        wait_until(lambda: other[0] >= 3)
    assert found[0] <= ended + 1, "at most the one that was under way"


def test_block_that_ends_before_its_first_heartbeat_has_none() -> None:
    found, beat = counter()
    with Heartbeats(NEVER, beat):
        pass
    other, quick = counter()
    with Heartbeats(QUICK, quick):
        wait_until(lambda: other[0] >= 2)
    assert found == [0]


def test_block_whose_first_heartbeat_comes_sooner_than_all_others_wakes_the_thread() -> None:
    _, slow = counter()
    found, quick = counter()
    with Heartbeats(NEVER, slow), Heartbeats(QUICK, quick):
        wait_until(lambda: found[0] >= 2)


def test_one_thread_beats_for_all() -> None:
    before, pulse = set(threads()), Pulse()
    one, first = counter()
    other, second = counter()
    with Heartbeats(QUICK, first, pulse=pulse), Heartbeats(QUICK, second, pulse=pulse):
        wait_until(lambda: one[0] and other[0])
        assert len(set(threads()) - before) == 1


def test_heartbeat_that_says_so_is_the_last() -> None:
    calls: list[int] = []

    def last() -> bool:
        calls.append(1)
        return False

    other, beat = counter()
    with Heartbeats(QUICK, last), Heartbeats(QUICK, beat):
        wait_until(lambda: other[0] >= 5)
    assert calls == [1]


def test_idle_thread_ends_and_the_next_block_has_another() -> None:
    before, pulse = set(threads()), Pulse(linger=QUICK)
    found, beat = counter()
    for calls in (1, 2):
        with Heartbeats(QUICK, beat, pulse=pulse):
            wait_until(partial(reached, found, calls))
        wait_until(lambda: not set(threads()) - before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_beats_for_its_own_block_and_not_for_its_parents() -> None:
    def in_child() -> tuple[bool, bool]:
        mine, beat_mine = counter()
        with Heartbeats(QUICK, beat_mine):
            inherited = found[0]
            wait_until(lambda: mine[0] >= 5)
        return mine[0] >= 5, found[0] == inherited

    found, beat = counter()
    with Heartbeats(QUICK, beat):
        wait_until(lambda: found[0] >= 1)
        assert in_children(1, in_child) == [(True, True)]
