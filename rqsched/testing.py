"""Helpers for tests of applications: a clock that a test moves, and runs executed in this process.

>>> def test_nightly(rqsched_scheduler, rqsched_clock):  # doctest: +SKIP
...     rqsched_scheduler.create("nightly", invoice_sync, Cron("0 2 * * *"))
...     rqsched_clock.advance(timedelta(days=1))
...     run_due(rqsched_scheduler)
...     assert rqsched_scheduler.get("nightly").run_count == 1

The pytest fixtures are in `rqsched.pytest_plugin`, which pytest loads by itself; docs/testing.md shows their use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.clock import Clock, SystemClock
from rqsched.errors import InvalidInputError, ScheduleNotFoundError
from rqsched.features.declarations.declarations import Declarations, of_process
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.ids import live_instance_id, new_uid
from rqsched.kernel.decide.lifecycle import with_clocks
from rqsched.kernel.decide.model import Schedule, fence_of
from rqsched.kernel.store import emptying, machine_states, metadata, schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.transport.client import for_rq
from rqsched.when.spec import Spec, SpecLike
from rqsched.workflows import RunContext, enter_run, leave_run

of_test: ContextVar[Scheduler | None] = ContextVar("rqsched_of_test", default=None)
"""The scheduler of the fixture that the current test uses; `machine_test` takes it by default."""


class ManualClock(Clock):
    """A clock that stands still until a test moves it.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance(timedelta(minutes=5))
    datetime.datetime(2026, 1, 1, 0, 5, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        self._now = _as_utc(start)

    def now(self) -> datetime:
        """Return the time of the clock."""
        return self._now

    def advance(self, span: timedelta) -> datetime:
        """Move the clock by `span` (back, if it is negative) and return its new time."""
        self._now += span
        return self._now

    def set(self, instant: datetime) -> None:
        """Set the clock to `instant`, earlier or later than before. Raises ValueError for a naive datetime."""
        self._now = _as_utc(instant)


def _as_utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} is naive; pass an aware datetime, such as one with tzinfo=UTC.")
    return instant.astimezone(UTC)


@contextmanager
def empty_scheduler(database_url: str, *, redis_url: str, clock: Clock) -> Iterator[Scheduler]:
    """Open a scheduler for one test, on a database without schedules, an empty Redis and the clock of the test.

    At the end the database is as before: rows are deleted, and tables that were created here are dropped. Redis is
    flushed at the beginning. `sync()` also creates the schedules that the application's own scheduler declares.

    Raises ConfigError, with nothing changed, if rqsched's tables hold rows, because a test must not delete them.
    """
    with (
        tables_in(database_url),
        _emptied(database_url),
        _scheduler_of_test(database_url, redis_url, clock) as scheduler,
    ):
        yield scheduler


def _become_another(database_url: str) -> None:
    """Give a copied database an id of its own, so that Redis refuses what a process of an earlier test still does."""
    with closing(Database(database_url)) as database:
        database.transact(lambda connection: metadata.renew_id(connection, new_uid(SystemClock().now())))


@contextmanager
def _scheduler_of_test(database_url: str, redis_url: str, clock: Clock) -> Iterator[Scheduler]:
    """Open a scheduler on a database that has empty tables, after Redis was flushed."""
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
        with Scheduler.from_env(database_url=database_url, redis_url=redis_url, clock=clock) as scheduler:
            scheduler.declarations = Declarations(scheduler.runtime.workflows, of_process)
            before = of_test.set(scheduler)
            try:
                yield scheduler
            finally:
                of_test.reset(before)


@contextmanager
def tables_in(database_url: str) -> Iterator[None]:
    """Create rqsched's missing tables, and at the end drop the tables that were created, with their rows."""
    with closing(Database(database_url)) as database:
        are_new = schema_version.status(database).current is None
        schema_version.upgrade(database)
        database.close()
        try:
            yield
        finally:
            if are_new:
                database.transact(emptying.drop)


@contextmanager
def _emptied(database_url: str) -> Iterator[None]:
    """Require empty tables, and empty them again at the end; the database's named values are restored."""
    with closing(Database(database_url)) as database:
        kept = database.read(emptying.values_of_empty)
        database.close()
        try:
            yield
        finally:
            database.transact(lambda connection: emptying.empty(connection, kept))


@contextmanager
def running(
    *,
    occurrence: datetime | None = None,
    attempt: int = 1,
    schedule_id: str = "test",
    checkpoint: Callable[[], None] | None = None,
    **fields: Any,
) -> Iterator[RunContext]:
    """Let `current_run()` return a made-up run inside the block: a test calls a workflow's function without a server.

    >>> from rqsched import current_run
    >>> with running(occurrence=datetime(2026, 1, 1, 2, 0, tzinfo=UTC), attempt=2, labels={"team": "billing"}):
    ...     current_run().occurrence_at.hour, current_run().attempt, current_run().labels["team"]
    (2, 2, 'billing')

    `occurrence` is the time for which the run was due, now by default. `checkpoint` is called by the workflow's
    `current_run().checkpoint()`; let it raise RunCancelled to test how the workflow stops. `fields` are other fields of
    RunContext. Raises ValueError for a naive datetime and TypeError for an unknown field.
    """
    due = _as_utc(occurrence or SystemClock().now())
    started = due + (attempt - 1) * timedelta(minutes=1)
    run = RunContext(
        uid=new_uid(due),
        instance_id=live_instance_id(schedule_id, due),
        schedule_uid=new_uid(due),
        schedule_id=schedule_id,
        namespace="default",
        workflow="test",
        kind="scheduled",
        status="running",
        occurrence_at=due,
        attempt=attempt,
        fence=fence_of(started),
        scheduled_at=due,
        started_at=started,
        deadline_at=started + timedelta(minutes=3),
        trigger_number=1,
        repeat_number=0,
        labels={},
        memo={},
        search_attributes={},
        payload={},
        _checkpoint=checkpoint or (lambda: None),
    )
    run = replace(run, **fields)
    token = enter_run(run)
    try:
        yield run
    finally:
        leave_run(token)


def run_due(scheduler: Scheduler, *, limit: int = 100) -> Sequence[dict[str, Any]]:
    """Fire due schedules by the scheduler's clock, and execute their runs here; return the rows of `tick`."""
    rows = scheduler.tick(limit=limit)
    execute_pending(scheduler)
    return rows


def execute_pending(scheduler: Scheduler, *queues: str) -> int:
    """Execute the jobs that wait on the queues (default: all that RQ knows) in this process; return their number.

    Jobs of named connections, and jobs that are enqueued meanwhile, are included. An error in a workflow is recorded on
    its run. Call it in the main thread, as RQ's worker requires; an async test calls it directly, and its event loop
    waits meanwhile.
    """
    transport = scheduler.runtime.transport
    redises = [transport.redis, *transport.connections.values()]
    return sum(_execute_on(scheduler, redis, queues) for redis in redises)


def _execute_on(scheduler: Scheduler, redis: Redis, names: Sequence[str]) -> int:
    control = scheduler.runtime.transport.control.name
    waiting = names or [queue.name for queue in Queue.all(connection=for_rq(redis)) if queue.name != control]
    by_serializer: dict[str, list[str]] = defaultdict(list)
    for name in waiting:
        by_serializer[scheduler.settings.serializer_for(name)].append(name)
    count = 0
    for serializer, same in by_serializer.items():
        queues = [Queue(name, connection=for_rq(redis), serializer=serializer) for name in same]
        worker = _QuietWorker(queues, connection=for_rq(redis), serializer=serializer)
        with using(scheduler.runtime):
            worker.work(burst=True, logging_level="CRITICAL")
        count += worker.executed
    return count


class _QuietWorker(SimpleWorker):
    """RQ's worker without its command listener, which takes up to a second to stop, and without signal handlers."""

    executed = 0

    def _install_signal_handlers(self) -> None:
        """Keep the handlers of the test process, because with RQ's handlers Ctrl-C would no longer end it."""

    def subscribe(self) -> None:
        """Start no listener."""

    def unsubscribe(self) -> None:
        """Do nothing, because there is no listener."""

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Execute the job and count it."""
        self.executed += 1
        super().execute_job(job, queue)


def run_schedule(scheduler: Scheduler, schedule_id: str, *, namespace: str | None = None) -> RunHandle:
    """Trigger a schedule now and execute its run to its end in this process; return the run.

    Raises ScheduleNotFoundError, and InvalidInputError if the trigger started nothing.
    """
    result = scheduler.get(schedule_id, namespace=namespace).trigger(force=True)
    if result.run is None:
        raise InvalidInputError("schedule_id", f"the trigger of {schedule_id!r} started nothing: {result.reason}")
    execute_pending(scheduler)
    return result.run.refresh()


def assert_has_schedule(
    scheduler: Scheduler,
    schedule_id: str,
    *,
    workflow: str | Callable[..., Any] | None = None,
    spec: SpecLike | None = None,
    status: str | None = None,
    namespace: str | None = None,
) -> ScheduleHandle:
    """Assert that a schedule exists and has the given values; return it. The message names the differences."""
    try:
        handle = scheduler.get(schedule_id, namespace=namespace)
    except ScheduleNotFoundError:
        known = ", ".join(repr(one.schedule_id) for one in scheduler.list(namespace=namespace).items) or "none"
        raise AssertionError(f"schedule {schedule_id!r} does not exist; existing schedules: {known}") from None
    wanted = None if workflow is None else scheduler.runtime.imports.name_of(workflow)
    if wanted is not None and handle.workflow != wanted:
        raise AssertionError(f"schedule {schedule_id!r} runs {handle.workflow!r}, not {wanted!r}")
    if status is not None and handle.status != status:
        raise AssertionError(f"schedule {schedule_id!r} is {handle.status}, not {status}")
    if spec is not None:
        have = handle.state.spec
        timing = _as_of(handle.state, Spec.coerce(spec))
        if timing.timezone != have.timezone:
            timing = _as_of(handle.state, Spec.coerce(spec, have.timezone))
        if timing != have:
            raise AssertionError(f"schedule {schedule_id!r} is {have.describe()!r}, not {timing.describe()!r}")
    return handle


def _as_of(schedule: Schedule, given: Spec) -> Spec:
    """Return the given spec with the parts that the schedule's spec adds: numbers for `H`, an anchor, other options."""
    have = schedule.spec
    placed = with_clocks(given, have).placed_for(schedule.namespace, schedule.schedule_id)
    beside = placed if placed.exclude else replace(placed, exclude=have.exclude, on_excluded=have.on_excluded)
    return beside.anchored_like(have)


def assert_state(scheduler: Scheduler, machine: type | str, instance_id: str, state: str) -> None:
    """Assert that an instance of a machine (a class, or its name) is in a state; the message names the actual state.

    A machine in several states at once is in each of them. The states are read from `machine_states`.
    """
    name = machine if isinstance(machine, str) else machine_states.name_of(machine)
    known = scheduler.runtime.database.read(lambda connection: machine_states.find(connection, name, instance_id))
    if known is None:
        raise AssertionError(f"{name} has no instance {instance_id!r}")
    if state != known.state and state not in known.state.split():
        raise AssertionError(f"instance {instance_id!r} of {name} is in {known.state!r}, not in {state!r}")


class MachineTest:
    """A chain of assertions about one machine (a class, or its name). Each method returns this object.

    >>> MachineTest(scheduler, ApplicationMachine).assert_has_schedule("CHECK_EXPIRY").run_schedule(
    ...     "CHECK_EXPIRY"
    ... ).assert_state("a-1", "expired")  # doctest: +SKIP
    """

    def __init__(self, scheduler: Scheduler, machine: type | str) -> None:
        self.scheduler = scheduler
        self.machine = machine
        self.run: RunHandle | None = None
        """The run of the newest `run_schedule`; None before the first."""

    def assert_has_schedule(
        self, event: str, *, schedule_id: str | None = None, spec: SpecLike | None = None, status: str | None = None
    ) -> Self:
        """Assert that the schedule with this id, or the default id, sends the event; see the function."""
        workflow = self._id_of(event)
        assert_has_schedule(self.scheduler, schedule_id or workflow, workflow=workflow, spec=spec, status=status)
        return self

    def run_schedule(self, event: str, *, schedule_id: str | None = None) -> Self:
        """Send the event now and handle all its targets in this process; `run` is the run.

        Raises AssertionError if the run did not succeed, because later assertions would then see the states before the
        run. The function `run_schedule` returns such a run instead.
        """
        self.run = run_schedule(self.scheduler, schedule_id or self._id_of(event))
        if self.run.status != "succeeded":
            raise AssertionError(f"{self.run.instance_id} is {self.run.status}: {self.run.error or 'it has no error'}")
        return self

    def assert_state(self, instance_id: str, state: str) -> Self:
        """Assert that an instance is in a state; see the function `assert_state`."""
        assert_state(self.scheduler, self.machine, instance_id, state)
        return self

    def _id_of(self, event: str) -> str:
        name = self.machine if isinstance(self.machine, str) else machine_states.name_of(self.machine)
        return f"machine:{name}:{event}"
