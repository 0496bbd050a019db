"""The floor of a run: RQ's job and the two durable transactions of a run, in bare SQL of the driver.

`rq worker -c benchmarks.floor` imports this before it forks, and so the drivers. A job has one of three connection
models: the horse connects (`connect`), its process keeps a connection (`keep`), or its worker writes for it (`ask`,
with `-w benchmarks.floor.WritingWorker`). The transactions write to the tables of rqsched as a claim and a success do.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import psycopg
from rq import Worker
from rq.job import Job
from rq.queue import Queue

STEPS = "BENCHMARK_FLOOR_STEPS"
"""Names the file of figures, one line a job of `connect`: CPU in ms and page faults of each of its four steps."""
_CLAIM = (
    "UPDATE rqsched_runs SET status = 'running', token = :uid, worker = 'floor', started_at = CURRENT_TIMESTAMP "
    "WHERE uid = :uid AND attempt = 1 AND delivery = 1 AND status = 'pending'"
)
_END_RUN = (
    "UPDATE rqsched_runs SET status = 'succeeded', ended_at = CURRENT_TIMESTAMP, attempts = '[]' "
    "WHERE uid = :uid AND token = :uid"
)
_END_SCHEDULE = (
    "UPDATE rqsched_schedules SET success_count = success_count + 1, last_outcome = 'succeeded' "
    "WHERE uid = :schedule_uid"
)
_CLAIM_STEP, _END_STEP = b"c", b"e"
_UID = 26
"""Letters of a uid."""
_to_worker: socket.socket | None = None


class Store:
    """One connection; one that is kept prepares its statements on PostgreSQL."""

    def __init__(self, *, is_kept: bool) -> None:
        url = os.environ["RQSCHED_DATABASE_URL"]
        self._is_sqlite = url.startswith("sqlite")
        self._connection: Any
        if self._is_sqlite:
            self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=15, isolation_level=None)
            self._connection.execute("PRAGMA synchronous=FULL")
        else:
            threshold = 0 if is_kept else None
            address = url.replace("+psycopg", "")
            self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=threshold)

    def claim(self, uid: str, schedule_uid: str) -> None:
        """Write the start of the run, durably."""
        self._transact([_CLAIM], uid, schedule_uid)

    def end(self, uid: str, schedule_uid: str) -> None:
        """Write the success of the run and of its schedule, durably."""
        self._transact([_END_RUN, _END_SCHEDULE], uid, schedule_uid)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _transact(self, statements: Sequence[str], uid: str, schedule_uid: str) -> None:
        given = {"uid": uid, "schedule_uid": schedule_uid}
        if self._is_sqlite:
            self._connection.execute("BEGIN IMMEDIATE")
            found = [self._connection.execute(statement, given).rowcount for statement in statements]
            self._connection.execute("COMMIT")
        elif len(statements) == 1:
            found = [self._connection.execute(_for_postgres(*statements), given).rowcount]
        else:
            one, other = map(_for_postgres, statements)
            joined = f"WITH ended AS ({one} RETURNING schedule_uid) {other}"
            found = [self._connection.execute(joined, given).rowcount]
        assert set(found) == {1}, found


@lru_cache
def _for_postgres(statement: str) -> str:
    return statement.replace(":schedule_uid", "%(schedule_uid)s").replace(":uid", "%(uid)s")


def connect(uid: str, schedule_uid: str) -> None:
    """Execute a run as a horse that connects itself."""
    marks = [_used()]
    store = Store(is_kept=False)
    marks.append(_used())
    store.claim(uid, schedule_uid)
    marks.append(_used())
    store.end(uid, schedule_uid)
    marks.append(_used())
    store.close()
    marks.append(_used())
    if STEPS in os.environ:
        steps = [(now[0] - before[0], now[1] - before[1]) for before, now in pairwise(marks)]
        with Path(os.environ[STEPS]).open("a") as figures:
            print(*(figure for step in steps for figure in step), file=figures)


def _used() -> tuple[float, int]:
    """Return the CPU of this process in ms, and its page faults."""
    return 1_000 * time.process_time(), getrusage(RUSAGE_SELF).ru_minflt


@lru_cache(maxsize=1)
def _kept() -> Store:
    return Store(is_kept=True)


def keep(uid: str, schedule_uid: str) -> None:
    """Execute a run in a process that keeps its connection."""
    _kept().claim(uid, schedule_uid)
    _kept().end(uid, schedule_uid)


def ask(uid: str, schedule_uid: str) -> None:
    """Execute a run in a horse whose worker writes for it."""
    assert _to_worker is not None, "a horse of WritingWorker"
    for step in (_CLAIM_STEP, _END_STEP):
        _to_worker.sendall(step + uid.encode() + schedule_uid.encode())
        assert _to_worker.recv(1) == step


class WritingWorker(Worker):
    """A worker that keeps a connection and writes for its horses."""

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Give the horse a socket to this process."""
        global _to_worker
        own, _to_worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own = own
        super().fork_work_horse(job, queue)
        _to_worker.close()

    def wait_for_horse(self) -> Any:
        """Write what the horse asks for until it ends."""
        while self._own.fileno() >= 0 and (asked := self._own.recv(1 + 2 * _UID)):
            uids = asked[1 : 1 + _UID].decode(), asked[1 + _UID :].decode()
            (_kept().claim if asked[:1] == _CLAIM_STEP else _kept().end)(*uids)
            self._own.sendall(asked[:1])
        self._own.close()
        return super().wait_for_horse()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Leave the worker's end to the worker."""
        self._own.close()
        super().main_work_horse(job, queue)
