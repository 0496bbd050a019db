"""The command `machine run`. It needs the `machines` extra."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rqsched.api.values import number_of
from rqsched.cli.command import Session, command
from rqsched.errors import ConfigError, RqschedError, install

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Send events to state machines.")


@app.callback()
def machine() -> None:
    """Send events to state machines."""


@command(app)
def run(
    session: Session,
    machine_class: Annotated[str, typer.Argument(metavar="CLASS", help="The dotted path of a state machine class.")],
    event: Annotated[str, typer.Argument(metavar="EVENT", help="An event that the class declares in `schedules`.")],
    queue: Annotated[str | None, typer.Option("--queue", help="The queue of its jobs; default: the machine's.")] = None,
) -> None:
    """Send an event now to the instances that its resolver finds, one job each. Exit code 1 if the resolver fails."""
    try:
        from rqsched import machines  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed: run {install('machines')}.") from error
    scheduler = session.scheduler
    cls = machines.find_machine(machine_class)
    try:
        done = machines.MachineScheduler.run(scheduler, cls, event, queue=queue)
    except RqschedError:
        raise
    except Exception as error:  # a user's resolver may raise anything
        raise RqschedError(
            f"nothing was dispatched: the resolver raised {type(error).__name__}: {error}. Correct it, run this again."
        ) from error
    text = f"Dispatched {event} to {number_of(done.targets, 'instance')} of {machine_class}"
    filtered = f"; not instances of it: {number_of(done.filtered, 'id')}" if done.filtered else ""
    session.writer.record({"machine": machine_class, "event": event, **asdict(done)}, f"{text}{filtered}.")
