"""The stage that all worlds of a test process share: one SQLite file with the schema, and a crew of schedulers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from rqsched.api.scheduler import Scheduler
from rqsched.clock import Clock
from rqsched.config import Settings
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database, Patience
from rqsched.kernel.store.tables import metadata
from rqsched.testing import ManualClock
from rqsched.workflows import Registry, make_workflow
from tests.support.sql import do_not_sync
from tests.system.worlds.faults import Faults, FaultyDatabase
from tests.system.worlds.network import Network, NetworkTransport

START = datetime(2026, 1, 15, 12, 0, 0, 123457, tzinfo=UTC)
"""An instant off every grid, so that no manual trigger falls on an occurrence."""
WORKFLOW = "work"
NAMES_TARGETS = "targets"
TARGETS = ("a", "b", "c")
CREW = ("ann", "ben", "cid", "dot")


class OwnClock(Clock):
    """An actor's clock: the world's, and how wrong it is."""

    def __init__(self, base: Clock) -> None:
        self.base = base
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return self.base.now() + self.offset


@dataclass(slots=True)
class Actor:
    """One process: web app, dispatcher and worker in one."""

    name: str
    scheduler: Scheduler
    clock: OwnClock
    dispatcher: Dispatcher
    passes: Iterator[Recovered] | None = None
    """A reconcile pass it is in the middle of."""

    def restart(self) -> None:
        """It died and started again: its memory is gone."""
        self.dispatcher = Dispatcher(self.scheduler.runtime)
        self.scheduler.runtime.ownership._known = None
        self.passes = None


class Stage:
    """One database file and its crew, used by one world after another."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'world.db'}"
        with_schema = Database(self.url)
        schema_version.upgrade(with_schema)
        with_schema.close()
        self.clock = ManualClock(START)
        self.database = FaultyDatabase(
            self.url, patience=Patience(total=timedelta(seconds=30), first=timedelta(microseconds=1))
        )
        do_not_sync(self.database.engine)
        self._settings = Settings(database_url=self.url, redis_url="redis://127.0.0.1:1/0")
        self._registry = Registry()
        self._registry.add(make_workflow(WORKFLOW, lambda: None))
        self._registry.add(make_workflow(NAMES_TARGETS, lambda: list(TARGETS)))
        self.network = Network(self.clock)
        self.crew = [self._hire(name) for name in CREW]

    def _hire(self, name: str) -> Actor:
        clock = OwnClock(self.clock)
        scheduler = Scheduler(settings=self._settings, clock=clock, workflows=self._registry)
        scheduler.runtime.database.close()
        runtime = scheduler.runtime
        runtime.database = runtime.ownership.database = self.database
        runtime.transport = runtime.ownership.transport = NetworkTransport(self._settings, self.network)
        return Actor(name, scheduler, clock, Dispatcher(scheduler.runtime))

    _clearing = tuple(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables))

    def set(self, faults: Faults) -> Network:
        """Clear everything: no rows, noon, an empty Redis, clocks that agree."""
        self.database.faults = faults
        self.clock.set(START)
        with self.database.engine.connect() as connection, connection.begin():
            for statement in self._clearing:
                connection.exec_driver_sql(statement)
        self.network.faults = faults
        self.network.flush()
        for actor in self.crew:
            actor.clock.offset = timedelta(0)
            actor.restart()
        return self.network

    def close(self) -> None:
        self.database.close()


@contextmanager
def seeded_uids(random: Random) -> Iterator[None]:
    """Uids are drawn from the seed too: locks are taken in their order and jitter is a hash of them."""
    original = secrets.token_bytes
    secrets.token_bytes = lambda nbytes=None: random.randbytes(nbytes or 32)
    try:
        yield
    finally:
        secrets.token_bytes = original
