"""Split a list into parts that are small enough for one statement, transaction or call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the parts of a list in order. Each part has `size` items; the last part may have fewer.

    >>> list(chunks("abcde", 2))
    ['ab', 'cd', 'e']
    """
    return (items[start : start + size] for start in range(0, len(items), size))
