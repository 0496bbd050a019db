"""The kinds of values a request body may hold, as types that say their limits in the OpenAPI document."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from rqsched.spec.duration import parse_span

LONGEST_SECONDS = 100 * 366 * 86_400
_FIRST_YEAR, _LAST_YEAR = 1970, 2500


def read_instant(value: Any) -> datetime:
    """Read an ISO 8601 instant with an offset; raises ValueError that says what to write."""
    if not isinstance(value, str):
        raise ValueError("must be text, such as 2026-01-31T08:00:00Z")  # noqa: TRY004 - pydantic reports ValueErrors
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is no instant; write 2026-01-31T08:00:00Z") from None
    if instant.tzinfo is None:
        raise ValueError("names no timezone; add Z or an offset such as +01:00")
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise ValueError(f"is outside the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return instant.astimezone(UTC)


def read_span(value: Any) -> timedelta:
    """Read a length: a number is seconds, a text is `90s`, `1h30m` or ISO 8601 `PT30M`; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be seconds, or text such as 30m or PT30M")  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, str):
        return parse_span(value)
    if not 0 <= value <= LONGEST_SECONDS:
        raise ValueError(f"must be from 0 to {LONGEST_SECONDS} seconds")
    return timedelta(seconds=value)


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else [value]


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Instant = Annotated[datetime, BeforeValidator(read_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
"""ISO 8601 with an offset."""
_SPAN_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": LONGEST_SECONDS, "description": "Seconds."},
        {"type": "string", "maxLength": 64, "examples": ["30m", "PT30M"]},
    ]
}
Span = Annotated[timedelta, BeforeValidator(read_span), WithJsonSchema(_SPAN_SCHEMA)]
"""Seconds, `1h30m` or `PT30M`."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
Id = Annotated[str, Field(pattern=rf"^{ID.pattern}$")]
"""A schedule id, or a name of the same alphabet."""
Name = Annotated[str, Field(min_length=1, max_length=255)]
NumberedName = Annotated[Name, BeforeValidator(_text_of_number)]
"""A name, or the number that another system knows it by."""
Note = Annotated[str, Field(max_length=4096)]
Crons = Annotated[
    list[Annotated[str, Field(max_length=1024)]],
    BeforeValidator(_listed),
    Field(max_length=100),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 100}]}),
]
"""One cron expression, or several."""
Instants = Annotated[
    list[Instant],
    BeforeValidator(_listed),
    Field(max_length=1000),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "array", "items": {"type": "string", "format": "date-time"}, "maxItems": 1000},
            ]
        }
    ),
]
"""One instant, or several."""
Count = Annotated[int, Field(ge=1, le=2**53)]
Repeats = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[int, Field(ge=1, le=86_400 * 30)]
Retries = Annotated[int, Field(ge=0, le=1_000_000)]
JsonObject = dict[str, Any]
Labels = Annotated[dict[str, str], Field(max_length=64)]
