"""State machines on schedule: a schedule sends an event to instances of a machine, with one job for each instance.

Needs the `machines` extra (python-statemachine); docs/machines.md is the guide.
"""

from rqsched.machines.machine import in_state
from rqsched.machines.resolve import Dispatched
from rqsched.machines.scheduler import MachineScheduler, find_machine, machine
from rqsched.machines.states import MachineStates

__all__ = ["Dispatched", "MachineScheduler", "MachineStates", "find_machine", "in_state", "machine"]
