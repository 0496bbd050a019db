"""The command `limits`, which lists the groups of runs that have a limit, or changes what one allows."""

from __future__ import annotations

from typing import Annotated

import typer

from rqsched.cli.arguments import Texts
from rqsched.cli.command import Session, command
from rqsched.errors import InvalidInputError
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.decide.limit_options import MAX_NUMBER

app = typer.Typer(add_completion=False)


@command(app)
def limits(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="The group, as a schedule's limit names it.")] = None,
    number: Annotated[
        int | None, typer.Option("--set", min=1, max=MAX_NUMBER, help="How many of its runs may run at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="How many of its attempts may start in any window, such as 100/min.")
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", help="Take its `number` or its `rate` off.")] = None,
) -> None:
    """List the groups of runs of which only so many run at once, or start in a time, or change what one allows."""
    scheduler = session.scheduler
    is_change = number is not None or rate is not None or bool(unset)
    if (name is not None) != is_change:
        option = "--set" if name is not None or number is not None else "--unset" if rate is None else "--rate"
        raise InvalidInputError(option, "goes with the name of a group; write rqsched limits NAME --set N --rate N/min")
    if name is not None:
        where, asked = session.namespace, session.context
        changed = scheduler.set_limit(name, number, rate=rate, unset=unset or (), namespace=where, context=asked)
        session.writer.record(changed.to_dict(), f"Of {changed.name} {Bounds.read(changed.number, changed.rate)}.")
        return
    rows = [one.to_dict() for one in scheduler.iter_limits(namespace=session.namespace)]
    if not session.writer.for_programs(rows, rows):
        fields = ("name", "number", "running", "starting", "rate", "started", "waiting", "waiting_since")
        columns = ("Limit", "At once", "Running", "Starting", "Rate", "Started", "Waiting", "Since")
        session.writer.table(columns, [tuple(row[field] for field in fields) for row in rows])
