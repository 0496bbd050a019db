"""The action of a form, as a command of `rqsched` and as a call in Python.

Each form names the function that returns its Equivalent (see `frame.form`). The values are those of the form, so the
text does what its button would do. A stored URL of a notification never is in a text, because it may be a secret.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from rqsched import CommandContext
from rqsched.api.options import OPTIONS, PARTS, Kind, Option, Part
from rqsched.api.values import iso_utc
from rqsched.dashboard.visit import Visit
from rqsched.types import Schedule
from rqsched.when.duration import in_one_unit
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec

_WIDTH = 100
"""A longer call has a line for each argument."""
_BLANK: tuple[Any, ...] = (None, (), [], {})
_HOMES = {
    "datetime": ("date", "datetime"),
    "rqsched": ("After", "CommandContext", "Cron", "Every", "Once", "Spec"),
}
"""The names that a call may use, by the module from which it must import them."""


class Equivalent(NamedTuple):
    """The two texts for one form."""

    command: str = ""
    """The command, or several, one a line; empty if no command does the same."""
    python: str = ""
    """Statements of Python, in which `scheduler` is a Scheduler; empty if values of the form are missing yet."""
    remark: str = ""
    """A sentence that names missing parts; empty if the texts are complete."""


def command(visit: Visit, *words: str | None, **flags: Any) -> str:
    """Return a command, quoted for a shell, in the namespace of the visit and with the viewer's reason.

    The flag `on_resume` becomes `--on-resume`. None and False leave a word or a flag out. A list repeats its flag.
    """
    named = {"namespace": _namespace(visit), "reason": visit.context.reason, **flags}
    given = [part for name, value in named.items() for part in flag(f"--{name.replace('_', '-')}", value)]
    return line(["rqsched", *(word for word in words if word is not None), *given])


def line(words: Sequence[str]) -> str:
    """Return words as one line for a shell."""
    return " ".join(map(_for_shell, words))


def flag(name: str, value: Any) -> list[str]:
    """Return the words of a flag with its value; a value that begins with a hyphen is in the same word."""
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    if isinstance(value, list | tuple):
        return [word for one in value for word in flag(name, one)]
    text = iso_utc(value) if isinstance(value, datetime) else str(value.value if isinstance(value, Enum) else value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def call(method: str, *arguments: Any, options: Mapping[str, Any] | None = None, **named: Any) -> str:
    """Return a statement of Python that calls a method.

    Arguments by name that are None or False are left out, but not those in `options`.
    """
    kept = {name: value for name, value in named.items() if value is not None and value is not False}
    kept = {**kept, **(options or {})}
    parts = [*map(quoted, arguments), *(f"{name}={quoted(value)}" for name, value in kept.items())]
    text = f"{method}({', '.join(parts)})"
    if len(text) > _WIDTH:
        lines = [part.replace("\n", "\n    ") for part in parts]
        text = "\n".join([f"{method}(", *(f"    {one}," for one in lines), ")"])
    return text


def loop(head: str, body: str) -> str:
    """Return a loop of Python over the body."""
    return "\n".join([f"{head}:", *(f"    {one}" for one in body.split("\n"))])


def with_imports(text: str) -> str:
    """Return statements of Python after the imports that they need."""
    found = []
    for module, names in _HOMES.items():
        used = [name for name in names if re.search(rf"(?<![\w.]){name}[.(]", text)]
        found += [f"from {module} import {', '.join(used)}"] if used else []
    return "\n".join([*found, "", text]) if found else text


def handle(visit: Visit, schedule_id: str | None) -> str:
    """Return the expression of Python for the handle of a schedule; None means the id in the variable `schedule_id`."""
    named = "schedule_id" if schedule_id is None else quoted(schedule_id)
    where = "".join(f", {name}={quoted(value)}" for name, value in in_namespace(visit).items())
    return f"scheduler.get({named}{where})"


def in_namespace(visit: Visit) -> dict[str, Any]:
    """Return the argument `namespace` of a call; no argument for the namespace of the settings."""
    name = _namespace(visit)
    return {} if name is None else {"namespace": name}


def reason_in_context(visit: Visit) -> CommandContext | None:
    """Return the argument `context` of a method that has no argument `reason`; None without a reason."""
    reason = visit.context.reason
    return None if reason is None else CommandContext(reason=reason)


def creation(
    visit: Visit,
    schedule_id: str,
    workflow: str,
    spec: Spec,
    options: Mapping[str, Any],
    *,
    paused: bool = False,
    note: str | None = None,
) -> Equivalent:
    """Return the creation of a schedule as a command and in Python. Options with their default are left out."""
    given = {name: value for name, value in options.items() if value != OPTIONS[name].default}
    timing, words = spec_flags(spec), option_flags(given)
    said, zone = timing_arguments(spec)
    code = call(
        "scheduler.create", schedule_id, workflow, said, options={**zone, **given}, note=note, paused=paused,
        **in_namespace(visit), context=reason_in_context(visit),
    )  # fmt: skip
    if timing is None:
        return Equivalent("", with_imports(code))
    words += ["--set", "paused=true"] if paused else []
    return Equivalent(command(visit, "create", schedule_id, workflow, *timing, *words, note=note), with_imports(code))


def change(
    visit: Visit,
    schedule: Schedule,
    options: Mapping[str, Any],
    *,
    workflow: str | None = None,
    spec: Spec | None = None,
    note: str | None = None,
) -> Equivalent:
    """Return a change of a schedule as a command and in Python. Only values that change are in the texts."""
    given, remark = dict(options), ""
    told = schedule.definition.parsed_notifications
    of_command = dict(options)
    if (targets := given.get("notifications")) is not None:
        edited = {name: value for name, value in targets.items() if value != (getattr(told, name) or None)}
        of_command["notifications"] = edited
        if any(targets.get(name) and name not in edited for name in ("webhook", "heartbeat")):
            del given["notifications"]
            remark = "The Python lacks the notifications, because their stored URLs are not shown."
    blank = [name for name, value in of_command.items() if value in _BLANK]
    timing = [] if spec is None else spec_flags(spec)
    if spec is not None and timing is not None:  # `update` keeps the limits of the present timing
        of_spec = {"start_at": spec.start_at, "end_at": spec.end_at}
        blank += [name for name, at in of_spec.items() if at is None and getattr(schedule.spec, name) is not None]
    said, zone = (None, {}) if spec is None else timing_arguments(spec)
    code = call(
        f"{handle(visit, schedule.schedule_id)}.update", options={**zone, **given}, workflow=workflow, spec=said,
        note=note, context=reason_in_context(visit),
    )  # fmt: skip
    if not (given or workflow or spec or note is not None):
        return Equivalent(remark=remark or "Nothing is changed.")
    if timing is None or not all(map(_can_unset, blank)) or any(map(_has_blank, of_command.values())):
        return Equivalent("", with_imports(code), remark)
    words = option_flags({name: value for name, value in of_command.items() if name not in blank})
    flags = {"workflow": workflow, "note": note, "unset": blank}
    return Equivalent(
        command(visit, "update", schedule.schedule_id, *timing, *words, **flags), with_imports(code), remark
    )


def _can_unset(name: str) -> bool:
    return name in {"start_at", "end_at"} or not (OPTIONS[name].is_fixed or OPTIONS[name].kind is Kind.CHOICE)


def _has_blank(value: Any) -> bool:
    """Return whether the value of an option sets one of its fields to None. No flag of the command can do that."""
    return isinstance(value, Mapping) and None in value.values()


def option_flags(options: Mapping[str, Any]) -> list[str]:
    """Return the words that give options to `rqsched create` or `update`, in the order of the table of options."""
    words: list[str] = []
    for name, option in OPTIONS.items():
        value = options.get(name)
        if name in PARTS:
            given = dict(value or {}).items()
            words += [word for field, one in given for word in _option(f"{name}.{field}", PARTS[name][field], one)]
        else:
            words += _option(name, option, value)
    return words


def _option(name: str, option: Option | Part, value: Any) -> Iterator[str]:
    if value in _BLANK:
        return
    if option.kind in {Kind.ARGUMENTS, Kind.OBJECT, Kind.ATTRIBUTES}:
        texts = [json.dumps(value)]
    elif option.kind is Kind.LABELS:
        texts = [f"{label}={text}" for label, text in value.items()]
    elif option.kind in {Kind.NAMES, Kind.TEXTS}:
        texts = [value] if isinstance(value, str) else list(value)
    elif isinstance(value, timedelta):
        texts = [in_one_unit(value)]
    else:
        texts = [f"{value:.15g}" if isinstance(value, float) else str(value)]
    for text in texts:
        yield from flag(option.flags[0], text) if option.flags else ("--set", f"{name}={text}")


def spec_flags(spec: Spec) -> list[str] | None:
    """Return the words that give a timing to `rqsched create` or `update`; None if they cannot say it.

    Exclusions and the rules for changes of clocks are options.
    """
    every = [one for one in spec.members if isinstance(one, Every)]
    alike = {(one.offset, one.anchor, one.from_completion) for one in every}
    offset, anchor, counts = alike.pop() if alike else (None, None, False)
    if alike or anchor or any(isinstance(one, Cron) and (one.timezone or one.anchor) for one in spec.members):
        return None
    words: list[str] = []
    for one in spec.members:
        match one:
            case Cron():
                words += ["--cron", one.expression]
            case Every():
                words += ["--every", in_one_unit(one.every)]
            case Once():
                words += ["--once", iso_utc(one.instant)]
            case After():
                words += ["--after", one.schedule_id, "--set", f"on={one.on}"]
    settings = {
        "cron_seconds": "first" if any(_has_seconds(one) for one in spec.members) else None,
        "offset": offset and in_one_unit(offset),
        "from_completion": "true" if counts else None,
        "start_at": spec.start_at and iso_utc(spec.start_at),
        "end_at": spec.end_at and iso_utc(spec.end_at),
    }
    words += flag("--timezone", spec.timezone if spec.names_timezone and spec.after is None else None)
    return words + [word for name, text in settings.items() if text for word in ("--set", f"{name}={text}")]


def _has_seconds(member: Member) -> bool:
    return isinstance(member, Cron) and len(member.expression.split()) == 6


def timing_arguments(spec: Spec) -> tuple[Any, dict[str, Any]]:
    """Return the argument `spec` of `create` or `update`, and the argument `timezone` if the spec has a single part."""
    if len(spec.members) > 1 or spec.start_at or spec.end_at:
        return spec, {}
    named = spec.names_timezone and spec.after is None
    return spec.members[0], {"timezone": spec.timezone} if named else {}


def quoted(value: Any) -> str:
    """Return a value as an expression of Python."""
    match value:
        case Enum():
            return quoted(value.value)
        case str():
            text = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{_escaped(text)}"'
        case datetime():
            return f"datetime.fromisoformat({quoted(iso_utc(value))})"
        case date():
            return f"date({value.year}, {value.month}, {value.day})"
        case timedelta():
            return quoted(in_one_unit(value))
        case Mapping():
            return f"{{{', '.join(f'{quoted(name)}: {quoted(one)}' for name, one in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(quoted, value))}]"
        case Cron() | Every() | Once() | After() | Spec():
            return _timing(value)
        case CommandContext():
            return call("CommandContext", **value.to_json())
        case _:
            return repr(value)


def _timing(value: Member | Spec) -> str:
    match value:
        case Cron():
            seconds = "first" if _has_seconds(value) else None
            return call("Cron", value.expression, timezone=value.timezone, anchor=value.anchor, seconds=seconds)
        case Every():
            named: dict[str, Any] = {
                "offset": value.offset,
                "anchor": value.anchor,
                "from_completion": value.from_completion,
            }
            return call("Every", value.every, **named)
        case Once():
            return call("Once", value.instant)
        case After():
            return call("After", value.schedule_id, value.on)
        case Spec():
            zone = value.timezone if value.names_timezone else None
            return call("Spec", value.members, timezone=zone, start_at=value.start_at, end_at=value.end_at)


def _escaped(text: str) -> str:
    """Return a text with escapes for characters that are invisible, or change the direction of text."""
    return "".join(
        one if one.isprintable() else f"\\u{ord(one):04x}" if one <= "\uffff" else f"\\U{ord(one):08x}" for one in text
    )


def _for_shell(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    text = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_escaped(text)}'"  # bash and zsh


def _namespace(visit: Visit) -> str | None:
    return None if visit.namespace == visit.scheduler.settings.namespace else visit.namespace
