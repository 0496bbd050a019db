"""The walk of one fire in docs/architecture.md is the one that the code takes, and stays as short as it says."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import REPOSITORY
from tests.support.walk import walk

FUNCTION = re.compile(r"`([\w/]+\.py:[\w.]+)`")
MOST_FILES_NAMED = 20
"""What one has to read to understand a fire."""
MOST = {"simple": (50, 250, 20), "runner": (55, 284, 23), "horse": (57, 320, 23)}
"""Files and functions that are entered, and the depth of the stack, by who executes the run.

A feature that an ordinary run does not use adds at most the function that says so. What a slow machine enters besides,
such as a look at a horse that takes long, is room of some functions."""


def named_functions() -> list[str]:
    """The functions that the page names, in its order."""
    section = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Walk of one fire")[2]
    return list(dict.fromkeys(FUNCTION.findall(section.partition("\n## ")[0])))


def test_the_architecture_names_functions_of_the_walk_in_the_order_of_their_first_call(
    sqlite_url: str, redis_url: str
) -> None:
    named = named_functions()
    assert len(named) > 15
    assert len({name.partition(":")[0] for name in named}) <= MOST_FILES_NAMED

    taken = [str(step) for step in walk(sqlite_url, redis_url).steps]

    assert [name for name in named if name not in taken] == []
    assert named == sorted(named, key=taken.index)


@pytest.mark.parametrize("executor", MOST)
def test_the_walk_of_an_ordinary_fire_stays_within_its_bounds(database_url: str, redis_url: str, executor: str) -> None:
    taken = walk(database_url, redis_url, executor)

    most_files, most_functions, deepest = MOST[executor]
    assert len(taken.files) <= most_files
    assert len(taken.steps) <= most_functions
    assert len(taken.deepest) <= deepest
