"""Children of a test: forked, started together, their answers collected; and one that freezes in its work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

FORK = multiprocessing.get_context("fork")


def in_children(count: int, work: Callable[[], Any]) -> list[Any]:
    """Return the results of `work` in `count` forked children that begin together. Their errors fail the test."""
    together, answers = FORK.Barrier(count), FORK.SimpleQueue()
    children = [FORK.Process(target=_answer, args=(work, together, answers), daemon=True) for _ in range(count)]
    for child in children:
        child.start()
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    errors = [error for error, _ in found if error]
    assert not errors, "\n".join(errors)
    return [answer for _, answer in found]


def _answer(work: Callable[[], Any], together: Barrier, answers: SimpleQueue[tuple[str | None, Any]]) -> None:
    together.wait(timeout=30)
    try:
        answers.put((None, work()))
    except BaseException:  # noqa: BLE001 - a child's every failure is the test's
        answers.put((traceback.format_exc(), None))


def freeze() -> None:
    """This process stands still until somebody wakes it."""
    os.kill(os.getpid(), signal.SIGSTOP)


@contextmanager
def frozen(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """A child that froze itself during `work`; the block gets what wakes it and waits for its end."""
    child = FORK.Process(target=work, daemon=True)
    child.start()
    assert child.pid is not None
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended without freezing"

    def wake() -> None:
        os.kill(child.pid, signal.SIGCONT)  # type: ignore[arg-type]
        _, ended = os.waitpid(child.pid, 0)  # type: ignore[arg-type]
        assert os.waitstatus_to_exitcode(ended) == 0

    try:
        yield wake
    finally:
        child.kill()
