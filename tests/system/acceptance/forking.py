"""User code that forks, and lets its child return or raise where only its parent is expected to."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rqsched import workflow
from rqsched.workflows import around_runs
from tests.system.acceptance.chores import FAIL, NOTE, note

FORK = "acceptance.fork"
FORK_AWAITED = "acceptance.fork-awaited"
NAME_FORKING = "acceptance.name-forking"
TELL_FORKING = "acceptance.tell-forking"
CHILDREN = "ACCEPTANCE_CHILDREN"
"""The variable that names the file in which each child leaves its pid."""
AROUND = "ACCEPTANCE_AROUND"
"""The variable that says whether the context of runs forks, too."""
ENDS = ("return", "raise", "exec", "exit", "interrupt")
__all__ = ["FAIL", "NOTE"]


def fork(how: str) -> bool:
    """Return True in the parent; in the child leave its pid, and end as is asked, or return False."""
    if os.fork() != 0:
        return True
    with Path(os.environ[CHILDREN]).open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    if how == "raise":
        raise ValueError("raised in a child")
    if how == "exec":
        os.execv("/no/such/program", ["program"])
    if how == "exit":
        sys.exit(7)
    if how == "interrupt":
        raise KeyboardInterrupt
    return False


def fork_in_job(how: str) -> str:
    """A job of the application's own."""
    fork(how)
    return f"done by {os.getpid()}"


async def fork_in_awaited_job(how: str) -> str:
    """The same, as RQ awaits it: the parent's event loop still hears of its threads afterwards."""
    if fork(how):
        await asyncio.to_thread(os.getpid)
    return f"done by {os.getpid()}"


@workflow(FORK)
def fork_in_workflow(log: str, how: str) -> None:
    note(log)
    fork(how)


@workflow(FORK_AWAITED)
async def fork_in_awaited_workflow(log: str, how: str) -> None:
    note(log)
    if fork(how):
        await asyncio.to_thread(os.getpid)


def name_and_fork() -> Iterator[str]:
    """Name targets, and fork beside it."""
    for how in ENDS:
        fork(how)
        yield how


@workflow(NAME_FORKING, targets=name_and_fork)
def fork_for_target(how: str, log: str) -> None:
    note(log)
    fork(how)


@workflow(TELL_FORKING)
def tell_and_fork(message: dict[str, Any]) -> None:
    fork("raise")
    fork("return")


@around_runs
@contextmanager
def fork_around() -> Iterator[None]:
    """Fork before a run and after it, where the test asks for it."""
    if os.environ.get(AROUND):
        fork("return")
    yield
    if os.environ.get(AROUND):
        fork("raise")


LINGER = "acceptance.linger"
_lock = threading.Lock()


@workflow(LINGER)
def leave_a_lock_held(log: str) -> None:
    """Leave a thread that holds a lock which other code of the application takes, in its process for ever."""
    is_held = threading.Event()

    def hold() -> None:
        with _lock:
            is_held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    note(log)


def take_lock() -> int:
    """A job of the application's own that takes that lock; returns its process."""
    with _lock:
        return os.getpid()
