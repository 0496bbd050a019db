"""The supervisor: starts the child processes that do the work, and replaces a child that ends or hangs.

It does not know what its children do. They are forks of the supervisor. docs/adr/0010 draws the whole tree of
processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import multiprocessing
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkProcess
from typing import IO

from rqsched.run.logs import TEXT

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
FORK = multiprocessing.get_context("fork")
"""Children are forks, so they inherit the modules that their parent has imported."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_RESTART_AFTER = 0.25
_LONGEST_RESTART = 30.0
_HEALTHY_AFTER = 10.0
"""A child that lived this many seconds is restarted at once, however often it failed before."""
_START_SECONDS = 120.0
"""How long a child may take until the first turn (iteration) of its loop. Before that, it connects and may create a
schema."""
_TURN_SECONDS = 0.1
_LONGEST_TURN = 1.0
"""One turn of the supervisor's own loop adds at most this many seconds to the measured silence of a child. A longer
turn means that the supervisor itself was stopped, and could not watch the child."""
_KILLED_AT = 3
_IGNORED_SECONDS = 1.1
"""RQ ignores a second signal within a second of the first, so an urgent signal is repeated after this time."""
_ORPHAN_SECONDS = 4.0
"""How long a child whose owner is gone may take to end by itself."""
DISPATCHER_SILENCE = 30.0
"""Seconds without a turn of its loop after which a dispatcher is replaced. No call of a dispatcher waits that long."""
DONE = 3
"""The exit status of a child that has nothing more to do. The child is not started again."""
RENEW = 4
"""The exit status of a child that asks for a successor at once."""


_WAITS_FOR_WRITES, _IS_FROZEN = 1, 2
"""The flags of `Progress.turn`, as bits."""


class Progress:
    """Shows other processes that a loop runs, or why the loop begins no work.

    The data are two numbers in memory that forks share: the number of turns, and flags.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    @property
    def turns(self) -> int:
        """The number of calls of `turn`, in any process."""
        return int(struct.unpack_from("Q", self._memory)[0])

    @property
    def waits_for_writes(self) -> bool:
        """Whether the loop waits for a database that takes writes."""
        return bool(self._noted & _WAITS_FOR_WRITES)

    @property
    def is_frozen(self) -> bool:
        """Whether a setting freezes the loop's process, so that it begins nothing."""
        return bool(self._noted & _IS_FROZEN)

    def turn(self, *, waits_for_writes: bool = False, is_frozen: bool = False) -> None:
        """Count one more turn, and note these two flags."""
        noted = _WAITS_FOR_WRITES * waits_for_writes | _IS_FROZEN * is_frozen
        struct.pack_into("QQ", self._memory, 0, self.turns + 1, noted)

    @property
    def _noted(self) -> int:
        return int(struct.unpack_from("Q", self._memory, 8)[0])


class Watch:
    """How the supervisor watches and ends a child, besides restarting it. This base class only sends signals."""

    def look(self, pid: int) -> None:
        """Examine the child. The supervisor calls this in each turn while the child runs."""

    def kill(self, pid: int, why: str) -> None:
        """End the child at once."""
        del why
        os.kill(pid, signal.SIGKILL)

    def end(self, pid: int, *, is_urgent: bool) -> None:
        """Ask the child to end; if `is_urgent`, without finishing its work."""
        del is_urgent
        os.kill(pid, signal.SIGTERM)

    def note_end(self, status: int | None) -> int | None:
        """Record how the child ended; called once, before it is replaced. Return the status for `restart_delay`."""
        return status

    def prepares_last(self) -> bool:
        """Return whether, at shutdown, one more child must be started to clean up. That child ends by itself."""
        return False


_NO_WATCH = Watch()


@dataclass(frozen=True, slots=True)
class ChildRole:
    """The role of one child."""

    name: str
    """Shown in logs and by `ps`."""
    main: Callable[[Progress], None]
    """The function that the child executes; its loop calls `turn`."""
    silence: float
    """The seconds without a turn after which the child is killed and replaced."""
    watch: Watch = _NO_WATCH
    """How the supervisor watches and ends the child."""
    finishes: bool = False
    """Whether the supervisor ends when all children with this flag have ended with `DONE`."""
    is_last: bool = False
    """Whether the other children need this child. If so, the supervisor ends it after the others at shutdown."""


@dataclass(frozen=True, slots=True)
class Child:
    """The present state of a supervisor's child."""

    role: str
    """The name of its role."""
    pid: int
    """The pid of the running process, or of the last one if none runs now."""
    restarts: int
    """How often it was started again."""
    has_begun: bool
    """Whether its loop has made a turn since it was started."""
    waits_for_writes: bool = False
    """Whether it waits for a database that takes writes."""
    is_frozen: bool = False
    """Whether a setting freezes it, so that it begins nothing."""


@dataclass(frozen=True, slots=True)
class _Orders:
    """The settings that every child of a supervisor shares."""

    output: IO[bytes] | None
    environment: Mapping[str, str]
    parent: int
    life: int | None


class Supervisor:
    """Keeps one child of each role alive until it is told to end."""

    def __init__(
        self,
        roles: Sequence[ChildRole],
        *,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        life: int | None = None,
    ) -> None:
        """Prepare the children.

        The children write to the file `output` instead of this process's terminal. `environment` is added to the
        environment of this process. Children are forks of this process, because a fork need not repeat the imports,
        which take a second. While `run` runs, this process must hold no open SQL connection, because SQLite loses track
        of its locks in a fork.

        The children end with this process. `life` is a descriptor of a pipe that another process, the owner, holds
        open. If `life` is given, this process and its children end when the owner ends, and this process ignores
        SIGTERM and SIGINT.
        """
        self._life = life
        orders = _Orders(output, dict(environment or {}), os.getpid(), life)
        self._keepers = [_ChildKeeper(role, orders) for role in roles]
        self._asked = 0

    @property
    def children(self) -> list[Child]:
        """The children that were started."""
        return [
            Child(k.role.name, k.process.pid, k.restarts, k.is_running and k.turns > 0, k.waits_for_writes, k.is_frozen)
            for k in self._keepers
            if k.process and k.process.pid
        ]

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._asked > 0

    def run(self, on_turn: Callable[[], None] | None = None) -> int:
        """Run until SIGTERM, SIGINT or `stop`, and then let the children finish. Each turn calls `on_turn`.

        A second signal also ends executing runs (RQ's cold shutdown). A third one kills the children. An error in
        `on_turn` ends the children and is raised.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if self._life is not None else lambda *_: self.stop())
        turn = on_turn or _nothing
        try:
            while not self.is_stopping:
                for keeper in self._keepers:
                    keeper.keep()
                finishing = [keeper for keeper in self._keepers if keeper.role.finishes]
                if finishing and all(keeper.is_done for keeper in finishing):
                    self.stop()
                self._turn(turn)
        except BaseException:
            self.stop()
            self._finish(_nothing)
            raise
        self._finish(turn)
        return 0

    def stop(self) -> None:
        """Request the end. A repeated request is more urgent, see `run`."""
        self._asked += 1

    def _turn(self, on_turn: Callable[[], None]) -> None:
        on_turn()
        if self._life is None or self.is_stopping:
            time.sleep(_TURN_SECONDS)
        elif select.select([self._life], [], [], _TURN_SECONDS)[0]:
            self.stop()

    def _finish(self, on_turn: Callable[[], None]) -> None:
        for keepers in ([one for one in self._keepers if not one.role.is_last], self._keepers):
            while sum(keeper.finish(self._asked) for keeper in keepers):  # the number of children that still run
                self._turn(on_turn)


def _nothing() -> None:
    """Do nothing in a turn."""


def restart_delay(last: float, *, status: int | None, lived: float) -> float:
    """Return the seconds until a child that ended is started again, given the last delay.

    The delay grows only for a child that ends by itself soon after its start, because such a child probably fails
    again. A child that a signal killed (a negative `status`) is always started again at once.
    """
    is_killed = status is not None and status < 0
    if is_killed or lived >= _HEALTHY_AFTER:
        return _RESTART_AFTER
    return min(last * 2, _LONGEST_RESTART)


@dataclass
class Silence:
    """How long the loop of a child has made no turn. Each turn of the supervisor adds to this time."""

    turns: int = 0
    """The child's number of turns at the last call of `look`."""
    seconds: float = 0.0
    """How long, in seconds, `look` has found this number of turns."""
    _looked_at: float = field(default_factory=time.monotonic)

    def look(self, turns: int, now: float) -> float:
        """Return the seconds of silence; `turns` is the child's number of turns at `now`."""
        self.seconds = 0.0 if turns != self.turns else self.seconds + min(now - self._looked_at, _LONGEST_TURN)
        self.turns, self._looked_at = turns, now
        return self.seconds


class _ChildKeeper:
    """Starts one child, and restarts it after its end. The delay grows if the child ends soon after each start."""

    def __init__(self, role: ChildRole, orders: _Orders) -> None:
        self.role = role
        self.process: ForkProcess | None = None
        self.restarts = 0
        self._orders = orders
        self._delay = _RESTART_AFTER
        self._started_at = 0.0
        self._start_at: float | None = 0.0
        self._progress = Progress()
        self._silence = Silence()
        self.is_done = False
        self._is_last = False
        self._asked = 0
        self._ask_again_at = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    @property
    def turns(self) -> int:
        return self._progress.turns

    @property
    def waits_for_writes(self) -> bool:
        return self.is_running and self._progress.waits_for_writes

    @property
    def is_frozen(self) -> bool:
        return self.is_running and self._progress.is_frozen

    def keep(self) -> None:
        """Start the child when it is due, note its end, and kill it if it makes no progress."""
        if self.is_running:
            self._look()
            return
        now = time.monotonic()
        if self._start_at is None:
            self._start_at = now + self._note_end(now)
        if now >= self._start_at and not self.is_done:
            self._start(now)

    def finish(self, asked: int) -> bool:
        """Ask the child to end, more urgently with each request (`asked`); return whether it still runs."""
        if self.is_running:
            self._ask(asked)
            self._look()
            return True
        now = time.monotonic()
        if self._start_at is None:
            self._start_at = now
            self.role.watch.note_end(self._status)
        if self._is_last or asked >= _KILLED_AT or self.process is None or not self.role.watch.prepares_last():
            return False
        self._start(now)
        self._start_at, self._is_last = now, True
        return True

    def _ask(self, asked: int) -> None:
        now = time.monotonic()
        if self._is_last and asked < _KILLED_AT:
            return  # the last child ends by itself
        if self._asked >= asked and (asked == 1 or now < self._ask_again_at):
            return
        self._asked, self._ask_again_at = asked, now + _IGNORED_SECONDS
        if asked < _KILLED_AT:
            self._signal(partial(self.role.watch.end, is_urgent=asked > 1))
        else:
            self._signal(partial(self.role.watch.kill, why="it was killed at the end of its worker"))

    def _signal(self, send: Callable[[int], None]) -> None:
        if self.process is not None and self.process.pid is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                send(self.process.pid)

    def _look(self) -> None:
        """Kill the child if its loop has made no turn for too long. It may be stopped, or wait without end."""
        turns = self._progress.turns
        silent = self._silence.look(turns, time.monotonic())
        if silent > (self.role.silence if turns else _START_SECONDS):
            text = "%s has made no progress for %.0f s and is killed"
            _log.error(text, self.role.name, silent, extra={"action": "child_silent"})
            self._signal(partial(self.role.watch.kill, why="it stood still and was killed"))
        else:
            self._signal(self.role.watch.look)

    @property
    def _status(self) -> int | None:
        return self.process.exitcode if self.process is not None else None

    def _note_end(self, now: float) -> float:
        status = self.role.watch.note_end(self._status)
        if status == DONE and self.role.finishes:
            self.is_done = True
            return 0.0
        if status == RENEW:
            _log.info("%s is renewed", self.role.name, extra={"action": "child_renewed"})
            return 0.0
        self._delay = restart_delay(self._delay, status=status, lived=now - self._started_at)
        _log.warning("%s ended with %s; restarting", self.role.name, status, extra={"action": "child_restarted"})
        return self._delay

    def _start(self, now: float) -> None:
        self.restarts += self.process is not None
        self._progress, self._silence = Progress(), Silence()
        self.process = FORK.Process(target=_run_child, args=(self.role, self._orders, self._progress))
        start_undisturbed(self.process)
        self._started_at, self._start_at = now, None
        _log.info("%s started with pid %d", self.role.name, self.process.pid, extra={"action": "child_started"})


def start_undisturbed(process: ForkProcess) -> None:
    """Start a process. Signals to the process wait until it has replaced the handlers that it inherits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def part_from_parent(name: str) -> None:
    """Separate this fork from its parent: from signals of the parent's terminal, and from the parent's handlers."""
    # Start a new session: Ctrl-C then reaches only the parent, which ends its children in order.
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    show_name(name)


def _run_child(role: ChildRole, orders: _Orders, progress: Progress) -> None:
    """Run a child from the fork to its end."""
    part_from_parent(f"rqsched-{role.name}")
    if orders.life is None:
        die_with_parent(orders.parent)
    else:
        threading.Thread(target=_die_with_owner, args=(orders.life,), daemon=True).start()
    os.environ.update(orders.environment)
    if orders.output is not None:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a live screen may have replaced them
        for descriptor in (1, 2):
            os.dup2(orders.output.fileno(), descriptor)
        logging.basicConfig(level=logging.INFO, format=TEXT, force=True)
    role.main(progress)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent (Linux); on other systems a thread watches the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _die_with_owner(life: int) -> None:
    """Wait in a thread until the pipe is at its end, then end this process; works on every system."""
    while os.read(life, 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def python(module: str, call: str) -> list[str]:
    """Return the command that calls a function of a module in a new Python, with this process's import paths."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; import {module} as m; m.{call}"]


def show_name(name: str) -> None:
    """Set the name of this process for `ps` and `top` (Linux shows 15 characters)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15])
