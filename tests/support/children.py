"""Children of a test: forked, started together, their answers collected."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

FORK = multiprocessing.get_context("fork")


def in_children(count: int, work: Callable[[], Any]) -> list[Any]:
    """What `work` returns in each of `count` forked children that begin at one moment; their errors fail the test."""
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
