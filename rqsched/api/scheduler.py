"""The scheduler: creates, finds and declares schedules. Web apps, commands and tests hold one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Unpack

from rq import get_current_job

from rqsched import signals
from rqsched.api.background_reconcile import Recovering, find_worker_command
from rqsched.api.groups import Grouped
from rqsched.api.list_filters import ListFilters, read_page, to_filters
from rqsched.api.run_handle import Runs
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.clock import Clock
from rqsched.config import Settings
from rqsched.errors import (
    BackendUnavailableError,
    ConfigError,
    InvalidInputError,
    ScheduleNotFoundError,
)
from rqsched.features.backfill.api import Backfills
from rqsched.features.bulk.api import BulkOperations
from rqsched.features.calendars.api import Calendars
from rqsched.features.declarations.api import Syncing
from rqsched.features.declarations.declarations import Declaration, Declarations, Declaring, of_process
from rqsched.features.freeze.api import Freezing
from rqsched.features.limits.api import Limits
from rqsched.features.list import make_runtime
from rqsched.features.namespaces.api import Namespaces
from rqsched.features.pruning import chain as pruning
from rqsched.kernel.chain import create as creating
from rqsched.kernel.chain import option_checks
from rqsched.kernel.chain.change import read_in
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.chain.imports import is_importing_workflows
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.define import require_known
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.options import is_id, require_id, require_note
from rqsched.kernel.decide.results import MAX_PAGE, Load, Page, pages
from rqsched.kernel.decide.retention import Retention
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.schedules import Filters
from rqsched.kernel.store import changes, schema_version
from rqsched.kernel.store.caller_transaction import (
    CallerTransaction,
    ConnectionLike,
    SessionLike,
    WritingOptions,
    caller_transaction,
    split_transaction,
)
from rqsched.kernel.store.database import Connection, Engine
from rqsched.kernel.store.shared_engine import database_of
from rqsched.simulate.load import read_load, window_of
from rqsched.timing import When
from rqsched.when.duration import SpanLike
from rqsched.workflows import Registry

if TYPE_CHECKING:
    from rqsched.features.pruning.chain import Pruned
    from rqsched.kernel.decide.results import Recovered
    from rqsched.simulate.report import Simulation

_log = logging.getLogger(__name__)
_runtime_of = attrgetter("runtime")


class Scheduler(Freezing, Syncing, Declaring):
    """Durable schedules over one SQL database and one Redis.

    >>> scheduler = Scheduler.from_env()
    >>> schedule = scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), timezone="Europe/Berlin")
    >>> schedule.trigger().outcome
    'triggered'

    Safe to share between threads. Every operation is durable when it returns. If Redis is down, the operation takes
    effect when Redis is back. Operations on other nouns are in groups: `scheduler.runs.list()`,
    `scheduler.limits.set(...)`.
    """

    runs = Grouped(Runs, _runtime_of)
    """The runs of all schedules."""
    backfills = Grouped(Backfills, _runtime_of)
    """The backfills of all schedules."""
    bulk = Grouped(BulkOperations, _runtime_of)
    """The operations on every schedule that matches filters."""
    calendars = Grouped(Calendars, _runtime_of)
    """Named exclusions that many schedules use."""
    limits = Grouped(Limits, _runtime_of)
    """The groups whose runs are limited: how many run at once, or start within a length of time."""
    namespaces = Grouped(Namespaces, _runtime_of)
    """Whole namespaces: their usage, and their deletion."""

    def __init__(
        self,
        *,
        database_url: str | None = None,
        redis_url: str | None = None,
        control_queue: str | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        workflows: Registry | None = None,
        engine: Engine | None = None,
        **overrides: Any,
    ) -> None:
        """Open a scheduler; keyword arguments win over `RQSCHED_*`. SQLite databases are migrated here.

        If a URL, an engine, settings or a registry is given, the declarations of this scheduler's decorators belong to
        this scheduler. Otherwise they belong to the process: every scheduler that was opened without these arguments
        syncs them, and `rqsched sync` syncs them, too.

        `engine` is your application's engine, and replaces `database_url`. The scheduler opens its own connections with
        the options of that engine.

        Raises ConfigError for invalid settings, and SchemaError if PostgreSQL's tables need `rqsched db upgrade`. A
        database that does not answer now is no error yet: the first operation raises if it still does not answer. A
        database that refuses this process (a wrong password, an unknown name) or has no address is a ConfigError at
        once.
        """
        database = None if engine is None else database_of(engine)
        if database is not None and (database_url or settings):
            raise ConfigError("engine and database_url or settings were given; each names a database, so give one.")
        url = database_url if database is None else database.url
        given = {"database_url": url, "redis_url": redis_url, "control_queue": control_queue}
        self.settings = settings or Settings(**given, **overrides)
        timeout = self.settings.redis_timeout
        self.runtime = make_runtime(
            self.settings, clock=clock, database=database, workflows=workflows, redis_timeout=timeout
        )
        self.runtime.breakers.on_back = self._resync_redis
        self.has_checked_schema = True
        """Whether the tables were checked to belong to this version; False while the database is down."""
        try:
            self._check_schema()
        except Exception:
            self.runtime.close()
            raise
        is_of_process = not (any(given.values()) or overrides or settings or workflows or database)
        self.declarations = of_process if is_of_process else Declarations(self.runtime.workflows)
        self._recovering = Recovering(lambda: self.runtime)
        self.signals = signals.Signals()
        self.runtime.subscribers.append(self.signals.emit)

    def _check_schema(self) -> None:
        if self.settings.is_sqlite:
            schema_version.upgrade(self.runtime.database)
            return
        self.runtime.database.require_accepted()
        try:
            schema_version.require_current(self.runtime.database)
        except BackendUnavailableError as error:
            self.has_checked_schema = False
            _log.warning("the schema was not checked: %s", error, extra={"action": "schema_unchecked"})

    def _resync_redis(self) -> None:
        from rqsched.kernel.chain.resync import resync_redis  # noqa: PLC0415 - as in `recover`

        resync_redis(self.runtime)

    @classmethod
    def from_env(cls, **overrides: Any) -> Scheduler:
        """Open a scheduler from `RQSCHED_*`. It imports RQSCHED_IMPORTS when it first needs a workflow.

        `tick()`, `sync()` and operations that name a workflow need workflows. Nothing is imported before the import of
        the calling module has ended, because the modules of RQSCHED_IMPORTS may import the calling module. Failed
        imports are logged; `sync()` raises ConfigError.
        """
        scheduler = cls(**overrides)
        caller = inspect.currentframe()
        module = None if caller is None or caller.f_back is None else caller.f_back.f_globals.get("__spec__")
        scheduler.runtime.imports.owe(module)
        return scheduler

    def close(self) -> None:
        """Close every connection, and end the thread of `keep_recovering`."""
        self._recovering.end()
        self.runtime.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def create(
        self,
        schedule_id: str,
        workflow: str | Callable[..., Any],
        spec: When,
        *,
        note: str | None = None,
        namespace: str | None = None,
        paused: bool = False,
        idempotency_key: str | None = None,
        context: CommandContext | None = None,
        session: SessionLike | None = None,
        **options: Unpack[WritingOptions],
    ) -> ScheduleHandle:
        """Create a schedule and arm its first link; all options are listed here.

        >>> schedule = scheduler.create(
        ...     "nightly", "invoice-sync", Cron("0 2 * * *"), timezone="Europe/Berlin", kwargs={"region": "eu"}
        ... )
        >>> schedule.next_run_at.hour in (0, 1)
        True

        Args:
            schedule_id: 1 to 255 of `A-Z a-z 0-9 . _ : -`, a letter or digit first; unique in its namespace.
            workflow: A registered name, the registered function or class, or a dotted path.
            spec: The timing: `Cron`, `Every`, `Once`, plain values or texts (`10m`), a `Spec` of several, a `Timing`.
            note: Free text kept with the schedule, at most 4 KiB.
            namespace: Default: RQSCHED_NAMESPACE.
            paused: Create it paused; nothing fires before `resume()`.
            idempotency_key: For a day, the same key and declaration return the same schedule again.
            context: The caller and the reason, for the audit event.
            session: Your own transaction, as an ORM Session or a Connection. The schedule is written in it, and its
                link is armed after the commit.
            timezone: IANA name for cron expressions that name none; default RQSCHED_TIMEZONE, which is UTC by default.
            exclude: Dates, ranges of dates and weekly windows in its timezone in which it does not fire: `2026-12-25`,
                `2026-12-24/2027-01-01`, `Sat, Sun`, `Mon-Fri 00:00-06:00`; default none.
            on_excluded: An occurrence on an excluded day is left out (`skip`, default), or happens on the `next` or the
                `previous` day that is not excluded; for single instants and crons with one time of day.
            dst_gap: A local time that the clocks skip fires later by the length of the gap (`shift`, default), or does
                not fire (`skip`).
            dst_fold: A local time that the clocks show twice fires once, the `first` time (default), or `both` times.
            args: Positional arguments of the workflow, JSON-native; at most 256 KiB together with `kwargs`.
            kwargs: Keyword arguments of the workflow, JSON-native.
            overlap: How a fire treats an unfinished earlier run; see OverlapPolicy; default `skip`.
            buffer_limit: The maximum number of runs that wait under `buffer_all`; default no limit.
            missed: What happens to occurrences whose time has passed: `fire_once` (default), `skip` or `all`; see
                MissedPolicy.
            missed_limit: The maximum number of occurrences that one fire starts under `missed="all"`; default 100.
            fire_within: An occurrence that is late by more than this is not fired; default no limit, 60 s under
                `missed="skip"`.
            start_within: Such as `30m`: an attempt that has not started within this time after it was queued ends as
                expired.
            on_resume: How `resume()` continues: `next` (default), `once` or `from_now`; see OnResume.
            jitter: The longest random delay of a fire; default none. A length is a `timedelta`, text such as `30s`, or
                seconds.
            spread: The longest delay of its fires. All its fires have the same delay, computed from namespace and id;
                default none.
            limit: The group whose concurrency or rate is limited, such as `tenant:{labels.tenant}`.
            limit_running: The maximum number of runs at once, if this is the group's first schedule; see `limits.set`.
            limit_rate: The maximum number of starts within a length of time, such as `100/min`, if this is the group's
                first schedule; see `limits.set`.
            max_runs: How many runs may start; default no limit.
            on_max_runs: When `max_runs` is used up, the schedule is `done` (default), or deleted (`delete`).
            max_successes: The schedule is done after this many successful runs; default no limit.
            environments: Only processes whose RQSCHED_ENVIRONMENT is one of these fire it; default all.
            retry: How failed attempts are repeated; see RetryPolicy; default RQSCHED_RETRY, then 3 retries.
            targets: A function that returns ids, or its name: a run calls the workflow for each (docs/fan-out.md).
            fan_out: When a run with targets fails: `any_failed` (default), `all_failed` or `never`; see FanOutPolicy.
            overlap_until: Until when a run with targets counts as unfinished for `overlap`: `finished` (default) or
                `dispatched`; see OverlapUntil.
            target_retry: How failed attempts of a target are repeated; default RQSCHED_TARGET_RETRY, then not at all.
            target_timeout: How long one attempt of a target may take, a length; default the timeout of the run.
            max_parallel: The maximum number of targets of one run that are handled at once, over all workers.
            retention: How much history is kept: `90d`, `1000` runs, both, or `0` for all; default RQSCHED_RETENTION.
            timeout: How long one attempt may take, a length in whole seconds; default the workflow's, then
                RQSCHED_RUN_TIMEOUT.
            queue: The queue of its runs; default the workflow's, then RQSCHED_DEFAULT_QUEUE.
            connection: The Redis of its runs, as a name in RQSCHED_CONNECTIONS; default the workflow's, then the main
                Redis. A SQLAlchemy Connection counts as `session`.
            priority: Above 0, runs go to the front of their queue; default 0.
            labels: Up to 64 short texts to filter by, copied to each run.
            memo: JSON-native object, at most 256 KiB, copied to each run.
            search_attributes: JSON-native object to query by, copied to each run.
            description: Free text for people.
            owner: Who owns it; `list` filters by it.
            executor: `rq` (default): a job on a queue; `external`: a worker of any language pulls it.
            on_failure: The workflow to run on failures; default the workflow's, then RQSCHED_ON_FAILURE.
            on_recovery: The workflow to run on the first success after failures; default the workflow's, then
                RQSCHED_ON_RECOVERY.
            expect_success_within: Such as `26h`: if no run succeeds for this long, the schedule is overdue.
            expect_duration: Such as `20m`: if a run takes longer, a notification is sent.
            notifications: `webhook`, `events`, `heartbeat`, `sentry`.

        Raises:
            InvalidInputError: An argument is refused (UnknownWorkflowError, InvalidSpecError ...). An unknown option
                is an InvalidTypeError, and so a TypeError.
            ScheduleExistsError: The id is taken.
            QuotaExceededError: The namespace is full; see RQSCHED_QUOTAS.
            IdempotencyConflictError: The key was used with another declaration.
            TransactionConflictError: Your own transaction has to be repeated.

        After an error nothing is written.
        """
        require_known(options, Scheduler.create)
        within, given = split_transaction(options, session)
        definition = option_checks.define_new(self.runtime, workflow, spec, given)
        named, text = self._named(namespace, schedule_id), require_note(note)
        request = ScheduleRequest(named, definition, text, paused, context, key=idempotency_key)
        return self._handle(creating.create(self.runtime, request, within=within))

    def upsert(
        self,
        schedule_id: str,
        workflow: str | Callable[..., Any],
        spec: When,
        *,
        note: str | None = None,
        namespace: str | None = None,
        paused: bool | None = None,
        context: CommandContext | None = None,
        session: SessionLike | None = None,
        **options: Unpack[WritingOptions],
    ) -> tuple[ScheduleHandle, str]:
        """Create a schedule or redefine the existing one; also return `created`, `updated` or `unchanged`.

        Takes the arguments of `create`; an option that is not given gets its default. The next time moves only if the
        timing changes. A paused schedule stays paused unless `paused=False`.
        """
        require_known(options, Scheduler.upsert)
        within, given = split_transaction(options, session)
        definition = option_checks.define_new(self.runtime, workflow, spec, given)
        request = ScheduleRequest(self._named(namespace, schedule_id), definition, require_note(note), paused, context)
        schedule, outcome = creating.upsert(self.runtime, request, within=within)
        return self._handle(schedule), outcome

    def _named(self, namespace: str | None, schedule_id: str) -> Named:
        return Named(require_id(self._namespace(namespace), "namespace"), require_id(schedule_id))

    def _namespace(self, namespace: str | None) -> str:
        return self.settings.namespace if namespace is None else namespace

    def _handle(self, schedule: Schedule) -> ScheduleHandle:
        return ScheduleHandle(self.runtime, schedule)

    def get(
        self,
        schedule_id: str,
        *,
        namespace: str | None = None,
        connection: ConnectionLike | None = None,
        session: SessionLike | None = None,
    ) -> ScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError.

        With `connection` or `session`, read it in your own transaction, which may have created it.
        """
        within = caller_transaction(connection, session)
        return self._found(changes.find_named, schedule_id, namespace, within)

    def _found(
        self,
        find: Callable[[Connection, str, str], Schedule | None],
        schedule_id: str,
        namespace: str | None,
        within: CallerTransaction | None = None,
    ) -> ScheduleHandle:
        where = self._namespace(namespace)
        if not (is_id(schedule_id) and is_id(where)):  # no row has such an id, and a driver may refuse it as a value
            raise ScheduleNotFoundError(schedule_id, where)
        found = read_in(within, self.runtime, lambda connection: find(connection, where, schedule_id))
        if found is None:
            raise ScheduleNotFoundError(schedule_id, where)
        return self._handle(found)

    def list(
        self,
        *,
        namespace: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        sort: str = "created",
        **filters: Unpack[ListFilters],
    ) -> Page[ScheduleHandle]:
        """Read a page of schedules in the order they were created; see ListFilters for the filters.

        >>> [schedule.schedule_id for schedule in scheduler.list(status=["active", "paused"]).items]
        ['nightly']

        Args:
            namespace: Default: RQSCHED_NAMESPACE.
            limit: The size of the page, 1 to 500.
            cursor: `next_cursor` of the previous page.
            sort: `created`, `next` (by the next fire; only schedules that fire) or `id`; a leading `-` reverses the
                order.
        """
        where = self._namespace(namespace)
        page = read_page(self.runtime.database, where, limit=limit, cursor=cursor, sort=sort, **filters)
        return page.map(self._handle)

    def iter(
        self, *, namespace: str | None = None, sort: str = "created", **filters: Unpack[ListFilters]
    ) -> Iterator[ScheduleHandle]:
        """Read all schedules that `list` shows with these arguments, page by page."""
        return pages(lambda cursor: self.list(namespace=namespace, limit=MAX_PAGE, cursor=cursor, sort=sort, **filters))

    def count(self, *, namespace: str | None = None, **filters: Unpack[ListFilters]) -> int:
        """Count the schedules that `list` shows with these filters."""
        wanted = to_filters(self._namespace(namespace), **filters)
        return self.runtime.database.read(lambda connection: schedule_queries.count_schedules(connection, wanted))

    def newest(self, schedule_id: str, *, namespace: str | None = None) -> ScheduleHandle:
        """Find the newest schedule with an id, deleted or not; raises ScheduleNotFoundError."""
        return self._found(schedule_queries.find_newest, schedule_id, namespace)

    def load(self, hours: int = 24, *, namespace: str | None = None) -> Load:
        """Count the fires of each minute of the next hours (1 to 744), with the peaks, their schedules, and the queues.

        >>> load = scheduler.load(hours=168)
        >>> load.fires == sum(load.minutes)
        True

        Reads the stored schedules without a lock, and computes the rest; `assumed` lists the assumptions.

        Args:
            hours: How many hours ahead.
            namespace: The namespace; default that of the scheduler.
        """
        filters = Filters(require_id(self._namespace(namespace), "namespace"))
        return read_load(self.runtime, filters, window_of(self.runtime.now(), hours))

    def simulate(
        self,
        start: datetime | None = None,
        end: datetime | None = None,
        *,
        declarations: Iterable[Declaration] | None = None,
        namespace: str | None = None,
        workers: Mapping[str, int] | None = None,
        duration: SpanLike | None = None,
        durations: Mapping[str, SpanLike] | None = None,
        failure_rate: float | None = None,
        seed: int = 0,
    ) -> Simulation:
        """Simulate the schedules of a namespace from `start` (now) to `end` (a year later); reads, and never writes.

        >>> simulation = scheduler.simulate(workers={"default": 4}, duration="90s")
        >>> simulation.fires == sum(day.fires for day in simulation.days)
        True

        With `declarations`, the schedules that `sync` would create from them at `start` replace the stored schedules.
        Each fire is decided as in production, on a virtual clock. The same schedules, arguments (with `start`) and seed
        give the same report. Raises InvalidInputError for more than three million fires.

        Args:
            start: The start of the span, a whole minute; default now.
            end: The end of the span, exclusive; default 365 days later.
            declarations: Schedules to simulate in place of the stored schedules.
            namespace: Default: RQSCHED_NAMESPACE.
            workers: How many attempts each queue executes at once; a queue that is not named executes any number.
            duration: How long attempts take if no run has been measured.
            durations: How long attempts take, by schedule id or workflow name; overrides measurements.
            failure_rate: The share of all attempts that fails; default the measured one.
            seed: Random values are hashes of it.
        """
        from rqsched.simulate import api as simulating  # noqa: PLC0415 - as in `recover`
        from rqsched.simulate import entries as simulation_entries  # noqa: PLC0415 - as in `recover`

        named, now = require_id(self._namespace(namespace), "namespace"), self.runtime.now()
        wanted = simulating.wanted_of(
            now, start=start, end=end, workers=workers, duration=duration, durations=durations,
            failure_rate=failure_rate, seed=seed,
        )  # fmt: skip
        if declarations is None:
            entries = simulation_entries.stored(self.runtime, named)
        else:
            entries = simulation_entries.declared(self.runtime, declarations, named, wanted.start, is_measured=True)
        return simulating.simulate(entries, wanted, now=now, env=self.settings.environment)

    def recover(self, *, deep: bool = False, progress: Callable[[int], None] | None = None) -> Recovered:
        """Compare SQL with Redis and repair the differences, once; call it when a web app boots.

        It is idempotent, and may run in any number of processes at once. `deep` verifies the link of every active
        schedule. `progress` gets the number of rows of each batch.
        """
        from rqsched.kernel.chain.reconcile import passes  # noqa: PLC0415 - most commands and requests need none of its thirty modules

        return passes.recover(self.runtime, deep=deep, progress=progress)

    def keep_recovering(self) -> None:
        """Make passes of reconcile in a thread of this process and of its forks, taking turns with other processes.

        >>> app.before_request(scheduler.keep_recovering)  # doctest: +SKIP

        For web applications beside plain `rq worker`s, which make no passes. Call it in each request: the first request
        of a process starts the thread, and later calls do nothing. It waits for no server and raises nothing. It does
        nothing in a job or worker of RQ, and nothing while a worker or command imports RQSCHED_IMPORTS. `close` ends
        the thread.
        """
        is_working = get_current_job() is not None or find_worker_command() is not None
        if not is_working and not is_importing_workflows():
            self._recovering.begin()

    def tick(self, *, limit: int = 100, now: datetime | None = None) -> Sequence[dict[str, Any]]:
        """Fire the due schedules in this process, without waiting for a worker; return one row per outcome.

        For tests, and for set-ups in which cron calls it. If a schedule fails, its row has an `error`, and the other
        schedules still fire.
        """
        from rqsched.kernel.chain import tick as fire_due  # noqa: PLC0415 - as in `recover`

        self.runtime.imports.attempt()  # the modules may subscribe to events

        return fire_due.tick(self.runtime, limit=schedule_queries.require_limit(limit, 10_000), now=now)

    def on(self, name: str, subscriber: signals.Subscriber) -> None:
        """Call `subscriber({"event": name, "data": {...}})` after this scheduler commits an event of that name.

        Names are audit event types, `cron.triggered`, `cron.skipped` (Open Job Spec) or `*`; any other raises
        InvalidInputError. An error in a subscriber is logged and has no other effect. Fires are committed in workers:
        to receive their events, register with `rqsched.signals.on` in a module of RQSCHED_IMPORTS.
        """
        self.signals.add(name, subscriber)

    def prune(
        self,
        *,
        retention: str | None = None,
        events_before: datetime | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Pruned], None] | None = None,
    ) -> Pruned:
        """Delete runs and history beyond each schedule's retention, in small transactions; return the counts.

        `retention` overrides RQSCHED_RETENTION and the schedules' own retention. `events_before` also deletes every
        audit event recorded before that instant; a naive instant raises InvalidInputError. `progress` gets the counts
        of each step.
        """
        if events_before is not None and events_before.tzinfo is None:
            raise InvalidInputError("events_before", "is naive; pass an aware datetime, such as one with tzinfo=UTC")
        kept = None if retention is None else Retention.parse(retention)
        wanted = pruning.Pruning(namespace, kept, dry_run, events_before)
        return pruning.prune_all(self.runtime, wanted, progress)
