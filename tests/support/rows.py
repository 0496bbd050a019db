"""A table in one test: each row is checked, and all that fail are told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Row = Callable[[object], AbstractContextManager[None]]


@contextmanager
def every_row() -> Iterator[Row]:
    """Yield `row(name)`, in whose block a row is checked; a row that fails does not keep the others from it.

    For rows that change nothing, so that they share an expensive setup.
    """
    failures: list[str] = []

    @contextmanager
    def row(name: object) -> Iterator[None]:
        try:
            yield
        except (AssertionError, pytest.fail.Exception) as error:
            failures.append(f"{name}: {error}")

    yield row
    assert not failures, "\n".join([f"{len(failures)} rows fail", *failures])
