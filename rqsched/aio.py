"""Async functions for async web apps: the Waymark document's five, and async forms of the main operations.

Nothing is implemented twice: each runs the synchronous operation in a worker thread. Functions take the scheduler that
`use` was given, else one from the environment.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from . import operations
from .definition import define, require_id
from .errors import InvalidInputError, ScheduleNotFoundError
from .handles import ScheduleHandle
from .operations import Named, Request
from .payload import loads
from .policy import CatchUp, OverlapPolicy
from .scheduler import Scheduler
from .spec import Cron, Every
from .state import ScheduleStatus

T = TypeVar("T")
WorkflowLike = str | Callable[..., Any]
"""A workflow's name, or the registered function or class."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as the Waymark document lists it."""

    workflow_name: str
    schedule_name: str
    status: str
    """`active`, `paused`, `done` or `dead`."""
    cron: str | None
    """The cron expression, or None for an interval."""
    interval: timedelta | None
    jitter: timedelta
    inputs: Mapping[str, Any]
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_instance_id: str | None
    run_count: int
    priority: int
    allow_duplicate: bool
    id: str
    """Our schedule id, `{workflow_name}:{schedule_name}`."""


class _Default:
    scheduler: Scheduler | None = None


def use(scheduler: Scheduler | None) -> None:
    """Let the functions of this module work on `scheduler`; None goes back to one from the environment."""
    _Default.scheduler = scheduler


@lru_cache(maxsize=1)
def _from_env() -> Scheduler:
    return Scheduler.from_env()


def _scheduler() -> Scheduler:
    return _Default.scheduler or _from_env()


async def run(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run any synchronous operation of a scheduler or handle without blocking the event loop.

    >>> schedule = await run(scheduler.create, "nightly", "sync", Cron("0 2 * * *"))  # doctest: +SKIP
    """
    return await asyncio.to_thread(partial(call, *args, **kwargs))


# ---- the Waymark document's functions


async def schedule_workflow(
    workflow: WorkflowLike,
    *,
    schedule_name: str,
    schedule: str | timedelta,
    inputs: Mapping[str, Any] | None = None,
    jitter: timedelta | None = None,
    priority: int = 0,
    allow_duplicate: bool = False,
    namespace: str | None = None,
) -> str:
    """Register a schedule of a workflow under a name, or change the known one in place; returns its id.

    `schedule` is a cron expression or an interval; an interval's first run is one interval from now. Registering again
    sets it active and keeps its next time, even when the cadence changed. Raises an InvalidInputError for anything
    that is refused; then nothing was written.
    """
    name = _name_of(workflow)
    schedule_id = _id_of(name, schedule_name)
    options = {
        "kwargs": _checked_inputs(inputs),
        "jitter": jitter or timedelta(0),
        "priority": priority,
        "overlap": OverlapPolicy.ALLOW_ALL if allow_duplicate else OverlapPolicy.SKIP,
        "catch_up": CatchUp.ONCE,
    }
    return await run(_register, name, schedule_id, _spec_of(schedule), options, namespace)


def _register(
    name: str, schedule_id: str, spec: Cron | Every, options: Mapping[str, Any], namespace: str | None
) -> str:
    scheduler = _scheduler()
    defaults = operations.workflow_defaults(scheduler.runtime, name)
    named = Named(require_id(namespace or scheduler.settings.namespace, "namespace"), schedule_id)
    definition = define(None, options, workflow=name, spec=spec, defaults=defaults)
    operations.upsert(scheduler.runtime, Request(named, definition, paused=False, keep_next=True))
    return schedule_id


async def pause_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Stop firing; False when there is no such schedule. Pausing a paused one changes nothing."""
    return await run(_switch, _id_of(_name_of(workflow), schedule_name), namespace, ScheduleStatus.PAUSED)


async def resume_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Fire again; a fire missed while paused happens once, immediately. False when there is no such schedule."""
    return await run(_switch, _id_of(_name_of(workflow), schedule_name), namespace, ScheduleStatus.ACTIVE)


async def delete_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Mark the schedule deleted; its name is free again. False when there is no such schedule."""
    return await run(_switch, _id_of(_name_of(workflow), schedule_name), namespace, ScheduleStatus.DELETED)


def _switch(schedule_id: str, namespace: str | None, wanted: ScheduleStatus) -> bool:
    try:
        handle = _scheduler().get(schedule_id, namespace)
    except ScheduleNotFoundError:
        return False
    if handle.status == wanted.value:
        return True
    switches: dict[ScheduleStatus, Callable[[], Any]] = {
        ScheduleStatus.PAUSED: handle.pause,
        ScheduleStatus.ACTIVE: partial(handle.resume, CatchUp.ONCE),
        ScheduleStatus.DELETED: handle.delete,
    }
    switches[wanted]()
    return True


async def list_schedules(*, status_filter: str | None = None, namespace: str | None = None) -> list[ScheduleInfo]:
    """List the schedules that are not deleted, in the order they were created.

    Raises InvalidInputError for an unknown status.
    """
    known = [status.value for status in ScheduleStatus]
    if status_filter is not None and status_filter not in known:
        raise InvalidInputError("status_filter", f"{status_filter!r} is not one of {', '.join(known)}")
    return await run(_list, status_filter, namespace)


def _list(status: str | None, namespace: str | None) -> list[ScheduleInfo]:
    return [_info(handle) for handle in _scheduler().iter(status=status, namespace=namespace)]


def _info(handle: ScheduleHandle) -> ScheduleInfo:
    schedule = handle.state
    definition, spec = schedule.definition, schedule.spec
    name = schedule.schedule_id.removeprefix(f"{definition.workflow}:")
    interval = next((member.every for member in spec.members if isinstance(member, Every)), None)
    return ScheduleInfo(
        workflow_name=definition.workflow,
        schedule_name=name,
        status=schedule.status.value,
        cron=spec.primary_cron,
        interval=interval,
        jitter=definition.jitter,
        inputs=loads(definition.action)["kwargs"],
        next_run_at=schedule.next_run_at,
        last_run_at=schedule.last_run_at,
        last_instance_id=schedule.latest_instance_id,
        run_count=schedule.run_count,
        priority=definition.priority,
        allow_duplicate=schedule.policies.overlap is OverlapPolicy.ALLOW_ALL,
        id=schedule.schedule_id,
    )


# ---- arguments


def _name_of(workflow: WorkflowLike) -> str:
    if isinstance(workflow, str):
        return workflow
    known = next((known.name for known in _scheduler().runtime.workflows.all() if known.target is workflow), None)
    if known is not None:
        return known
    if not callable(workflow):
        raise InvalidInputError("workflow", f"{workflow!r} is no workflow; give its name, function or class")
    return f"{inspect.getmodule(workflow).__name__}.{workflow.__qualname__}"  # type: ignore[union-attr]


def _id_of(workflow_name: str, schedule_name: str) -> str:
    if not isinstance(schedule_name, str) or not schedule_name.strip():
        raise InvalidInputError("schedule_name", "is missing; pick a name, such as 'hourly'")
    return require_id(f"{workflow_name}:{schedule_name}", "schedule_name")


def _spec_of(schedule: str | timedelta) -> Cron | Every:
    if isinstance(schedule, timedelta):
        return Every(schedule)
    if isinstance(schedule, str):
        return Cron(schedule)
    raise InvalidInputError("schedule", f"{type(schedule).__name__} is no cadence; give a cron expression or timedelta")


def _checked_inputs(inputs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidInputError("inputs", f"must be a mapping of arguments, not {type(inputs).__name__}")
    return inputs or {}
