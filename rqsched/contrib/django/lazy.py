"""The scheduler of a Django project, opened at its first operation."""

from __future__ import annotations

import os
import threading
from typing import Any

from rqsched.api.background_reconcile import Recovering
from rqsched.api.scheduler import Scheduler
from rqsched.features.declarations.declarations import of_process

_OPENED = frozenset({"settings", "runtime", "signals"})


class LazyScheduler(Scheduler):
    """A Scheduler that reads its settings and opens SQL and Redis when it is first used.

    Decorators (`cron`, `every`, `declare`) open nothing. Therefore a module of schedules can be imported where there is
    no database or Redis, for example by `collectstatic` while an image is built.
    """

    def __init__(self) -> None:
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)
        self.declarations = of_process
        self._recovering = Recovering(lambda: self.runtime)

    def _renew_lock(self) -> None:
        """Take a new lock. In a fork, a thread that does not exist there may hold the old lock for ever."""
        self._opening = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        """Open the scheduler when an attribute is used that only an open scheduler has."""
        if name not in _OPENED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._opening:
            if name not in self.__dict__:
                opened = Scheduler.from_env()
                if "signals" in self.__dict__:  # subscribers stay when the scheduler is forgotten
                    opened.runtime.subscribers.append(self.signals.emit)
                # Set all attributes at once, because another thread must not find the scheduler half open.
                self.__dict__.update({name: getattr(opened, name) for name in _OPENED - self.__dict__.keys()})
        return self.__dict__[name]

    def close(self) -> None:
        """Close every connection. The next use of the scheduler opens connections again."""
        self._recovering.end()
        if "runtime" in self.__dict__:
            super().close()

    def forget(self) -> None:
        """Close every connection. The next use of the scheduler also reads the settings again."""
        self.close()
        for name in _OPENED - {"signals"}:
            self.__dict__.pop(name, None)


scheduler = LazyScheduler()
"""The scheduler of this process."""
