"""Commands that declare schedules: create, upsert, update.

The timing and the options that most schedules have are flags. Every other option of the table OPTIONS is set by
`--set NAME=VALUE`, with the name that it has in Python, HTTP and files.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rqsched.api.options import NOTIFICATION_TARGETS, OPTIONS, PARTS, Kind, Option, Part
from rqsched.cli import arguments
from rqsched.cli.arguments import NewId, Note, ScheduleId, Texts, workflow_names
from rqsched.cli.command import Session, command
from rqsched.cli.output import notice
from rqsched.errors import InvalidInputError, InvalidPayloadError, did_you_mean
from rqsched.types import Notifications, Options
from rqsched.when.members import ENDS
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec

_BESIDES: Mapping[str, Sequence[str]] = {
    "paused": ("true", "false"),
    "cron_seconds": ("first", "last"),
    "offset": (),
    "from_completion": ("true", "false"),
    "on": tuple(ENDS),
    "start_at": (),
    "end_at": (),
}
"""The names that `--set` accepts in addition to options, as files do. Each name has its values, if they are few."""
_SET: Mapping[str, Option | Part] = {
    name: one
    for whole, option in OPTIONS.items()
    for name, one in (
        {f"{whole}.{field}": part for field, part in PARTS[whole].items()} if whole in PARTS else {whole: option}
    ).items()
    if not one.flags
}
"""The options that have no flag, by the names that `--set` takes."""
SETTABLE = (*_BESIDES, *_SET)
"""The names that `--set` takes."""
_FLAGS = {
    name: option
    for name, option in OPTIONS.items()
    if option.flags and name != "timezone"  # it belongs to the timing
} | {f"{name}.{field}": part for name, parts in PARTS.items() for field, part in parts.items() if part.flags}
"""The options that have a flag, by their names."""
_REPEATED = frozenset({Kind.NAMES, Kind.TEXTS, Kind.LABELS})
_TYPES: Mapping[Kind, Any] = {Kind.COUNT: int} | dict.fromkeys(_REPEATED, list[str])
_METAVARS = {Kind.COUNT: "N", Kind.LENGTH: "SPAN", Kind.LABELS: "NAME=VALUE"} | dict.fromkeys(
    (Kind.ARGUMENTS, Kind.OBJECT), "JSON"
)
_HELP = {
    "exclude": "Days, windows or calendars without fires.",
    "args": "A list; @FILE reads it, @- from stdin.",
    "kwargs": "An object; @FILE and @- as for --args.",
    "queue": "The queue; default: the workflow's.",
    "timeout": "The longest time of an attempt.",
    "overlap": "skip, buffer_all ...: see the docs.",
    "labels": "A label to filter by; may be repeated.",
}
"""Help texts that are shorter than those of the table, so that each flag takes one line of 80 columns."""


def _listed() -> str:
    """Return the names that `--set` takes. The fields of an object are summarised as `NAME.FIELD`."""
    return ", ".join(dict.fromkeys(f"{name.partition('.')[0]}.FIELD" if "." in name else name for name in SETTABLE))


EPILOG = f"--set takes, as docs/options.md explains: {_listed()}."


def _complete(incomplete: str) -> list[str]:
    """Offer the names that `--set` takes, and after the equals sign the values of a choice."""
    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{one}=" for one in SETTABLE if one.startswith(name)]
    choices = _BESIDES.get(name) or (_SET[name].choices if name in _SET else ())
    return [found for choice in choices if (found := f"{name}={choice}").startswith(incomplete)]


@dataclass(frozen=True)
class _Timing:
    """The flags of the timing."""

    cron: Annotated[Texts, typer.Option("--cron", metavar="CRON", help="An expression; may be repeated.")] = None
    every: Annotated[Texts, typer.Option("--every", metavar="SPAN", help="An interval, as 30m; may be repeated.")] = (
        None
    )
    once: Annotated[Texts, typer.Option("--once", metavar="INSTANT", help="One instant; may be repeated.")] = None
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="After the runs of this schedule.")] = None
    timezone: Annotated[
        str | None, typer.Option("--timezone", metavar="ZONE", help="Of --cron; default: the project's.")
    ] = None


def _fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, type and default of each flag. The fields of a dataclass are made from them."""
    for name, option in _FLAGS.items():
        complete = (lambda choices: lambda: list(choices))(option.choices) if option.choices else None
        shown = typer.Option(
            *option.flags,
            metavar=_METAVARS.get(option.kind, "TEXT"),
            help=_HELP.get(name, option.help),
            autocompletion=complete,
        )
        yield name.replace(".", "__"), Annotated[_TYPES.get(option.kind, str) | None, shown], None


_Flags: Any = make_dataclass("_Flags", _fields(), bases=(_Timing,), frozen=True)


@dataclass(frozen=True)
class Given(_Flags):  # type: ignore[misc] # made from the table of options
    """The timing and the options that were given."""

    settings: Annotated[
        Texts,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other option; may be repeated.", autocompletion=_complete
        ),
    ] = None

    @cached_property
    def rest(self) -> Mapping[str, list[str]]:
        """The texts of `--set` by name; raises InvalidInputError for a name that `--set` does not take."""
        found: dict[str, list[str]] = {}
        for text in self.settings or ():
            name, equals, value = text.partition("=")
            if not equals:
                raise InvalidInputError("--set", f"{text!r} is refused; write NAME=VALUE")
            if name in _FLAGS or name == "timezone":
                flag = OPTIONS["timezone"].flags[0] if name == "timezone" else _FLAGS[name].flags[0]
                raise InvalidInputError("--set", f"does not take {name}, which has a flag; write {flag}")
            if name not in SETTABLE:
                hint = did_you_mean(name, SETTABLE) or "; `rqsched create --help` lists those that it takes"
                raise InvalidInputError("--set", f"takes no {name!r}{hint}")
            found.setdefault(name, []).append(value)
        return found

    @property
    def paused(self) -> bool | None:
        """Whether to pause the schedule; None if neither flag is given."""
        return self._yes("paused")

    def spec(self) -> Spec:
        """Return the declared spec; raises InvalidInputError if no timing option is given."""
        members = self._members()
        if not members:
            raise InvalidInputError("spec", "is missing; give --cron, --every, --once or --after")
        return Spec(members, self.timezone or None, *self._window())

    def changed(self, current: Spec, unset: Sequence[str]) -> Spec | None:
        """Return the spec with the changes that the options make; None if no option changes it."""
        members, (start_at, end_at) = self._members(), self._window()
        if not (members or self.timezone or start_at or end_at or {"start_at", "end_at"} & set(unset)):
            return None
        if self.after is not None:
            return Spec(members, self.timezone or None, start_at, end_at)
        return Spec(
            members or current.members,
            self.timezone or current.timezone,
            None if "start_at" in unset else start_at or current.start_at,
            None if "end_at" in unset else end_at or current.end_at,
        )

    def options(self, current: Notifications | None = None) -> Options:
        """Return the given options. The given fields of `notifications` are merged into the current ones."""
        found: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            if name in PARTS:
                said = {field: self._said(f"{name}.{field}", part) for field, part in PARTS[name].items()}
                value: Any = {field: one for field, one in said.items() if one is not None} or None
            else:
                value = self._said(name, option)
            if value is not None:
                found[name] = value
        if current is not None and "notifications" in found:
            kept = {name: getattr(current, name) for name in NOTIFICATION_TARGETS}
            found["notifications"] = kept | found["notifications"]
        return cast("Options", found)

    def _members(self) -> list[Member]:
        on, offset, counted = self._one("on"), self._one("offset"), self._yes("from_completion")
        if on is not None and self.after is None:
            raise InvalidInputError(
                "--after", "is missing; `on` says which ends of the runs of that schedule count, so name it"
            )
        if not self.every and (offset is not None or counted):
            raise InvalidInputError("--every", "is missing; offset and from_completion need it")
        seconds = self._one("cron_seconds")
        if not self.cron and seconds is not None:
            raise InvalidInputError("--cron", "is missing; cron_seconds needs it")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            crons = [Cron(text, seconds=cast("Any", seconds)) for text in self.cron or ()]
        for warning in told:
            notice(f"Warning: {warning.message}")
        phase = None if offset is None else arguments.span("--set offset", offset)
        every = [
            Every(arguments.span("--every", text), offset=phase, from_completion=bool(counted))
            for text in self.every or ()
        ]
        after = [] if self.after is None else [After(self.after, on or "success")]
        return [*crons, *every, *(Once(arguments.instant("--once", text)) for text in self.once or ()), *after]

    def _window(self) -> tuple[Any, Any]:
        start_at, end_at = (
            None if (text := self._one(name)) is None else arguments.instant(f"--set {name}", text)
            for name in ("start_at", "end_at")
        )
        return start_at, end_at

    def _one(self, name: str) -> str | None:
        """Return the text of a name that may be set only once; raises InvalidInputError if it is set twice."""
        texts = self.rest.get(name, ())
        if len(texts) > 1:
            raise InvalidInputError(f"--set {name}", "is given twice; give it once")
        return texts[0] if texts else None

    def _yes(self, name: str) -> bool | None:
        text = self._one(name)
        if text not in {None, "true", "false"}:
            raise InvalidInputError(f"--set {name}", f"must be true or false, not {text!r}")
        return None if text is None else text == "true"

    def _said(self, name: str, option: Option | Part) -> Any:
        if name in _SET:
            text: Any = self.rest.get(name) if option.kind in _REPEATED else self._one(name)
            return None if text is None else _read(option, f"--set {name}", text)
        text = getattr(self, name.replace(".", "__"), None)
        return None if text in (None, []) else _read(option, option.flags[0], text)


def _read(option: Option | Part, flag: str, value: Any) -> Any:
    match option.kind:
        case Kind.COUNT | Kind.NUMBER if isinstance(value, str):
            return _number(flag, value, int if option.kind is Kind.COUNT else float)
        case Kind.LENGTH:
            return arguments.span(flag, value)
        case Kind.ARGUMENTS:
            return arguments.json_of(flag, _content(flag, value), list)
        case Kind.OBJECT | Kind.ATTRIBUTES:
            return arguments.json_of(flag, _content(flag, value), dict)
        case Kind.LABELS:
            return arguments.pairs(flag, value)
        case _:
            return value


def _number(flag: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text.replace("_", " "))  # Python reads 1_0 as 10
    except ValueError:
        raise InvalidInputError(flag, f"must be a {'whole ' if kind is int else ''}number, not {text!r}") from None


def _content(flag: str, text: str) -> str:
    """Return the given JSON. For `@FILE` return the content of the file, and for `@-` standard input."""
    if not text.startswith("@"):
        return text
    try:
        return sys.stdin.read() if text == "@-" else Path(text[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidPayloadError(flag, "is not UTF-8; store it so") from None
    except OSError as error:
        raise InvalidInputError(flag, f"{text[1:]} cannot be read ({error.strerror}); name a file") from None


_OF_SPEC = ("start_at", "end_at")


def blanked(unset: Sequence[str]) -> Options:
    """Return the default of each named option; raises InvalidInputError for an option that cannot be unset."""
    blank = {
        name: option.default
        for name, option in OPTIONS.items()
        if name != "timezone" and not option.is_fixed and option.kind is not Kind.CHOICE
    }
    for name in unset:
        if name not in blank and name not in _OF_SPEC:
            known = ", ".join(sorted([*blank, *_OF_SPEC]))
            raise InvalidInputError("--unset", f"{name!r} is not one of {known}")
    return cast("Options", {name: blank[name] for name in unset if name in blank})


app = typer.Typer(add_completion=False)

Workflow = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="A registered name or a dotted path.", autocompletion=workflow_names),
]


@command(app, epilog=EPILOG)
def create(
    session: Session,
    schedule_id: NewId,
    workflow: Workflow,
    given: Given,
    note: Note = None,
) -> None:
    """Create a schedule; refused when its id is taken."""
    handle = session.scheduler.create(
        schedule_id,
        workflow,
        given.spec(),
        note=note,
        namespace=session.namespace,
        paused=given.paused or False,
        context=session.context,
        **given.options(),
    )
    session.report(handle, "created")


@command(app, epilog=EPILOG)
def upsert(
    session: Session,
    schedule_id: ScheduleId,
    workflow: Workflow,
    given: Given,
    note: Note = None,
) -> None:
    """Create a schedule, or make the existing one exactly so."""
    handle, outcome = session.scheduler.upsert(
        schedule_id,
        workflow,
        given.spec(),
        note=note,
        namespace=session.namespace,
        paused=given.paused,
        context=session.context,
        **given.options(),
    )
    session.report(handle, outcome)


@command(app, epilog="--set takes the names that `rqsched create --help` lists.")
def update(
    session: Session,
    schedule_id: ScheduleId,
    given: Given,
    note: Note = None,
    workflow: Annotated[
        str | None,
        typer.Option(
            "--workflow", metavar="NAME", help="A registered name or a dotted path.", autocompletion=workflow_names
        ),
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", metavar="NAME", help="Make an option blank, as max_runs.")] = None,
    if_version: Annotated[
        int | None, typer.Option("--if-version", metavar="N", help="Refuse unless it has this version.")
    ] = None,
) -> None:
    """Change the given options and leave the rest. The next time moves only with the timing."""
    blank = blanked(unset or ())
    handle = session.schedule(schedule_id)
    before = handle.state.version
    options: Options = {**blank, **given.options(handle.state.definition.parsed_notifications)}
    spec = given.changed(handle.state.spec, unset or ())
    if not options and spec is None and workflow is None and note is None and given.paused is None:
        raise InvalidInputError("update", "has nothing to change; give at least one option, such as --cron or --note")
    handle.update(
        workflow,
        spec,
        note=note,
        context=session.context,
        if_version=if_version,
        paused=given.paused,
        **options,
    )
    session.report(handle, "unchanged" if handle.state.version == before else "updated")
