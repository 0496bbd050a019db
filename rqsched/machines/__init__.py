"""State machines on schedule: a cron fires one event at all instances that it concerns, each in a job of its own.

Needs the `machines` extra (python-statemachine). docs/machines.md shows the whole of it.
"""

from rqsched.machines.resolve import Dispatched
from rqsched.machines.scheduler import MachineScheduler, find_machine, machine
from rqsched.machines.states import MachineStates

__all__ = ["Dispatched", "MachineScheduler", "MachineStates", "find_machine", "machine"]
