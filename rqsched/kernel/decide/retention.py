"""Retention: how much history a schedule keeps. This module reads it from the text of a setting or an option. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from rqsched.errors import InvalidDurationError, InvalidPolicyError
from rqsched.when.duration import format_duration, parse_span

YOUNG = timedelta(days=1)
"""A run stays at least this long after its end, because its idempotency key is valid for this long."""
LONGEST_AGE = timedelta(days=36_600)
"""The greatest age."""
MOST_RUNS = 2**53
"""The greatest number of runs."""
HOW_TO_SAY = "write an age such as 90d, a number of runs such as 1000, both, or 0 to keep everything"
"""The form of a retention, for messages."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history a schedule keeps. Rows beyond either bound are removed.

    >>> str(Retention.parse("P90D, 1000"))
    '90d 1000'
    >>> Retention.parse("0").keeps_all
    True
    """

    age: timedelta | None = None
    """Rows that ended longer ago than this are removed; None is no bound."""
    runs: int | None = None
    """The number of newest runs that stay; None is no bound."""

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever removed."""
        return self.age is None and self.runs is None

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        words = []
        if self.age is not None:
            is_whole = self.age == timedelta(days=self.age.days)
            words.append(f"{self.age.days}d" if is_whole else format_duration(self.age))
        if self.runs is not None:
            words.append(str(self.runs))
        return " ".join(words) or "0"

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str) -> Retention:
        """Read an age, a number of runs, both (separated by blanks or a comma), or `0`; raises InvalidPolicyError."""
        words = text.replace(",", " ").split() if isinstance(text, str) else []
        if words == ["0"]:
            return Retention()
        counts = [word for word in words if word.isascii() and word.isdigit()]
        ages = [word for word in words if word not in counts]
        if not words or len(counts) > 1 or len(ages) > 1:
            raise InvalidPolicyError("retention", f"{text!r} is not a valid retention; {HOW_TO_SAY}")
        age = _age(ages[0]) if ages else None
        if counts and not 1 <= int(counts[0][:20]) <= MOST_RUNS:
            told = f"a number of runs is from 1 to 2**53, not {counts[0]}; {HOW_TO_SAY}"
            raise InvalidPolicyError("retention", told)
        return Retention(age, int(counts[0]) if counts else None)


def _age(word: str) -> timedelta:
    try:
        age = parse_span(word)
    except InvalidDurationError as error:
        raise InvalidPolicyError("retention", f"{word!r} is not a valid age: {error.reason}") from None
    if not YOUNG <= age <= LONGEST_AGE:
        raise InvalidPolicyError("retention", f"an age is from 1d to {LONGEST_AGE.days}d, not {word}; {HOW_TO_SAY}")
    return age
