"""The cluster under test: a Valkey, a PostgreSQL and a few `rqsched worker`s, each restarted whenever it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import psutil

from rqsched import RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.store.database import Database
from rqsched.store.schema_version import upgrade
from tests.support import servers
from tests.support.processes import Process, kill_all, process_tree, rqsched_command, start
from tests.support.servers import PostgresServer, ValkeyServer
from tests.system.soak.workflows import LOG

_SETTINGS = {
    "RECONCILE_INTERVAL": "3",
    "HEARTBEAT_INTERVAL": "1",
    "GRACE": "2",
    "IMPORTS": "tests.system.soak.workflows",
}
"""Faster than the defaults, so that an hour's worth of repairing fits into minutes."""
_POLICIES: tuple[dict[str, object], ...] = (
    {"overlap": "skip"},
    {"overlap": "buffer_one"},
    {"overlap": "buffer_all", "missed": "all"},
    {"overlap": "allow_all", "missed": "all"},
    {"overlap": "cancel_other"},
    {"overlap": "skip", "jitter": timedelta(seconds=3)},
)


@dataclass
class Cluster:
    """Everything that runs, and where its witnesses write."""

    folder: Path
    valkey: ValkeyServer
    postgres: PostgresServer
    database_url: str
    size: int
    workers: list[Process] = field(default_factory=list)
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    """Every process that was part of a worker, also when its parent is gone."""

    @property
    def log_path(self) -> Path:
        return self.folder / "witnessed"

    @property
    def settings(self) -> Settings:
        return Settings(
            database_url=self.database_url, redis_url=self.valkey.url, imports=("tests.system.soak.workflows",)
        )

    def tend(self) -> None:
        """A worker that is gone is started again, as systemd or Kubernetes would."""
        self.workers = [worker for worker in self.workers if worker.is_running]
        while len(self.workers) < self.size:
            self.workers.append(self._start())

    def _start(self) -> Process:
        urls = {"DATABASE_URL": self.database_url, "REDIS_URL": self.valkey.url, **_SETTINGS}
        env = {LOG: str(self.log_path), **{f"RQSCHED_{name}": value for name, value in urls.items()}}
        return start(rqsched_command("worker", "default"), log_path=self.folder / "workers.log", env=env)

    def processes(self) -> list[psutil.Process]:
        """Every living process of every worker: supervisors, dispatchers, RQ workers, RQ's schedulers, horses."""
        trees = [process for worker in self.workers for process in process_tree(worker.pid)]
        self.seen |= {process.pid: process for process in trees}
        return trees

    def stop(self) -> None:
        """All workers end in order; what outlived its parent is killed."""
        self.processes()
        for worker in self.workers:
            worker.terminate(timeout=20)
        kill_all(list(self.seen.values()))


@contextmanager
def cluster(folder: Path, size: int) -> Iterator[Cluster]:
    """A cluster that runs inside the block."""
    with servers.valkey(folder) as valkey, servers.postgres() as postgres:
        url = postgres.create_database("soak")
        running = Cluster(folder, valkey, postgres, url, size)
        with closing(Database(url)) as database:
            upgrade(database)
        running.tend()
        try:
            yield running
        finally:
            running.stop()


def declare(scheduler: Scheduler, count: int, random: Random) -> list[ScheduleHandle]:
    """Create the soak's schedules: every few seconds, under every policy."""
    return [_declare(scheduler, number, random) for number in range(count)]


def _declare(scheduler: Scheduler, number: int, random: Random) -> ScheduleHandle:
    retry = RetryPolicy(random.choice((0, 3)), base=timedelta(seconds=1), then="continue")
    return scheduler.create(
        f"soak-{number:02}",
        "witness",
        timedelta(seconds=random.randint(5, 20)),
        args=[round(random.uniform(0.0, 0.4), 2)],
        retry=retry,
        **_POLICIES[number % len(_POLICIES)],  # type: ignore[arg-type]
    )
