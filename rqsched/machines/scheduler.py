"""Scheduling machines: `@machine` registers a class, and `MachineScheduler` declares when its events are sent."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

from statemachine import StateChart

from rqsched.api.scheduler import Scheduler
from rqsched.errors import InvalidInputError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.chain import option_checks
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.options import require_id
from rqsched.kernel.store.machine_states import KEPT_AS
from rqsched.machines.machine import Load, Machine, MachineClass, Save, check_schedules
from rqsched.machines.resolve import Dispatched, body, dispatch
from rqsched.machines.send import send
from rqsched.timing import Timing
from rqsched.when.duration import SpanLike
from rqsched.workflows import Registry, import_failure, make_workflow, registry

C = TypeVar("C", bound=MachineClass)
T = TypeVar("T", bound=Timing)


def _without_arguments(resolver: type) -> Any:
    return resolver()


@overload
def machine(cls: C, /) -> C: ...
@overload
def machine(
    *,
    name: str | None = None,
    load: Load | None = None,
    save: Save | None = None,
    make_resolver: Callable[[type], Any] = _without_arguments,
    queue: str | None = None,
    connection: str | None = None,
    timeout: SpanLike | None = None,
    workflows: Registry = registry,
) -> Callable[[C], C]: ...
def machine(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    load: Load | None = None,
    save: Save | None = None,
    make_resolver: Callable[[type], Any] = _without_arguments,
    queue: str | None = None,
    connection: str | None = None,
    timeout: SpanLike | None = None,
    workflows: Registry = registry,
) -> Any:
    """Register a state machine class and the events in its `schedules`; return the class unchanged.

    >>> @machine(queue="low")  # doctest: +SKIP
    ... class Ticket(StateMachine):
    ...     schedules = {"CLOSE": None}

    Each declared event becomes a workflow, `machine:{name}:{event}`. Raises InvalidInputError if `schedules` names an
    event that the class does not have.

    Args:
        cls: The class, when the decorator is used without parentheses.
        name: The machine's name in SQL and in schedule ids; default the class's name.
        load: A function that takes an id, and returns the model (the object on which python-statemachine stores the
            state) or the machine itself; None if it does not exist any more. Without `load`, an instance consists of
            its state in `machine_states` only.
        save: A function that takes the id and the value from `load`, and stores it. Required if `load` is given, and
            only then.
        make_resolver: A function that creates an instance of a resolver class, such as the resolve method of your
            dependency container.
        queue: The queue of runs and targets.
        connection: The named Redis of runs and targets.
        timeout: How long a run, or the job of a target, may take: a length or seconds.
        workflows: The registry of the workflows.
    """
    if cls is not None:
        return machine()(cls)
    if (load is None) != (save is None):
        raise InvalidInputError("load", "and save must be given together")

    def register(given: C) -> C:
        if not (isinstance(given, type) and issubclass(given, StateChart)):
            raise InvalidInputError("machine", f"{given!r} is not a StateMachine class; decorate one")
        known = Machine(
            given, require_id(name or given.__name__, "name"), check_schedules(given), load, save, make_resolver
        )
        setattr(given, KEPT_AS, known)
        for event in known.schedules:
            made = make_workflow(
                known.workflow(event), body(known, event), queue=queue, connection=connection, timeout=timeout
            )
            workflows.add(replace(made, each=partial(send, known, event), steps=known.steps(event)))
        return given

    return register


def machine_of(cls: type) -> Machine:
    """Return the machine that `@machine` registered for a class; raises InvalidInputError for an undecorated class."""
    known = vars(cls).get(KEPT_AS)
    if not isinstance(known, Machine):
        raise InvalidInputError("machine", f"{cls.__name__} is not registered; decorate the class with @machine")
    return known


def find_machine(path: str) -> MachineClass:
    """Import a machine by its dotted path; raises InvalidInputError if it is missing or not decorated."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError("machine", f"cannot import {path!r}: {import_failure(error)}; correct it") from error
    if not isinstance(found, type):
        raise InvalidInputError("machine", f"{path!r} is not a class; name one that @machine decorates")
    return machine_of(found).cls


def require_declared(cls: MachineClass, event: str) -> Machine:
    """Return the machine of a class that declares the event; raises InvalidInputError."""
    known = machine_of(cls)
    if event not in known.schedules:
        declared = ", ".join(known.schedules) or "none"
        raise InvalidInputError(
            "event", f"{known.name} does not declare {str(event)!r} in its schedules; it declares {declared}"
        )
    return known


class MachineScheduler:
    """Declare when events of machines are sent. `Scheduler.sync()` creates the schedules.

    >>> MachineScheduler.register(ApplicationMachine, "CHECK_EXPIRY").daily_at("00:10")  # doctest: +SKIP
    """

    @overload
    @staticmethod
    def register(
        machine_class: MachineClass, event: str, *, schedule_id: str | None = None, workflows: Registry = registry
    ) -> Timing: ...
    @overload
    @staticmethod
    def register(
        machine_class: MachineClass,
        event: str,
        *,
        builder: type[T],
        schedule_id: str | None = None,
        workflows: Registry = registry,
    ) -> T: ...
    @staticmethod
    def register(
        machine_class: MachineClass,
        event: str,
        *,
        builder: type[Any] = Timing,
        schedule_id: str | None = None,
        workflows: Registry = registry,
    ) -> Any:
        """Declare a schedule that sends the event; return a builder for its timing.

        The default id is `machine:{name}:{event}`. Give `schedule_id` for a second schedule of the same event.
        `builder` may be your own subclass of Timing. Raises InvalidInputError if the class does not declare the event.
        """
        known = require_declared(machine_class, event)
        timing = builder()
        workflows.declare(require_id(schedule_id or known.workflow(event)), known.workflow(event), timing)
        return timing

    @staticmethod
    def run(scheduler: Scheduler, machine_class: MachineClass, event: str, *, queue: str | None = None) -> Dispatched:
        """Send an event now, without a schedule: resolve it in this process and enqueue a job for each instance.

        If the resolver raises an error, the error is raised here and nothing is dispatched. Raises InvalidInputError if
        the class does not declare the event. Raises WrongDatabaseError, with nothing written, if Redis belongs to
        another database.
        """
        known = require_declared(machine_class, event)
        runtime = scheduler.runtime
        runtime.ownership.require_own_redis()
        workflow = runtime.workflows.resolve(known.workflow(event))
        option_checks.require_queue(runtime, queue or workflow.queue)
        option_checks.require_connection(runtime, workflow.connection)
        now = runtime.now()
        batch = Batch(
            run_uid=new_uid(now),
            workflow=workflow.name,
            at=now,
            timeout=workflow.timeout or max(1, int(runtime.settings.run_timeout.total_seconds())),
            queue=queue or workflow.queue,
            connection=workflow.connection,
        )
        return dispatch(runtime, known, event, batch)

    @staticmethod
    def count(scheduler: Scheduler, run_uid: str) -> dict[str, int]:
        """Count the targets of a run by status; see TargetStatus."""
        return scheduler.runtime.database.read(lambda connection: fan_out_targets.count(connection, run_uid))

    @staticmethod
    def targets(
        scheduler: Scheduler, run_uid: str, *, status: str | None = None, after: int = 0, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read a page of a run's targets whose number is greater than `after`.

        Each target has `number`, `target_id`, `status`, `error` and `ended_at`.
        """
        page = partial(fan_out_targets.describe_page, run_uid=run_uid, status=status, after=after, limit=limit)
        names = "number", "target_id", "status", "error", "ended_at"
        return [{name: getattr(one, name) for name in names} for one in scheduler.runtime.database.read(page)]
