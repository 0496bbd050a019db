"""Resolving: find the instances that get an event, and pass them to the fan-out in chunks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from rqsched.features.fan_out.dispatch import batch_of, fan_out
from rqsched.features.fan_out.store import Batch
from rqsched.jobs import current_runtime
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.store import machine_states
from rqsched.machines.machine import InState, Machine, Resolve
from rqsched.workflows import FannedOut, current_run


@dataclass
class Resolved:
    """The instances of one fan-out, read once, chunk by chunk."""

    runtime: Runtime
    """The runtime for reads of SQL."""
    machine: Machine
    """The machine of the instances."""
    event: str
    """The event that is sent."""
    filtered: int = field(default=0, init=False)
    """How many ids so far do not belong to an instance of this machine."""

    @property
    def _size(self) -> int:
        return self.runtime.settings.target_chunk

    def chunks(self) -> Iterator[list[str]]:
        """Yield the ids in chunks. The resolver finishes before the first chunk, so an error dispatches nothing."""
        resolver = self.machine.schedules[self.event]
        if resolver is None:
            yield from self._found(lambda state: self.machine.takes(state, self.event))
        elif isinstance(resolver, InState):
            until = self.runtime.now() - resolver.span
            yield from self._found(lambda state: self.machine.is_in(state, resolver.states), until)
        else:
            yield from self._checked(_ids_of(self.machine, self.event, resolver))

    def _found(self, is_wanted: Callable[[str], bool], entered_until: datetime | None = None) -> Iterator[list[str]]:
        """Yield the ids of the instances in a wanted state, in chunks.

        If `entered_until` is given, leave out instances that entered the state later.
        """
        read, name = self.runtime.database.read, self.machine.name
        in_use = read(lambda connection: machine_states.states_in_use(connection, name))
        wanted = [state for state in in_use if is_wanted(state)]
        of = partial(machine_states.page_in, machine=name, states=wanted, limit=self._size, entered_until=entered_until)
        after = ""
        while wanted:
            page = read(partial(of, after=after))
            if not page:
                return
            yield page
            after = page[-1]

    def _checked(self, ids: list[str]) -> Iterator[list[str]]:
        """Yield the ids that are instances of this machine, in the resolver's order, and count the others."""
        for chunk in chunks(ids, self._size):
            read_known = partial(machine_states.known, machine=self.machine.name, instance_ids=chunk)
            known = self.runtime.database.read(read_known)
            valid = [instance_id for instance_id in chunk if instance_id in known]
            self.filtered += len(chunk) - len(valid)
            yield valid


def _ids_of(machine: Machine, event: str, resolver: Resolve | type[Resolve]) -> list[str]:
    resolve = machine.make(resolver) if inspect.isclass(resolver) else resolver
    found = resolve()
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise TypeError(f"the resolver of {event} must return ids, such as a list, not {type(found).__name__}")
    return list(dict.fromkeys(str(instance_id) for instance_id in found))


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The result of a dispatch."""

    run_uid: str
    """The uid of the run, for `MachineScheduler.count` and `.targets`."""
    targets: int
    """How many instances get the event."""
    filtered: int
    """How many ids do not belong to an instance of this machine."""


def dispatch(
    runtime: Runtime, machine: Machine, event: str, batch: Batch, checkpoint: Callable[[], None] | None = None
) -> Dispatched:
    """Find the instances, if any, and dispatch a job for each. If the resolver raises, dispatch nothing."""
    resolved = Resolved(runtime, machine, event)
    count = fan_out(runtime, batch, resolved.chunks(), checkpoint)
    return Dispatched(batch.run_uid, count, resolved.filtered)


def body(machine: Machine, event: str) -> Callable[[], dict[str, Any]]:
    """Return the function that the runs of an event's schedule execute."""

    def run_event() -> dict[str, Any]:
        runtime, run = current_runtime(), current_run()
        done = dispatch(runtime, machine, event, batch_of(runtime, run.uid), run.checkpoint)
        return FannedOut(targets=done.targets, filtered=done.filtered)

    run_event.__module__, run_event.__qualname__ = machine.cls.__module__, f"{machine.cls.__qualname__}.{event}"
    return run_event
