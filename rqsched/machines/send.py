"""Sending: an instance is loaded, gets its event and is saved. The job of a target does this."""

from __future__ import annotations

from functools import partial
from typing import Any

from statemachine import StateChart
from statemachine.exceptions import TransitionNotAllowed

from rqsched.chain.runtime import Runtime, current_runtime
from rqsched.errors import ConflictError
from rqsched.machines.machine import Machine, state_of
from rqsched.store import machine_states
from rqsched.store.machine_states import InstanceState

TRIES = 5
"""How often an event is sent when another process keeps changing the instance meanwhile."""


class _Model:
    """The model of an instance that is its state alone."""

    state: Any = None
    """As python-statemachine keeps it."""


def send(machine: Machine, event: str, instance_id: str) -> bool:
    """Send the event to one instance; returns False when there was nothing to do."""
    runtime = current_runtime()
    for _ in range(TRIES):
        known = runtime.database.read(lambda connection: machine_states.find(connection, machine.name, instance_id))
        instance = None if known is None else _load(machine, instance_id, known)
        if known is None or instance is None or not _take(machine, instance, event):
            return False
        if _store(runtime, machine, instance_id, known, instance):
            return True
    raise ConflictError(f"instance {instance_id!r} of {machine.name} was changed {TRIES} times while {event} was sent.")


def _load(machine: Machine, instance_id: str, known: InstanceState) -> StateChart[Any] | None:
    """Create the live instance in its state: its model's, if it has one, else the one in `machine_states`."""
    model = _Model() if machine.load is None else machine.load(instance_id)
    if model is None or isinstance(model, machine.cls):
        return model
    if getattr(model, "state", None) is None:
        model.state = machine.value_of(known.state)
    return machine.cls(model)


def _take(machine: Machine, instance: StateChart[Any], event: str) -> bool:
    """Send the event; False when no transition of the present state takes it, or every guard refuses.

    A `StateChart` silently ignores an event that it does not take, so the transitions are checked first.
    """
    before = state_of(instance)
    if not machine.takes(before, event):
        return False
    try:
        instance.send(event)
    except TransitionNotAllowed as refusal:
        # An action may have sent another event that was refused: then the instance has already moved.
        if str(refusal.event) == event and state_of(instance) == before:
            return False
        raise
    return True


def _store(
    runtime: Runtime, machine: Machine, instance_id: str, known: InstanceState, instance: StateChart[Any]
) -> bool:
    """Save the instance; False when another process changed it since it was read, and nothing was saved.

    With a `save` of the application, races are settled in its database, and our row follows what it saved.
    """
    state, now = state_of(instance), runtime.now()
    if machine.save is None:
        replace = partial(machine_states.replace, machine=machine.name, instance_id=instance_id, known=known)
        return runtime.database.transact(lambda connection: replace(connection, state=state, now=now))
    machine.save(instance_id, instance.model)
    put = partial(machine_states.put, machine=machine.name, states={instance_id: state}, now=now)
    runtime.database.transact(put)
    return True
