"""The application the commands hang on: its help, and the options before a command."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

import rqsched

app = typer.Typer(
    name="rqsched",
    help="Durable schedules on RQ: create them, look at them, run what carries them.",
    epilog=(
        "Exit codes: 0 done; 1 it failed, or a fire did; 2 wrong usage or refused input, nothing was written; 3 not "
        "found; 4 the state of things forbids it; 5 SQL or Redis does not answer. Settings come from RQSCHED_* "
        "variables."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
database_app = typer.Typer(no_args_is_help=True, help="The database's schema.")
app.add_typer(database_app, name="db")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rqsched {rqsched.__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable schedules on RQ: create them, look at them, run what carries them."""
