"""The runtime: what one process holds to fire links and execute runs, and where its clock comes from."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from importlib.machinery import ModuleSpec
from itertools import product
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from rqsched.chain.claim import ParentWorker
from rqsched.chain.notifications.notifier import Notifier
from rqsched.chain.run_log import log_ends
from rqsched.chain.time_limit import Watch, watch_horse
from rqsched.clock import Clock, DatabaseClock, HostClock, Measurement, SystemClock
from rqsched.config import Settings
from rqsched.core.audit import BUFFERED, DIED, Event
from rqsched.core.ids import new_uid
from rqsched.core.model import Change, Run, Schedule
from rqsched.core.payload import dumps
from rqsched.embedded import resolve_urls
from rqsched.errors import (
    BackendUnavailableError,
    ConfigError,
    RedisUnavailableError,
    WrongDatabaseError,
    error_line,
)
from rqsched.fork_guard import call_in_this_process
from rqsched.signals import everywhere
from rqsched.store import metadata, registered_workflows, schema_version
from rqsched.store.database import Database, Patience
from rqsched.transport.breaker import Breaker, RedisAwayError
from rqsched.transport.client import connect
from rqsched.transport.transport import Transport, is_transient
from rqsched.workflows import ROUTING, Registry, Workflow, WorkflowNotFoundError, import_failure, registry

_log = logging.getLogger(__name__)

_MOST_OUT_OF_SYNC = 10_000
MANY_WAITING = 2
"""When more runs than this wait for the one ahead of them, that is logged as a warning."""

Subscriber = Callable[[Change, Event], None]
"""Called after commit with each audit event and the Change that recorded it."""


class Runtime:
    """SQL, Redis, clock and workflows of one process. Survives a fork: each process opens its own connections."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        database: Database | None = None,
        workflows: Registry | None = None,
        host: HostClock | None = None,
        redis_timeout: timedelta | None = None,
    ) -> None:
        """Open what the settings name.

        With a `redis_timeout`, a Redis that does not answer in time counts as away until it answers again, for
        processes that others wait for (`Breaker`); without one, each call waits, as a worker should.
        """
        urls = resolve_urls(settings)
        self.settings = settings
        self.database = database or Database(urls.database_url, pooler=settings.database_pooler)
        self.redis_url = urls.redis_url
        self._breakers: list[Breaker] = []
        self.on_redis_back: Callable[[], None] = _do_nothing
        """Called from a thread when a Redis that was away answers again."""
        self.out_of_sync: set[str] = set()
        """The uids of schedules that a Redis that was away has not followed; not all of them when they are many."""
        self._redis_timeout = redis_timeout
        self._database_id: str | None = None
        self.on_claim: Callable[[str], None] = _do_nothing
        """Called with the token of an attempt before it is claimed, so that its death can be told from others'."""
        self.watch: Watch = watch_horse
        """Sees to the end of code of the application that goes on beyond its timeout."""
        self.parent: ParentWorker | None = None
        """The worker that forked this process, where it writes to SQL for it."""
        self.runs_of_targets: dict[tuple[str, int], tuple[Schedule, Run]] = {}
        """The schedules and runs whose targets this process handled lately, by the run's uid and attempt."""
        self.import_error: str | None = None
        """Why not all modules in RQSCHED_IMPORTS were imported; None when they were. Most processes refuse to start."""
        self._owes_imports = False
        self._opened_by: ModuleSpec | None = None
        self.transport = Transport(
            settings,
            self._connect(urls.redis_url),
            {name: self._connect(url) for name, url in settings.connections.items()},
            owner=self._owner_of_jobs,
        )
        self.workflows = workflows or registry
        self.notifier = Notifier(self)
        self.subscribers: list[Subscriber] = [everywhere.emit]
        self._clock = clock
        self._host = host or SystemClock()
        self._database_clock = DatabaseClock(self._host)

    def apart(self) -> Runtime:
        """Return a runtime over connections of its own, for a thread that nobody waits for; the same clock, workflows
        and subscribers.
        """
        apart = Runtime(self.settings, clock=self._clock, database=self.database.apart(), workflows=self.workflows)
        apart.subscribers = self.subscribers
        return apart

    def _connect(self, url: str) -> Redis:
        if not self._redis_timeout:
            return connect(url)
        self._breakers.append(Breaker(url, self._redis_timeout, self._notice_redis))
        return self._breakers[-1].client()

    def _notice_redis(self) -> None:
        self.on_redis_back()

    def now(self) -> datetime:
        """The database's time as this process knows it: measured each minute, monotonic in between.

        A wall clock that is set changes nothing but the moment of the next measurement, which is never made inside a
        transaction. SQLite has no clock of its own: there it is the host's wall clock.
        """
        if self._clock is not None:
            return self._clock.now()
        if not self.database.dialect.has_server:
            return self._host.now()
        clock = self._database_clock
        if clock.is_due(self.settings.clock_refresh) and not (clock.is_measured and self.database.is_in_transaction):
            self.measure_clock()
        return clock.now()

    @property
    def end_patience(self) -> Patience:
        """How long the end of an attempt is written through an outage of SQL."""
        return Patience(total=self.settings.completion_outage, longest=timedelta(seconds=5), repeats_timeouts=True)

    def use_clock(self, clock: Clock) -> None:
        """Take the time from another clock (a tick at a given time, a test)."""
        self._clock = clock

    def measure_clock(self) -> None:
        """Measure this host's clock against the database's.

        While the database is away what was measured before holds; raises when there is nothing yet.
        """
        clock = self._database_clock
        try:
            clock.measure(lambda: self.database.now(self._host.now()))
        except BackendUnavailableError:
            if not clock.is_measured:
                raise
            clock.keep()
            _log.warning("the clock was not measured anew", extra={"action": "clock_unmeasured"})

    @property
    def measured_clock(self) -> Measurement | None:
        """How this host's clock was measured against the database's; None when it was not."""
        return self._database_clock.measured

    def take_over_clock(self, measured: Measurement | None) -> None:
        """Go by what another process of this host has measured."""
        if measured is not None:
            self._database_clock.measured = measured

    def publish(self, changes: Sequence[Change], *, must: bool = False) -> None:
        """Make Redis follow committed Changes and tell subscribers.

        Redis down: logged, the link follows when reconcile finds Redis back. With `must`, RedisUnavailableError is
        raised then, so that the link that asked for it is delivered again.
        """
        failure = self.follow(changes)
        self.tell(changes)
        if failure is not None and must:
            raise RedisUnavailableError(
                f"Redis does not answer ({type(failure).__name__}); links follow later."
            ) from failure

    def follow(self, changes: Sequence[Change]) -> RedisError | None:
        """Make Redis follow committed Changes, and tell nobody; returns the error of a Redis that is away."""
        try:
            self.transport.follow(changes, now=self.now())
            self.notifier.follow(changes, self.now())
        except RedisError as error:
            _log.warning("links and jobs follow later: %s", error, extra={"action": "follow_failed"})
            if not is_transient(error):
                return None  # what will not pass, only reconcile tries again
            self._keep_out_of_sync(changes, error)
            return error
        return None

    def tell(self, changes: Iterable[Change]) -> None:
        """Log what operators must hear of, and call the subscribers with the events of committed Changes."""
        for change in changes:
            _log_events(change)
            for subscriber, event in product(self.subscribers, change.events):
                try:
                    call_in_this_process(subscriber, change, event)
                except Exception:  # noqa: BLE001 - one that raises harms nothing
                    _log.exception("a subscriber failed on %s", event.type, extra={"action": "subscriber_failed"})

    def _keep_out_of_sync(self, changes: Sequence[Change], error: RedisError) -> None:
        """Remember what is to follow when Redis is back, unless that is found by reconcile or has happened already."""
        if not self._breakers:
            return
        if len(self.out_of_sync) < _MOST_OUT_OF_SYNC:
            self.out_of_sync.update(change.after.uid for change in changes)
        if isinstance(error, RedisAwayError) and not any(breaker.is_open for breaker in self._breakers):
            self.on_redis_back()  # it came back between the call and this line

    def database_id(self) -> str:
        """The id of the SQL database, drawn once."""
        known = self.database.read(lambda connection: metadata.find_value(connection, metadata.DATABASE_ID))
        if known is None:
            drawn = new_uid(self.now())
            known = self.database.transact(
                lambda connection: metadata.claim_value(connection, metadata.DATABASE_ID, drawn)
            )
        self._database_id = known
        return known

    def known_database_id(self) -> str:
        """The id of the SQL database as it was read last in this process."""
        return self._database_id or self.database_id()

    def _owner_of_jobs(self) -> str | None:
        """Return the database's id, read once in this process; None while it is not known and SQL does not answer."""
        try:
            return self.known_database_id()
        except BackendUnavailableError:
            return None

    def is_known_to_redis(self) -> bool:
        """Tell whether Redis remembers this database; False after a flush.

        Raises WrongDatabaseError when the control queue belongs to another database.
        """
        owner = self.transport.database_id()
        if owner is None:
            return False
        self._require_owner(owner)
        return True

    def _require_owner(self, owner: str) -> None:
        # What was read before may have changed since: a database can be replaced by a copy.
        if owner == self._database_id or owner == (mine := self.database_id()):
            return
        raise WrongDatabaseError(
            f"control queue {self.transport.control.name!r} in this Redis belongs to another database "
            f"({owner}, not {mine}). Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database "
            f"or a RQSCHED_CONTROL_QUEUE of its own; if the other one is gone, delete the key "
            f"{self.transport.database_id_key!r}."
        )

    def require_own_redis(self) -> None:
        """Raise WrongDatabaseError when the control queue belongs to another database, before anything is written.

        It is asked once, without patience: while Redis does not answer, SQL is written all the same and Redis follows.
        """
        try:
            owner = self.transport.database_id(attempts=1)
        except RedisError:
            return
        if owner is not None:
            self._require_owner(owner)

    def prepare(self) -> None:
        """Wait here for what an operation in an event loop must not wait for: imports, the clock, SQL, a hung Redis."""
        self.try_imports()
        self.now()
        self.known_database_id()
        with suppress(WrongDatabaseError):  # the operation says so, unless it only stops something
            self.require_own_redis()

    def leave_flush_marker(self) -> str | None:
        """Leave a key in Redis that a flush takes away; None when Redis knows this database already.

        Raises WrongDatabaseError when the control queue belongs to another database.
        """
        return None if self.is_known_to_redis() else self.transport.leave_flush_marker(new_uid(self.now()))

    def record_database_id(self, flush_marker: str) -> bool:
        """Let Redis remember this database, unless another was first; False when Redis was flushed meanwhile."""
        return self.transport.record_database_id(self.database_id(), flush_marker)

    def owe_imports(self, opened_by: ModuleSpec | None) -> None:
        """Import RQSCHED_IMPORTS when a workflow is named, but not while the module `opened_by` is being imported.

        That module is half there until then, and those of RQSCHED_IMPORTS may well import it.
        """
        self._owes_imports, self._opened_by = True, opened_by

    def require_imports(self) -> None:
        """Import RQSCHED_IMPORTS if that is owed. Raises ConfigError when it cannot be, also for now."""
        if not (self._owes_imports or self.import_error):
            return
        missing = [name for name in self.settings.imports if name not in sys.modules]
        if missing and self._is_too_early_for_imports():
            raise ConfigError(
                f"RQSCHED_IMPORTS names {missing[0]!r}, which is not imported while the module that opened this "
                "scheduler is: call this when your application is made, not while its module is imported."
            )
        import_workflows(self.settings)  # more than one thread may come here: each module is imported once
        self._owes_imports, self.import_error = False, None

    def try_imports(self) -> None:
        """Import RQSCHED_IMPORTS if that is owed and can be done now; what cannot be imported is logged, once."""
        if not self._owes_imports or self._is_too_early_for_imports():
            return
        try:
            self.require_imports()
        except ConfigError as error:
            self._owes_imports, self.import_error = False, str(error)
            _log.error("%s", error, extra={"action": "import_failed"})

    def _is_too_early_for_imports(self) -> bool:
        """Tell whether the module that opened this is still being imported; the import system notes that there."""
        return bool(getattr(self._opened_by, "_initializing", False))

    def find_workflow(self, name: str) -> Workflow | None:
        """Return the workflow of a name; None when this process does not know it."""
        self.try_imports()
        return self.workflows.get(name)

    def registered(self) -> list[Workflow]:
        """Return every workflow that this process knows, by name."""
        self.try_imports()
        return self.workflows.all()

    def name_of(self, workflow: str | Callable[..., Any]) -> str:
        """Return a workflow's name: as registered, else its dotted path; raises InvalidInputError."""
        self.try_imports()
        return self.workflows.name_of(workflow)

    def resolve(self, name: str) -> Workflow:
        """Find a workflow for a run; raises WorkflowNotFoundError, which says what else this process lacks."""
        self.try_imports()
        try:
            return self.workflows.resolve(name)
        except WorkflowNotFoundError as error:
            if self.import_error is None:
                raise
            raise WorkflowNotFoundError(name, f"{error.reason} {self.import_error}") from error

    def load_workflows(self) -> None:
        """Import RQSCHED_IMPORTS and record in SQL what they registered."""
        import_workflows(self.settings)
        self.record_workflows()

    def record_workflows(self) -> None:
        """Record the names and defaults this process registered, for processes that do not import them."""
        rows = [_row(workflow.name, workflow.path, workflow.defaults, self.now()) for workflow in self.workflows.all()]
        known = self.database.read(registered_workflows.read_all)
        fresh = [row for row in rows if _routing(known.get(row["name"])) != _routing(row)]
        if fresh:
            self.database.transact(lambda connection: registered_workflows.record(connection, fresh))

    def close(self) -> None:
        """Close every connection."""
        for breaker in self._breakers:
            breaker.stop()
        self.database.close()
        for redis in (self.transport.redis, *self.transport.connections.values()):
            redis.close()


def process_name() -> str:
    """Return the name of this process, as the column `worker` holds it."""
    return f"{socket.gethostname()}:{os.getpid()}"[-255:]


def _do_nothing(*_: object) -> None:
    """Do nothing: nobody asks."""


def _log_events(change: Change) -> None:
    """Log what operators must hear of: runs that end, runs that pile up (Open Job Spec: more than two), and a death."""
    schedule, events = change.after, {event.type: event for event in change.events}
    if BUFFERED in events and schedule.buffer_depth > MANY_WAITING:
        named = schedule.buffer_depth, schedule.namespace, schedule.schedule_id
        _log.warning("%d runs of %s/%s wait for the one ahead of them", *named, extra={"action": "buffer_growing"})
    log_ends(change)
    if DIED in events:
        error = error_line(events[DIED].payload.get("error"))
        text = "%s/%s is dead and does not fire until it is restarted: %s"
        _log.error(text, schedule.namespace, schedule.schedule_id, error, extra={"action": "schedule_died"})


def _row(name: str, path: str, defaults: dict[str, Any], now: datetime) -> dict[str, Any]:
    routing = {routed: defaults.get(routed) for routed in ROUTING}
    options = {option: value for option, value in defaults.items() if option not in ROUTING}
    return {"name": name, "path": path, "registered_at": now, "options": dumps(options)} | routing


def _routing(row: Any) -> tuple[Any, ...] | None:
    return None if row is None else tuple(row[name] for name in ("path", *ROUTING, "options"))


def import_workflows(settings: Settings) -> None:
    """Import the modules in RQSCHED_IMPORTS, from the working directory too.

    Raises ConfigError with the reason when one of them cannot be imported; the others are.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    first: tuple[str, Exception] | None = None
    token = _importing.set(True)
    for module in settings.imports:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever a user's module does wrong
            first = first or (module, error)
    _importing.reset(token)
    if first is not None:
        module, failure = first
        reason = import_failure(failure)
        raise ConfigError(f"RQSCHED_IMPORTS names {module!r}, which cannot be imported: {reason}.") from failure


def is_importing_workflows() -> bool:
    """Return whether a module is being imported because RQSCHED_IMPORTS names it, not because it serves requests."""
    return _importing.get()


_importing: ContextVar[bool] = ContextVar("rqsched_importing", default=False)
_override: ContextVar[Runtime | None] = ContextVar("rqsched_runtime", default=None)


def current_runtime() -> Runtime:
    """Return the runtime for the RQ jobs of this process: that of `using`, else one from the environment, made once."""
    return _override.get() or _from_environment()


@lru_cache(maxsize=1)
def _from_environment() -> Runtime:
    runtime = Runtime(Settings())
    if runtime.settings.is_sqlite:
        schema_version.upgrade(runtime.database)
    runtime.owe_imports(None)
    # Links are fired whatever is missing, and so are runs whose workflow is found; the others are for other workers.
    runtime.try_imports()
    return runtime


@contextmanager
def using(runtime: Runtime) -> Iterator[Runtime]:
    """Let RQ jobs that execute in this context use `runtime`."""
    runtime.try_imports()
    token = _override.set(runtime)
    try:
        yield runtime
    finally:
        _override.reset(token)
