"""Async functions with the names and results of Waymark, and `AsyncScheduler`, which awaits every operation.

>>> await schedule_workflow("invoice-sync", schedule_name="nightly", schedule="0 2 * * *")  # doctest: +SKIP
'invoice-sync:nightly'

Each function runs the synchronous operation in a worker thread. It works on the scheduler that was passed to `use`, or
on a scheduler from the environment.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Literal

from rqsched.api.async_scheduler import (
    AsyncBackfills,
    AsyncBulkOperations,
    AsyncCalendars,
    AsyncLimits,
    AsyncNamespaces,
    AsyncRunHandle,
    AsyncRuns,
    AsyncScheduleHandle,
    AsyncScheduler,
    run,
)
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.errors import (
    InvalidInputError,
    InvalidTypeError,
    ScheduleNotFoundError,
    ScheduleStateError,
    UnknownWorkflowError,
)
from rqsched.kernel.chain import create, option_checks
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.model import ScheduleStatus as Status
from rqsched.kernel.decide.options import is_id, require_id
from rqsched.kernel.decide.payload import ARGUMENT_BYTES, json_text, loads
from rqsched.kernel.decide.policy import OnResume, OverlapPolicy
from rqsched.when.spec import Cron, Every, Spec

__all__ = [
    "AsyncBackfills",
    "AsyncBulkOperations",
    "AsyncCalendars",
    "AsyncLimits",
    "AsyncNamespaces",
    "AsyncRunHandle",
    "AsyncRuns",
    "AsyncScheduleHandle",
    "AsyncScheduler",
    "ScheduleInfo",
    "ScheduleStatus",
    "ScheduleType",
    "WorkflowLike",
    "delete_schedule",
    "list_schedules",
    "pause_schedule",
    "resume_schedule",
    "run",
    "schedule_workflow",
    "use",
]

_LONGEST_NAME = 1_000
_DIGITS = 20
WorkflowLike = str | Callable[..., Any]
"""A workflow's name, or the registered function or class."""


ScheduleType = Literal["cron", "interval", "once", "mixed"]
"""The kind of a timing: `schedule_workflow` makes crons and intervals, other surfaces also instants and mixtures."""
ScheduleStatus = Literal["active", "paused", "done", "dead", "deleted"]
"""The status of a schedule: it fires, a person paused it, it ended as planned, failures ended it, or it is deleted."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as Waymark lists it. Instants are aware UTC."""

    id: str
    """The schedule id: `{workflow_name}:{schedule_name}` if that is unambiguous, else `w.` and a digest."""
    workflow_name: str
    """The name of the workflow."""
    schedule_name: str
    """The name given to `schedule_workflow`."""
    schedule_type: ScheduleType
    """`cron` or `interval`; from other surfaces also `once` (only instants) and `mixed` (several kinds)."""
    cron_expression: str | None
    """The first cron expression; None without one."""
    interval_seconds: float | None
    """The first interval; None without one."""
    jitter_seconds: float | None
    """The longest delay of a fire; None without jitter."""
    inputs: Mapping[str, Any]
    """The keyword arguments of each run, with the defaults that were recorded at the registration."""
    status: ScheduleStatus
    """`active`, `paused`, `done` or `dead`; `deleted` only on request."""
    next_run_at: datetime | None
    """The nominal time of the next occurrence; None while paused, ended or awaiting a run."""
    last_run_at: datetime | None
    """When the newest run was queued; None before the first."""
    last_instance_id: str | None
    """The instance id of the newest run; None before the first."""
    run_count: int
    """How many runs have been queued."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its row was written last."""
    priority: int
    """Above 0, runs go to the front of their queue."""
    allow_duplicate: bool
    """Whether a run starts while an earlier run is unfinished."""


class _Default:
    scheduler: Scheduler | None = None


def use(scheduler: Scheduler | None) -> None:
    """Make the functions of this module work on `scheduler`; None means a scheduler from the environment again."""
    _Default.scheduler = scheduler


@lru_cache(maxsize=1)
def _from_env() -> Scheduler:
    return Scheduler.from_env()


def _scheduler() -> Scheduler:
    return _Default.scheduler or _from_env()


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
    """Register a schedule of a workflow under a name, or change the existing one in place; return its id.

    `schedule` is a cron expression or an interval; an interval's first run is one interval from now. A repeated
    registration makes the schedule active and keeps its next time, even if the timing changed. If this process can
    import the workflow, parameters that `inputs` leaves out are recorded with their present defaults, except defaults
    that JSON cannot hold. Raises InvalidInputError for an invalid argument; then nothing was written.
    """
    named = _named(workflow, schedule_name, namespace)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidTypeError("inputs", f"must be a mapping of arguments, not {type(inputs).__name__}")
    options = {
        "kwargs": inputs or {},
        "jitter": jitter or timedelta(0),
        "priority": priority,
        "overlap": OverlapPolicy.ALLOW_ALL if allow_duplicate else OverlapPolicy.SKIP,
        "on_resume": OnResume.ONCE,
    }
    return await run(_register, named, _spec_of(schedule), options)


def _register(named: _Registered, spec: Cron | Every, options: Mapping[str, Any]) -> str:
    scheduler = _scheduler()
    schedule_id, _ = _find(named)
    given = {**_defaults_of_run(scheduler, named.workflow), **options["kwargs"]}
    names = {"workflow": named.workflow, "schedule": named.schedule}
    said = {**options, "kwargs": given, "surface": {"waymark": names}}
    definition = option_checks.new_definition(scheduler.runtime, named.workflow, spec, said, is_external=False)
    request = ScheduleRequest(Named(named.namespace, schedule_id), definition, paused=False, keep_next=True)
    create.upsert(scheduler.runtime, request)
    return schedule_id


def _defaults_of_run(scheduler: Scheduler, name: str) -> dict[str, Any]:
    """Return the defaults of the workflow's parameters, except values that JSON cannot hold.

    Empty if the code is not importable here, or if the workflow is called for each of its targets.
    """
    try:
        workflow = scheduler.runtime.imports.resolve(name)
        call: Any = workflow.target.run if inspect.isclass(workflow.target) else workflow.target  # type: ignore[attr-defined]
        parameters = inspect.signature(call).parameters.values()
    except (UnknownWorkflowError, ValueError, TypeError):  # a callable in C may have no signature
        return {}
    if workflow.targets is not None or workflow.each is not None:
        return {}
    named = (parameter for parameter in parameters if parameter.kind in _BY_NAME)
    return {one.name: one.default for one in named if one.default is not one.empty and _is_json(one.default)}


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _is_json(value: object) -> bool:
    try:
        json_text("inputs", value, ARGUMENT_BYTES)
    except InvalidInputError:
        return False
    return True


async def pause_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Stop firing; return False if there is no such schedule or it has ended. A paused schedule stays paused."""
    return await run(_switch, _named(workflow, schedule_name, namespace), Status.PAUSED)


async def resume_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Fire again, at once if fires were missed. Return False if there is no such schedule or it has ended."""
    return await run(_switch, _named(workflow, schedule_name, namespace), Status.ACTIVE)


async def delete_schedule(workflow: WorkflowLike, *, schedule_name: str, namespace: str | None = None) -> bool:
    """Mark the schedule deleted; its name is free again. Return False if there is no such schedule."""
    return await run(_switch, _named(workflow, schedule_name, namespace), Status.DELETED)


def _switch(named: _Registered, wanted: Status) -> bool:
    _, handle = _find(named)
    if handle is None:
        return False
    if handle.status == wanted.value:
        return True
    switches: dict[Status, Callable[[], Any]] = {
        Status.PAUSED: handle.pause,
        Status.ACTIVE: partial(handle.resume, OnResume.ONCE),
        Status.DELETED: handle.delete,
    }
    with suppress(ScheduleStateError):
        switches[wanted]()
        return True
    return False  # a done schedule is neither paused nor resumed


async def list_schedules(*, status_filter: str | None = None, namespace: str | None = None) -> list[ScheduleInfo]:
    """List schedules by workflow and name. Deleted schedules are listed only for the filter `deleted`.

    Raises InvalidInputError for an unknown status.
    """
    known = [status.value for status in Status]
    if status_filter is not None and status_filter not in known:
        raise InvalidInputError("status_filter", f"{status_filter!r} is not one of {', '.join(known)}")
    return await run(_list, status_filter, namespace)


def _list(status: str | None, namespace: str | None) -> list[ScheduleInfo]:
    found = [_info(handle) for handle in _scheduler().iter(status=status, namespace=namespace)]
    return sorted(found, key=lambda info: (info.workflow_name, info.schedule_name))


def _info(handle: ScheduleHandle) -> ScheduleInfo:
    schedule = handle.state
    definition, cron = schedule.definition, schedule.spec.primary_cron
    every = next((member.every for member in schedule.spec.members if isinstance(member, Every)), None)
    return ScheduleInfo(
        id=schedule.schedule_id,
        workflow_name=definition.workflow,
        schedule_name=_names_of(schedule)[1],
        schedule_type=_type_of(schedule.spec),
        cron_expression=cron,
        interval_seconds=None if every is None else every.total_seconds(),
        jitter_seconds=definition.jitter.total_seconds() or None,
        inputs=loads(definition.action)["kwargs"],
        status=schedule.status.value,
        next_run_at=schedule.next_run_at,
        last_run_at=schedule.last_run_at,
        last_instance_id=schedule.last_instance_id,
        run_count=schedule.run_count,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
        priority=definition.priority,
        allow_duplicate=schedule.policies.overlap is OverlapPolicy.ALLOW_ALL,
    )


def _type_of(spec: Spec) -> ScheduleType:
    kinds = {type(member) for member in spec.members}
    if len(kinds) > 1:
        return "mixed"
    return "cron" if Cron in kinds else "interval" if Every in kinds else "once"


@dataclass(frozen=True, slots=True)
class _Registered:
    """The names of a schedule."""

    workflow: str
    schedule: str
    namespace: str


def _named(workflow: WorkflowLike, schedule_name: str, namespace: str | None) -> _Registered:
    if not isinstance(schedule_name, str) or not schedule_name.strip():
        raise InvalidInputError("schedule_name", "is missing; choose a name, such as 'hourly'")
    if len(schedule_name) > _LONGEST_NAME:
        raise InvalidInputError("schedule_name", f"has more than {_LONGEST_NAME} characters; shorten it")
    scheduler = _scheduler()
    name = scheduler.runtime.imports.name_of(workflow)
    return _Registered(name, schedule_name, require_id(namespace or scheduler.settings.namespace, "namespace"))


def _find(named: _Registered) -> tuple[str, ScheduleHandle | None]:
    """Return the unambiguous id of these two names, and its schedule, or None if there is no such schedule.

    The names `a:b` and `c`, and the names `a` and `b:c`, could both have the id `a:b:c`. It is the id of `a` and `b:c`,
    unless `a:b` and `c` were registered with it before ids were made unambiguous.
    """
    plain = f"{named.workflow}:{named.schedule}"
    if is_id(plain):
        known = _get(plain, named.namespace)
        if known is None and ":" not in named.workflow:
            return plain, None
        if known is not None and _names_of(known.state) == (named.workflow, named.schedule):
            return plain, known
    digest = hashlib.sha256(json.dumps([named.workflow, named.schedule]).encode()).hexdigest()
    unlike = f"w.{digest[:_DIGITS]}"
    return unlike, _get(unlike, named.namespace)


def _get(schedule_id: str, namespace: str) -> ScheduleHandle | None:
    try:
        return _scheduler().get(schedule_id, namespace=namespace)
    except ScheduleNotFoundError:
        return None


def _names_of(schedule: Schedule) -> tuple[str, str]:
    """Return the names of the registration; for a schedule of another surface, return its workflow and its id."""
    names = loads(schedule.definition.surface).get("waymark")
    if names:
        return names["workflow"], names["schedule"]
    workflow = schedule.definition.workflow
    return workflow, schedule.schedule_id.removeprefix(f"{workflow}:")


def _spec_of(schedule: str | timedelta) -> Cron | Every:
    if isinstance(schedule, timedelta):
        return Every(schedule)
    if isinstance(schedule, str):
        return Cron(schedule)
    raise InvalidTypeError("schedule", f"{type(schedule).__name__} is not one; give a cron expression or a timedelta")
