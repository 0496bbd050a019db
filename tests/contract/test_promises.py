"""Each promise of docs/promises.md has tests, and `make test` runs them, and tests that notice each mutation."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.breadth import NAMED
from tests.support.processes import REPOSITORY
from tests.support.promises import PROMISES, as_markdown

PROMISED = (REPOSITORY / "docs" / "promises.md").read_text()
PROVEN = (REPOSITORY / "docs/proofs/guarantees.md").read_text()


@pytest.mark.broad
def test_every_named_test_runs_in_make_test() -> None:
    (markers,) = re.findall("^ONCE := (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name not in {"NIGHTLY", "WORLDS"}}
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", markers]
    command = [sys.executable, "-m", "pytest", *options, *sorted(NAMED)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)

    assert NAMED - set(done.stdout.splitlines()) == set(), done.stdout[-2000:] + done.stderr[-2000:]


def test_every_numbered_promise_has_tests() -> None:
    promised = set(re.findall(r"^\| (I\d) \| ", PROMISED, re.MULTILINE))
    assert promised == {name for name in PROMISES if re.fullmatch(r"I\d", name)} != set()
    assert all(PROMISES.values())


def test_the_documentation_holds_the_map() -> None:
    assert as_markdown() in PROVEN, "write tests.support.promises.as_markdown() into docs/proofs/guarantees.md"


def test_every_file_of_tests_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::[^`]*)?`", PROVEN))
    files = [path.relative_to(REPOSITORY / "tests").as_posix() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)} == set()
    assert len(named) > 20
