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


def test_preload_loads_the_driver_and_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each work horse of a plain `rq worker` imports it anew; nobody listens on the port."""
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:9/0")
    code = "import sys, rqsched.preload; print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"]
