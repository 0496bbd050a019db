"""The options that the form of a schedule lists in groups, made from the table; the others it lays out itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from rqsched.core.model import Schedule
from rqsched.core.option_table import METADATA, OPTIONS, PARTS, POLICY, TARGETS, WHAT, Kind
from rqsched.core.payload import loads
from rqsched.dashboard import notification_fields
from rqsched.errors import InvalidInputError

_LAID_OUT = {
    "timezone", "jitter", "args", "kwargs", "labels", "overlap", "missed", "queue", "timeout", "max_runs",
    "description", "owner", "on_failure", "on_recovery", "expect_success_within", "notifications",
}  # fmt: skip
_OBJECTS = frozenset({Kind.OBJECT, Kind.ATTRIBUTES})
_FORMS = {Kind.NAMES: " Separated by commas."} | dict.fromkeys(_OBJECTS, " A JSON object.")
"""How the values of a kind are written, where it is not plain."""


class Field(NamedTuple):
    """One field of the form."""

    name: str
    """Of the option, with `.` and a field of it where it is a policy of retries."""
    label: str
    """What it is called."""
    hint: str
    """What it does."""
    choices: tuple[str, ...] = ()
    """The values to choose from; empty: it is typed."""


def groups(*, is_new: bool) -> dict[str, list[Field]]:
    """Return the fields by their group; what is fixed at the create only for a new schedule."""
    found: dict[str, list[Field]] = {group: [] for group in (POLICY, TARGETS, WHAT, METADATA)}
    for name, option in OPTIONS.items():
        if name not in _LAID_OUT and (is_new or not option.is_fixed):
            found[option.group] += _fields(name)
    return found


def _fields(name: str) -> Iterator[Field]:
    option = OPTIONS[name]
    label = name.replace("_", " ").capitalize()
    if option.kind is Kind.RETRY:
        for field, part in PARTS[name].items():
            yield Field(f"{name}.{field}", f"{label}: {field.replace('_', ' ')}", part.help, part.choices)
        return
    yield Field(name, label, option.help + _FORMS.get(option.kind, ""), option.choices)


def shown(schedule: Schedule | None) -> dict[str, str]:
    """Return the text of every field, as a schedule has it; without one as a new schedule would."""
    found: dict[str, str] = {}
    for name, option in OPTIONS.items():
        if name in _LAID_OUT:
            continue
        value = option.default if schedule is None else _value(name, schedule)
        if option.kind is Kind.RETRY:
            found |= {f"{name}.{field}": _text(value and getattr(value, field)) for field in PARTS[name]}
        else:
            found[name] = _text(value)
    return found


def _value(name: str, schedule: Schedule) -> Any:
    field = OPTIONS[name].policy
    value = getattr(schedule.definition, name) if field is None else getattr(schedule.policies, field)
    return loads(value) if OPTIONS[name].kind in _OBJECTS else value


def _text(value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, timedelta):
        return notification_fields.length(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(value)
    return json.dumps(value) if isinstance(value, Mapping) else f"{value:g}" if isinstance(value, float) else str(value)


def options_of(form: Mapping[str, str], schedule: Schedule | None) -> dict[str, Any]:
    """Return the options whose fields differ from what is stored; raises InvalidInputError, which names the field."""
    before, found = shown(schedule), dict[str, Any]()
    for field, stored in before.items():
        text = form.get(field, stored).strip()
        if text == stored:
            continue
        name, _, inner = field.partition(".")
        if inner:
            found.setdefault(name, {})[inner] = _read(field, PARTS[name][inner].kind, text) if text else None
        else:
            found[name] = _read(name, OPTIONS[name].kind, text) if text else OPTIONS[name].default
    return found


def _read(field: str, kind: Kind, text: str) -> Any:
    match kind:
        case Kind.COUNT:
            return _whole(field, text)
        case Kind.NUMBER:
            return _number(field, text)
        case Kind.LENGTH:  # a bare number is seconds, else text such as 2h
            return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else text
        case Kind.NAMES:
            return [one.strip() for one in text.split(",") if one.strip()]
        case Kind.OBJECT | Kind.ATTRIBUTES:
            return _object(field, text)
        case _:
            return text


def _number(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(field, f"{text[:32]!r} is not a number") from None


def _whole(field: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16:
        raise InvalidInputError(field, f"{text[:32]!r} is not a whole number")
    return int(text)


def _object(name: str, text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError(name, 'is not JSON; write an object such as {"tier": 3}') from None
    if not isinstance(found, dict):
        raise InvalidInputError(name, 'must be a JSON object, such as {"tier": 3}')
    return found
