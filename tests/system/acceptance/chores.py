"""The user code of the acceptance tests. Each execution leaves a line in a file before it does anything else."""

from __future__ import annotations

import inspect
import os
import resource
import signal
import subprocess
import sys
import tempfile
from ctypes import PyDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from rq import Worker
from rq.job import Job
from sqlalchemy import event
from sqlalchemy.pool import Pool

from rqsched import current_run, workflow
from rqsched.kernel.chain import execution
from tests.support.processes import wait_until

NOTE = "acceptance.note"
HOLD = "acceptance.hold"
DEAFEN = "acceptance.deafen"
HOLD_INTERPRETER = "acceptance.hold-interpreter"
FAIL = "acceptance.fail"
LEAVE_ORPHANS = "acceptance.leave-orphans"
DAMAGE = "acceptance.damage"
OVERRUN = "acceptance.overrun"
OVERRUN_TARGET = "acceptance.overrun-target"
TELL = "acceptance.tell"
CONNECTIONS = "acceptance.connections"
INVOICE_SYNC = "invoice-sync"
"""The name of docs/runbooks.md."""
TOLD = "ACCEPTANCE_TOLD"
"""The variable that names the file of `tell`'s messages."""


@dataclass(frozen=True)
class Execution:
    """One time that the body of a workflow began."""

    run_uid: str
    attempt: int
    pid: int


@workflow(NOTE)
def note(log: str) -> str:
    """Leave a line."""
    run = current_run()
    with Path(log).open("a") as lines:
        lines.write(f"{run.uid} {run.attempt} {os.getpid()}\n")
    return "done"


@workflow(LEAVE_ORPHANS)
def leave_orphans(log: str) -> None:
    """Leave a line, and processes whose parent has ended."""
    note(log)
    subprocess.run(["sh", "-c", "sleep 0 & sleep 0 &"], check=True)


@workflow(DAMAGE)
def damage(log: str, how: str) -> str:
    """Leave a line, and a process that the next run cannot use."""
    note(log)
    if how == "files":
        os.closerange(3, 1024)
    elif how == "recursion":
        sys.setrecursionlimit(sum(1 for _ in inspect.stack()) + 30)
    elif how == "folder":
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
    elif how == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
    elif how == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    elif how == "user":
        os.setresuid(65534, 65534, 65534)
    elif how == "claims":
        execution.write_claim = _refuse
    elif how == "driver":
        psycopg.Connection.connect = _refuse_connection  # type: ignore[assignment, method-assign]
    return "done"


def _refuse(*_: object, **__: object) -> None:
    raise LookupError("nothing is claimed")


def _refuse_connection(*_: object, **__: object) -> None:
    raise psycopg.OperationalError("nothing is connected")


@workflow(HOLD)
def hold(log: str, gate: str, deaf: bool = False) -> str:
    """Leave a line, then wait until the gate exists; deaf, not even its timeout ends it."""
    if deaf:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    note(log)
    wait_until(Path(gate).exists, timeout=250, what="the gate")
    return "passed"


@workflow(DEAFEN)
def deafen(log: str) -> None:
    """Leave a line, and make this process ignore signals that ask it to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(log)


@workflow(HOLD_INTERPRETER)
def hold_interpreter(log: str, gate: str) -> None:
    """Leave a line, then let no other thread of this process run, and no handler of a signal, for minutes."""
    note(log)
    PyDLL(None).sleep(250)
    Path(gate).exists()


@workflow(OVERRUN)
def overrun(log: str, gate: str, how: str) -> None:
    """Leave a line, then go on beyond any timeout: in Python that catches everything, or in C where no signal comes."""
    note(log)
    if how == "in C":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        PyDLL(None).sleep(250)
    while not Path(gate).exists():
        try:
            wait_until(Path(gate).exists, timeout=250)
        except:  # noqa: E722 - as people write it
            continue


@workflow(OVERRUN_TARGET, targets=lambda **_: ["one"])
def overrun_target(target: str, **options: str) -> None:
    """Do as `overrun`, for a target."""
    del target
    overrun(**options)


@workflow(FAIL)
def fail(log: str) -> None:
    """Leave a line, then fail."""
    note(log)
    raise ValueError("not today")


@workflow(INVOICE_SYNC)
def invoice_sync() -> None:
    """Do nothing."""


_taken: list[object] = []


@workflow(CONNECTIONS)
def connections(log: str) -> int:
    """Leave a line, and tell how often this process took a connection out of a pool since its first run of this."""
    note(log)
    if not event.contains(Pool, "checkout", _take):
        event.listen(Pool, "checkout", _take)
    return len(_taken)


def _take(*of_connection: object) -> None:
    _taken.append(None)


@workflow(TELL)
def tell(message: dict[str, Any]) -> None:
    """Leave a line about a notification."""
    with Path(os.environ[TOLD]).open("a") as lines:
        lines.write(f"{message['event']} {message['data']['workflow_run_id']}\n")


def read_executions(log: Path) -> list[Execution]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [Execution(uid, int(attempt), int(pid)) for uid, attempt, pid in (line.split() for line in lines)]


def _leave_told(text: str) -> None:
    with Path(os.environ[TOLD]).open("a") as lines:
        lines.write(f"{text}\n")


class TellingWorker(Worker):
    """An application's own worker class, which tells that it performs jobs."""

    def perform_job(self, *arguments: Any, **options: Any) -> bool:
        _leave_told("performed by TellingWorker")
        return super().perform_job(*arguments, **options)


def tell_failure(job: Job, kind: type[BaseException], *rest: object) -> bool:
    """An exception handler of RQ."""
    _leave_told(f"failed with {kind.__name__}")
    return True
