"""A Valkey, a PostgreSQL and a few `rqsched worker`s, each started again whenever it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import psutil

from rqsched import RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.schema_version import upgrade
from tests.support import servers
from tests.support.processes import Process, Processes, kill_all, process_tree
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import PostgresServer, ValkeyServer
from tests.system.soak.pair import DATABASE, Pair
from tests.system.soak.workflows import LOG, OURS, WHOSE

_WITNESSED = "witnessed"
_SETTINGS = {
    "RECONCILE_INTERVAL": "3",
    "HEARTBEAT_INTERVAL": "1",
    "REPAIR_GRACE": "2",
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
    """The running servers and workers, and the log of the witnesses."""

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

    def stop(self) -> None:
        """All workers end in order."""
        for worker in self.running:
            worker.terminate(timeout=20)

    def close(self) -> None:
        """All workers end in order; what outlived its parent is killed."""
        self.processes()
        self.stop()
        kill_all(list(self.seen.values()))


@contextmanager
def workers(folder: Path, size: int) -> Iterator[Workers]:
    """Workers that run inside the block."""
    with servers.postgres() as postgres, proxy_to(postgres.url(DATABASE)) as proxy:
        url = postgres.create_database(DATABASE)
        with _running(folder, size, url, proxy.url(url), postgres, proxy) as running:
            yield running


@contextmanager
def workers_of_pair(folder: Path, size: int) -> Iterator[tuple[Workers, Pair]]:
    """Workers inside the block that reach whichever of two servers takes writes."""
    with Pair() as pair:
        pair.primary.create_database(DATABASE)
        with _running(folder, size, pair.url, pair.url, pair.primary, pair.link) as running:
            yield running, pair


@contextmanager
def _running(
    folder: Path, size: int, url: str, url_of_workers: str, postgres: PostgresServer, proxy: Proxy
) -> Iterator[Workers]:
    with ExitStack() as stack:
        valkey = stack.enter_context(servers.valkey(folder))
        values = {"DATABASE_URL": url_of_workers, "REDIS_URL": valkey.url, **_SETTINGS}
        environment = {f"RQSCHED_{name}": value for name, value in values.items()}
        environment |= {LOG: str(folder / _WITNESSED), WHOSE: OURS}
        running = stack.enter_context(closing(Workers(folder, environment, valkey, postgres, url, proxy, size)))
        with closing(Database(url)) as database:
            upgrade(database)
        running.start_missing()
        yield running


def declare(
    scheduler: Scheduler, count: int, random: Random, *, every: tuple[int, int] = (5, 20)
) -> list[ScheduleHandle]:
    """Create the soak's schedules: every few seconds, from least to most, under every policy."""
    return [_declare(scheduler, number, random, every) for number in range(count)]


def _declare(scheduler: Scheduler, number: int, random: Random, every: tuple[int, int]) -> ScheduleHandle:
    retry = RetryPolicy(random.choice((0, 3)), base=timedelta(seconds=1), then="continue")
    return scheduler.create(
        f"soak-{number:02}",
        "witness",
        timedelta(seconds=random.randint(*every)),
        args=[round(random.uniform(0.0, 0.4), 2)],
        retry=retry,
        **_POLICIES[number % len(_POLICIES)],  # type: ignore[arg-type]
    )
