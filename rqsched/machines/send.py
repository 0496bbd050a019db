"""Sending: one instance is loaded, sent its event and saved. What a target's job does."""

from __future__ import annotations

from collections.abc import Callable
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
"""How often an event is sent anew because somebody else changed the instance meanwhile."""


class _Model:
    """An instance that is its state alone."""

    state: Any = None


def sender(machine: Machine, event: str) -> Callable[[str], bool]:
    """Make what sends the event to one instance; it says False when the instance is gone or does not take it."""
    return partial(_send, machine, event)


def _send(machine: Machine, event: str, instance_id: str) -> bool:
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
    """Bring the instance to life in its state: its model's, if it has one, else the one `machine_states` knows."""
    model = _Model() if machine.load is None else machine.load(instance_id)
    if model is None or isinstance(model, machine.cls):
        return model
    if getattr(model, "state", None) is None:
        model.state = machine.value_of(known.state)
    return machine.cls(model)


def _take(machine: Machine, instance: StateChart[Any], event: str) -> bool:
    """Send the event; False when no transition of the present state takes it, or every guard refuses.

    A `StateChart` says nothing of an event that it does not take, so the transitions are asked first.
    """
    before = state_of(instance)
    if not machine.takes(before, event):
        return False
    try:
        instance.send(event)
    except TransitionNotAllowed as refusal:
        # An event that an action sent later is another matter: then the instance has moved already.
        if str(refusal.event) == event and state_of(instance) == before:
            return False
        raise
    return True


def _store(
    runtime: Runtime, machine: Machine, instance_id: str, known: InstanceState, instance: StateChart[Any]
) -> bool:
    """Save the instance; False when somebody else changed it since it was read, and nothing was saved.

    An owner who saves models settles races where they are kept: then our row follows what was saved.
    """
    state, now = state_of(instance), runtime.now()
    if machine.save is None:
        replace = partial(machine_states.replace, machine=machine.name, instance_id=instance_id, known=known)
        return runtime.database.transact(lambda connection: replace(connection, state=state, now=now))
    machine.save(instance_id, instance.model)
    put = partial(machine_states.put, machine=machine.name, states={instance_id: state}, now=now)
    runtime.database.transact(put)
    return True
