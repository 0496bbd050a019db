"""The `rqsched` command. docs/cli.md describes exit codes and files; `app` names the commands."""

from __future__ import annotations

import io
import sys

from rqsched.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command in `sys.argv` and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets `?`, not a traceback
    app()
