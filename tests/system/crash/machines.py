"""The machine of the crash tests, and a workflow without one: closing a door leaves a line in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemachine import State, StateMachine

from rqsched import current_run, workflow
from rqsched.machines import machine

NAMES = ["d-1", "d-2", "d-3"]


@dataclass
class Model:
    """A door's state, and where its lines go."""

    id: str
    log: Path
    state: Any = None


class Doors:
    """The machine of the doors, and the log of the current env."""

    log = Path()
    executed = Path()
    """The log of the env, in which each execution of a run leaves a line."""
    are_stuck = False
    """In this process closing a door raises."""

    @classmethod
    def resolve(cls) -> list[str]:
        run = current_run()
        with cls.executed.open("a") as lines:
            lines.write(f"{run.uid} {run.attempt} {run.fence}\n")
        return NAMES

    @classmethod
    def load(cls, instance_id: str) -> Model:
        return Model(instance_id, cls.log)

    @staticmethod
    def save(instance_id: str, model: Model) -> None:
        """The state is kept by rqsched alone."""


@machine(name="CrashDoor", load=Doors.load, save=Doors.save, timeout=5)
class Door(StateMachine):
    opened = State(initial=True)
    closed = State(final=True)
    CLOSE = opened.to(closed)

    schedules = {"CLOSE": Doors.resolve}  # noqa: RUF012 - as users write it

    def on_CLOSE(self) -> None:  # noqa: N802 - the event's name
        if Doors.are_stuck:
            raise RuntimeError(f"{self.model.id} is stuck")
        with self.model.log.open("a") as lines:
            lines.write(f"{self.model.id}\n")


def name_doors() -> Iterator[str]:
    """Name the doors one by one, as a cursor does."""
    yield from Doors.resolve()


@workflow("crash-close", targets=name_doors, timeout=5)
def close(door: str) -> None:
    """Close a door without a machine."""
    if Doors.are_stuck:
        raise RuntimeError(f"{door} is stuck")
    with Doors.log.open("a") as lines:
        lines.write(f"{door}\n")
