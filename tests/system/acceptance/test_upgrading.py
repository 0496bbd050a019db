"""docs/upgrading.md word for word: workers of an older build beside those of this one, there and back, as runs go on.

The older build is the last one of the schema before this one's, out of the history of the repository. Where a clone has
no history, as a source distribution or a shallow one, nothing of this is played.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import REPOSITORY, Processes, rqsched_command
from tests.support.servers import PostgresServer
from tests.system.acceptance.chores import HOLD, NOTE
from tests.system.acceptance.live import MakeLive
from tests.system.acceptance.runbooks import OFTEN, UPGRADING, Runbook, plain, sections, tools

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
OLD = "e085cbbd4cc8a64127f44106f234eefd6cf2c896"
"""The last commit of schema 0004."""
SCHEDULES = f"""
import os
from rqsched import Every, RetryPolicy, Scheduler
from rqsched.store.migrations import HEAD

print("its schema is", HEAD)
scheduler = Scheduler.from_env()
kwargs, once = {{"log": os.environ["LOG"]}}, RetryPolicy(max_retries=0)
scheduler.create("nightly", {NOTE!r}, Every("1s"), kwargs=kwargs, retry=once)
scheduler.create("waits", {NOTE!r}, Every("24h"), kwargs=kwargs, retry=once, queue="reports").trigger()
kwargs["gate"] = os.environ["GATE"]
scheduler.create("hold", {HOLD!r}, Every("24h"), kwargs=kwargs, retry=once).trigger()
scheduler.close()
"""


def test_each_section_is_followed_here() -> None:
    followed = re.findall(r'Runbook\(\w+, "([^"]+)"', Path(__file__).read_text())

    assert sorted(followed) == sorted(sections(UPGRADING))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The code of the older build."""
    wanted = ["git", "-C", str(REPOSITORY), "archive", OLD, "rqsched", "tests"]
    done = subprocess.run(wanted, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the history of the repository: git fetch --unshallow")
    folder = tmp_path / "old"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)
    return folder


@pytest.mark.postgres
def test_a_release_is_rolled_out_and_back_while_schedules_fire(
    make_live: MakeLive, own_postgres: PostgresServer, redis_url: str, tmp_path: Path, old: Path
) -> None:
    url = plain(own_postgres.create_database())
    log, gate = tmp_path / "executions", tmp_path / "gate"
    first = Processes(
        tmp_path,
        {
            **OFTEN,
            "RQSCHED_DATABASE_URL": url,
            "RQSCHED_REDIS_URL": redis_url,
            "RQSCHED_IMPORTS": "tests.system.acceptance.chores",
            "RQSCHED_RUN_DIR": str(tmp_path / "run"),
            "PATH": tools(tmp_path / "tools"),
            "LOG": str(log),
            "GATE": str(gate),
        },
    )
    of_old = {"PYTHONPATH": str(old)}
    for command in (rqsched_command("db", "upgrade"), ["python", "-c", SCHEDULES]):
        done = first.start(command, cwd=tmp_path, **of_old)
        assert done.wait() == 0, done.log()
    assert "its schema is 0004" in done.log()
    worker = first.start(rqsched_command("worker"), cwd=tmp_path, **of_old)
    worker.wait_for_log("(acceptance.hold)")

    try:
        with Runbook(first, "A new release of rqsched") as book:
            book.step()
            live = make_live(url)
            live.environment |= first.environment
            nightly = live.scheduler.get("nightly")
            gate.touch()
            live.wait_for_successes(nightly)
            book.step()
            live.wait_for_successes(nightly)
            assert worker.terminate(timeout=60) == 0
            live.wait_for_successes(nightly)
            book.step()
        new = first.started[-1]
        first.environment |= of_old
        with Runbook(first, "Back again") as book:
            book.step()
            live.wait_for_successes(nightly)
            assert new.terminate(timeout=60) == 0
            live.wait_for_successes(nightly)
        live.start_worker("reports")
        live.check_each_ran_once()
    finally:
        first.close()
