"""The `rqsched` command. Exit codes and files are described in docs/cli.md.

Importing this registers every command on `app`; the order here is that of `rqsched --help`.
"""

from __future__ import annotations

import io
import sys

from . import backfill, database, doctor, lifecycle, operate, processes, runs, schedules, sync, upcoming  # noqa: F401
from .application import app

__all__ = ["app", "main"]


def main() -> None:
    """Be the command: read `sys.argv`, act, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets `?`, not a traceback
    app()
