"""Test a state machine in one chain of calls: create schedules, put instances, and execute jobs in this process.

>>> def test_expiry(rqsched_scheduler):  # doctest: +SKIP
...     machine_test(ApplicationMachine).put({"a-1": None}).run_schedule("CHECK_EXPIRY").assert_state("a-1", "expired")
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from statemachine import StateChart

from rqsched import testing
from rqsched.api.scheduler import Scheduler
from rqsched.errors import InvalidInputError
from rqsched.machines.machine import MachineClass
from rqsched.machines.scheduler import MachineScheduler, machine_of, require_declared
from rqsched.machines.states import MachineStates


def machine_test(machine_class: MachineClass, scheduler: Scheduler | None = None) -> ReadyMachineTest:
    """Begin a chain that tests a machine, and create the schedules that are registered for it.

    `scheduler` defaults to the scheduler of the fixture `rqsched_scheduler`. Raises InvalidInputError if there is no
    scheduler, or if the class has no `@machine`.
    """
    used = testing.of_test.get() if scheduler is None else scheduler
    if used is None:
        raise InvalidInputError("scheduler", "is missing; give one, or let the test use the fixture rqsched_scheduler")
    return ReadyMachineTest(used, machine_class)


class ReadyMachineTest(testing.MachineTest):
    """A MachineTest made by `machine_test`, which can also put instances."""

    def __init__(self, scheduler: Scheduler, machine_class: MachineClass) -> None:
        known = machine_of(machine_class)
        super().__init__(scheduler, machine_class)
        self._machine_class = machine_class
        self._states = MachineStates(scheduler, machine_class)
        workflows = {known.workflow(event) for event in known.schedules}
        scheduler.sync([one for one in scheduler.declarations.all() if one.workflow in workflows])

    def put(self, states: Mapping[str, str | StateChart[Any] | None], *, entered_at: datetime | None = None) -> Self:
        """Put instances for the next run to find, as `MachineStates.put_all` does."""
        self._states.put_all(states, entered_at=entered_at)
        return self

    def assert_sent_to(self, *instance_ids: str) -> Self:
        """Assert that the last run sent its event to these instances and no others, in any order.

        All instances that the resolver found count, even if they did not accept the event.
        """
        if self.run is None:
            raise InvalidInputError("run", "there is none yet; call run_schedule first")
        have: set[str] = set()
        wanted, after = set(instance_ids), 0
        while page := MachineScheduler.targets(self.scheduler, self.run.uid, after=after):
            have |= {row["target_id"] for row in page}
            after = page[-1]["number"]
        if have != wanted:
            raise AssertionError(f"{self.run.instance_id} was sent to {_names(have)}, not to {_names(wanted)}")
        return self

    def _id_of(self, event: str) -> str:
        return require_declared(self._machine_class, event).workflow(event)


def _names(instance_ids: set[str]) -> str:
    return ", ".join(sorted(instance_ids)) or "no instance"
