"""Payloads: check that values may be stored. They must be JSON-native and within size limits. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rqsched.errors import InvalidPayloadError

ARGUMENT_BYTES = 256 * 1024
"""The limit of args and kwargs together, in characters of JSON."""
MEMO_BYTES = 256 * 1024
"""The limit of a memo, of search attributes and of a command context, each in characters of JSON."""
NOTE_BYTES = 4 * 1024
"""The limit of a note or description, in characters."""
MAX_LABELS = 64
"""How many labels a schedule may have."""
MAX_LABEL_CHARACTERS = 255
"""The maximum length of a label's name, and of its value."""
MAX_DEPTH = 64
"""How deep lists and objects may be nested."""


def dumps(value: object) -> str:
    """Return canonical JSON (sorted keys, no blanks): equal values give equal texts."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_READABLE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def storable(text: str) -> str:
    """Escape NUL characters and lone surrogates, which databases refuse, so that any text can be stored."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def json_text(field: str, value: Any, limit: int) -> str:
    """Return a value as canonical JSON of at most `limit` characters; raises InvalidPayloadError.

    The limit counts characters before JSON escapes them. A value that is too long is refused before its JSON is built,
    because even a value that is small in memory may have a huge JSON: it can contain one list many times.
    """
    least = _require_native(field, value, 0, limit)
    if least > limit:
        raise InvalidPayloadError(field, f"has more than {limit} characters, which is the limit; store it elsewhere")
    text = dumps(value)
    if len(text) > limit:
        size = len(value) if isinstance(value, str) else len(_READABLE.encode(value)) if "\\u" in text else len(text)
        if size > limit:
            raise InvalidPayloadError(field, f"has {size} characters; the limit is {limit}; store it elsewhere")
    return text


def _require_native(field: str, value: Any, depth: int, most: int) -> int:
    """Return a lower bound for the length of a value's JSON, in characters. The count stops when it exceeds `most`.

    Raises InvalidPayloadError for a value that JSON cannot express.
    """
    if depth > MAX_DEPTH:
        raise InvalidPayloadError(field, f"is nested deeper than {MAX_DEPTH} levels; flatten it")
    if value is None or isinstance(value, bool):
        return 1
    if isinstance(value, str):
        _require_unicode(field, value)
        return len(value) + (2 if depth else 0)  # a text alone is counted without its quotes
    if isinstance(value, int):
        if abs(value) > 2**63:
            raise InvalidPayloadError(field, "holds a whole number beyond 64 bits; send it as text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidPayloadError(field, f"holds {value}, which JSON does not have; pass None or text")
    elif isinstance(value, list):
        return _require_list(field, value, depth, most)
    elif isinstance(value, dict):
        return _require_object(field, value, depth, most)
    else:
        raise InvalidPayloadError(
            field, f"holds a {type(value).__name__}; use JSON-native values: None, bool, int, float, str, list, dict"
        )
    return 1


def _require_list(field: str, value: list[Any], depth: int, most: int) -> int:
    least = 1
    for item in value:
        least += 1 + _require_native(field, item, depth + 1, most - least)
        if least > most + 1:  # `least` counts one comma too many, because none precedes the first item
            break
    return least


def _require_object(field: str, value: dict[Any, Any], depth: int, most: int) -> int:
    least = 1
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidPayloadError(field, f"has the key {key!r}; keys must be text")
        _require_unicode(field, key)
        least += len(key) + 4 + _require_native(field, item, depth + 1, most - least)
        if least > most + 1:
            break
    return least


def _require_unicode(field: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidPayloadError(field, "holds a lone surrogate, which is not Unicode text; remove it") from None
    if "\x00" in value:
        raise InvalidPayloadError(field, "holds a NUL character; remove it")


def require_labels(field: str, value: Any) -> str:
    """Check labels (at most 64 short texts by name) and return them as JSON; raises InvalidPayloadError."""
    if value is None:
        return "{}"
    if not isinstance(value, Mapping):
        raise InvalidPayloadError(field, f"must be an object, not {type(value).__name__}")
    if len(value) > MAX_LABELS:
        raise InvalidPayloadError(field, f"has {len(value)} labels; the limit is {MAX_LABELS}")
    for name, text in value.items():
        fits = isinstance(name, str) and isinstance(text, str) and name and len(name) <= MAX_LABEL_CHARACTERS
        if not fits or len(text) > MAX_LABEL_CHARACTERS:
            raise InvalidPayloadError(
                field, f"{name!r}: names and values are texts of at most {MAX_LABEL_CHARACTERS} characters"
            )
    return json_text(field, dict(value), MEMO_BYTES)


def loads(text: str) -> dict[str, Any]:
    """Return the object that a JSON text holds."""
    if text == "{}":  # the most frequent text
        return {}
    value: dict[str, Any] = json.loads(text)
    return value
