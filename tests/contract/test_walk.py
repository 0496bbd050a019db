"""The walk of one fire in docs/architecture.md is the one that the code takes, and stays as short as it says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY
from tests.support.walk import Walk, read

FUNCTION = re.compile(r"`([\w/]+\.py:[\w.]+)`")
MOST_FILES_NAMED = 20
"""What one has to read to understand a fire."""
MOST = {"simple": (46, 212, 18), "runner": (52, 246, 21), "horse": (52, 273, 21)}
"""Files and functions that are entered, and the depth of the stack, by who executes the run.

A feature that an ordinary run does not use adds at most the function that says so. A quiet machine enters
207, 239 and 266 at most; the rest is room for a slow one, which reads the hold again after a second, renews a
registration, and the like."""


def named_functions() -> list[str]:
    """The functions that the page names, in its order."""
    section = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Walk of one fire")[2]
    return list(dict.fromkeys(FUNCTION.findall(section.partition("\n## ")[0])))


@pytest.fixture(scope="module")
def walks() -> dict[tuple[str, str], Walk]:
    """Every walk, taken in a process of its own: threads that other tests have left here would be seen, too."""
    command = [sys.executable, "-m", "tests.support.walk", "--json"]
    taken = subprocess.run(command, cwd=REPOSITORY, check=True, text=True, stdout=subprocess.PIPE)
    return read(taken.stdout)


def test_the_architecture_names_functions_of_the_walk_in_the_order_of_their_first_call(
    walks: dict[tuple[str, str], Walk],
) -> None:
    named = named_functions()
    assert len(named) > 15
    assert len({name.partition(":")[0] for name in named}) <= MOST_FILES_NAMED

    taken = [str(step) for step in walks["sqlite", "simple"].steps]

    assert [name for name in named if name not in taken] == []
    assert named == sorted(named, key=taken.index)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("executor", MOST)
def test_the_walk_of_an_ordinary_fire_stays_within_its_bounds(
    walks: dict[tuple[str, str], Walk], kind: str, executor: str
) -> None:
    taken = walks[kind, executor]

    most_files, most_functions, deepest = MOST[executor]
    assert len(taken.files) <= most_files
    assert len(taken.steps) <= most_functions
    assert len(taken.deepest) <= deepest
