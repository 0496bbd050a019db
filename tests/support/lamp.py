"""A small state machine that several tests look at."""

from __future__ import annotations

from typing import Any

from statemachine import State, StateMachine

from rqsched.machines import machine
from tests.support.env import Env


def lamp_of(env: Env) -> Any:
    """A machine without load and save: an instance is its state alone."""

    class Lamp(StateMachine):
        off = State(initial=True)
        on = State()
        SWITCH = off.to(on) | on.to(off)
        BLINK = on.to.itself()
        schedules = {"SWITCH": None, "BLINK": None}  # noqa: RUF012 - as users write it

    return machine(workflows=env.runtime.workflows)(Lamp)
