"""The command-line application: the names of the commands, one line about each, and the options before a command.

The module of a command is imported only when the command is used. Therefore `rqsched --help`, `--version` and the
completion of command names import neither SQLAlchemy nor RQ.
"""

from __future__ import annotations

import gc
import platform
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import rqsched

_SCHEDULES, _OPERATIONS, _HISTORY, _MAINTENANCE, _PROCESSES = (
    "Schedules",
    "Operations",
    "History and forecast",
    "Maintenance",
    "Processes",
)


class Entry(NamedTuple):
    """One command as `rqsched --help` shows it."""

    name: str
    """The command's name."""
    module: str
    """The module of `rqsched` that defines it."""
    panel: str
    """The heading that lists it."""
    line: str
    """The first sentence of its docstring."""


ENTRIES = (
    Entry("create", "cli.create", _SCHEDULES, "Create a schedule; refused when its id is taken."),
    Entry("upsert", "cli.create", _SCHEDULES, "Create a schedule, or make the existing one exactly so."),
    Entry("sync", "features.declarations.cli", _SCHEDULES, "Create or update what a file or the application declares."),
    Entry("export", "features.declarations.export", _SCHEDULES, "Write schedules as a file that `sync` reads."),
    Entry("import", "cli.import_", _SCHEDULES, "Bring over the schedules of another scheduler."),
    Entry("update", "cli.create", _SCHEDULES, "Change the given options and leave the rest."),
    Entry("list", "cli.schedules", _SCHEDULES, "List schedules, the oldest first or as --sort says."),
    Entry("describe", "cli.schedules", _SCHEDULES, "Show everything about a schedule."),
    Entry("delete", "cli.schedules", _SCHEDULES, "Delete a schedule; its history stays, its id is free again."),
    Entry("calendar", "features.calendars.cli", _SCHEDULES, "Named exclusions that many schedules use."),
    Entry("pause", "cli.schedules", _OPERATIONS, "Stop firing; runs and retries continue, buffered runs wait."),
    Entry("skip", "cli.schedules", _OPERATIONS, "Skip the next N occurrences that are not due yet."),
    Entry("resume", "cli.schedules", _OPERATIONS, "Start firing again."),
    Entry("restart", "cli.schedules", _OPERATIONS, "Restart a done or dead schedule with its counters at zero."),
    Entry("trigger", "cli.schedules", _OPERATIONS, "Start a run now; the schedule's times do not move."),
    Entry(
        "backfill", "features.backfill.cli", _OPERATIONS, "Fire the occurrences of a past range that have no run yet."
    ),
    Entry(
        "retry",
        "features.retry_on_request.cli",
        _OPERATIONS,
        "Retry runs that failed or were lost, cancelled or terminated.",
    ),
    Entry("cancel", "cli.runs", _OPERATIONS, "End a run, a running one at its next checkpoint."),
    Entry("terminate", "cli.runs", _OPERATIONS, "End a run and kill its process."),
    Entry("bulk", "features.bulk.cli", _OPERATIONS, "Change all schedules, or cancel or retry all runs, that match."),
    Entry("limits", "features.limits.cli", _OPERATIONS, "List or change how many runs of a group run at once."),
    Entry(
        "namespace",
        "features.namespaces.cli",
        _OPERATIONS,
        "Show what a namespace holds, or delete all of it for good.",
    ),
    Entry(
        "freeze",
        "features.freeze.cli",
        _OPERATIONS,
        "Let nothing begin in a namespace, or anywhere, until `thaw`.",
    ),
    Entry(
        "thaw",
        "features.freeze.cli",
        _OPERATIONS,
        "Let a namespace, or everything, begin again.",
    ),
    Entry("machine", "machines.cli", _OPERATIONS, "Send events to state machines."),
    Entry("history", "cli.runs", _HISTORY, "Show a schedule's audit events, oldest first."),
    Entry("runs", "cli.runs", _HISTORY, "Show the runs of a schedule, or of all of them, newest first."),
    Entry("run", "cli.runs", _HISTORY, "Show one run whole, its targets or notifications; run it again."),
    Entry("why", "cli.schedules", _HISTORY, "Say why a schedule ran, or did not run, at an instant."),
    Entry("forecast", "simulate.cli", _HISTORY, "Show the next fires, the load, or a simulated year."),
    Entry("tick", "cli.maintenance", _MAINTENANCE, "Fire what is due, once, in this process; for use from cron."),
    Entry("recover", "cli.maintenance", _MAINTENANCE, "Compare SQL with Redis and repair the difference, once."),
    Entry(
        "prune", "features.pruning.cli", _MAINTENANCE, "Delete runs and history beyond their retention, permanently."
    ),
    Entry("doctor", "cli.doctor", _MAINTENANCE, "Check servers, schema, clocks and workers; say what to do."),
    Entry("db", "cli.maintenance", _MAINTENANCE, "Upgrade or show the schema; say which copy is right."),
    Entry("worker", "cli.processes", _PROCESSES, "Fire schedules and execute their runs until SIGTERM or Ctrl-C."),
    Entry("dispatcher", "cli.processes", _PROCESSES, "Fire schedules, and leave their runs to workers of your own."),
    Entry("ping", "cli.ping", _PROCESSES, "Ask the processes of this machine whether they live."),
    Entry("web", "cli.processes", _PROCESSES, "Serve the HTTP API, and the dashboard where it is installed."),
    Entry("dev", "cli.dev", _PROCESSES, "Try it: everything in this terminal, with a screen."),
)
"""Every command, in the order of `rqsched --help`."""


class Deferred(TyperCommand):
    """A command whose module is imported only when it must parse arguments. Its help line comes from ENTRIES."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.line, rich_help_panel=entry.panel)
        self._entry = entry

    @cached_property
    def loaded(self) -> Any:
        """The command itself, from the application of its module."""
        app, name = import_module(f"rqsched.{self._entry.module}").app, self._entry.name
        groups = [one.typer_instance for one in app.registered_groups if one.name == name]
        own = [one for one in app.registered_commands if one.name == name]
        if own:  # do not build the other commands of its module
            app = typer.Typer(add_completion=False)
            app.registered_commands = own
        return typer.main.get_command(groups[0] if groups else app)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Load the command and let it parse the arguments. The returned context refers to the loaded command."""
        loaded = self.loaded
        if not gc.isenabled():  # `main` has disabled the collection; the modules that are loaded now are never freed
            gc.freeze()
            gc.enable()
        return loaded.make_context(*args, **extra)


_IN_GROUPS = {
    **{name: f"forecast {name}" for name in ("load", "simulate", "upcoming")},
    **{name: f"run {name}" for name in ("again", "targets", "deliveries")},
    "usage": "namespace usage",
}
"""Commands whose group a user may forget to type, each with the words that the user should type."""


class Commands(TyperGroup):
    """The commands of ENTRIES."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({entry.name: Deferred(entry) for entry in ENTRIES})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name. If a group has this command, fail and name the group."""
        if args and args[0] in _IN_GROUPS:
            ctx.fail(f"No such command '{args[0]}'. Use `rqsched {_IN_GROUPS[args[0]]}`.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="rqsched",
    cls=Commands,
    help="Durable schedules on RQ: create, inspect and run them.",
    epilog=(
        "Exit codes: 0 done; 1 the command or a fire failed; 2 wrong usage or invalid input, nothing was written; "
        "3 not found; 4 conflict with the current state; 5 SQL or Redis is not available; 6 `sync --diff` found "
        "differences. Settings come from RQSCHED_* variables.\n\n"
        "Options of nearly every command: -n, --namespace NAME: the namespace, by default RQSCHED_NAMESPACE; "
        "-o, --output: a table for people, one json document, or jsonl, an object a line; --reason WHY: recorded with "
        "the change; -v, --verbose: log to standard error, -vv more."
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
    """Durable schedules on RQ: create, inspect and run them."""
