"""The options of limits: check their values, and compute the name of the group of a schedule's runs. Pure.

A limit applies to a group of runs: it limits how many of them run at once or start in a window of time. The decisions
about limits are in `features/limits/decide.py`. These checks are in the kernel, because the option table and the model
of the rows need them.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

from rqsched.errors import InvalidDurationError, InvalidPolicyError
from rqsched.when.duration import parse_span

MAX_NUMBER = 10_000
"""The maximum number of runs of a group that may run at once."""
MAX_STARTS = 100_000
"""The maximum number of starts that a rate may name. The number is bounded because each grant of a place counts recent
starts."""
MAX_PERIOD = timedelta(days=31)
"""The longest window of a rate; the shortest is a second."""
MAX_NAME = 255
"""The maximum length of a group's name, in characters."""
_RATE = re.compile(r"(?P<number>[0-9]{1,9})/(?P<count>[0-9]{0,9})(?P<unit>[a-z]+)")
_UNITS = {"day": 86_400, "h": 3_600, "min": 60, "s": 1}
_SPELLINGS = {"d": "day", "hour": "h", "m": "min", "minute": "min", "sec": "s", "second": "s"}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LABEL = "labels."


def require_limit(name: str, value: object) -> str | None:
    """Check the template of a group's name; raises InvalidPolicyError."""
    if value is None:
        return None
    if not isinstance(value, str) or not is_name(value):
        raise InvalidPolicyError(name, f"must be 1 to {MAX_NAME} printable characters without spaces, or None")
    for placeholder in _PLACEHOLDER.findall(value):
        is_label = placeholder.startswith(_LABEL) and placeholder != _LABEL
        if placeholder != "namespace" and not is_label:
            raise InvalidPolicyError(name, f"{{{placeholder}}} is neither {{labels.NAME}} nor {{namespace}}")
    if set("{}") & set(_PLACEHOLDER.sub("", value)):
        raise InvalidPolicyError(name, "has a brace that belongs to no {labels.NAME} and no {namespace}")
    return value


class Rate(NamedTuple):
    """How many attempts of a group may start in any window of a given length.

    >>> str(Rate.parse("limit_rate", "100/minute")), str(Rate.parse("limit_rate", "5/PT90S"))
    ('100/min', '5/90s')
    """

    number: int
    """The number of attempts."""
    seconds: int
    """The length of the window, in seconds."""

    @property
    def period(self) -> timedelta:
        """The length of the window."""
        return timedelta(seconds=self.seconds)

    @property
    def window(self) -> str:
        """The window in words: `minute`, `10 min`."""
        unit = self._unit
        count = self.seconds // _UNITS[unit]
        words = {"min": "minute", "h": "hour", "s": "second"}
        return words.get(unit, unit) if count == 1 else f"{count} {unit}{'s' if unit == 'day' else ''}"

    @property
    def _unit(self) -> str:
        return next(unit for unit, size in _UNITS.items() if self.seconds % size == 0)

    def __str__(self) -> str:
        """Return the canonical text of the rate, which `parse` reads."""
        unit = self._unit
        count = self.seconds // _UNITS[unit]
        return f"{self.number}/{unit}" if count == 1 else f"{self.number}/{count}{'d' if unit == 'day' else unit}"

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(name: str, text: str) -> Rate:
        """Read a rate, the value of the option `name`; raises InvalidPolicyError."""
        match = _RATE.fullmatch(text)
        unit = match and _SPELLINGS.get(match["unit"], match["unit"])
        number, _, window = text.partition("/")
        try:
            if match and unit in _UNITS:
                seconds: float = int(match["count"] or 1) * _UNITS[unit]
            else:
                seconds = parse_span(window).total_seconds()
        except InvalidDurationError:
            seconds = 0
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MAX_STARTS))
        if not is_number or not 1 <= int(number) <= MAX_STARTS:
            raise InvalidPolicyError(name, f"{text[:64]!r} is not N/window with N from 1 to {MAX_STARTS}, as in {_HOW}")
        if seconds != int(seconds) or not 1 <= seconds <= MAX_PERIOD.total_seconds():
            longest = f"a window of whole seconds, from 1 s to {MAX_PERIOD.days} days"
            raise InvalidPolicyError(name, f"{text[:64]!r} does not name {longest}, as in {_HOW}")
        return Rate(int(number), int(seconds))


_HOW = "100/min, 5/30s, 10/h or 1000/day"


def require_rate(name: str, value: object) -> str | None:
    """Return the canonical text of a rate; raises InvalidPolicyError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidPolicyError(name, f"must be text such as {_HOW}, or None")
    return str(Rate.parse(name, value))


def is_name(text: object) -> bool:
    """Return whether a value is a valid name of a group. `.` and `..` are not: browsers drop them from paths."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME or text in {".", ".."}:
        return False
    return text.isprintable() and not any(one.isspace() for one in text)


@lru_cache(maxsize=4096)
def name_of(template: str, namespace: str, labels: str) -> str:
    """Return the name of the group that a schedule's runs belong to; `labels` is the JSON of its labels.

    Raises InvalidPolicyError if a label of the template is missing, or if the result is not a valid name.

    >>> name_of("tenant:{labels.tenant}", "default", '{"tenant":"42"}')
    'tenant:42'
    """
    known: dict[str, str] = json.loads(labels)

    def text_of(found: re.Match[str]) -> str:
        placeholder = found[1]
        if not placeholder.startswith(_LABEL):
            return namespace
        label = placeholder.removeprefix(_LABEL)
        if label not in known:
            raise InvalidPolicyError("limit", f"{template!r} names the label {label!r}; give the schedule that label")
        return known[label]

    name = _PLACEHOLDER.sub(text_of, template)
    if not is_name(name):
        reason = f"is no name of 1 to {MAX_NAME} printable characters without spaces; change the label"
        raise InvalidPolicyError("limit", f"{template!r} becomes {name[:300]!r}, which {reason}")
    return name


def key_of(namespace: str, name: str) -> str:
    """Return the key of a group, `namespace/name`. Keys are unique, because the name of a namespace has no slash."""
    return f"{namespace}/{name}"


def split_key(key: str) -> tuple[str, str]:
    """Return the namespace and the name of a group from its key."""
    namespace, _, name = key.partition("/")
    return namespace, name
