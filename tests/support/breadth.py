"""Choose the tests that `make test` leaves to `make test-all`.

`make test` proves each promise where it is made. Elsewhere it is proven again: by real processes, through packages of
others, at more steps of a crash. Those places are BROAD, and what is there is for `make test-all`, but for the tests
that are marked `once` (on SQLite, if they use each database), for those of the map of promises, and for one test of
each mutation that no other test of `make test` notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.support.promises import PROMISES
from tests.system.mutation.edits import Mutation
from tests.system.mutation.table import MUTATIONS

TESTS = Path(__file__).parents[1]
BROAD = (
    TESTS / "contrib",
    TESTS / "contract" / "test_docs.py",  # builds the site
    TESTS / "contract" / "test_removal.py",
    TESTS / "contract" / "test_walk.py",
    TESTS / "contract" / "test_warm_commands.py",  # of the tests' own support
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


@cache
def _is_in_broad(path: Path) -> bool:
    return any(path.is_relative_to(one) for one in BROAD)


def _needed_for(mutation: Mutation) -> Sequence[str]:
    """Return the tests that notice a mutation and are not in BROAD, else the first one."""
    names = mutation.noticed_by
    return [name for name in names if not _is_in_broad(TESTS.parent / name.partition("::")[0])] or names[:1]


NAMED = frozenset(chain(*PROMISES.values(), *(_needed_for(mutation) for mutation in MUTATIONS)))
"""The tests without which `make test` would not notice a mutation or not prove a promise."""
_NAMED_FILES = frozenset(name.partition("::")[0] for name in NAMED)


def mark_broad(items: Sequence[pytest.Item]) -> None:
    """Mark what `make test` leaves out."""
    for item in items:
        is_once = item.get_closest_marker("once") is not None and not is_on_second_database(item)
        if _is_in_broad(item.path) and not is_once and item.nodeid not in NAMED:
            item.add_marker(pytest.mark.broad)


def require_named(items: Sequence[pytest.Item]) -> None:
    """Refuse a marker that takes a test of NAMED out of `make test`."""
    left = ("broad", "nightly")
    lost = [one.nodeid for one in items if one.nodeid in NAMED and any(map(one.get_closest_marker, left))]
    if lost:
        raise pytest.UsageError(f"broad or nightly, but named for a promise or a mutation: {', '.join(lost)}")


def is_on_second_database(item: pytest.Item) -> bool:
    """Tell whether a test that uses each database in turn uses PostgreSQL here."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("database_kind") == "postgres"


def has_nothing_for(markers: str, path: Path) -> bool:
    """Tell whether no test of a file is in `make test`, so that it need not be imported."""
    return (
        "not broad" in markers
        and path.name.startswith("test_")
        and _is_in_broad(path)
        and path.relative_to(TESTS.parent).as_posix() not in _NAMED_FILES
        and "mark.once" not in path.read_text()
    )
