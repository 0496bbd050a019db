"""The common parts of benchmarks: real servers, a database full of schedules, alternating rounds, one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from benchmarks.flows import NOOP
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.commit import publish
from rqsched.kernel.chain.dispatcher import Dispatcher, collecting_seldom
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.lifecycle import Identity
from rqsched.kernel.store import changes, schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from rqsched.testing import ManualClock
from rqsched.when.spec import SpecLike
from rqsched.when.zones import tzdata_version
from tests.support.servers import PostgresServer, ValkeyServer, postgres, valkey

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
DATABASES = ("postgres", "sqlite")
DURABLE = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on"}


@dataclass
class Lab:
    """The servers of one benchmark, durable as in production."""

    folder: Path
    valkey: ValkeyServer
    postgres: PostgresServer

    def database_url(self, kind: str) -> str:
        """Make an empty, migrated database and give its URL."""
        url = self.postgres.create_database() if kind == "postgres" else f"sqlite:///{self.folder}/{time.time_ns()}.db"
        database = Database(url)
        schema_version.upgrade(database)
        database.close()
        return url

    @contextmanager
    def runtime(self, kind: str, clock: ManualClock | None = None, *, number: int = 0) -> Iterator[Runtime]:
        """Give a runtime on an empty database and on Valkey's empty database of that number."""
        url = f"{self.valkey.url}/{number}"
        Redis.from_url(url).flushdb()
        settings = Settings(database_url=self.database_url(kind), redis_url=url)
        runtime = make_runtime(settings, clock=clock)
        recover(runtime)
        try:
            yield runtime
        finally:
            runtime.close()


@contextmanager
def lab() -> Iterator[Lab]:
    """Start the servers and end them."""
    with tempfile.TemporaryDirectory(prefix="rqsched-bench-") as name, postgres(**DURABLE) as sql:
        folder = Path(name)
        with valkey(folder) as redis:
            yield Lab(folder, redis, sql)


def fill(
    runtime: Runtime,
    count: int,
    spec: SpecLike,
    *,
    prefix: str = "s",
    arm: bool = True,
    batch: int = 1_000,
    overlap: str = "skip",
    workflow: str = NOOP,
) -> None:
    """Create `count` schedules as `create` does, a thousand a transaction."""
    definition = define(None, {"overlap": overlap}, workflow=workflow, spec=spec, defaults={})
    now = runtime.now()
    for start in range(0, count, batch):
        created = [
            lifecycle.decide_create(
                Identity(new_uid(now), "default", f"{prefix}{number}"), definition, now=now, tzdata=tzdata_version()
            )
            for number in range(start, min(start + batch, count))
        ]
        runtime.database.transact(partial(changes.write, changes=created))
        if arm:
            publish(runtime, created)


def succeeded(runtime: Runtime) -> int:
    """Count the runs that are recorded as succeeded."""
    statement = sa.select(sa.func.count()).where(runs.c.status == "succeeded")
    return int(runtime.database.read(lambda connection: connection.scalar(statement)) or 0)


def analyse(runtime: Runtime) -> None:
    """Let the database see how large its tables are and which pages are settled, as autovacuum would in time."""
    with runtime.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        is_postgres = connection.dialect.name == "postgresql"
        if is_postgres:
            connection.exec_driver_sql("SET statement_timeout = 0")  # a million rows may take longer than a request may
        connection.exec_driver_sql("VACUUM (ANALYZE)" if is_postgres else "ANALYZE")


def fire_all(runtime: Runtime, count: int) -> float:
    """Fire `count` due links with one dispatcher; returns seconds."""
    dispatcher = Dispatcher(runtime)
    started, fired = time.perf_counter(), 0
    with collecting_seldom():
        while fired < count:
            fired += dispatcher.run_once()
    return time.perf_counter() - started


def put_noops(queue: Queue, count: int) -> list[Job]:
    """Put `count` no-op jobs of RQ itself on the queue; each is forgotten once it is finished."""
    return queue.enqueue_many([Queue.prepare_data("time.time", result_ttl=0) for _ in range(count)])


def work_noops(url: str, count: int) -> float:
    """Let one RQ SimpleWorker do `count` no-op jobs; returns seconds of the work alone."""
    queue = Queue("benchmark-noops", connection=Redis.from_url(url))
    put_noops(queue, count)
    started = time.perf_counter()
    SimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    return time.perf_counter() - started


def alternate(rounds: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure the sides in turn, so that a slow moment of the machine falls on all of them."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            samples[name].append(side())
    return samples


def summary(samples: Sequence[float], digits: int = 1) -> dict[str, Any]:
    """Give median, least, most and p95 of a figure."""
    ranked = sorted(samples)
    p95 = ranked[min(len(ranked) - 1, round(0.95 * (len(ranked) - 1)))]
    return {
        "median": round(statistics.median(ranked), digits),
        "min": round(ranked[0], digits),
        "max": round(ranked[-1], digits),
        "p95": round(p95, digits),
        "n": len(ranked),
    }


def ratio(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> float:
    """Give the ratio of two medians."""
    return round(statistics.median(ours) / statistics.median(theirs), digits)


def paired(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Summarise the ratios of the rounds, each between measurements of the same round."""
    return summary([one / other for one, other in zip(ours, theirs, strict=True)], digits)


def report(name: str, parameters: dict[str, Any], figures: dict[str, Any]) -> None:
    """Print the one JSON object of a benchmark."""
    versions = {package: version(package) for package in ("rqsched", "rq", "redis", "sqlalchemy", "psycopg")}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
    print(json.dumps({"benchmark": name, "parameters": parameters, **figures, "versions": versions, **machine}))


def arguments(text: str | None, **defaults: int | float | str) -> argparse.Namespace:
    """Read `--name value` for each default."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def minutes(count: float) -> timedelta:
    """Give a span of minutes."""
    return timedelta(minutes=count)
