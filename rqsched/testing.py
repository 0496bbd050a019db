"""What tests of applications that use rqsched need: a clock that moves only when told, and runs without sleeps.

The pytest fixtures are in `rqsched.pytest_plugin`, which pytest finds by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import using
from rqsched.clock import Clock
from rqsched.errors import InvalidInputError, ScheduleNotFoundError
from rqsched.spec.spec import Spec, SpecLike
from rqsched.store import machine_states


class ManualClock(Clock):
    """A clock that stands still until a test moves it.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance(timedelta(minutes=5))
    datetime.datetime(2026, 1, 1, 0, 5, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        self._now = _as_utc(start)

    def now(self) -> datetime:
        """Return the instant the clock stands at."""
        return self._now

    def advance(self, span: timedelta) -> datetime:
        """Move the clock by `span`, a negative one moves it back; return where it stands now."""
        self._now += span
        return self._now

    def set(self, instant: datetime) -> None:
        """Stand at `instant`, earlier or later than before. A naive datetime is refused with ValueError."""
        self._now = _as_utc(instant)


def _as_utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} is naive; give an aware datetime, such as one with tzinfo=UTC.")
    return instant.astimezone(UTC)


def run_due(scheduler: Scheduler, *, limit: int = 100) -> list[dict[str, Any]]:
    """Fire what is due by the scheduler's clock and execute every run it starts, here; returns the tick's rows."""
    rows = scheduler.tick(limit=limit)
    execute_pending(scheduler)
    return rows


def execute_pending(scheduler: Scheduler, *queues: str) -> int:
    """Execute the jobs that wait on the queues (all queues RQ knows, unless named), in this process.

    Those of named connections too, and those that the executed ones start. Returns how many jobs were executed. An
    error in a workflow is recorded on its run; look there. Call it in the main thread, as RQ's worker is; an async
    test calls it without a worker thread between, and its loop waits meanwhile.
    """
    transport = scheduler.runtime.transport
    redises = [transport.redis, *transport.connections.values()]
    return sum(_execute_on(scheduler, redis, queues) for redis in redises)


def _execute_on(scheduler: Scheduler, redis: Redis, names: Sequence[str]) -> int:
    control = scheduler.runtime.transport.control.name
    waiting = names or [queue.name for queue in Queue.all(connection=redis) if queue.name != control]
    by_serializer: dict[str, list[str]] = defaultdict(list)
    for name in waiting:
        by_serializer[scheduler.settings.serializer_for(name)].append(name)
    count = 0
    for serializer, same in by_serializer.items():
        queues = [Queue(name, connection=redis, serializer=serializer) for name in same]
        worker = _QuietWorker(queues, connection=redis, serializer=serializer)
        with using(scheduler.runtime):
            worker.work(burst=True, logging_level="CRITICAL")
        count += worker.executed
    return count


class _QuietWorker(SimpleWorker):
    """RQ's worker without its ear for commands, whose end takes up to a second: nobody commands a test's worker."""

    executed = 0

    def subscribe(self) -> None:
        """Listen to nobody."""

    def unsubscribe(self) -> None:
        """Have nothing to close."""

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Execute and count."""
        self.executed += 1
        super().execute_job(job, queue)


def run_schedule(scheduler: Scheduler, schedule_id: str, *, namespace: str | None = None) -> RunHandle:
    """Trigger a schedule now and execute its run, here, to its end; returns the run.

    Raises ScheduleNotFoundError, and InvalidInputError when the trigger started nothing.
    """
    result = scheduler.get(schedule_id, namespace).trigger(force=True)
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
    """Assert that a schedule exists and is as said; returns it. The message says what differs."""
    try:
        handle = scheduler.get(schedule_id, namespace)
    except ScheduleNotFoundError:
        known = ", ".join(repr(one.schedule_id) for one in scheduler.list(namespace=namespace).items) or "none at all"
        raise AssertionError(f"there is no schedule {schedule_id!r}; there is {known}") from None
    wanted = None if workflow is None else scheduler.runtime.workflows.name_of(workflow)
    if wanted is not None and handle.workflow != wanted:
        raise AssertionError(f"schedule {schedule_id!r} runs {handle.workflow!r}, not {wanted!r}")
    if status is not None and handle.status != status:
        raise AssertionError(f"schedule {schedule_id!r} is {handle.status}, not {status}")
    if spec is not None:
        _assert_same_timing(handle, spec)
    return handle


def assert_state(scheduler: Scheduler, machine: type | str, instance_id: str, state: str) -> None:
    """Assert that an instance of a machine (the class, or its name) is in a state; the message says which it is in.

    A machine in several states at once is in each of them. What counts is what `machine_states` holds.
    """
    name = machine if isinstance(machine, str) else machine_states.name_of(machine)
    known = scheduler.runtime.database.read(lambda connection: machine_states.find(connection, name, instance_id))
    if known is None:
        raise AssertionError(f"{name} has no instance {instance_id!r}")
    if state != known.state and state not in known.state.split():
        raise AssertionError(f"instance {instance_id!r} of {name} is in {known.state!r}, not in {state!r}")


def _assert_same_timing(handle: ScheduleHandle, spec: SpecLike) -> None:
    have = handle.state.spec
    wanted = Spec.coerce(spec).anchored_like(have)
    wanted = wanted if wanted.timezone == have.timezone else Spec.coerce(spec, have.timezone).anchored_like(have)
    if wanted != have:
        raise AssertionError(f"schedule {handle.schedule_id!r} is {have.describe()!r}, not {wanted.describe()!r}")
