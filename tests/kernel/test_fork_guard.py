"""A process that the application's code forks ends where its code ends, with the exit status one expects of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Callable

import pytest

from rqsched import current_run
from rqsched.kernel.fork_guard import ForkGuard, call_in_this_process
from tests.support.children import in_children
from tests.support.env import Env, run_target

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def do_nothing() -> None:
    """Return."""


def fail() -> None:
    raise ValueError("of a child")


def interrupt() -> None:
    raise KeyboardInterrupt


ENDS: dict[str, tuple[Callable[[], object], int]] = {
    "returns": (do_nothing, 0),
    "raises": (fail, 1),
    "is interrupted": (interrupt, 1),
    "exits": (sys.exit, 0),
    "exits with a status": (lambda: sys.exit(7), 7),
    "exits with a reason": (lambda: sys.exit("no reason"), 1),
}
each_end = pytest.mark.parametrize(("end", "status"), ENDS.values(), ids=ENDS)


def fork_and(end: Callable[[], object]) -> int:
    """Fork, and let the child end so; returns the exit status of the child."""
    child = os.fork()
    if child == 0:
        end()
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def fork_and_await(end: Callable[[], object]) -> int:
    """The same in an event loop, which then hears of its threads as before."""
    found = fork_and(end)
    if found >= 0:  # the loop is the parent's
        await asyncio.to_thread(do_nothing)
    return found


@each_end
def test_child_that_leaves_the_call_ends_with_its_exit_status(end: Callable[[], object], status: int) -> None:
    assert in_children(1, lambda: call_in_this_process(fork_and, end)) == [status]


@each_end
def test_child_that_leaves_an_awaited_call_ends_with_its_exit_status(end: Callable[[], object], status: int) -> None:
    assert in_children(1, lambda: asyncio.run(call_in_this_process(fork_and_await, end))) == [status]


def test_error_of_a_child_is_printed_and_nothing_around_the_call_happens_in_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work() -> int:
        try:
            with ForkGuard():
                return fork_and(fail)
        finally:
            os.write(2, b"around\n")

    assert in_children(1, work) == [1]

    printed = capfd.readouterr().err
    assert "ValueError: of a child" in printed
    assert printed.count("around") == 1


def test_error_of_the_process_itself_passes() -> None:
    with pytest.raises(ValueError, match="of a child"):
        call_in_this_process(fail)


def test_result_that_could_be_awaited_and_is_no_coroutine_is_returned_as_it_is() -> None:
    """RQ and rqsched await only coroutines. Any other return value of a call is its result."""
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()

    assert call_in_this_process(lambda: future) is future


def test_children_do_their_work_inside_a_call(env: Env) -> None:
    """The guard does not disturb a pool of processes, a checkpoint in each, or a fork that the workflow itself ends."""

    def check(number: int) -> int:
        current_run().checkpoint()
        return number

    def target() -> list[int]:
        found = [number for one in (1, 2) for number in in_children(1, lambda one=one: check(one))]  # type: ignore[misc]
        process = multiprocessing.get_context("fork").Process(target=check, args=(1,))
        process.start()
        process.join()
        return [*found, process.exitcode or 0, fork_and(lambda: os._exit(5))]

    run = run_target(env, target)

    assert (run.status, run.result) == ("succeeded", [1, 2, 0, 5])
