"""The common parts of commands: shared options and connections, groups of options, and the exit codes of errors."""

from __future__ import annotations

import getpass
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from rqsched import CommandContext
from rqsched.api import schema_version
from rqsched.api.database import Database, DatabaseError
from rqsched.cli.output import Output, Writer, dump, notice, shown
from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.errors import BackendUnavailableError, ConflictError, InvalidInputError, RqschedError
from rqsched.run.logs import TEXT
from rqsched.when.words import clock_warnings

if TYPE_CHECKING:
    from rqsched.api.run_handle import RunHandle
    from rqsched.api.schedule_handle import ScheduleHandle
    from rqsched.api.scheduler import Scheduler

FAILED, CONFLICT = RqschedError.exit_code, ConflictError.exit_code
"""The exit codes of a command that raised no error but did not do all of its work; docs/cli.md explains them."""
DIFFERENT = 6
"""The exit code of a comparison that found a difference."""
_PANEL = "Common"
_SHORT = {"namespace": "-n NAMESPACE", "output": "-o table|json|jsonl", "reason": "--reason WHY", "verbose": "-v"}
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)

Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Log to standard error; -vv logs more.", rich_help_panel=_PANEL),
]


@dataclass
class Session:
    """The options and connections of every command. A connection is opened at its first use, and closed at the end."""

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
    """How often -v was given. Each -v makes the command log more."""

    def __enter__(self) -> Session:
        """Reserve standard output for results. Text that imported modules print goes to standard error."""
        self.writer = Writer(self.output)
        self._stack = ExitStack()
        self._stack.enter_context(redirect_stdout(sys.stderr))
        self._stack.enter_context(_logging_to_stderr(self.verbose))
        return self

    def __exit__(self, *error: Any) -> None:
        del error
        for opened in ("scheduler", "database"):
            if opened in self.__dict__:
                getattr(self, opened).close()
        self._stack.close()

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment."""
        return Settings()

    @cached_property
    def database(self) -> Database:
        """The database that the settings name, with a checked schema, for commands that need no Redis."""
        database = Database(database_url(self.settings), pooler=self.settings.database_pooler)
        try:
            if self.settings.is_sqlite:
                schema_version.upgrade(database)
            else:
                database.require_accepted()
                schema_version.require_current(database)
        except Exception:
            database.close()
            raise
        return database

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler that the settings name. Raises the errors of the schema's check and of RQSCHED_IMPORTS."""
        from rqsched.api.scheduler import Scheduler  # noqa: PLC0415 - RQ and Redis, which some commands do not need

        scheduler = Scheduler.from_env()
        scheduler.runtime.imports.require()
        if not scheduler.has_checked_schema:
            schema_version.require_current(scheduler.runtime.database)
        return scheduler

    @property
    def named(self) -> str:
        """The given namespace, or the one of the settings."""
        return self.settings.namespace if self.namespace is None else self.namespace

    @property
    def context(self) -> CommandContext:
        """The caller and the reason, for the audit event."""
        try:
            principal = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            principal = f"uid:{os.getuid()}"
        return CommandContext(principal=principal, source="cli", reason=self.reason)

    def schedule(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule; raises ScheduleNotFoundError."""
        return self.scheduler.get(schedule_id, namespace=self.namespace)

    def newest(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule, even if it is deleted: its history and runs can still be read."""
        return self.scheduler.newest(schedule_id, namespace=self.namespace)

    def run(self, name: str, schedule_id: str | None) -> RunHandle:
        """Find a run by its uid. If a schedule is given, the run's number and instance id are accepted, too."""
        if schedule_id:
            return self.newest(schedule_id).run(name)
        return self.scheduler.runs.get(name, namespace=self.namespace)

    def report(self, handle: ScheduleHandle, outcome: str) -> None:
        """Write the outcome of an operation on a schedule."""
        fields: dict[str, Any] = {
            "schedule_id": handle.schedule_id,
            "namespace": handle.namespace,
            "outcome": outcome,
            "uid": handle.uid,
            "status": handle.status,
            "next_run_at": handle.next_run_at,
            "version": handle.state.version,
        }
        if handle.resume_at is not None:
            fields["resume_at"] = handle.resume_at
        if handle.skips:
            fields["skips"] = handle.skips
        if outcome in {"created", "updated"}:
            fields["warnings"] = clock_warnings(handle.state.spec, handle.state.updated_at)
        self.writer.record(fields, f"Schedule {handle.schedule_id} {outcome}{_now(handle, outcome)}.")
        for warning in fields.get("warnings", ()):
            notice(f"Warning: {warning}")


def _now(handle: ScheduleHandle, outcome: str) -> str:
    """Return in brackets the status (unless the outcome says it), the skips, and the next fire or a pause's end."""
    fires = handle.state.due_at and f"next fire {shown(handle.state.due_at)}"
    if handle.resume_at is not None:
        fires = f"until {shown(handle.resume_at)}"
    skips = handle.skips and f"skips {', '.join(map(shown, handle.skips))}"
    told = (None if handle.status in {outcome, "deleted"} else handle.status, skips, fires)
    text = "; ".join(part for part in told if part)
    return f" ({text})" if text else ""


class _Terse(logging.Formatter):
    """Writes one line per record, without tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message alone."""
        return record.getMessage()


@contextmanager
def _logging_to_stderr(verbose: int) -> Iterator[None]:
    """Send warnings to standard error, as plain lines. With -v, send more records, with their origin."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TEXT) if verbose else _Terse())
    before = root.level
    root.setLevel(_LEVELS[min(verbose, len(_LEVELS) - 1)])
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def is_common(parameter: Any) -> bool:
    """Return whether every command has this parameter."""
    return getattr(parameter, "rich_help_panel", None) == _PANEL


class _Command(TyperCommand):
    """A command whose help leaves out the common options, because they would fill half of it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with a line about the common options."""
        shown, also = copy(self), [_SHORT[str(one.name)] for one in self.params if is_common(one)]
        shown.params = [one for one in self.params if not is_common(one)]
        line = f"Also {', '.join(also)}: see rqsched --help." if also else None
        shown.epilog = "\n\n".join(filter(None, (self.epilog, line)))
        TyperCommand.format_help(shown, ctx, formatter)


def command(
    app: typer.Typer, name: str | None = None, *, epilog: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command of `app`.

    If the type of a parameter is a dataclass of annotated fields, the parameter is a group of options: its fields
    become options, and the function gets the dataclass. A Session is such a group. It is open while the command runs.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

        @wraps(function)
        def run(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
            _call(function, given)

        options: list[inspect.Parameter] = []
        for one in parameters:
            is_group = one.name in groups
            options += _options_of(groups[one.name]) if is_group else [one.replace(kind=one.KEYWORD_ONLY)]
        options.sort(key=lambda option: option.default is not option.empty)  # the required ones first
        run.__annotations__ = {option.name: option.annotation for option in options}
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        app.command(name or function.__name__.replace("_", "-"), cls=_Command, epilog=epilog)(run)
        return function

    return register


@lru_cache(maxsize=64)
def _options_of(group: type) -> tuple[inspect.Parameter, ...]:
    """Return the options of a group's fields. They are cached, because most commands share the same few groups."""
    hints = get_type_hints(group, include_extras=True)
    return tuple(
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    )


def _call(function: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Call the function inside its session. A known error ends the process with its exit code.

    The error is written to standard error: as a line for people, or as a JSON object for programs.
    """
    session = next((value for value in arguments.values() if isinstance(value, Session)), None)
    try:
        with session or nullcontext():
            function(**arguments)
    except Exception as error:
        from redis.exceptions import RedisError  # noqa: PLC0415 - as in `Session.scheduler`

        from rqsched.api.outages import advice_for, explain  # noqa: PLC0415 - as in `Session.scheduler`

        if not isinstance(error, RqschedError | RedisError | DatabaseError):
            raise
        known = error if isinstance(error, RqschedError) else BackendUnavailableError()
        message = explain(error)
        if known is not error:
            message = f"{message.rstrip('.')}. {advice_for(error, known.remedy)}"
        is_table = session is None or session.output is Output.TABLE
        line = f"Error: {message}" if is_table else dump({"error": known.code, "message": message})
        sys.stderr.write(line + "\n")
        raise typer.Exit(known.exit_code) from None


def confirm(question: str, is_agreed: bool) -> None:
    """Ask before an irreversible deletion. Without a terminal, --yes is required."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise InvalidInputError("--yes", "is missing; without a terminal there is nobody to ask")
    typer.confirm(question, abort=True, err=True)
