"""What a soak wears out: a Valkey, a PostgreSQL and a few `rqsched worker`s, each started again whenever it is gone."""

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
from tests.support.processes import Process, Processes, kill_all, process_tree
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import PostgresServer, ValkeyServer
from tests.system.soak.workflows import LOG

_WITNESSED = "witnessed"
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
class Workers(Processes):
    """Everything that runs, and where its witnesses write."""

    valkey: ValkeyServer
    postgres: PostgresServer
    database_url: str
    proxy: Proxy
    """Through which the workers reach PostgreSQL."""
    size: int
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    """Every process that was part of a worker, also when its parent is gone."""

    @property
    def running(self) -> list[Process]:
        return [worker for worker in self.started if worker.is_running]

    @property
    def log_path(self) -> Path:
        return self.folder / _WITNESSED

    @property
    def settings(self) -> Settings:
        return Settings(
            database_url=self.database_url, redis_url=self.valkey.url, imports=("tests.system.soak.workflows",)
        )

    def start_missing(self) -> None:
        """A worker that is gone is started again, as systemd or Kubernetes would."""
        for _ in range(self.size - len(self.running)):
            self.start_worker("default")

    def processes(self) -> list[psutil.Process]:
        """Every living process of every worker: supervisors, dispatchers, RQ workers, RQ's schedulers, horses."""
        trees = [process for worker in self.running for process in process_tree(worker.pid)]
        self.seen |= {process.pid: process for process in trees}
        return trees

    def close(self) -> None:
        """All workers end in order; what outlived its parent is killed."""
        self.processes()
        for worker in self.running:
            worker.terminate(timeout=20)
        kill_all(list(self.seen.values()))


@contextmanager
def workers(folder: Path, size: int) -> Iterator[Workers]:
    """Workers that run inside the block."""
    with servers.valkey(folder) as valkey, servers.postgres() as postgres, proxy_to(postgres.url("soak")) as proxy:
        url = postgres.create_database("soak")
        urls = {"DATABASE_URL": proxy.url(url), "REDIS_URL": valkey.url, **_SETTINGS}
        environment = {LOG: str(folder / _WITNESSED), **{f"RQSCHED_{name}": value for name, value in urls.items()}}
        running = Workers(folder, environment, valkey, postgres, url, proxy, size)
        with closing(Database(url)) as database:
            upgrade(database)
        running.start_missing()
        try:
            yield running
        finally:
            running.close()


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
