"""A client that openapi-python-client makes from our OpenAPI document: every operation, no warning, and it works."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from tests.support.invariants import check_invariants
from tests.support.serving import served
from tests.support.web import MakeWeb

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
GENERATOR = "openapi-python-client>=0.29"
SCRIPT = """
import sys
from datetime import datetime

from generated import Client
from generated.api.backfills import start_backfill
from generated.api.schedules import create_schedule, list_schedules, read_schedule, trigger_schedule, update_schedule
from generated.models import BackfillRequest, CreateRequest, ProblemResponse, TriggerRequest, UpdateRequest

with Client(base_url=sys.argv[1], raise_on_unexpected_status=True) as client:
    made = create_schedule.sync(
        client=client, body=CreateRequest(schedule_id="nightly", workflow="note", interval="1h", overlap="allow_all")
    )
    print(made.schedule_id, made.status)
    (listed,) = list_schedules.sync(client=client).items
    print(listed.schedule_id, listed.timing)
    changed = update_schedule.sync("nightly", client=client, body=UpdateRequest(note="by a generated client"))
    print(changed.note)
    triggered = trigger_schedule.sync("nightly", client=client, body=TriggerRequest(force=True))
    print(triggered.outcome, triggered.run.kind)
    start, end = datetime.fromisoformat(sys.argv[2]), datetime.fromisoformat(sys.argv[3])
    filled = start_backfill.sync("nightly", client=client, body=BackfillRequest(start=start, end=end))
    print(filled.status, filled.started)
    refused = read_schedule.sync("weekly", client=client)
    assert isinstance(refused, ProblemResponse)
    print(refused.status, refused.code)
"""


def run(command: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a venv, with the venv's others beside it."""
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    return subprocess.run([command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of a venv with the generator, which wants an older typer than ours."""
    folder = tmp_path_factory.mktemp("generator")
    venv.create(folder, with_pip=True)
    done = run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", GENERATOR, folder=folder)
    if done.returncode != 0:
        pytest.skip(f"{GENERATOR} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"


def test_generated_client_has_every_operation_and_uses_the_api(
    generator: Path, make_web: MakeWeb, tmp_path: Path
) -> None:
    web = make_web()
    document = web.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = (
        "generate",
        "--path",
        "openapi.json",
        "--meta",
        "none",
        "--output-path",
        "generated",
        "--fail-on-warning",
    )
    told = run(generator / "openapi-python-client", *command, folder=tmp_path)
    assert (told.returncode, "arning" in told.stdout + told.stderr) == (0, False), told.stdout + told.stderr
    operations = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    modules = [module.stem for module in (tmp_path / "generated" / "api").glob("*/[!_]*.py")]
    assert sorted(modules) == sorted(operations)

    (tmp_path / "script.py").write_text(SCRIPT)
    now = web.env.clock.now()
    span = ["2026-01-15T08:30:00+00:00", now.isoformat()]
    with served(web.app) as url:
        done = run(generator / "python", "script.py", url, *span, folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "nightly active", "nightly every 1h", "by a generated client", "triggered manual", "done 3",
        "404 schedule_not_found",
    ]  # fmt: skip
    check_invariants(web.env.runtime)
