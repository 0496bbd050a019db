"""The application the commands hang on: their names, one line about each, and the options before a command.

A command's module is imported when the command is asked for: `rqsched --help`, `--version` and the completion of
command names need neither SQLAlchemy nor RQ.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import rqsched

_OWN, _LIFE, _PAST, _UPKEEP, _PROCESS = "Schedules", "Their life", "Their past and future", "Upkeep", "Processes"


@dataclass(frozen=True, slots=True)
class Entry:
    """One command as `rqsched --help` shows it."""

    name: str
    module: str
    """Which module of this package has it."""
    panel: str
    line: str
    """How its docstring begins."""


ENTRIES = (
    Entry("create", "schedules", _OWN, "Create a schedule; refused when its id is taken."),
    Entry("upsert", "schedules", _OWN, "Create a schedule, or make the known one exactly what is declared here."),
    Entry("sync", "sync", _OWN, "Make the schedules those a file declares: created, updated or left unchanged."),
    Entry("update", "schedules", _OWN, "Change what is given and leave the rest."),
    Entry("list", "schedules", _OWN, "List schedules in the order they were created."),
    Entry("describe", "schedules", _OWN, "Show everything there is to know of a schedule."),
    Entry("delete", "lifecycle", _OWN, "Delete a schedule; its history stays readable, its id is free again."),
    Entry("pause", "lifecycle", _LIFE, "Stop firing; runs and retries go on, waiting runs wait."),
    Entry("resume", "lifecycle", _LIFE, "Fire again."),
    Entry("restart", "lifecycle", _LIFE, "Revive a done or dead schedule with its counters at zero."),
    Entry("trigger", "lifecycle", _LIFE, "Start a run now; the schedule's times do not move."),
    Entry("backfill", "backfill", _LIFE, "Fire the occurrences of a past range that have no run yet."),
    Entry("machine", "machine", _LIFE, "Events of state machines."),
    Entry("cancel", "runs", _LIFE, "End a run: a waiting one never starts, a running one sees it at a checkpoint."),
    Entry("terminate", "runs", _LIFE, "End a run and kill its process."),
    Entry("history", "runs", _PAST, "Show a schedule's audit events, oldest first; also after it was deleted."),
    Entry("runs", "runs", _PAST, "Show a schedule's runs, newest first; also after it was deleted."),
    Entry("upcoming", "upcoming", _PAST, "Show the next fires of one schedule, or of all."),
    Entry("tick", "maintenance", _UPKEEP, "Fire what is due in this process, once; for cron-driven set-ups."),
    Entry("recover", "maintenance", _UPKEEP, "Compare SQL with Redis and repair the difference, once."),
    Entry("prune-history", "maintenance", _UPKEEP, "Delete audit events recorded before an instant, for good."),
    Entry("doctor", "doctor", _UPKEEP, "Look at versions, servers, schema, clocks, workers and links."),
    Entry("db", "db", _UPKEEP, "The database's schema."),
    Entry("worker", "processes", _PROCESS, "Fire schedules and execute their runs until SIGTERM or Ctrl-C."),
    Entry("web", "processes", _PROCESS, "Serve the HTTP API, and the dashboard where it is installed."),
    Entry("dev", "processes", _PROCESS, "Try it: an embedded Valkey, SQLite, a worker and a screen in this terminal."),
)
"""Every command, in the order of `rqsched --help`."""


class Deferred(TyperCommand):
    """A command that is known by its line only, until it is to parse something."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.line, rich_help_panel=entry.panel)
        self._entry = entry

    @cached_property
    def loaded(self) -> Any:
        """The command itself, out of its module's application."""
        found = typer.main.get_command(import_module(f"{__package__}.{self._entry.module}").app)
        return found.commands.get(self._entry.name, found) if isinstance(found, TyperGroup) else found

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Let the command itself parse; from here on it is the one the context knows."""
        return self.loaded.make_context(*args, **extra)


class Commands(TyperGroup):
    """The commands of ENTRIES."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({entry.name: Deferred(entry) for entry in ENTRIES})


app = typer.Typer(
    name="rqsched",
    cls=Commands,
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
