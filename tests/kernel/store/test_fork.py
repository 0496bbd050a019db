"""A connection is never shared across a fork: RQ forks a horse for every job."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry

from rqsched.errors import DatabaseInheritedError
from rqsched.kernel.store import changes, sqlite_file
from rqsched.kernel.store import database as database_module
from rqsched.kernel.store.database import Database
from tests.kernel.store.samples import add_schedule, count, created, write
from tests.support.children import FORK, in_children
from tests.support.narrow import present
from tests.support.processes import REPOSITORY, SOON, wait_until
from tests.support.sql import backend


def schedule_count(database: Database) -> int:
    return database.read(lambda connection: count(connection, "rqsched_schedules"))


def connection_of(database: Database) -> int:
    """Return the server process of the connection. SQLite reopens its connections after a fork, and gives 0."""
    if database.dialect.name == "sqlite":
        return 0
    return database.read(backend)


def test_a_forked_child_and_its_parent_both_read_and_write(database: Database) -> None:
    add_schedule(database, "parent")

    def work_in_child() -> int:
        write(database, created("child"))
        return schedule_count(database)

    assert in_children(1, work_in_child) == [2]
    write(database, created("parent-again"))
    assert schedule_count(database) == 3


def test_each_forked_child_has_connections_of_its_own(postgres_url: str) -> None:
    database = Database(postgres_url)

    def served_by() -> int:
        return database.read(backend)

    before = served_by()
    backends = in_children(3, served_by)
    assert len({before, *backends}) == 4
    assert served_by() == before
    database.close()


def test_a_child_that_closes_and_forgets_everything_leaves_the_parents_connection_alone(database: Database) -> None:
    write(database, created())
    before = connection_of(database)

    def leave() -> None:
        database.close()
        schedule_count(database)
        gc.collect()
        database.close()

    in_children(2, leave)
    assert connection_of(database) == before
    write(database, created("another"))
    assert schedule_count(database) == 2


def test_children_forked_after_use_write_side_by_side(database: Database) -> None:
    schedule = add_schedule(database)

    in_children(4, lambda: count_up(database, schedule.uid, times=10))

    assert counted(database, schedule.uid) == 40


def count_up(database: Database, uid: str, *, times: int) -> None:
    """Read a schedule's count and write the next one, each time in a transaction of its own."""

    def add_one(connection: sa.Connection) -> None:
        locked = present(changes.lock_one(connection, uid))
        statement = sa.text("UPDATE rqsched_schedules SET run_count = :value WHERE uid = :uid")
        connection.execute(statement, {"value": locked.run_count + 1, "uid": uid})

    for _ in range(times):
        database.transact(add_one)


def counted(database: Database, uid: str) -> int:
    return present(database.read(lambda connection: changes.find(connection, uid))).run_count


def test_a_childs_commit_survives_the_last_connection_of_its_parent(sqlite_url: str) -> None:
    """A child with an inherited open file would hold no lock, and would lose its commits with the write-ahead log."""
    database = Database(sqlite_url)
    write(database, created("parent"))
    child_wrote, parent_closed = FORK.Event(), FORK.Event()

    def write_before_and_after() -> None:
        write(database, created("before"))
        child_wrote.set()
        assert parent_closed.wait(timeout=30)
        write(database, created("after"))

    child = FORK.Process(target=write_before_and_after)
    child.start()
    assert child_wrote.wait(timeout=30)
    database.close()
    parent_closed.set()
    child.join()
    write(database, created("parent-again"))
    assert schedule_count(database) == 4
    database.close()


def test_a_connection_in_use_survives_a_fork(database: Database) -> None:
    def work(connection: sa.Connection) -> int:
        changes.write(connection, [created()])
        in_children(1, lambda: None)
        return count(connection, "rqsched_schedules")

    assert database.transact(work) == 1
    assert schedule_count(database) == 1


@contextmanager
def in_another_thread(use: Callable[[Callable[[sa.Connection], None]], object]) -> Iterator[threading.Event]:
    """While the block runs, another thread is in the transaction that `use` begins, until the event is set."""
    inside, leave = threading.Event(), threading.Event()

    def work(connection: sa.Connection) -> None:
        count(connection, "rqsched_schedules")
        inside.set()
        assert leave.wait(timeout=30)

    thread = threading.Thread(target=use, args=(work,))
    thread.start()
    try:
        assert inside.wait(timeout=30)
        yield leave
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_fork_waits_for_the_transactions_of_other_threads(sqlite_url: str, kind: str) -> None:
    """Otherwise a child could not write, or its commits would vanish with the write-ahead log of other processes."""
    database, others = Database(sqlite_url), Database(sqlite_url)
    schedule = add_schedule(database)
    with in_another_thread(others.read if kind == "read" else others.transact) as leave:
        threading.Timer(1, leave.set).start()

        def count_one() -> bool:
            had_left = leave.is_set()
            count_up(database, schedule.uid, times=1)
            return had_left

        assert in_children(1, count_one) == [True]
    assert counted(database, schedule.uid) == 1
    others.close()
    database.close()


@pytest.mark.parametrize("what", ["transaction", "close"])
def test_no_thread_uses_a_file_while_the_process_forks(sqlite_url: str, what: str) -> None:
    database, others = Database(sqlite_url), Database(sqlite_url)
    add_schedule(database)
    done, seen_by_child = threading.Event(), list[bool]()

    def use() -> None:
        if what == "transaction":
            schedule_count(database)
        else:
            database.close()
        done.set()

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(done.is_set())
        seen_by_child.append(bool(os.waitpid(pid, 0)[1]))

    forking, using = threading.Thread(target=fork), threading.Thread(target=use)
    with in_another_thread(others.read) as leave:
        forking.start()
        wait_until(lambda: sqlite_file._gate.forking, timeout=SOON, what="a fork that waits")
        using.start()
        is_done_at_once = done.wait(0.5)
        leave.set()
        forking.join()
        using.join()

    assert (is_done_at_once, seen_by_child) == (False, [False])
    assert done.is_set()
    others.close()
    database.close()


def test_no_commit_is_lost_while_a_process_with_busy_threads_forks(sqlite_url: str) -> None:
    database, apart = Database(sqlite_url), Database(sqlite_url)
    schedule = add_schedule(database)

    def count_and_close() -> None:
        for _ in range(20):
            count_up(apart, schedule.uid, times=1)
            apart.close()

    threads = [threading.Thread(target=count_and_close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        in_children(2, lambda: count_up(database, schedule.uid, times=4))
    for thread in threads:
        thread.join()

    assert counted(database, schedule.uid) == 2 * 20 + 5 * 2 * 4
    database.close()


def test_a_fork_closes_a_connection_that_was_in_use_during_an_earlier_close(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    schedule = add_schedule(database)

    def close_meanwhile(connection: sa.Connection) -> None:
        count(connection, "rqsched_schedules")
        database.close()

    database.read(close_meanwhile)

    in_children(1, lambda: count_up(database, schedule.uid, times=1))
    assert counted(database, schedule.uid) == 1
    database.close()


def test_a_fork_closes_the_connection_of_a_database_that_nobody_uses_any_more(sqlite_url: str) -> None:
    path = sqlite_url.partition("///")[2]

    def count_of_open() -> int:
        return [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()].count(path)

    dropped = Database(sqlite_url)
    dropped.ping()
    assert count_of_open() == 1  # from here on, without a collection of garbage, SQLAlchemy keeps it open
    gc.disable()
    try:
        del dropped
        assert in_children(1, count_of_open) == [0]
    finally:
        gc.enable()


def test_a_child_refuses_a_file_that_a_thread_of_its_parent_did_not_leave(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LONGEST_WAIT", 0.1)
    database, others = Database(sqlite_url), Database(sqlite_url)
    add_schedule(database)

    with in_another_thread(others.read):
        (text,) = in_children(1, lambda: refusal_of(database, Database(sqlite_url)))

    assert "was open when this process was forked" in text
    assert "Start this process again" in text
    assert in_children(1, lambda: schedule_count(database)) == [1]
    others.close()
    database.close()


def refusal_of(*databases: Database) -> str:
    """The text with which each of them refuses to read."""
    texts = set()
    for one in databases:
        with pytest.raises(DatabaseInheritedError) as told:
            one.ping()
        texts.add(str(told.value))
    (text,) = texts
    return text


def test_a_child_refuses_a_file_that_a_thread_of_its_parent_was_opening(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    prepare = database_module._prepare_sqlite

    def prepare_slowly(connection: Any, entry: ConnectionPoolEntry) -> None:
        opening.set()
        assert go_on.wait(timeout=30)
        prepare(connection, entry)

    monkeypatch.setattr(sqlite_file, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr(database_module, "_prepare_sqlite", prepare_slowly)
    database = Database(sqlite_url)
    thread = threading.Thread(target=database.ping)
    thread.start()
    try:
        assert opening.wait(timeout=30)
        assert in_children(1, lambda: refusal_of(database))
    finally:
        go_on.set()
        thread.join()
    database.close()


class Alarm(Exception):
    """Raised by the signal handler of a test."""


def test_signal_handlers_that_raise_anywhere_keep_nobody_from_forking(sqlite_url: str) -> None:
    """RQ's worker raises from a handler when a job has no time left."""

    def ring(*of_signal: object) -> None:
        raise Alarm

    database = Database(sqlite_url)
    schedule = add_schedule(database)
    previous = signal.signal(signal.SIGVTALRM, ring)
    try:
        for number in range(300):  # the timer rings every few milliseconds at most
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 1e-6 * (1 + number % 50))
                while True:
                    with sqlite_file._in_use():
                        pass
            except Alarm:
                pass
    finally:
        signal.signal(signal.SIGVTALRM, previous)

    assert not sqlite_file._gate.uses
    # A thread would wait for ever for a lock that the main thread has kept.
    count_in_child = partial(in_children, 1, lambda: count_up(database, schedule.uid, times=1))
    thread = threading.Thread(target=count_in_child, daemon=True)
    thread.start()
    thread.join(timeout=SOON)
    assert not thread.is_alive()
    assert counted(database, schedule.uid) == 1
    database.close()


def test_a_fork_inside_a_transaction_does_not_wait_for_a_fork_that_waits_for_this_transaction(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    add_schedule(database)

    def fork_in_transaction(connection: sa.Connection) -> int:
        count(connection, "rqsched_schedules")
        other.start()
        wait_until(lambda: sqlite_file._gate.forking, timeout=SOON, what="a fork that waits")
        started = monotonic()
        in_children(1, lambda: None)
        assert monotonic() - started < sqlite_file.LONGEST_WAIT / 2
        return count(connection, "rqsched_schedules")

    other = threading.Thread(target=in_children, args=(1, lambda: None))
    assert database.read(fork_in_transaction) == 1
    other.join()
    database.close()


UWSGI = """
import ctypes, os, sys
from rqsched.kernel.store.database import Database

database = Database(sys.argv[1])
database.ping()
pid = ctypes.PyDLL(None).fork()  # as uWSGI does: Python hears of the fork in the child alone, or not at all
if pid == 0:
    {after_fork}
    try:
        database.ping()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    if os.fork() == 0:  # this child's own fork closes nothing that belongs to its parent
        os._exit(0)
    os.wait()
    opened = [os.path.realpath(f"/proc/self/fd/{{one}}") for one in os.listdir("/proc/self/fd")]
    print("the connection of the parent is still open:", sys.argv[1].partition("///")[2] in opened, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
database.ping()
print("the parent goes on")
"""


@pytest.mark.parametrize("after_fork", ["", "ctypes.pythonapi.PyOS_AfterFork_Child()"])
def test_a_child_of_a_server_that_forks_without_hooks_refuses_a_file_that_is_open(
    sqlite_url: str, after_fork: str
) -> None:
    refusal, kept, parent = told_by(UWSGI.format(after_fork=after_fork or "pass"), sqlite_url)
    assert refusal.startswith("DatabaseInheritedError")
    assert "set lazy-apps = true" in refusal
    assert kept == "the connection of the parent is still open: True"
    assert parent == "the parent goes on"


def told_by(script: str, *arguments: str) -> list[str]:
    """Run a script in a process of its own; returns the lines that it prints."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=SOON
    ).stdout.splitlines()


EARLY_HOOK = """
import os, sys

os.register_at_fork(after_in_child=lambda: database.ping())  # before the first Database registers its own functions
from rqsched.kernel.store.database import Database

database = Database(sys.argv[1])
database.ping()
pid = os.fork()
if pid == 0:
    database.ping()
    print("used twice", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_child_may_use_the_file_in_a_function_that_python_calls_after_the_fork(sqlite_url: str) -> None:
    assert told_by(EARLY_HOOK, sqlite_url) == ["used twice"]
