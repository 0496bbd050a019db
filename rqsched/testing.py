"""What tests of applications that use rqsched need: a clock that moves only when told, and runs without sleeps.

The pytest fixtures are in `rqsched.pytest_plugin`, which pytest finds by itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rq import Queue, SimpleWorker

from rqsched.clock import Clock
from rqsched.errors import InvalidInputError
from rqsched.handles import RunHandle, ScheduleHandle
from rqsched.runtime import using
from rqsched.scheduler import Scheduler
from rqsched.spec import Spec, SpecLike


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
    """Execute the run jobs that wait on the queues (all queues RQ knows, unless named), in this process.

    Returns how many jobs were executed. An error in a workflow is recorded on its run; look there.
    """
    transport = scheduler.runtime.transport
    names = queues or tuple(queue.name for queue in Queue.all(connection=transport.redis))
    waiting = [name for name in names if name != transport.control.name]
    if not waiting:
        return 0
    serializer = scheduler.settings.serializer_for(waiting[0])
    made = [Queue(name, connection=transport.redis, serializer=serializer) for name in waiting]
    count = sum(queue.count for queue in made)
    worker = SimpleWorker(made, connection=transport.redis, serializer=serializer)
    with using(scheduler.runtime):
        worker.work(burst=True, logging_level="ERROR")
    return count


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
    workflow: str | None = None,
    spec: SpecLike | None = None,
    status: str | None = None,
    namespace: str | None = None,
) -> ScheduleHandle:
    """Assert that a schedule exists and is as said; returns it. The message says what differs."""
    handle = scheduler.get(schedule_id, namespace)
    if workflow is not None and handle.workflow != workflow:
        raise AssertionError(f"schedule {schedule_id!r} runs {handle.workflow!r}, not {workflow!r}")
    if status is not None and handle.status != status:
        raise AssertionError(f"schedule {schedule_id!r} is {handle.status}, not {status}")
    if spec is not None:
        _assert_same_timing(handle, spec)
    return handle


def _assert_same_timing(handle: ScheduleHandle, spec: SpecLike) -> None:
    have = handle.state.spec
    wanted = Spec.coerce(spec).anchored_like(have)
    wanted = wanted if wanted.timezone == have.timezone else Spec.coerce(spec, have.timezone).anchored_like(have)
    if wanted != have:
        raise AssertionError(f"schedule {handle.schedule_id!r} is {have.describe()!r}, not {wanted.describe()!r}")
