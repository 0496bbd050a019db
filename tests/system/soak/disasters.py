"""The disasters of workers and their servers. Each kind happens in production every day."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from random import Random

import psutil
from redis import Redis
from redis.exceptions import RedisError

from tests.system.soak.workers import Workers


class Disasters:
    """Draws one disaster after the other, and thaws the processes it froze."""

    def __init__(self, workers: Workers, random: Random) -> None:
        self._workers = workers
        self._random = random
        self._frozen: list[tuple[float, psutil.Process]] = []
        self.counts: dict[str, int] = {}

    def strike(self) -> str:
        """One disaster happens; returns its name."""
        disaster = self._random.choices(_DISASTERS, _WEIGHTS)[0]
        name = disaster.__name__.lstrip("_")
        if disaster(self):
            self.counts[name] = self.counts.get(name, 0) + 1
        return name

    def thaw(self, *, everything: bool = False) -> None:
        """Continue the processes that were frozen long enough."""
        now = time.monotonic()
        due = [process for until, process in self._frozen if everything or until <= now]
        self._frozen = [(until, process) for until, process in self._frozen if process not in due]
        for process in due:
            _signal(process, signal.SIGCONT)

    def _sigkill(self) -> bool:
        victim = self._victim()
        return victim is not None and _signal(victim, signal.SIGKILL)

    def _sigstop(self) -> bool:
        return self._freeze(self._random.uniform(0.5, 8))

    def _sigstop_for_long(self) -> bool:
        """Beyond the limits of a session: the server releases the locks of the process."""
        return self._freeze(self._random.uniform(12, 20))

    def _freeze(self, seconds: float) -> bool:
        victim = self._victim()
        if victim is None or not _signal(victim, signal.SIGSTOP):
            return False
        self._frozen.append((time.monotonic() + seconds, victim))
        return True

    def _victim(self) -> psutil.Process | None:
        living = self._workers.processes()
        return self._random.choice(living) if living else None

    def _flushall(self) -> bool:
        return self._on_redis("FLUSHALL")

    def _redis_connections_cut(self) -> bool:
        return self._on_redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _on_redis(self, *command: str) -> bool:
        try:
            with Redis.from_url(self._workers.valkey.url) as redis:
                redis.execute_command(*command)
        except RedisError:
            return False
        return True

    def _redis_restarted_empty(self) -> bool:
        self._workers.valkey.kill()
        self._workers.valkey.start()
        return True

    def _sql_restarted(self) -> bool:
        self._workers.postgres.kill()
        self._workers.postgres.start()
        return True

    def _sql_connections_cut(self) -> bool:
        self._workers.postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'soak'"
        )
        return True

    def _sql_connections_silent(self) -> bool:
        """Accept everything that the workers send, drop it, and report no error."""
        return self._workers.proxy.swallow() > 0


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


_CHANCES: dict[Callable[[Disasters], bool], int] = {
    Disasters._sigkill: 60,
    Disasters._sigstop: 12,
    Disasters._sigstop_for_long: 3,
    Disasters._flushall: 8,
    Disasters._redis_connections_cut: 6,
    Disasters._redis_restarted_empty: 4,
    Disasters._sql_connections_cut: 6,
    Disasters._sql_restarted: 4,
    Disasters._sql_connections_silent: 3,
}
_DISASTERS, _WEIGHTS = list(_CHANCES), list(_CHANCES.values())
