"""The file of schedules in TOML, YAML or JSON: `sync` reads it, `export` writes it. docs/cli.md describes it.

The file has a list of entries. The keys of an entry are `schedule_id`, `workflow`, the timing (`cron`, `interval`,
`once` or `spec`), and the options of `Scheduler.create`. An unknown key in an entry is refused. An unknown key beside
the list causes a warning. Both messages suggest the nearest key.

`export` writes a file that is easy to read and to compare: sorted by id, lengths as `10m`, and without options that
have their default.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from rqsched.cli import arguments
from rqsched.cli.output import shown
from rqsched.config import Settings
from rqsched.errors import ConfigError, InvalidInputError, did_you_mean, install
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.decide.define import value_of
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import Definition, Schedule, ScheduleStatus
from rqsched.kernel.decide.options import OPTIONS, PARTS, Kind, Options
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.policy import Policies, RetryPolicy, no_retry
from rqsched.when.calendars import Calendar, require_entries, require_name
from rqsched.when.duration import in_one_unit, to_span
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec

_log = logging.getLogger(__name__)

_CALLED_ELSEWHERE = {"every": "interval"}
"""The keys that have another name in Python and in flags of the command line, by that name."""
_INSTANTS, _OF_INTERVALS = ("start_at", "end_at", "anchor", "once"), ("offset", "anchor", "from_completion")
_WHEN = ("cron", "interval", *_OF_INTERVALS, "once", "after", "on", "spec", "timezone", "start_at", "end_at")
_OWN = ("schedule_id", "workflow", "paused", "cron_seconds", *_WHEN, "note")
_KEYS = tuple(dict.fromkeys([*_OWN[:-1], *OPTIONS, "note"]))
"""The keys of an entry in the order in which they are written."""
_ENTRIES = "schedules"
_CALENDARS, _OF_CALENDARS = "calendars", ("exclude", "description", "source", "reaches")
"""The key of the table of calendars, and the keys of one calendar in it."""
_BESIDE = ("$schema", "$comment")
"""Keys that JSON may have in addition to the entries, in place of comments."""
_JSON = {Kind.ARGUMENTS: list, Kind.OBJECT: dict, Kind.ATTRIBUTES: dict}
"""The options that hold any JSON. TOML has no null, so there a value with a null is written as JSON text."""
_USUAL_RETRIES = {"retry": RetryPolicy(), "target_retry": no_retry()}
MOST_REPEATED = 1_000_000
"""The maximum number of characters that the aliases of a YAML file may repeat."""
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")
"""A key of TOML with too many parts."""
_NO_WRAPPING = 2**20
"""The width of a YAML line, so large that no line is wrapped. With wrapping, a small change could change many lines."""


class Format(StrEnum):
    """The format of a file."""

    TOML = "toml"
    """TOML 1.0."""
    YAML = "yaml"
    """YAML 1.1, as PyYAML reads it."""
    JSON = "json"
    """JSON, which cannot hold comments."""

    @classmethod
    def of(cls, path: Path) -> Format | None:
        """Return the format by a file's suffix; None for an unknown suffix."""
        suffix = path.suffix.lower().removeprefix(".")
        return cls.YAML if suffix == "yml" else cls(suffix) if suffix in list(cls) else None


def require_format(file: Path) -> Format:
    """Return the format of a file by its suffix; raises InvalidInputError for an unknown suffix."""
    named = Format.of(file)
    if named is None:
        raise InvalidInputError(
            "FILE", f"{file.name!r} must end in .toml, .yaml, .yml or .json, so that sync can read it"
        )
    return named


class FileContents(NamedTuple):
    """The declarations of a file."""

    declarations: list[Declaration]
    """Its schedules."""
    calendars: list[Calendar]
    """The calendars of the file, sorted by name."""


def read(path: Path) -> FileContents:
    """Read a file of declarations; raises InvalidInputError that names the entry or the calendar."""
    found = _parse(path)
    entries = found
    if isinstance(found, Mapping):
        entries = found.get(_ENTRIES)
        for name in sorted({str(name) for name in found} - {_ENTRIES, _CALENDARS, *_BESIDE}):  # perhaps misspelt
            hint = did_you_mean(name, [_ENTRIES, _CALENDARS])
            _log.warning("%s: %s is not a key of this file and is ignored%s", path.name, name, hint)
    if not isinstance(entries, list):
        raise InvalidInputError(path.name, "has no list of schedules; see docs/cli.md for the form")
    declarations = [_numbered(index, entry) for index, entry in enumerate(entries)]
    return FileContents(declarations, _calendars(found.get(_CALENDARS) if isinstance(found, Mapping) else None))


def _calendars(tables: object) -> list[Calendar]:
    if tables is None:
        return []
    if not isinstance(tables, Mapping):
        raise InvalidInputError(_CALENDARS, "must be a table of calendars by name; each needs exclude")
    return [_calendar_of(str(name), table) for name, table in sorted(tables.items(), key=str)]


def _calendar_of(name: str, table: object) -> Calendar:
    field = f"{_CALENDARS}.{name}"
    if not isinstance(table, Mapping):
        raise InvalidInputError(field, "must be a table with the key exclude")
    for key in sorted({str(key) for key in table} - {*_OF_CALENDARS}):
        hint = did_you_mean(key, _OF_CALENDARS) or f"; the keys are {', '.join(_OF_CALENDARS)}"
        raise InvalidInputError(f"{field}.{key}", f"is not known{hint}")
    told = {key: table.get(key) for key in ("description", "source")}
    for key, value in told.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f"{field}.{key}", f"must be text, not {type(value).__name__}")
    exclude = require_entries(table.get("exclude") or (), f"{field}.exclude")
    given = table.get("reaches")
    reaches = None if given is None else arguments.day(f"{field}.reaches", given)
    named = require_name(name, field)
    return Calendar(named, exclude, "", reaches=reaches, description=told["description"], source=told["source"])


def calendar_of(calendar: Calendar) -> dict[str, Any]:
    """Return the keys of a calendar in a file."""
    found = {name: calendar.to_dict()[name] for name in _OF_CALENDARS}
    return {name: value for name, value in found.items() if value is not None}


def _parse(path: Path) -> Any:
    parse, kind = _PARSERS[Format.of(path) or Format.JSON]
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(path.name, f"is not valid {kind}: {error}; correct it") from None
    except OSError as error:
        raise InvalidInputError(path.name, f"cannot be read: {error.strerror}") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raises ValueError for a repeated key, because a dict would lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} occurs twice in an object")
    return found


def _parse_yaml(text: str) -> Any:
    yaml = _yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        _require_distinct(yaml, node)
        if node is not None and _expanded(yaml, node, {}) > len(text) + MOST_REPEATED:
            told = f"its aliases (*name) repeat more than {MOST_REPEATED} characters; write fewer of them"
            raise ValueError(told)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        hint = "; quote texts that begin with * or @" if getattr(error, "problem_mark", None) else ""
        raise ValueError(" ".join(str(error).split()) + hint) from None
    finally:
        loader.dispose()


def _require_distinct(yaml: Any, top: Any) -> None:
    """Require that no mapping repeats a key, because PyYAML does not check this; raises ValueError."""
    waiting, seen = [top], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
            continue
        _distinct([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        waiting += [value for _, value in node.value]


def _expanded(yaml: Any, node: Any, known: dict[int, int | None]) -> int:
    """Return a document's approximate size in characters with its aliases replaced; raises ValueError for a loop."""
    if (size := known.get(id(node), 0)) is None:
        raise ValueError("an alias (*name) is inside the value that it repeats; write the value out")
    if size:
        return size
    known[id(node)] = None
    if isinstance(node, yaml.MappingNode):
        size = 1 + sum(_expanded(yaml, one, known) for pair in node.value for one in pair)
    elif isinstance(node, yaml.SequenceNode):
        size = 1 + sum(_expanded(yaml, one, known) for one in node.value)
    else:
        size = 1 + len(node.value)
    known[id(node)] = size
    return size


def _parse_toml(text: str) -> Any:
    if _LONG_KEY.search(text) is not None:  # the time of tomllib grows with the square of the parts of a key
        raise ValueError("a key has more than 64 parts (a.b.c); write fewer")
    return tomllib.loads(text)


_PARSERS: Mapping[Format, tuple[Callable[[str], Any], str]] = {
    Format.TOML: (_parse_toml, "TOML"),
    Format.YAML: (_parse_yaml, "YAML"),
    Format.JSON: (
        partial(json.loads, object_pairs_hook=_distinct),
        "JSON (a TOML file must end in .toml, a YAML file in .yaml)",
    ),
}


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - the yaml extra is optional
    except ImportError as error:
        raise ConfigError(f"YAML needs PyYAML: run {install('yaml')}.") from error
    return yaml


def _numbered(index: int, entry: object) -> Declaration:
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"schedules[{index}]", f"is a {type(entry).__name__}; write an object")
    try:
        # YAML 1.1 reads the key `on` as true.
        return declaration_of({"on" if name is True else str(name): value for name, value in entry.items()})
    except InvalidInputError as error:
        error.add_note(f"in schedules[{index}] {entry.get('schedule_id', '')}".rstrip())
        raise


def declaration_of(entry: Mapping[str, Any]) -> Declaration:
    """Read an entry; null means an absent key. Raises InvalidInputError that names the key."""
    fields = {name: value for name, value in entry.items() if value is not None}
    options = {name: value for name, value in fields.items() if name not in _OWN}
    for name in sorted(set(options) - set(OPTIONS)):
        named = _CALLED_ELSEWHERE.get(name)
        hint = f"; did you mean {named}?" if named else did_you_mean(name, {*OPTIONS, *_OWN})
        raise InvalidInputError(name, f"is not an option{hint or '; see docs/options.md'}")
    for name in ("schedule_id", "workflow"):
        if not isinstance(fields.get(name), str):
            raise InvalidInputError(name, "must be given, as text")
    if not isinstance(fields.get("paused"), bool | None):
        raise InvalidInputError("paused", "must be true or false")
    for name, value in options.items():
        if isinstance(value, str) and (kind := _JSON.get(OPTIONS[name].kind)):
            options[name] = arguments.json_of(name, value, kind)
    return Declaration(
        fields["schedule_id"],
        fields["workflow"],
        _spec(fields),
        cast("Options", options),
        fields.get("note"),
        fields.get("paused"),
    )


def _spec(fields: Mapping[str, Any]) -> Spec:
    timezone = fields.get("timezone")
    if "spec" in fields:
        if extra := [name for name in _WHEN if name in fields and name not in {"spec", "timezone"}]:
            raise InvalidInputError(extra[0], "cannot be given beside spec; put it inside spec, or leave spec out")
        return Spec.coerce(fields["spec"], timezone)
    if "on" in fields and "after" not in fields:
        raise InvalidInputError("after", "is missing; name the schedule of whose runs `on` selects the ends")
    members: list[Member] = [Cron(text, seconds=fields.get("cron_seconds")) for text in _several(fields, "cron")]
    offset = None if "offset" not in fields else arguments.span("offset", fields["offset"])
    start_at, end_at, anchor = (
        arguments.instant(name, fields[name]) if name in fields else None for name in ("start_at", "end_at", "anchor")
    )
    if anchor is not None and "interval" not in fields:
        raise InvalidInputError("anchor", "is the start of an interval; give an interval, or leave anchor out")
    from_completion = fields.get("from_completion", False)
    members += [
        Every(arguments.span("interval", value), offset=offset, anchor=anchor, from_completion=from_completion)
        for value in _several(fields, "interval")
    ]
    members += [Once(arguments.instant("once", value)) for value in _several(fields, "once")]
    members += [After(fields["after"], fields.get("on", "success"))] if "after" in fields else []
    if not members:
        raise InvalidInputError("spec", "is missing; give cron, interval, once, after or spec")
    return Spec(members, timezone or None, start_at, end_at)


def _several(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    return list(value) if isinstance(value, list) else [value]


def entry_of(schedule: Schedule, settings: Settings) -> dict[str, Any]:
    """Return the entry that declares a schedule in its current state, `tidied`.

    `untold` names the parts that an entry cannot hold. The anchor of an interval is left out if it is the time of the
    declaration, because that is the default.
    """
    definition = schedule.definition
    options = {name: value_of(name, definition) for name in OPTIONS if name != "timezone"}
    named = {"schedule_id": schedule.schedule_id, "workflow": definition.workflow, "note": schedule.note}
    paused = True if schedule.status is ScheduleStatus.PAUSED else None
    schedule.spec.require_known()
    return tidied({**named, "paused": paused, **_when(schedule.spec, schedule.timing_changed_at), **options}, settings)


def untold(definition: Definition, settings: Settings) -> dict[str, Any]:
    """Return the parts of a schedule that an entry cannot hold, by name.

    These are: values that only clients of another API can declare; a retry field without a value, if the project's
    default (RQSCHED_RETRY) has a value; a timing of a newer release.
    """
    policies, usual = definition.parsed_policies, Policies().plain()
    blank = {
        f"{name}.{field}": None
        for name in _USUAL_RETRIES
        for field in PARTS[name]
        if getattr(getattr(policies, name), field) is None and getattr(getattr(settings, name), field, None) is not None
    }
    of_others = {name: value for name, value in policies.plain().items() if name not in usual}
    newer = definition.parsed_spec.newer
    of_newer = {f"timing of a newer release ({newer})": newer} if newer else {}
    return {**loads(definition.surface), **of_others, **blank, **of_newer}


def _when(spec: Spec, declared_at: datetime) -> dict[str, Any]:
    """Return the keys of the timing. The key is `spec` if the other keys cannot express the timing."""
    crons = [member for member in spec.members if isinstance(member, Cron)]
    intervals = [member for member in spec.members if isinstance(member, Every)]
    kinds = {(one.offset, one.anchor, one.from_completion) for one in intervals}
    if len(kinds) > 1 or any(cron.timezone or cron.anchor not in {None, declared_at} for cron in crons):
        return {"spec": replace(spec, exclude=(), on_excluded="skip").to_json()}  # exclusions have separate keys
    offset, anchor, from_completion = kinds.pop() if kinds else (None, None, False)
    return {
        "cron": [cron.expression for cron in crons],
        "cron_seconds": "first" if any(len(cron.expression.split()) == 6 for cron in crons) else None,
        "interval": [one.every for one in intervals],
        "offset": offset,
        "anchor": None if anchor == declared_at else anchor,
        "from_completion": from_completion or None,
        "once": [one.instant for one in spec.members if isinstance(one, Once)],
        "after": spec.after and spec.after.schedule_id,
        "on": spec.after and spec.after.on,
        "timezone": spec.timezone,
        "start_at": spec.start_at,
        "end_at": spec.end_at,
    }


def tidied(entry: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return an entry in the form in which it is written: keys in order, and without values that equal the default.

    The defaults are rqsched's own. If the project's settings have another default for a retry field or the time zone,
    the value is always written. Lengths may be given as timedelta or seconds, instants as datetime. Raises
    InvalidInputError that names the key, as `declaration_of` does.
    """
    found = {name: _written(name, entry[name], settings) for name in _KEYS if name in entry}
    unknown = {name: entry[name] for name in entry if name not in _KEYS}
    kept = {name: value for name, value in found.items() if value is not None}
    plain: dict[str, Any] = json.loads(json.dumps(kept | unknown))  # no tuples, enums or shared objects
    declaration_of(plain)
    return plain


def usual(name: str, field: str = "") -> Any:
    """Return the default of an option, or of one of its fields, in its written form. A tidied entry omits it."""
    if name in _USUAL_RETRIES and field:
        return _retry_fields(name, _USUAL_RETRIES[name]).get(field)
    if name == "timezone":
        return "UTC"
    return _option(name, OPTIONS[name].default) if name in OPTIONS and not field else None


def _written(name: str, value: Any, settings: Settings) -> Any:
    """Return a value in its written form; None if it is left out."""
    if name in {"cron", "interval", "once"}:
        several = [_text(name, one) for one in (value if isinstance(value, list) else [value]) if one is not None]
        return several[0] if len(several) == 1 else several or None
    if name == "timezone":
        return None if value == "UTC" == settings.timezone else value
    if name in _USUAL_RETRIES:
        project = _retry_fields(name, getattr(settings, name) or _USUAL_RETRIES[name])
        given = _retry_fields(name, value).items()
        said = {
            field: one for field, one in given if one is not None and not one == usual(name, field) == project[field]
        }
        return said or None
    if name in OPTIONS:
        written = _option(name, value)
        return None if written == usual(name) else written
    return _text(name, value)


def _text(name: str, value: Any) -> Any:
    if name in {"interval", "offset"} and value is not None:
        return in_one_unit(to_span(value, name))
    if name in _INSTANTS and isinstance(value, datetime):
        return iso_utc(arguments.instant(name, value))
    return value


def _option(name: str, value: Any) -> Any:
    kind = OPTIONS[name].kind
    if kind in {Kind.NAMES, Kind.TEXTS}:
        return [value] if isinstance(value, str) else list(value or ())
    return in_one_unit(to_span(value, name)) if kind is Kind.LENGTH and value is not None else value


def _retry_fields(name: str, value: RetryPolicy | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a retry policy in their written form."""
    given = asdict(value) if isinstance(value, RetryPolicy) else dict(value or {})
    for field, part in PARTS[name].items():
        if part.kind is Kind.LENGTH and given.get(field) is not None:
            given[field] = in_one_unit(to_span(given[field], f"{name}.{field}"))
        elif part.kind is Kind.NAMES and given.get(field) is not None:
            given[field] = [given[field]] if isinstance(given[field], str) else list(given[field])
    return given


def text_of(
    entries: Iterable[Mapping[str, Any]],
    form: Format,
    *,
    head: Sequence[str] = (),
    remarks: Mapping[str, Sequence[str]] | None = None,
    calendars: Iterable[Calendar] = (),
) -> str:
    """Return the text of a file that `read` reads, with calendars and `tidied` entries, sorted by id.

    `head` are comment lines for the top of the file. `remarks` are comment lines for entries, by id. In JSON, both are
    in `$comment`.
    """
    ordered = sorted(entries, key=lambda entry: str(entry["schedule_id"]))
    said = remarks or {}
    tables = {one.name: calendar_of(one) for one in sorted(calendars, key=lambda one: one.name)}
    if form is Format.JSON:
        about = [f"{entry['schedule_id']}: {line}" for entry in ordered for line in said.get(entry["schedule_id"], ())]
        comments = {"$comment": [*head, *about]} if head or about else {}
        beside = {_CALENDARS: tables} if tables else {}
        return json.dumps({**comments, **beside, _ENTRIES: ordered}, indent=2, ensure_ascii=False) + "\n"
    is_toml = form is Format.TOML
    blocks = [
        _comment(said.get(entry["schedule_id"], ())) + (_toml_of(entry) if is_toml else _in_yaml([entry]))
        for entry in ordered
    ]
    opening = "" if is_toml else f"{_ENTRIES}:\n"
    empty = f"{_ENTRIES} = []\n" if is_toml else f"{_ENTRIES}: []\n"
    written = [(_in_toml if is_toml else _in_yaml)({_CALENDARS: tables})] if tables else []
    body = opening + "\n".join(blocks) if blocks else empty
    parts = [body, *written] if is_toml and not blocks else [*written, body]  # in TOML, tables must follow plain keys
    return _comment(head) + ("\n" if head else "") + "\n".join(parts)


def write(file: Path, text: str) -> None:
    """Replace a file atomically. A later sync of a half-written file could delete schedules.

    Raises InvalidInputError if it cannot be written.
    """
    target = file.resolve()
    new = target.with_name(f".{target.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, new)
        new.replace(target)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise InvalidInputError(str(file), f"cannot be written: {error.strerror}; name another") from None


def _comment(lines: Iterable[str]) -> str:
    return "".join(f"# {shown(line)}\n" for line in lines)


def _in_toml(value: Mapping[str, Any]) -> str:
    try:
        import tomlkit  # noqa: PLC0415 - most commands write no TOML
    except ImportError as error:
        raise ConfigError(f"writing TOML needs tomlkit: run {install('cli')}.") from error
    return tomlkit.dumps(value)


def _toml_of(entry: Mapping[str, Any]) -> str:
    sayable = {
        name: json.dumps(value, ensure_ascii=False) if _has_null(value) else value for name, value in entry.items()
    }
    return _in_toml({_ENTRIES: [sayable]})


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


def _in_yaml(value: object) -> str:
    # PyYAML reads NEL and similar characters back as blanks. If it writes ASCII, it escapes them.
    is_printable = json.dumps(value, ensure_ascii=False).isprintable()
    text: str = _yaml().safe_dump(value, sort_keys=False, allow_unicode=is_printable, width=_NO_WRAPPING)
    return text
