"""The tests that docs/testing.md shows pass: those of the applications of Flask and FastAPI, and one of unittest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
DOCS = REPOSITORY / "docs"
MODULE = re.compile(
    r"^```python\n# (?P<path>\S+\.py)(?P<factory> with a factory)?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FASTAPI_MODULE = re.compile(r"<!-- snippet: file=main\.py -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(heading: str) -> str:
    """Return the text below a heading of the page."""
    return re.split(r"^## ", (DOCS / "testing.md").read_text().partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]


def write_tests(folder: Path, heading: str, *, with_factory: bool = False) -> None:
    """Write `conftest.py`, which begins with the lines for every application, and the test of a section.

    With `with_factory`, the lines for an application factory replace those for a module.
    """
    found = list(MODULE.finditer(section(heading)))
    modules = {one["path"]: one["text"] for one in found if not one["factory"]}
    if with_factory:
        (instead,) = [one for one in found if one["factory"]]
        modules[instead["path"]] = instead["text"]
    (first,) = [one["text"] for one in MODULE.finditer(section("With the scheduler"))]
    modules["conftest.py"] = f"{first}\n{modules['conftest.py']}"
    for name, text in modules.items():
        (folder / name).write_text(text)


def run_pytest(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RQSCHED_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("layout", ["module", "factory"])
def test_a_test_of_a_flask_application_passes(tmp_path: Path, layout: str) -> None:
    for found in MODULE.finditer((DOCS / "flask.md").read_text()):
        path = tmp_path / found["path"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(found["text"])
    write_tests(tmp_path, "With Flask", with_factory=layout == "factory")

    run_pytest(tmp_path)

    assert not (tmp_path / ".rqsched").exists(), "no Valkey was started"


def test_a_test_of_a_fastapi_application_passes(tmp_path: Path) -> None:
    (main,) = FASTAPI_MODULE.findall((DOCS / "fastapi.md").read_text())
    (tmp_path / "main.py").write_text(main)
    write_tests(tmp_path, "With FastAPI")

    run_pytest(tmp_path)

    assert not (tmp_path / ".rqsched").exists(), "no Valkey was started"


def test_a_test_of_unittest_passes(tmp_path: Path, redis_url: str) -> None:
    (found,) = [one for one in MODULE.finditer((DOCS / "testing.md").read_text()) if "import unittest" in one["text"]]
    text = found["text"].replace("redis://localhost:6379/15", redis_url)
    assert redis_url in text
    (tmp_path / found["path"]).write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "unittest"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
