"""The instances of a machine and their states, as the application reports them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from statemachine import StateChart

from rqsched.api.scheduler import Scheduler
from rqsched.errors import InvalidInputError
from rqsched.kernel.store import machine_states
from rqsched.machines.machine import MachineClass, state_of
from rqsched.machines.scheduler import machine_of
from rqsched.machines.send import write
from rqsched.when.timeline import require_utc

_MAX_ID = 255


class MachineStates:
    """The current states of one machine's instances.

    An event without a resolver is sent to these instances. The ids from a resolver must be among them.

    >>> states = MachineStates(scheduler, ApplicationMachine)  # doctest: +SKIP
    >>> states.put("a-1", "waiting")  # doctest: +SKIP

    Put an instance when it is created, and whenever your own code moves it. Scheduled events put it themselves.
    """

    def __init__(self, scheduler: Scheduler, cls: MachineClass) -> None:
        self._runtime = scheduler.runtime
        self._machine = machine_of(cls)

    def put(
        self, instance_id: str, state: str | StateChart[Any] | None = None, *, entered_at: datetime | None = None
    ) -> None:
        """Set the state of an instance from a live machine, the id of a state, or None for the initial state.

        `entered_at` means the same as for `put_all`.
        """
        self.put_all({instance_id: state}, entered_at=entered_at)

    def put_all(
        self, states: Mapping[str, str | StateChart[Any] | None], *, entered_at: datetime | None = None
    ) -> None:
        """Set many states in one transaction. Raises InvalidInputError for a state that the machine does not have.

        `entered_at`, an aware datetime, is when the instances entered their states; `in_state(..., for_=...)` uses it.
        By default, an instance whose state does not change keeps its time, and any other instance gets the current
        time.
        """
        since = entered_at and require_utc(entered_at, "entered_at")
        rows = {_require_id(instance_id): self._text(state) for instance_id, state in states.items()}
        self._runtime.database.transact(partial(write, self._runtime, self._machine.name, rows, entered_at=since))

    def _text(self, state: str | StateChart[Any] | None) -> str:
        if isinstance(state, StateChart):
            return state_of(state)
        text = self._machine.initial if state is None else state
        try:
            self._machine.value_of(text)
        except LookupError as error:
            raise InvalidInputError("state", str(error)) from None
        return self._machine.whole(text)

    def get(self, instance_id: str) -> str | None:
        """Return the ids of the active states of an instance, separated by blanks; None if it is not known."""
        find = machine_states.find
        known = self._runtime.database.read(lambda c: find(c, self._machine.name, instance_id))
        return None if known is None else known.state

    def entered_at(self, instance_id: str) -> datetime | None:
        """Return when an instance entered its state; None if it is not known."""
        find = machine_states.entered_at
        return self._runtime.database.read(lambda c: find(c, self._machine.name, instance_id))

    def forget(self, instance_id: str) -> bool:
        """Remove an instance, so that it gets no more events; return False if it was not known."""
        return self._runtime.database.transact(lambda c: machine_states.forget(c, self._machine.name, instance_id))


def _require_id(instance_id: str) -> str:
    if not isinstance(instance_id, str) or not 1 <= len(instance_id) <= _MAX_ID or not instance_id.isprintable():
        raise InvalidInputError("instance_id", f"{instance_id!r} is not valid; use 1 to {_MAX_ID} printable characters")
    return instance_id
