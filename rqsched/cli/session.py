"""The session of one command: the options of every command, and its connections, opened when first used."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.cli.output import Output, Writer, shown
from rqsched.config import Settings
from rqsched.core.audit import CommandContext
from rqsched.store import schema_version

_PANEL = "Common"
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)

Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Log to standard error; -vv logs more.", rich_help_panel=_PANEL),
]


@dataclass
class Session:
    """The options of every command. As a context: standard output is for results only, connections close at the end."""

    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="The namespace of the schedules; default: RQSCHED_NAMESPACE.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    output: Annotated[
        Output, typer.Option("--output", "-o", help="The form of the output.", rich_help_panel=_PANEL)
    ] = Output.TABLE
    reason: Annotated[
        str | None,
        typer.Option("--reason", help="Why; recorded with the audit event of the change.", rich_help_panel=_PANEL),
    ] = None
    verbose: Verbose = 0
    """How often -v was given: each time more is logged."""

    def __enter__(self) -> Session:
        """Keep standard output for results: what a user's module prints goes to standard error."""
        self.writer = Writer(self.output)
        self._stack = ExitStack()
        self._stack.enter_context(redirect_stdout(sys.stderr))
        self._stack.enter_context(logging_to_stderr(self.verbose))
        return self

    def __exit__(self, *error: Any) -> None:
        del error
        if "scheduler" in self.__dict__:
            self.scheduler.close()
        self._stack.close()

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment."""
        return Settings()

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler of the environment, its schema checked, RQSCHED_IMPORTS imported; raises what is wrong."""
        scheduler = Scheduler.from_env()
        scheduler.runtime.require_imports()
        if not scheduler.has_checked_schema:
            schema_version.require_current(scheduler.runtime.database)
        return scheduler

    @property
    def named(self) -> str:
        """The namespace given, or the settings'."""
        return self.settings.namespace if self.namespace is None else self.namespace

    @property
    def context(self) -> CommandContext:
        """Who calls and why, for the audit event."""
        return CommandContext(principal=_principal(), source="cli", reason=self.reason)

    def schedule(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule; raises ScheduleNotFoundError."""
        return self.scheduler.get(schedule_id, namespace=self.namespace)

    def newest(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule, deleted or not: its history and runs stay readable."""
        return self.scheduler.newest(schedule_id, namespace=self.namespace)

    def report(self, handle: ScheduleHandle, outcome: str, **more: Any) -> None:
        """Write the outcome of an operation on a schedule."""
        fields = {
            "schedule_id": handle.schedule_id,
            "namespace": handle.namespace,
            "outcome": outcome,
            "uid": handle.uid,
            "status": handle.status,
            "next_run_at": handle.next_run_at,
            "version": handle.state.version,
        }
        self.writer.record(fields | more, f"Schedule {handle.schedule_id} {outcome}{_now(handle, outcome)}.")


def _now(handle: ScheduleHandle, outcome: str) -> str:
    """Return in brackets what the outcome does not say: the status, and when the schedule fires next."""
    fires = handle.state.due_at and f"next fire {shown(handle.state.due_at)}"
    told = (None if handle.status in {outcome, "deleted"} else handle.status, fires)
    text = "; ".join(part for part in told if part)
    return f" ({text})" if text else ""


def _principal() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid:{os.getuid()}"


class _Terse(logging.Formatter):
    """One line per record: tracebacks need --verbose."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message alone."""
        return record.getMessage()


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Send logs to standard error: warnings as bare lines, or with -v everything with its origin."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT) if verbose else _Terse())
    before = root.level
    root.setLevel(_LEVELS[min(verbose, len(_LEVELS) - 1)])
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
