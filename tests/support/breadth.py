"""Choose the tests that `make test` leaves to `make test-all`.

`make test` proves each promise where it is made. Elsewhere it is proven again: by real processes, through packages of
others, at more steps of a crash. Those places are BROAD, and what is there is for `make test-all`, but for the tests
that are marked `once` and those that the table of mutations or the map of promises names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from tests.support.promises import PROMISES
from tests.system.mutation.table import MUTATIONS

TESTS = Path(__file__).parents[1]
BROAD = (
    TESTS / "contrib",
    TESTS / "contract" / "test_docs.py",  # builds the site
    TESTS / "dashboard" / "test_monitoring.py",  # asks a real Prometheus
    TESTS / "durable_workflow" / "test_checks.py",
    TESTS / "http" / "test_schemathesis.py",
    TESTS / "http" / "test_schemathesis_stateful.py",
    TESTS / "importers",
    TESTS / "system" / "acceptance",
    TESTS / "system" / "applications",
    TESTS / "system" / "compatibility",
    TESTS / "system" / "crash",
    TESTS / "system" / "worlds",
)
"""Folders and files whose tests `make test-all` adds."""
NAMED = frozenset(chain(*PROMISES.values(), *(mutation.noticed_by for mutation in MUTATIONS)))
"""The tests without which a mutation would not be noticed or a promise not be proven."""
_NAMED_FILES = frozenset(name.partition("::")[0] for name in NAMED)


def mark_broad(items: Sequence[pytest.Item]) -> None:
    """Mark what `make test` leaves out."""
    for item in items:
        if _is_in_broad(item.path) and item.get_closest_marker("once") is None and item.nodeid not in NAMED:
            item.add_marker(pytest.mark.broad)


def has_nothing_for(markers: str, path: Path) -> bool:
    """Tell whether no test of a file is in `make test`, so that it need not be imported."""
    return (
        "not broad" in markers
        and path.name.startswith("test_")
        and _is_in_broad(path)
        and path.relative_to(TESTS.parent).as_posix() not in _NAMED_FILES
        and "mark.once" not in path.read_text()
    )


def _is_in_broad(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in BROAD)
