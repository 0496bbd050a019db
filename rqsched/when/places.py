"""Places: the numbers that `H` in a cron field stands for.

A number is a hash of the schedule's namespace and id, not random. So schedules with the same expression get different
numbers, and each schedule always gets the same numbers. They are stored with the schedule (`Cron.numbers`), so another
hash function would move only schedules that are declared again. This file reads no clock and no database.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from rqsched.errors import InvalidCronError

_FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)
"""The name and the range of each of the six fields."""
_LAST_OF_EACH_MONTH = 28
"""The last day that every month has. A plain `H` never stands for a later day of the month."""
_H = re.compile(r"(?:^|[ \t,])H(?=$|[ \t,(/])", re.IGNORECASE)
_ITEM = re.compile(r"H(?:\((?P<first>[0-9]{1,2})-(?P<last>[0-9]{1,2})\))?(?:/(?P<step>[0-9]{1,4}))?", re.IGNORECASE)


def has_place(expression: str) -> bool:
    """Return whether an expression has an `H`."""
    return _H.search(expression) is not None


def placed(expression: str, salt: str) -> str:
    """Return an expression with a number for each `H`; the same `salt` gives the same numbers.

    `H` becomes one value of the field, `H(0-7)` one value of the range, and `H/15` every 15th value from a start below
    15. Raises InvalidCronError for any other form of `H`. The parser reports all other errors.
    """
    if not has_place(expression):
        return expression
    fields = expression.split()
    named = _FIELDS[len(_FIELDS) - len(fields) :]
    if len(named) != len(fields):
        return expression
    return " ".join(
        ",".join(_number(item, field, salt) if item[:1] in {"H", "h"} else item for item in text.split(","))
        for text, field in zip(fields, named, strict=True)
    )


def _number(item: str, field: tuple[str, int, int], salt: str) -> str:
    name, low, high = field
    match = _ITEM.fullmatch(item)
    if match is None:
        raise InvalidCronError("cron", f"{item!r} is not a valid {name}; write H, H(a-b), H/n or H(a-b)/n")
    first, last = (
        int(match["first"] or low),
        int(match["last"] or (min(high, _LAST_OF_EACH_MONTH) if name == "day of month" else high)),
    )
    if not low <= first <= last <= high:
        raise InvalidCronError("cron", f"{item!r} is not a range of the {name}; write H({low}-{high}) or a part of it")
    step = int(match["step"] or 0)
    if match["step"] and not step:
        raise InvalidCronError("cron", f"{item!r} has a step of 0; write a step of at least 1")
    size = last - first + 1
    drawn = int.from_bytes(blake2b(f"{salt}:{name}".encode(), digest_size=8).digest())
    start = first + drawn % (min(step, size) if step else size)
    return f"{start}-{last}/{step}" if step and start + step <= last else str(start)
