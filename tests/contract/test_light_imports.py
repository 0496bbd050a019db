"""What an import must not load: each case runs in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = [
    ("rqsched", {"sqlalchemy", "croniter", "rq", "redis", "pydantic", "fastapi"}),
    ("rqsched.client", {"sqlalchemy", "croniter", "rq", "redis", "pydantic", "fastapi"}),
]


@pytest.mark.parametrize(("module", "heavy"), LIGHT, ids=[module for module, _ in LIGHT])
def test_importing_a_light_module_loads_no_heavy_package(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
