"""Heartbeats: one thread of a process calls functions at intervals, each while its `with` block runs.

A thread for each run would cost as much as the run's claim, and most runs end before their first heartbeat is due. The
thread sleeps until a heartbeat is due, and ends when it has had nothing to do for a minute. A forked process has no
thread until it needs one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic

_LINGER_SECONDS = 60.0


class Heartbeats:
    """While the `with` block runs, `beat` is called at each interval, until it returns False."""

    def __init__(self, interval: float, beat: Callable[[], bool], *, pulse: Pulse | None = None) -> None:
        self.beat = beat
        """The function to call; it raises nothing."""
        self.interval = interval
        """Seconds before each call."""
        self.due_at = 0.0
        """When `beat` is called next, by the monotonic clock."""
        self._pulse = pulse or _pulse

    def __enter__(self) -> Heartbeats:
        self.due_at = monotonic() + self.interval
        self._pulse.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._pulse.remove(self)


class Pulse:
    """The thread and the heartbeats that it calls. The thread ends after `linger` seconds without heartbeats."""

    def __init__(self, linger: float = _LINGER_SECONDS) -> None:
        self._linger = linger
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._wakes_at = 0.0
        self._beating: set[Heartbeats] = set()
        self._thread: threading.Thread | None = None

    def add(self, one: Heartbeats) -> None:
        """Call a heartbeat from its due time on."""
        with self._lock:
            self._beating.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rqsched-heartbeats", daemon=True)
                self._thread.start()
            elif one.due_at < self._wakes_at:
                self._wake.set()

    def remove(self, one: Heartbeats) -> None:
        """Stop calling a heartbeat; do not wait for a call that is under way."""
        with self._lock:
            self._beating.discard(one)

    def _run(self) -> None:
        idle_since = monotonic()
        while True:
            with self._lock:
                now = monotonic()
                idle_since = now if self._beating else idle_since
                if now - idle_since >= self._linger:
                    self._thread = None
                    return
                due = [one for one in self._beating if one.due_at <= now]
                self._wakes_at = min((one.due_at for one in self._beating), default=now + self._linger)
                self._wake.clear()
            for one in due:
                if not one.beat():
                    self.remove(one)
                one.due_at = monotonic() + one.interval
            if not due:
                self._wake.wait(self._wakes_at - now)


_pulse = Pulse()


def _begin_anew() -> None:
    """Forget the thread of the parent process, which does not exist in a fork, and the parent's heartbeats."""
    global _pulse  # noqa: PLW0603 - a thread of the parent may hold the old lock
    _pulse = Pulse()


os.register_at_fork(after_in_child=_begin_anew)
