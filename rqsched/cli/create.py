"""Commands that declare schedules: create, upsert, update. Their options are the timing, and the table of options."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, TextIO, cast

import typer

from rqsched.api.options import NOTIFICATION_TARGETS, OPTIONS, PARTS, WHAT, WHEN, Kind, Option, Part, help_of
from rqsched.cli import arguments
from rqsched.cli.arguments import NewId, Note, ScheduleId, Texts, workflow_names
from rqsched.cli.command import Session, command
from rqsched.cli.output import notice
from rqsched.errors import InvalidInputError, InvalidPayloadError
from rqsched.types import Notifications, Options
from rqsched.when.members import ENDS
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec


@dataclass(frozen=True)
class TimingFlags:
    """The options of the timing."""

    cron: Annotated[Texts, typer.Option("--cron", help="Cron expression; may be repeated.", rich_help_panel=WHEN)] = (
        None
    )
    cron_seconds: Annotated[
        str | None,
        typer.Option(
            "--cron-seconds",
            metavar="first|last",
            help="Where six cron fields have their seconds: first (default), or last as in RQ's cron.",
            rich_help_panel=WHEN,
        ),
    ] = None
    interval: Annotated[
        Texts,
        typer.Option("--interval", "--every", help="`30m`, `PT30M` or seconds; may be repeated.", rich_help_panel=WHEN),
    ] = None
    offset: Annotated[
        str | None,
        typer.Option("--offset", help="Align the interval to the clock, plus this much.", rich_help_panel=WHEN),
    ] = None
    from_completion: Annotated[
        bool,
        typer.Option("--from-completion", help="Count the interval from the end of each run.", rich_help_panel=WHEN),
    ] = False
    once: Annotated[
        Texts, typer.Option("--once", help="One instant, ISO 8601; may be repeated.", rich_help_panel=WHEN)
    ] = None
    after: Annotated[
        str | None,
        typer.Option("--after", help="Come after the runs of this schedule; nothing beside it.", rich_help_panel=WHEN),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="|".join(ENDS),
            help="Which ends of its runs count; default success.",
            rich_help_panel=WHEN,
            autocompletion=lambda: [*ENDS],
        ),
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            "--tz",
            help="The timezone of cron expressions; default: the project's.",
            rich_help_panel=WHEN,
        ),
    ] = None
    start_at: Annotated[
        str | None, typer.Option("--start-at", help="No occurrence before this instant.", rich_help_panel=WHEN)
    ] = None
    end_at: Annotated[
        str | None, typer.Option("--end-at", help="No occurrence from this instant on.", rich_help_panel=WHEN)
    ] = None

    def spec(self) -> Spec:
        """Return the declared spec; raises InvalidInputError when there is no timing option."""
        members = self._members()
        if not members:
            raise InvalidInputError("spec", "is missing; give --cron, --interval, --once or --after")
        return Spec(members, self.timezone or None, *self._window())

    def changed(self, current: Spec, unset: Sequence[str]) -> Spec | None:
        """Return the spec with the given options changed; None when none is given."""
        said = (self.timezone, self.start_at, self.end_at)
        members = self._members()
        if not (members or any(said) or {"start-at", "end-at"} & set(unset)):
            return None
        start_at, end_at = self._window()
        if self.after is not None:
            return Spec(members, self.timezone or None, start_at, end_at)
        return Spec(
            members or current.members,
            self.timezone or current.timezone,
            None if "start-at" in unset else start_at or current.start_at,
            None if "end-at" in unset else end_at or current.end_at,
        )

    def _members(self) -> list[Member]:
        if self.on is not None and self.after is None:
            raise InvalidInputError(
                "--after", "is missing; --on says which ends of the runs of that schedule count, so name it"
            )
        offset = None if self.offset is None else arguments.span("--offset", self.offset)
        if not self.interval and (offset is not None or self.from_completion):
            raise InvalidInputError("--interval", "is missing; --offset and --from-completion need it")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            crons = [Cron(text, seconds=cast("Any", self.cron_seconds)) for text in self.cron or ()]
        for warning in told:
            notice(f"Warning: {warning.message}")
        every = [
            Every(arguments.span("--interval", text), offset=offset, from_completion=self.from_completion)
            for text in self.interval or ()
        ]
        after = [] if self.after is None else [After(self.after, self.on or "success")]
        return [*crons, *every, *(Once(arguments.instant("--once", text)) for text in self.once or ()), *after]

    def _window(self) -> tuple[Any, Any]:
        start_at = None if self.start_at is None else arguments.instant("--start-at", self.start_at)
        return start_at, None if self.end_at is None else arguments.instant("--end-at", self.end_at)


_REPEATED = frozenset({Kind.NAMES, Kind.TEXTS, Kind.LABELS, Kind.ATTRIBUTES})
_TYPES: Mapping[Kind, Any] = {Kind.COUNT: int, Kind.NUMBER: float} | dict.fromkeys(_REPEATED, list[str])
_FORMS = {
    Kind.ARGUMENTS: " A JSON list.",
    Kind.OBJECT: " A JSON object.",
    Kind.NAMES: " May be repeated.",
    Kind.TEXTS: " May be repeated.",
    Kind.LABELS: " name=value; may be repeated.",
    Kind.ATTRIBUTES: " name=value, JSON or text; repeatable.",
}
"""Hints on how the values of some kinds are written."""


def flags_of(name: str) -> tuple[str, ...]:
    """Return the flags of an option."""
    parts = tuple(part.flag for part in PARTS.get(name, {}).values())
    return parts or OPTIONS[name].flags or (f"--{name.replace('_', '-')}",)


def _flags() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, type and default of each flag, as the fields of a dataclass are made from them."""
    for name, option in OPTIONS.items():
        if name in PARTS:
            parts = PARTS[name].items()
            yield from ((f"{name}__{field}", _flag(part, (part.flag,), option.group), None) for field, part in parts)
        elif name != "timezone":  # it belongs to the timing
            yield name, _flag(option, flags_of(name), option.group), None


def _flag(option: Option | Part, flags: tuple[str, ...], group: str) -> Any:
    complete = (lambda: list(option.choices)) if option.choices else None
    line = help_of(option) + _FORMS.get(option.kind, "")
    shown = typer.Option(*flags, help=line, rich_help_panel=group, autocompletion=complete)
    return Annotated[_TYPES.get(option.kind, str) | None, shown]


_Flags: Any = make_dataclass("_Flags", _flags(), frozen=True)


@dataclass(frozen=True)
class Given(_Flags):  # type: ignore[misc] # made from the table of options
    """The options of a schedule beside its timing."""

    input_file: Annotated[
        typer.FileText | None,
        typer.Option(
            "--input-file",
            encoding="utf-8",
            help="A file of JSON, - is standard input: a list as --args, an object as --kwargs.",
            rich_help_panel=WHAT,
        ),
    ] = None

    def options(self, current: Notifications | None = None) -> Options:
        """Return the options that were given; the fields of `notifications` change the current ones."""
        found: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            if name in PARTS:
                parts = PARTS[name].items()
                said = {field: self._said(f"{name}__{field}", part, part.flag) for field, part in parts}
                value: Any = {field: one for field, one in said.items() if one is not None} or None
            else:
                value = self._said(name, option, flags_of(name)[0])
            if value is not None:
                found[name] = value
        if self.input_file is not None:
            found |= _arguments_in(self.input_file, found)
        if current is not None and "notifications" in found:
            kept = {name: getattr(current, name) for name in NOTIFICATION_TARGETS}
            found["notifications"] = kept | found["notifications"]
        return cast("Options", found)

    def _said(self, field: str, option: Option | Part, flag: str) -> Any:
        text = getattr(self, field, None)
        return None if text in (None, []) else _read(option, flag, text)


def _arguments_in(file: TextIO, found: Mapping[str, Any]) -> dict[str, Any]:
    flag = "--input-file"
    try:
        content = arguments.json_of(flag, file.read(), list, dict)
    except UnicodeDecodeError:
        raise InvalidPayloadError(flag, "is not UTF-8; store it so") from None
    name = "args" if isinstance(content, list) else "kwargs"
    if name in found:
        raise InvalidInputError(flag, f"contradicts --{name}; give one of them")
    return {name: content}


def _read(option: Option | Part, flag: str, value: Any) -> Any:
    match option.kind:
        case Kind.LENGTH:
            return arguments.span(flag, value)
        case Kind.ARGUMENTS:
            return arguments.json_of(flag, value, list)
        case Kind.OBJECT:
            return arguments.json_of(flag, value, dict)
        case Kind.LABELS:
            return arguments.pairs(flag, value)
        case Kind.ATTRIBUTES:
            return arguments.json_pairs(flag, value)
        case _:
            return value


_OF_SPEC = ("start-at", "end-at")


def blanked(unset: Sequence[str]) -> Options:
    """Return the default of each named option; raises InvalidInputError for one that cannot be blank."""
    blank = {
        name.replace("_", "-"): option.default
        for name, option in OPTIONS.items()
        if name != "timezone" and not option.is_fixed and option.kind is not Kind.CHOICE
    }
    for name in unset:
        if name not in blank and name not in _OF_SPEC:
            known = ", ".join(sorted([*blank, *_OF_SPEC]))
            raise InvalidInputError("--unset", f"{name!r} is not one of {known}")
    return cast("Options", {name.replace("-", "_"): blank[name] for name in unset if name in blank})


app = typer.Typer(add_completion=False)

Workflow = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="A registered name or a dotted path.", autocompletion=workflow_names),
]


@command(app)
def create(
    session: Session,
    schedule_id: NewId,
    workflow: Workflow,
    timing: TimingFlags,
    given: Given,
    note: Note = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
) -> None:
    """Create a schedule; refused when its id is taken."""
    handle = session.scheduler.create(
        schedule_id,
        workflow,
        timing.spec(),
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **given.options(),
    )
    session.report(handle, "created")


@command(app)
def upsert(
    session: Session,
    schedule_id: ScheduleId,
    workflow: Workflow,
    timing: TimingFlags,
    given: Given,
    note: Note = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Default: an existing schedule stays as it is.")
    ] = None,
) -> None:
    """Create a schedule, or make the existing one exactly so."""
    handle, outcome = session.scheduler.upsert(
        schedule_id,
        workflow,
        timing.spec(),
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **given.options(),
    )
    session.report(handle, outcome)


@command(app)
def update(
    session: Session,
    schedule_id: ScheduleId,
    timing: TimingFlags,
    given: Given,
    note: Note = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", help="A registered name or a dotted path.", autocompletion=workflow_names),
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", help="An option to make blank, such as max-runs.")] = None,
    if_version: Annotated[
        int | None, typer.Option("--if-version", help="Refuse unless the schedule is at this version.")
    ] = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Also pause it, or make a paused or dead one fire again.")
    ] = None,
) -> None:
    """Change the given options and leave the rest. The next time moves only with the timing."""
    blank = blanked(unset or ())
    handle = session.schedule(schedule_id)
    before = handle.state.version
    options: Options = {**blank, **given.options(handle.state.definition.parsed_notifications)}
    spec = timing.changed(handle.state.spec, unset or ())
    if not options and spec is None and workflow is None and note is None and paused is None:
        raise InvalidInputError("update", "has nothing to change; give at least one option, such as --cron or --note")
    handle.update(workflow, spec, note=note, context=session.context, if_version=if_version, paused=paused, **options)
    session.report(handle, "unchanged" if handle.state.version == before else "updated")
