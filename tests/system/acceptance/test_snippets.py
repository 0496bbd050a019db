"""Every python and console snippet of every page runs, with the output that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rqsched import embedded
from tests.support.processes import BIN, REPOSITORY
from tests.system.acceptance.runbooks import PAGES as RUNBOOKS

DOCS = REPOSITORY / "docs"
ELSEWHERE = {*(DOCS / "reference").rglob("*.md"), *RUNBOOKS}
"""Pages that are generated, and those whose commands are run where something is wrong or planned."""
PAGES = [
    REPOSITORY / "README.md",
    *sorted({*DOCS.rglob("*.md")} - ELSEWHERE),
    *sorted((REPOSITORY / "examples").rglob("*.md")),
]


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's snippets where nothing is set and nothing is there."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RQSCHED_")},
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": "120",
    }
    command = [sys.executable, "-m", "tests.system.acceptance.snippets", str(page)]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
    finally:
        embedded.stop(folder / ".rqsched")


def _case(page: Path) -> Any:
    name = str(page.relative_to(REPOSITORY))
    return pytest.param(page, id=name, marks=[pytest.mark.once] if name in ("README.md", "docs/quickstart.md") else [])


@pytest.mark.acceptance
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [_case(page) for page in PAGES])
def test_every_snippet_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.acceptance
@pytest.mark.timeout(120)
def test_the_script_of_the_readme_may_be_run_again(tmp_path: Path) -> None:
    workflows, script, *_ = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.M | re.S)
    (tmp_path / "billing.py").write_text(workflows)
    (tmp_path / "script.py").write_text(script)
    try:
        first, again = (run_python(tmp_path, "script.py") for _ in range(2))
    finally:
        embedded.stop(tmp_path / ".rqsched")

    assert first.startswith("created ")
    assert again == first.replace("created", "unchanged")


def run_python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout


WRONG = {
    "a python block that raises": "```python\n1 / 0\n```",
    "a doctest that is not true": "```pycon\n>>> 1 + 1\n3\n```",
    "a command that fails": "```console\n$ false\n```",
    "a command that prints something else": "```console\n$ echo one\ntwo\n```",
    "a command that does not fail as it should": "```console\n$ true # exits with 2\n```",
    "an unknown order": "<!-- snippet: skip -->\n```python\n1\n```",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_snippet_that_is_wrong_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)

    assert run_page(page, tmp_path).returncode != 0


RIGHT = """
```python
def double(number):
    return 2 * number
```

```pycon
>>> double(2)
4
```

<!-- snippet: file=jobs/hello.py -->
```python
print("hello")
```

```console
$ python jobs/hello.py
hello
$ export NAME=value
$ echo $NAME
value
$ echo a b \\
    c
a ... c
$ python -c 'raise SystemExit(2)' # exits with 2
```

<!-- snippet: skip because it never ends -->
```console
$ sleep 1000
```
"""


def test_a_page_may_write_files_compare_output_and_leave_out_what_cannot_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(RIGHT)

    done = run_page(page, tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 snippets\n"
