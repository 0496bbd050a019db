"""The command `dev`: run everything in one terminal. Its module is separate, because it imports code for a screen."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from rqsched.cli.command import Verbose, command
from rqsched.config import Settings
from rqsched.dev.run import run_dev
from rqsched.run.logs import TEXT

app = typer.Typer(add_completion=False)


@command(app)
def dev(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, metavar="N", help="Stop after so many seconds.")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Try it: everything in this terminal, with a screen.

    It uses SQLite, and starts an embedded Valkey and a worker. Ctrl-C ends both. The data stays in RQSCHED_DATA_DIR
    (`.rqsched`).
    """
    logging.basicConfig(level=logging.DEBUG if verbose else logging.ERROR, format=TEXT)
    raise typer.Exit(run_dev(Settings(), seconds=seconds))
