"""The commands `limits ...`: list groups of runs, and change how many of their runs may run at once or start."""

from __future__ import annotations

from typing import Annotated

import typer

from rqsched.cli.arguments import Texts
from rqsched.cli.command import Session, command
from rqsched.errors import InvalidInputError
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.decide.limit_options import MAX_NUMBER

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List or change how many runs of a group run at once.",
)


@command(app, "list")
def list_limits(session: Session) -> None:
    """List the groups: what each allows, and how many of its runs run and wait."""
    rows = [one.to_dict() for one in session.scheduler.limits.iter(namespace=session.namespace)]
    if not session.writer.for_programs(rows, rows):
        fields = ("name", "number", "running", "starting", "rate", "started", "waiting", "waiting_since")
        columns = ("Limit", "At once", "Running", "Starting", "Rate", "Started", "Waiting", "Since")
        session.writer.table(columns, [tuple(row[field] for field in fields) for row in rows])


@command(app, "set")
def set_limit(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the group, as in a schedule's limit.")],
    number: Annotated[
        int | None, typer.Option("--number", min=1, max=MAX_NUMBER, help="How many of its runs may run at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="How many of its attempts may start in any window, such as 100/min.")
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", help="Remove its `number` or its `rate`.")] = None,
) -> None:
    """Change what a group allows."""
    if number is None and rate is None and not unset:
        raise InvalidInputError("--number", "is missing; give --number N, --rate N/min or --unset")
    changed = session.scheduler.limits.set(
        name, number, rate=rate, unset=unset or (), namespace=session.namespace, context=session.context
    )
    session.writer.record(changed.to_dict(), f"Of {changed.name} {Bounds.read(changed.number, changed.rate)}.")
