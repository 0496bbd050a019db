"""docs/upgrading.md word for word: an upgrade and its way back, with workers of both releases while runs continue.

The newer release is a copy of this one with one migration more.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rqsched.kernel.store.migrations import HEAD
from tests.support.processes import REPOSITORY, Processes, rqsched_command
from tests.support.servers import PostgresServer
from tests.system.acceptance.chores import HOLD, NOTE
from tests.system.acceptance.live import MakeLive
from tests.system.acceptance.runbooks import OFTEN, UPGRADING, Runbook, plain, sections, tools

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
NEXT = f"{int(HEAD) + 1:04}"
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = {NEXT!r}
down_revision = {HEAD!r}


def upgrade() -> None:
    op.add_column("rqsched_schedules", sa.Column("of_the_next_release", sa.Text))
"""
SCHEDULES = f"""
import os
from rqsched import Every, RetryPolicy, Scheduler
from rqsched.kernel.store.migrations import HEAD

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
def newer(tmp_path: Path) -> Path:
    """The code of the next release."""
    folder = tmp_path / "newer"
    for name in ("rqsched", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    migrations = folder / "rqsched" / "kernel" / "store" / "migrations"
    (migrations / "versions" / f"{NEXT}_next.py").write_text(MIGRATION)
    written = (migrations / "__init__.py").read_text()
    (migrations / "__init__.py").write_text(written.replace(f'HEAD = "{HEAD}"', f'HEAD = "{NEXT}"'))
    return folder


@pytest.mark.postgres
def test_a_release_is_rolled_out_and_back_while_schedules_fire(
    make_live: MakeLive, own_postgres: PostgresServer, redis_url: str, tmp_path: Path, newer: Path
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
    of_this, of_next = {"PYTHONPATH": str(REPOSITORY)}, {"PYTHONPATH": str(newer)}
    for command in (rqsched_command("db", "upgrade"), ["python", "-c", SCHEDULES]):
        done = first.start(command, cwd=tmp_path, **of_this)
        assert done.wait() == 0, done.log()
    assert f"its schema is {HEAD}" in done.log()
    worker = first.start(rqsched_command("worker"), cwd=tmp_path, **of_this)
    worker.wait_for_log("(acceptance.hold)")

    try:
        first.environment |= of_next
        with Runbook(first, "A new release of rqsched") as book:
            book.step()
            live = make_live(url)
            live.environment |= first.environment | of_this
            nightly = live.scheduler.get("nightly")
            gate.touch()
            live.wait_for_successes(nightly)
            book.step()
            live.wait_for_successes(nightly)
            assert worker.terminate(timeout=60) == 0
            live.wait_for_successes(nightly)
            book.step()
        new = first.started[-1]
        first.environment |= of_this
        with Runbook(first, "Back again") as book:
            book.step()
            live.wait_for_successes(nightly)
            assert new.terminate(timeout=60) == 0
            live.wait_for_successes(nightly)
        live.start_worker("reports")
        live.check_each_ran_once()
    finally:
        first.close()
