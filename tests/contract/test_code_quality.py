"""Lint, format and types are part of the tests, so that the README's one command guards them too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY

CHECKS = {
    "ruff check": ["ruff", "check"],
    "ruff format": ["ruff", "format", "--check"],
    "mypy strict": ["mypy"],
}


@pytest.mark.parametrize("command", CHECKS.values(), ids=CHECKS.keys())
def test_the_code_passes(command: list[str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
