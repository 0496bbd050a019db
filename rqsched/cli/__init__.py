"""The `rqsched` command. The module `app` lists its commands; docs/cli.md describes exit codes and files."""

from __future__ import annotations

import gc
import io
import sys
from importlib import import_module

from rqsched.run.pid_one import leave_first_process

__all__ = ["main"]
_PACKAGES = ("typer", "rich")


def main() -> None:
    """Run the command in `sys.argv` and exit with its code."""
    leave_first_process()
    gc.disable()  # collecting garbage would slow the import of the command's modules; it is enabled again after that
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets `?`, not a traceback
    try:
        app = import_module(f"{__name__}.app").app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        install = import_module("rqsched.errors").install
        sys.stderr.write(f"Error: the commands need typer and rich: run {install('cli')}.\n")
        sys.exit(2)
    try:
        app()
    finally:
        gc.freeze()  # the process ends: a last garbage collection would be wasted
