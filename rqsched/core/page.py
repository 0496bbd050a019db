"""Pages: a bounded part of a list, and where the next part starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
MAX_PAGE = 500
"""The most items of one page."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    """In the order of the list."""
    next_cursor: str | None = None
    """Opaque: passed to read the next page; None on the last page."""

    def map(self, convert: Callable[[T], R]) -> Page[R]:
        """Return the same page with converted items."""
        return Page([convert(item) for item in self.items], self.next_cursor)


def pages(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """Read page after page; yields their items."""
    cursor: str | None = None
    while True:
        page = read(cursor)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return
