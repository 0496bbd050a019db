"""The machines the commands' tests name, in a module of their own: they need an extra."""

from __future__ import annotations

from collections.abc import Callable

from statemachine import State, StateMachine

from rqsched.machines import machine

expired: Callable[[], list[str]] = list
"""The resolver's result; a test sets it."""


@machine(name="CliTicket", queue="low")
class Ticket(StateMachine):
    new = State(initial=True)
    closed = State(final=True)

    CLOSE = new.to(closed)
    EXPIRE = new.to(closed)
    nudge = new.to.itself()

    schedules = {"CLOSE": None, "EXPIRE": lambda: expired()}  # noqa: RUF012 - as users write it


class Plain(StateMachine):
    """Nobody decorated it."""

    new = State(initial=True)
    closed = State(final=True)
    CLOSE = new.to(closed)
