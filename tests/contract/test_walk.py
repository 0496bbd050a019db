"""The walk of one fire in docs/architecture.md is the one that the code takes, and stays as short as it says."""

from __future__ import annotations

import re

from tests.support.processes import REPOSITORY
from tests.support.walk import file_of, walk

FUNCTION = re.compile(r"`([\w/]+\.py:[\w.]+)`")
MOST_FILES_NAMED = 20
"""What one has to read to understand a fire."""
MOST_FILES, MOST_FUNCTIONS, DEEPEST = 45, 235, 18
"""What is entered on the way. A feature that an ordinary run does not use adds at most the function that says so."""


def named_functions() -> list[str]:
    """The functions that the page names, in its order."""
    section = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Walk of one fire")[2]
    return list(dict.fromkeys(FUNCTION.findall(section.partition("\n## ")[0])))


def test_the_architecture_names_functions_of_the_walk_in_the_order_of_their_first_call(
    sqlite_url: str, redis_url: str
) -> None:
    named = named_functions()
    assert len(named) > 15

    taken = [f"{file_of(code)}:{code.co_qualname}" for code in walk(sqlite_url, redis_url).steps]

    assert [name for name in named if name not in taken] == []
    assert named == sorted(named, key=taken.index)


def test_the_walk_of_an_ordinary_fire_stays_within_its_bounds(sqlite_url: str, redis_url: str) -> None:
    taken = walk(sqlite_url, redis_url)

    assert len({name.partition(":")[0] for name in named_functions()}) <= MOST_FILES_NAMED
    assert len({file_of(code) for code in taken.steps}) <= MOST_FILES
    assert len(taken.steps) <= MOST_FUNCTIONS
    assert len(taken.deepest) <= DEEPEST
