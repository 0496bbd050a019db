"""The options of commands that are processes: what they log, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rqsched.cli.session import Verbose
from rqsched.processes.logs import LogFormat, LogLevel, begin_logging

_PANEL = "Common"


@dataclass
class Logs:
    """What a process logs."""

    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="From which level on it logs.", rich_help_panel=_PANEL)
    ] = LogLevel.INFO
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines for people, or JSON.", rich_help_panel=_PANEL)
    ] = LogFormat.TEXT
    verbose: Verbose = 0
    """Given, everything is logged, as with `--log-level debug`."""

    def begin(self) -> None:
        """Log from now on."""
        begin_logging(LogLevel.DEBUG if self.verbose else self.log_level, self.log_format)
