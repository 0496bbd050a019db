"""Commands that are processes: worker, dispatcher, web, dev. They run until a signal, and log to standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated

import typer

from rqsched.chain.logs import TEXT
from rqsched.chain.worker import serve, serve_dispatcher
from rqsched.cli.command import command
from rqsched.cli.logs import Logs
from rqsched.cli.session import Verbose
from rqsched.config import Settings
from rqsched.dev.run import run_dev
from rqsched.errors import ConfigError

app = typer.Typer(add_completion=False)


@command(app)
def worker(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUES", help="The queues of runs, the most urgent first; default: RQSCHED_DEFAULT_QUEUE."
        ),
    ] = None,
    recover: Annotated[bool, typer.Option("--recover/--no-recover", help="Repair stale links and runs first.")] = True,
    *,
    logs: Logs,
) -> None:
    """Fire schedules and execute their runs until SIGTERM or Ctrl-C. Any number may run."""
    logs.begin()
    raise typer.Exit(serve(queues or [Settings().default_queue], recover=recover))


@command(app)
def dispatcher(
    recover: Annotated[bool, typer.Option("--recover/--no-recover", help="Repair stale links and runs first.")] = True,
    *,
    logs: Logs,
) -> None:
    """Fire schedules until SIGTERM or Ctrl-C, and leave their runs to workers of your own. Any number may run."""
    logs.begin()
    raise typer.Exit(serve_dispatcher(recover=recover))


@command(app)
def web(
    host: Annotated[str, typer.Option("--host", help="Beyond loopback, RQSCHED_TOKENS must be set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000,
    *,
    logs: Logs,
) -> None:
    """Serve the HTTP API, and the dashboard where it is installed."""
    logs.begin()
    _http_serve()(host, port)


@command(app)
def dev(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, metavar="N", help="Stop after so many seconds.")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Try it: an embedded Valkey, SQLite, a worker and a screen in this terminal.

    The data stays in RQSCHED_DATA_DIR (`.rqsched`); Ctrl-C ends everything it started.
    """
    logging.basicConfig(level=logging.DEBUG if verbose else logging.ERROR, format=TEXT)
    raise typer.Exit(run_dev(Settings(), seconds=seconds))


def _http_serve() -> Callable[..., None]:
    """Import what the `http` extra brings; raises ConfigError that says how to install it."""
    try:
        from rqsched.http import serve  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed; pip install 'rqsched[http]' brings it.") from error
    return serve
