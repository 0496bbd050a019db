"""Lint, format and types are part of the tests. `make test` leaves the types to `make check` and `make test-all`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import REPOSITORY

CHECKS = [
    pytest.param(["ruff", "check"], id="ruff check"),
    pytest.param(["ruff", "format", "--check"], id="ruff format"),
    pytest.param(["mypy"], id="mypy strict", marks=pytest.mark.broad),
]


@pytest.mark.parametrize("command", CHECKS)
def test_the_code_passes(command: list[str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", *command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
