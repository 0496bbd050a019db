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
"""The number of files to read to understand a fire."""
MOST = {"simple": (47, 208, 18), "runner": (54, 247, 23), "horse": (53, 281, 22)}
"""Files and functions of the kernel that an ordinary fire enters, and the depth of the stack, by who executes the run.

It enters up to 207, 246 and 271 functions on PostgreSQL, and 207, 246 and 280 on SQLite, which closes its file before a
fork. A busy machine makes no difference. One more is room for what nobody has seen yet.
"""


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
    assert len({step.file for step in taken.kernel}) <= most_files
    assert len(taken.kernel) <= most_functions
    assert len(taken.deepest) <= deepest


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("executor", MOST)
def test_an_ordinary_fire_enters_no_file_of_a_feature(
    walks: dict[tuple[str, str], Walk], kind: str, executor: str
) -> None:
    assert walks[kind, executor].features == []
