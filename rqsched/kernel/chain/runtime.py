"""The runtime: the connections, the clock and the other parts with which a process fires links and executes runs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta

from rqsched.clock import Clock, HostClock, SystemClock
from rqsched.config import Settings
from rqsched.embedded import resolve_urls
from rqsched.errors import WrongDatabaseError
from rqsched.kernel.chain.attempt import ParentWorker
from rqsched.kernel.chain.commit import Subscriber
from rqsched.kernel.chain.database_time import DatabaseTime
from rqsched.kernel.chain.feature import Feature, Features
from rqsched.kernel.chain.freeze_gate import FreezeGate
from rqsched.kernel.chain.imports import Imports
from rqsched.kernel.chain.ownership import Ownership
from rqsched.kernel.chain.refusals import Refusals
from rqsched.kernel.chain.time_limit import Watch, watch_horse
from rqsched.kernel.chain.tracer import Tracer
from rqsched.kernel.chain.write_gate import WriteGate
from rqsched.kernel.decide.model import Run, Schedule
from rqsched.kernel.decide.settle_decision import AttemptResult
from rqsched.kernel.store import registered_workflows
from rqsched.kernel.store.database import Database, Patience
from rqsched.kernel.transport.breaker import Breakers
from rqsched.kernel.transport.transport import Transport
from rqsched.signals import everywhere
from rqsched.workflows import Registry, registry

_log = logging.getLogger(__name__)


class Runtime:
    """SQL, Redis, clock and workflows of one process. Survives a fork: each process opens its own connections."""

    def __init__(
        self,
        settings: Settings,
        *,
        features: Callable[[Runtime], Sequence[Feature]],
        tracer: Callable[[Settings], Tracer | None],
        clock: Clock | None = None,
        database: Database | None = None,
        workflows: Registry | None = None,
        host: HostClock | None = None,
        redis_timeout: timedelta | None = None,
    ) -> None:
        """Open the connections that the settings name.

        `features` and `tracer` make the features and the tracer of this process (`rqsched.features.list` has them).

        With a `redis_timeout`, a Redis that does not answer in time counts as away until it answers again (`Breaker`).
        Use a `redis_timeout` in processes whose callers wait, such as web processes. Without a timeout, as in a worker,
        each call waits.
        """
        self._tracer_of = tracer
        self.tracing = tracer(settings)
        """The tracer of this process; None when it traces nothing."""
        urls = resolve_urls(settings)
        self.settings = settings
        self.database = database or Database(urls.database_url, pooler=settings.database_pooler)
        host = host or SystemClock()
        self.time = DatabaseTime(self.database, host, refresh=settings.clock_check_interval)
        """The database's time. `now` returns it unless a clock was given or the database has no clock."""
        self._clock = clock
        usual = self.time if self.database.dialect.has_server else host
        self.now: Callable[[], datetime] = (clock or usual).now
        """Returns the database's time as this process knows it (`DatabaseTime`), or the time of a given clock."""
        self.redis_url = urls.redis_url
        self.breakers = Breakers(redis_timeout)
        """One breaker for each Redis. A worker has no breakers."""
        self.out_of_sync: set[str] = set()
        """The uids of schedules that Redis does not follow yet because it was away. If many, some are missing."""
        connections = {name: self.breakers.connect(url) for name, url in settings.connections.items()}
        self.transport = Transport(settings, self.breakers.connect(urls.redis_url), connections)
        self.refusals = Refusals(self.database, settings.control_queue, lambda: self.now())  # noqa: PLW0108 - the clock may change
        """The refusals of Redis that do not pass by themselves."""
        self.transport.on_refused, self.transport.on_accepted = self.refusals.note, self.refusals.accept
        self.transport.refused = self.refusals.known
        self.ownership = Ownership(self.database, self.transport, self.now)
        """Checks which database and server the control queue belongs to."""
        self.transport.owner = self.ownership.owner_of_jobs
        self.freezes = FreezeGate(self.database, self.transport, self.now, is_own=settings.freeze)
        """Knows whether everything, or this process, is frozen, and which namespaces are."""
        self.write_gate = WriteGate(self.database, self.record_workflows)
        """Knows whether SQL takes the writes of this process."""
        self.workflows = workflows or registry
        self.imports = Imports(settings, self.workflows)
        """Imports workflows into this process."""
        self.live = self
        """The runtime with the live clock: this runtime itself, except in a tick at a given time (`at`)."""
        self._features_of = features
        self.features = Features(features(self))
        """The features that take part in Changes and claims."""
        self.subscribers: list[Subscriber] = [everywhere.emit]
        self.on_claim: Callable[[str], None] = _do_nothing
        """Called with the token of an attempt before the claim, so that the attempt is known if this process dies."""
        self.on_end: Callable[[AttemptResult | None], None] = _do_nothing
        """Called with the result of an attempt before the result is written; None for the end of a target."""
        self.on_trouble: Callable[[BaseException, AttemptResult | None], None] = _do_nothing
        """Called if a claim or the result of an attempt was not written. If this process is damaged, the call does not
        return."""
        self.watch: Watch = watch_horse
        """Kills the process of application code that overruns its timeout."""
        self.parent: ParentWorker | None = None
        """The worker that forked this process, if that worker writes to SQL for this process."""
        self.runs_of_targets: dict[tuple[str, int], tuple[Schedule, Run]] = {}
        """The schedules and runs of targets that this process handled lately, by the run's uid and attempt."""

    def apart(self) -> Runtime:
        """Return a runtime with its own connections, for a thread in the background.

        The clock, the workflows and the subscribers are the same.
        """
        apart = Runtime(
            self.settings,
            features=self._features_of,
            tracer=self._tracer_of,
            clock=self._clock,
            database=self.database.apart(),
            workflows=self.workflows,
        )
        apart.subscribers = self.subscribers
        return apart

    def at(self, clock: Clock) -> Runtime:
        """Return a runtime with the time of another clock, for a tick at a given time.

        Both runtimes share the connections and the freeze gate, so the gate keeps the live clock.
        """
        other = copy.copy(self)
        other._clock, other.now = clock, clock.now
        other.features = Features(self._features_of(other))
        return other

    def use_clock(self, clock: Clock) -> None:
        """Use another clock, as tests do."""
        self._clock, self.now = clock, clock.now
        self.freezes.now = clock.now

    @property
    def end_patience(self) -> Patience:
        """The patience with which the end of an attempt is written during an outage of SQL."""
        return Patience(total=self.settings.completion_outage, longest=timedelta(seconds=5), repeats_refusals=True)

    def prepare(self) -> None:
        """Do slow work (imports, the clock, first connections) now, so that no operation does it in an event loop."""
        self.imports.attempt()
        self.now()
        self.ownership.known_database_id()
        with suppress(WrongDatabaseError):  # an operation raises it again, unless the operation only stops something
            self.ownership.require_own_redis()

    def record_workflows(self) -> None:
        """Record the names and defaults of this process's workflows, for processes that do not import the workflows."""
        rows = [registered_workflows.row_of(one, registered_at=self.now()) for one in self.workflows.all()]
        known = self.database.read(registered_workflows.read_all)
        fresh = registered_workflows.those_that_differ(rows, known)
        if fresh:
            self.database.transact(lambda connection: registered_workflows.record(connection, fresh))

    def close(self) -> None:
        """Close every connection."""
        self.breakers.stop()
        self.database.close()
        for redis in (self.transport.redis, *self.transport.connections.values()):
            redis.close()


def _do_nothing(*_: object) -> None:
    """Do nothing: no hook is set."""


in_use: ContextVar[Runtime | None] = ContextVar("rqsched_runtime", default=None)
"""The runtime given to `using`; None outside a `using` block."""


@contextmanager
def using(runtime: Runtime) -> Iterator[Runtime]:
    """Let RQ jobs that execute in this context use `runtime`."""
    runtime.imports.attempt()
    token = in_use.set(runtime)
    try:
        yield runtime
    finally:
        in_use.reset(token)
