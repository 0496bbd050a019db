"""Commands that run until a signal and log to standard error: worker, dispatcher, web."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rqsched.cli.command import Verbose, command
from rqsched.config import Settings
from rqsched.errors import ConfigError, install
from rqsched.run.logs import LogFormat, LogLevel, begin_logging
from rqsched.run.worker import WorkerOptions, parse_size, serve, serve_dispatcher

app = typer.Typer(add_completion=False)
Frozen = Annotated[
    bool,
    typer.Option("--freeze", help="Begin nothing, after a restore."),
]


@dataclass
class Logs:
    """The logging of a process."""

    log_level: Annotated[LogLevel, typer.Option("--log-level", metavar="LEVEL", help="The lowest that is logged.")] = (
        LogLevel.INFO
    )
    log_format: Annotated[LogFormat, typer.Option("--log-format", metavar="FORMAT", help="text or json.")] = (
        LogFormat.TEXT
    )
    verbose: Verbose = 0
    """If -v is given, everything is logged, as with `--log-level debug`."""

    def begin(self) -> None:
        """Begin to log."""
        begin_logging(LogLevel.DEBUG if self.verbose else self.log_level, self.log_format)


@command(app)
def worker(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUES", help="The most urgent first; default: RQSCHED_DEFAULT_QUEUE."),
    ] = None,
    no_recover: Annotated[bool, typer.Option("--no-recover", help="Do not repair links and runs first.")] = False,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Keep N processes that execute runs."),
    ] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="With --concurrency: fork for every run.")] = False,
    burst: Annotated[bool, typer.Option("--burst", "-b", help="Execute what is queued, and end.")] = False,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-jobs",
            metavar="N",
            help="Replace a process after so many jobs.",
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="Replace a runner beyond it, such as 300M.",
        ),
    ] = None,
    max_idle_time: Annotated[
        int | None, typer.Option("--max-idle-time", metavar="SECONDS", help="End after so long without a job.")
    ] = None,
    worker_class: Annotated[
        str | None, typer.Option("--worker-class", "-w", metavar="PATH", help="Your own subclass of rq.Worker.")
    ] = None,
    exception_handler: Annotated[
        list[str] | None,
        typer.Option("--exception-handler", metavar="PATH", help="One of RQ's; may be repeated."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The worker's name at RQ."),
    ] = None,
    freeze: Frozen = False,
    *,
    logs: Logs,
) -> None:
    """Fire schedules and execute their runs until SIGTERM or Ctrl-C. Any number of workers may run.

    Without --concurrency, one process executes runs and forks for each of them.
    """
    logs.begin()
    _freeze(freeze)
    options = WorkerOptions(
        concurrency=concurrency,
        isolate=isolate,
        burst=burst,
        max_jobs=max_jobs,
        max_memory=None if max_memory is None else parse_size(max_memory),
        max_idle_time=max_idle_time,
        worker_class=worker_class,
        exception_handlers=tuple(exception_handler or ()),
        name=name,
    )
    raise typer.Exit(serve(queues or [Settings().default_queue], recover=not no_recover, options=options))


@command(app)
def dispatcher(
    no_recover: Annotated[bool, typer.Option("--no-recover", help="Do not repair links and runs first.")] = False,
    freeze: Frozen = False,
    *,
    logs: Logs,
) -> None:
    """Fire schedules, and leave their runs to workers of your own. The command ends at SIGTERM or Ctrl-C.

    Any number of dispatchers may run.
    """
    logs.begin()
    _freeze(freeze)
    raise typer.Exit(serve_dispatcher(recover=not no_recover))


def _freeze(is_frozen: bool) -> None:
    """Freeze this process and its children, by a variable in their environment."""
    if is_frozen:
        os.environ["RQSCHED_FREEZE"] = "1"


@command(app)
def web(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Beyond loopback, set RQSCHED_TOKENS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: one that is free.")] = 8000,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", exists=True, dir_okay=False, metavar="FILE", help="Serve HTTPS: the certificate, PEM."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", exists=True, dir_okay=False, metavar="FILE", help="Its private key, PEM."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Serve in N processes.")] = 1,
    max_connections: Annotated[
        int | None,
        typer.Option("--max-connections", min=1, metavar="N", help="Of a process; more get 503."),
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="PATH", help="Where a proxy serves it, as /rqsched.")
    ] = "",
    no_access_log: Annotated[bool, typer.Option("--no-access-log", help="Log no line for each request.")] = False,
    *,
    logs: Logs,
) -> None:
    """Serve the HTTP API, and the dashboard where it is installed."""
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together: give both, or neither.")
    if root_path and not root_path.startswith("/"):
        raise ConfigError("--root-path must begin with a slash: /rqsched.")
    logs.begin()
    logging.getLogger("rqsched.http.access").disabled = no_access_log
    serve_http = _http_serve()
    raise typer.Exit(
        serve_http(
            host,
            port,
            workers=workers,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
            limit_concurrency=max_connections,
            root_path=root_path.rstrip("/"),
        )
    )


def _http_serve() -> Callable[..., int]:
    """Import the server; raises a ConfigError that says how to install the `http` extra."""
    try:
        from rqsched.http import serve  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed: run {install('http')}.") from error
    return serve
