"""The options that the form of a schedule lists in groups, made from the table; the others it lays out itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, NamedTuple

from rqsched.core.model import Schedule
from rqsched.core.option_table import METADATA, OPTIONS, POLICY, TARGETS, WHAT, Kind, help_of
from rqsched.core.payload import loads
from rqsched.core.policy import Exhausted, RetryPolicy
from rqsched.dashboard import notification_fields
from rqsched.errors import InvalidInputError

_LAID_OUT = {
    "timezone", "jitter", "args", "kwargs", "labels", "overlap", "missed", "queue", "timeout", "max_runs",
    "description", "owner", "on_failure", "on_recovery", "expect_success_within", "notifications",
}  # fmt: skip
_OF_RUNS = ("then", "max_consecutive_failures")
_OBJECTS = frozenset({Kind.OBJECT, Kind.ATTRIBUTES})


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
        for field in _retry_fields(name):
            choices = tuple(Exhausted) if field == "then" else ()
            yield Field(f"{name}.{field}", f"{label}: {field.replace('_', ' ')}", option.help, choices)
        return
    forms = {Kind.NAMES: " Apart by commas.", Kind.OBJECT: " A JSON object.", Kind.ATTRIBUTES: " A JSON object."}
    hint = option.help if option.choices else help_of(option) + forms.get(option.kind, "")
    yield Field(name, label, hint, option.choices)


def _retry_fields(name: str) -> list[str]:
    return [field.name for field in fields(RetryPolicy) if name == "retry" or field.name not in _OF_RUNS]


def shown(schedule: Schedule | None) -> dict[str, str]:
    """Return the text of every field, as a schedule has it; without one as a new schedule would."""
    found: dict[str, str] = {}
    for name, option in OPTIONS.items():
        if name in _LAID_OUT:
            continue
        value = option.default if schedule is None else _value(name, schedule)
        if option.kind is Kind.RETRY:
            found |= {f"{name}.{field}": _text(value and getattr(value, field)) for field in _retry_fields(name)}
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
            found.setdefault(name, {})[inner] = _read_retry(field, inner, text)
        else:
            found[name] = _read(name, text)
    return found


def _read_retry(field: str, inner: str, text: str) -> Any:
    if not text or inner == "then":
        return text or None
    if inner == "factor":
        try:
            return float(text)
        except ValueError:
            raise InvalidInputError(field, f"{text[:32]!r} is not a number") from None
    return _length(text) if inner in {"base", "cap", "jitter"} else _whole(field, text)


def _read(name: str, text: str) -> Any:
    option = OPTIONS[name]
    if not text:
        return option.default
    match option.kind:
        case Kind.COUNT:
            return _whole(name, text)
        case Kind.LENGTH:
            return _length(text)
        case Kind.NAMES:
            return [one.strip() for one in text.split(",") if one.strip()]
        case Kind.OBJECT | Kind.ATTRIBUTES:
            return _object(name, text)
        case _:
            return text


def _whole(field: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16:
        raise InvalidInputError(field, f"{text[:32]!r} is not a whole number")
    return int(text)


def _length(text: str) -> str | float:
    """Return a length as text, such as `2h`; a bare number is seconds."""
    return float(text) if text.replace(".", "", 1).isdigit() and text.isascii() else text


def _object(name: str, text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError(name, 'is not JSON; write an object such as {"tier": 3}') from None
    if not isinstance(found, dict):
        raise InvalidInputError(name, 'must be a JSON object, such as {"tier": 3}')
    return found
