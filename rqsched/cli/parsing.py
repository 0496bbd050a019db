"""Turns the texts of a command line into values; errors name the option and say what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from rqsched.errors import InvalidDurationError, InvalidInputError, InvalidPayloadError
from rqsched.spec.duration import parse_span

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_FORMS = {"list": "list, such as '[1, \"eu\"]'", "dict": 'object, such as \'{"region": "eu"}\''}


def given_text(option: str, text: str | None) -> str | None:
    """Return the text of an option; raises InvalidInputError for a blank one, which an unset variable leaves."""
    if text is not None and not text.strip():
        raise InvalidInputError(option, "is blank; give a value, or leave the option out")
    return text


def instant(option: str, text: str | datetime) -> datetime:
    """Read an aware ISO 8601 instant; raises InvalidInputError for a naive one."""
    try:
        value = datetime.fromisoformat(text) if isinstance(text, str) else text
    except ValueError:
        raise InvalidInputError(option, f"{text!r} is not a valid instant; write 2026-01-31T08:00:00Z") from None
    if value.tzinfo is None:
        raise InvalidInputError(option, f"{text!s} names no timezone; add Z or an offset such as +01:00")
    return value


def span(option: str, text: str | float) -> timedelta:
    """Read a length: a bare number is seconds, else `90s`, `1h30m` or ISO 8601 `PT30M`."""
    shown = str(text)
    if _SECONDS.fullmatch(shown):
        return timedelta(seconds=float(shown))
    try:
        return parse_span(shown)
    except InvalidDurationError as error:
        raise InvalidDurationError(option, error.reason) from error


def json_of(option: str, text: str, *kinds: type[Any]) -> Any:
    """Read JSON of one of the kinds (list, dict)."""
    forms = " or a JSON ".join(_FORMS[kind.__name__] for kind in kinds)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidPayloadError(option, f"is not valid JSON ({error}); write a JSON {forms}") from None
    except RecursionError:
        raise InvalidPayloadError(option, "is nested too deeply") from None
    if not isinstance(value, kinds):
        raise InvalidPayloadError(option, f"is the wrong kind of JSON; write a JSON {forms}")
    return value


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read `name=value` texts; the last of a name wins."""
    split = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, split, strict=True):
        if not (name and equals):
            raise InvalidInputError(option, f"{text!r} is refused; write name=value")
    return {name: value for name, _, value in split}


def json_pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` texts whose values are JSON where they can be read so, else text: `tier=3`, `city=Rome`."""
    return {name: _json_or_text(value) for name, value in pairs(option, texts).items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
