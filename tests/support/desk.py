"""A desk: one scheduler as its user has it, workflows that say what they saw, and words for what tests do often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis

from rqsched import current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import AuditRecord
from rqsched.testing import ManualClock, execute_pending, run_due
from rqsched.workflows import RunContext, make_workflow
from tests.support.narrow import text

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
"""Where the clock of every test starts."""


@dataclass
class Desk:
    """A scheduler, its clock, and what its workflows saw."""

    scheduler: Scheduler
    clock: ManualClock
    seen: list[RunContext] = field(default_factory=list)
    """The run of each attempt that was executed."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """The arguments of each attempt that was executed."""
    failing: bool = False
    """Whether the workflow `note` raises."""

    def __post_init__(self) -> None:
        self.register("note", self._note)

    def _note(self, *args: Any, **kwargs: Any) -> int:
        self.seen.append(current_run())
        self.calls.append((args, kwargs))
        if self.failing:
            raise RuntimeError("as the test wants it")
        return len(self.seen)

    @property
    def runtime(self) -> Runtime:
        return self.scheduler.runtime

    @property
    def redis(self) -> Redis:
        return self.runtime.transport.redis

    def register(self, name: str | None, target: Callable[..., Any], **defaults: Any) -> None:
        """A workflow of this test alone; a name that is taken is deployed anew."""
        self.runtime.workflows.add(make_workflow(name, target, **defaults))

    def create(
        self, schedule_id: str = "report", spec: Any = MINUTE, workflow: Any = "note", **options: Any
    ) -> ScheduleHandle:
        """A schedule every minute from now on, unless told otherwise."""
        return self.scheduler.create(schedule_id, workflow, spec, **options)

    def advance(self, span: timedelta = MINUTE) -> datetime:
        return self.clock.advance(span)

    def fire(self, span: timedelta = MINUTE) -> list[dict[str, Any]]:
        """The clock moves and what is due is fired; its runs wait."""
        self.clock.advance(span)
        return self.scheduler.tick()

    def turn(self, span: timedelta = MINUTE) -> list[dict[str, Any]]:
        """The clock moves, what is due is fired and its runs are executed."""
        self.clock.advance(span)
        return run_due(self.scheduler)

    def work(self) -> int:
        return execute_pending(self.scheduler)

    def queued(self, name: str = "default") -> list[str]:
        """The ids on a queue's list, first in, first out."""
        return [text(entry) for entry in self.redis.lrange(f"rq:queue:{name}", 0, -1)]

    def armed(self) -> set[str]:
        """The links in the scheduled set."""
        return {text(entry) for entry in self.redis.zrange(self.runtime.transport.scheduled_key, 0, -1)}


def newest(schedule: ScheduleHandle) -> RunHandle:
    return schedule.runs(limit=1).items[0]


def all_runs(schedule: ScheduleHandle) -> list[RunHandle]:
    """All its runs, oldest first."""
    return list(reversed(schedule.runs(limit=500).items))


def statuses(schedule: ScheduleHandle) -> list[str]:
    return [run.status for run in all_runs(schedule)]


def occurrences(schedule: ScheduleHandle) -> list[datetime]:
    return [run.occurrence_at for run in all_runs(schedule)]


def events(schedule: ScheduleHandle) -> list[AuditRecord]:
    return list(schedule.iter_history())


def types(schedule: ScheduleHandle) -> list[str]:
    """The types of its audit events, without the common beginning."""
    return [event.event_type.removeprefix("Schedule") for event in events(schedule)]


def last(schedule: ScheduleHandle, name: str) -> dict[str, Any]:
    """The payload of its newest audit event of a type."""
    found = [event.payload for event in events(schedule) if event.event_type in {name, f"Schedule{name}"}]
    assert found, types(schedule)
    return found[-1]


OPERATIONS: dict[str, Callable[[ScheduleHandle], Any]] = {
    "update": lambda schedule: schedule.update(queue="high"),
    "pause": lambda schedule: schedule.pause(),
    "resume": lambda schedule: schedule.resume(),
    "restart": lambda schedule: schedule.restart(),
    "delete": lambda schedule: schedule.delete(),
    "trigger": lambda schedule: schedule.trigger(force=True),
    "backfill": lambda schedule: schedule.backfill(NOON - HOUR, NOON),
}
"""Everything that changes a schedule through its handle."""


def module_level(name: str) -> str:
    """A workflow by its dotted path."""
    return f"hello {name}"
