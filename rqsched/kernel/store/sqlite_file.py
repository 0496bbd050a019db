"""Keep a SQLite file closed while its process forks.

A child that inherits an open SQLite file believes that it holds SQLite's locks, but it holds none. Other processes then
delete the write-ahead log under it. After that, the child and the other processes lose commits. Therefore a fork waits
until no other thread of the process uses a file, and closes the idle connections. If a connection stays open all the
same, the child refuses to use the file.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from time import monotonic

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from rqsched.errors import DatabaseInheritedError

LONGEST_WAIT = 20.0
"""How many seconds a fork waits for other threads. A statement waits 15 s for a lock of SQLite at most."""
_LONGEST_FORK = 2 * LONGEST_WAIT
"""After so many seconds a thread no longer waits for forks of other threads: an error of a signal handler may have
interrupted `_after_fork_in_parent`."""
_LARGE_BLOCK = 1 << 16
"""The allocation of a block of this size makes malloc sort the memory that the closed connections freed. If a child did
the sorting, the child would copy this memory: a quarter of all that a work horse (RQ's process for one job) copies."""


class _Gate:
    """The threads of a process that use a SQLite file, and those that fork the process.

    A signal handler may raise anywhere, for example RQ's at the end of a job's time. Therefore a use takes the lock
    only while a thread forks, and a use is removed in one step.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.uses: dict[object, int] = {}
        """The thread of each use."""
        self.forking: list[int] = []
        """The threads that fork. They fork one after another, the first one first."""

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Wait until `is_over`, with the lock; returns False when the time is over.

        It looks every 0.1 s, because an error of a signal handler may have kept a thread from notifying this one.
        """
        until = monotonic() + seconds
        while not is_over():
            if monotonic() >= until:
                return False
            self.changed.wait(0.1)
        return True


class SqliteFile:
    """The SQLite file of an engine, in a process that may fork."""

    def __init__(self, engine: Engine) -> None:
        """Observe the connections of a new engine."""
        self._engine = engine
        self._path = os.path.realpath(engine.url.database or "")
        self._entries: weakref.WeakSet[ConnectionPoolEntry] = weakref.WeakSet()
        _observe_forks()
        # Insert this listener before the others, which execute statements on the open file and may wait for locks. It
        # refers to this object, so that this object lives as long as the engine and the connections of its pool.
        sa.event.listen(engine, "connect", lambda _, entry: self._entries.add(entry), insert=True)
        with _in_use():
            _files.add(self)

    def used(self) -> AbstractContextManager[None]:
        """Use the file in the block. A fork by another thread waits for the end of the block, at most LONGEST_WAIT.

        Raises DatabaseInheritedError if the file was open in the parent when this process was forked.
        """
        return _in_use(self._path)

    def close_idle(self) -> None:
        """Close the connections that no thread uses; leave those alone that belong to the parent.

        The pool stays, unlike with `Engine.dispose`: a connection in use comes back to it, and the next call closes it.
        """
        with _in_use():
            if self._path not in _inherited:
                self._engine.pool.dispose()

    def note_fork(self) -> None:
        """In a new child, remember whether the child has inherited an open connection to the file."""
        if any(entry.dbapi_connection is not None for entry in list(self._entries)):
            _inherited.add(self._path)
        self._entries.clear()


@contextmanager
def _in_use(path: str | None = None) -> Iterator[None]:
    """Use SQLite in the block. Wait first while another thread forks, unless this thread uses SQLite already."""
    me, use = threading.get_ident(), object()
    try:
        gate = _gate_of_process()
        is_nested = me in gate.uses.values()
        gate.uses[use] = me  # before the look at `forking`: a fork writes `forking` before it looks at `uses`
        while gate.forking and not is_nested and me not in gate.forking:
            del gate.uses[use]
            _wait_for_forks(gate)
            gate.uses[use] = me
        if path in _inherited:
            raise DatabaseInheritedError(path)
        yield
    finally:
        gate = _gate  # it is another one in a child that was forked in the block
        gate.uses.pop(use, None)
        if gate.forking:
            with gate.lock:
                gate.changed.notify_all()


def _wait_for_forks(gate: _Gate) -> None:
    with gate.lock:
        gate.changed.notify_all()
        known = list(gate.forking)
        if not gate.wait(lambda: not gate.forking, _LONGEST_FORK):
            gate.forking[:] = [thread for thread in gate.forking if thread not in known]


_gate = _Gate()
_renewing = threading.RLock()
_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
_inherited: set[str] = set()
"""The files that this process has inherited open. Its own children inherit them, too."""


def _gate_of_process() -> _Gate:
    """Return the gate of this process. In a child, this renews it first, and notes which files the child has inherited.

    It is called at each use, because the fork of uWSGI calls no function of Python by default.
    """
    if _gate.pid != os.getpid():
        with _renewing:
            if _gate.pid != os.getpid():
                _renew()
    return _gate


def _renew() -> None:
    global _gate  # noqa: PLW0603 - another thread of the parent may hold the old gate's lock
    for file in list(_files):
        file.note_fork()
    _gate = _Gate()


def _before_fork() -> None:
    gate, me = _gate_of_process(), threading.get_ident()
    try:
        with gate.lock:
            # A thread with a use of its own goes first: other forks wait for the end of that use.
            gate.forking.insert(0 if me in gate.uses.values() else len(gate.forking), me)
            gate.wait(lambda: gate.forking[:1] == [me] and not {*gate.uses.values()} - {*gate.forking}, LONGEST_WAIT)
    finally:  # Python drops an error that a signal handler raises here, and forks
        for file in list(_files):
            file.close_idle()
        bytes(_LARGE_BLOCK)


def _after_fork_in_parent() -> None:
    me = threading.get_ident()
    with _gate.lock:
        _gate.forking[:] = [thread for thread in _gate.forking if thread != me]
        _gate.changed.notify_all()


@cache
def _observe_forks() -> None:
    """Register the functions above, once. A process that opens no SQLite database forks without them."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_gate_of_process)
