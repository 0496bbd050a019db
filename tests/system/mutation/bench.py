"""The bench mutations are made on: a copy of the tree in a temporary folder, and pytest over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.system.mutation.edits import Mutation

ROOT = Path(__file__).parents[3]
_COPIED = ("rqsched", "tests", "pyproject.toml")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class Result:
    """The result of one selection of tests."""

    passed: frozenset[str]
    failed: frozenset[str]
    output: str


class Bench:
    """A copy of the tree, which is mutated and restored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            source, target = ROOT / name, folder / name
            shutil.copytree(source, target, ignore=_IGNORED) if source.is_dir() else shutil.copyfile(source, target)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Make the edits for the block, and take them back."""
        paths = [self.folder / edit.path for edit in mutation.edits]
        originals = {path: path.read_bytes() for path in paths}
        try:
            for edit in mutation.edits:
                edit.apply(self.folder)
            yield
        finally:
            for path, original in originals.items():
                path.write_bytes(original)

    def test(self, names: Sequence[str]) -> Result:
        """Run these tests on the copy as it is now; each name is a node id as pytest prints it."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        options = [*_OPTIONS, f"--junitxml={report}"]
        done = subprocess.run(
            [sys.executable, "-c", _PYTEST, *options, *names],
            check=False,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        output = done.stdout[-2_000:] + done.stderr[-2_000:]
        if done.returncode not in {0, 1} or not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{output}")
        return _read(report, output)


_OPTIONS = ["-q", "--tb=no", "--timeout=300", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
_PYTEST = """
import importlib.util, os, pathlib, sys, pytest
found = importlib.util.find_spec("rqsched").origin
assert pathlib.Path(found).is_relative_to(os.getcwd()), found
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Run pytest, but refuse to test an rqsched from outside the copy."""


def _read(report: Path, output: str) -> Result:
    passed: set[str] = set()
    failed: set[str] = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
        is_failed = case.find("failure") is not None
        if case.find("error") is not None or case.find("skipped") is not None:
            continue  # neither: what cannot be judged notices nothing
        (failed if is_failed else passed).add(name)
    return Result(frozenset(passed), frozenset(failed), output)


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench in a temporary folder; the checkout is never touched."""
    with tempfile.TemporaryDirectory(prefix="rqsched-mutation-") as name:
        yield Bench(Path(name))
