"""Send an event to one instance: load it, send the event, save it. The job of a target does this."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from statemachine import StateChart
from statemachine.exceptions import TransitionNotAllowed

from rqsched.errors import ConflictError
from rqsched.jobs import current_runtime
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.store import machine_states
from rqsched.kernel.store.database import Connection
from rqsched.kernel.store.machine_states import InstanceState
from rqsched.machines.machine import Machine, state_of
from rqsched.workflows import require_executed

TRIES = 5
"""How many times an event is tried if other processes change the instance meanwhile."""


class _Model:
    """The model of an instance that consists of its state only."""

    state: Any = None
    """The state in python-statemachine's form."""


def send(machine: Machine, event: str, instance_id: str) -> bool:
    """Send the event to one instance; return False if the instance does not exist or does not accept it."""
    runtime = current_runtime()
    for _ in range(TRIES):
        known = runtime.database.read(lambda connection: machine_states.find(connection, machine.name, instance_id))
        instance = None if known is None else _load(machine, instance_id, known)
        if known is None or instance is None or not _take(machine, instance, event):
            return False
        if _store(runtime, machine, instance_id, known, instance):
            return True
    raise ConflictError(
        f"instance {instance_id!r} of {machine.name} was changed {TRIES} times while {event} was sent; send it again."
    )


def _load(machine: Machine, instance_id: str, known: InstanceState) -> StateChart[Any] | None:
    """Create the live instance in the state of its model; if the model has none, in the state from `machine_states`."""
    model = _Model() if machine.load is None else require_executed(machine.load(instance_id))
    if model is None or isinstance(model, machine.cls):
        return model
    if getattr(model, "state", None) is None:
        model.state = machine.value_of(known.state)
    return machine.cls(model)


def _take(machine: Machine, instance: StateChart[Any], event: str) -> bool:
    """Send the event; return False if no transition of the current state accepts it, or every guard refuses it.

    A `StateChart` silently ignores an event that it does not accept, so the transitions are checked first.
    """
    before = state_of(instance)
    if not machine.takes(before, event):
        return False
    try:
        done = instance.send(event)
        for result in done if isinstance(done, list) else [done]:  # several actions give a list of results
            require_executed(result)
    except TransitionNotAllowed as refusal:
        # An action may have sent another event that was refused; the instance has moved nevertheless.
        if str(refusal.event) == event and state_of(instance) == before:
            return False
        raise
    return True


def _store(
    runtime: Runtime, machine: Machine, instance_id: str, known: InstanceState, instance: StateChart[Any]
) -> bool:
    """Save the instance; return False, with nothing saved, if another process has changed it since it was read.

    If the application has a `save`, its own database must resolve races. The row of rqsched is written after `save`.
    """
    state = state_of(instance)
    if machine.save is None:
        replace = partial(machine_states.replace, machine=machine.name, instance_id=instance_id, known=known)
        tried = list[datetime]()

        def work(connection: Connection) -> bool:
            machine_states.lock(connection, machine.name, [instance_id])
            tried.insert(0, runtime.now())
            # An earlier attempt whose answer was lost may have written the row.
            return any(replace(connection, state=state, now=at) for at in tried)

        return runtime.database.transact(work)
    require_executed(machine.save(instance_id, instance.model))
    runtime.database.transact(partial(write, runtime, machine.name, {instance_id: state}))
    return True


def write(
    runtime: Runtime,
    machine: str,
    states: dict[str, str],
    connection: Connection,
    *,
    entered_at: datetime | None = None,
) -> None:
    """Lock instances and set their states. The default `entered_at` of an instance that changes its state is now."""
    machine_states.lock(connection, machine, states)
    machine_states.put(connection, machine, states, runtime.now(), entered_at)
