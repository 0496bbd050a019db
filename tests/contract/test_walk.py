"""The walk of one fire in docs/architecture.md is the one that the code takes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.sources import PACKAGE
from tests.support.processes import REPOSITORY
from tests.support.walk import walk

FUNCTION = re.compile(r"`([\w/]+\.py:[\w.]+)`")


def test_the_architecture_names_functions_of_the_walk_in_the_order_of_their_first_call(
    sqlite_url: str, redis_url: str
) -> None:
    section = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Walk of one fire")[2]
    named = list(dict.fromkeys(FUNCTION.findall(section.partition("\n## ")[0])))
    assert len(named) > 15

    steps = walk(sqlite_url, redis_url)

    taken = [f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}" for code in steps]
    assert [name for name in named if name not in taken] == []
    assert named == sorted(named, key=taken.index)
