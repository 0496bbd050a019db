"""A restore in its real order, with real workers: freeze, stop, restore, start, look, thaw. Nothing runs twice."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rq import Worker as RqWorker

from rqsched import Every
from tests.support.processes import rqsched_command, run_to_end, wait_until
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def command(live: LiveEnv, *words: str) -> dict[str, Any]:
    """Run a command, require its success, and return its JSON."""
    ended = run_to_end(rqsched_command(*words, "-o", "json"), live.environment)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def back_up(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def put_back(database: Path, copy: Path) -> None:
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    shutil.copyfile(copy, database)


@pytest.mark.parametrize("redis", ["as it was", "empty"])
@pytest.mark.parametrize("frozen", ["before the backup", "after the backup"])
def test_a_restore_under_a_freeze_runs_nothing_twice(live: LiveEnv, tmp_path: Path, redis: str, frozen: str) -> None:
    database, copy = Path(live.environment["RQSCHED_DATABASE_URL"].partition("///")[2]), tmp_path / "backup.db"
    schedules = [live.note_every(f"note-{number}", Every("1s")) for number in range(3)]
    paused = live.note_every("paused", Every("1s"))
    paused.pause()
    worker = live.start_worker()
    for schedule in schedules:
        live.wait_for_successes(schedule)
    if frozen == "after the backup":
        back_up(database, copy)
        at = live.scheduler.runtime.now()
        for schedule in schedules:
            live.wait_for_successes(schedule)
    command(live, "freeze", "--everything", "--reason", "restore")
    if frozen == "before the backup":
        back_up(database, copy)
        at = live.scheduler.runtime.now()
    began = len(live.executions())
    wait_until(lambda: command(live, "thaw", "--everything", "--preview")["schedules"], what="what is due")
    assert len(live.executions()) <= began + len(schedules)  # those that had begun
    worker.terminate()
    live.scheduler.close()
    ran = len(live.executions())

    put_back(database, copy)
    if redis == "empty":
        live.redis.flushdb()
    by_environment = redis == "empty" and frozen == "after the backup"  # nothing else remembers it
    worker = live.start([*rqsched_command("worker"), *(["--freeze"] if by_environment else [])])
    worker.wait_for_log("nothing begins here")
    wait_until(lambda: live.redis.get("rqsched:reconcile:rqsched"), what="a pass")
    if by_environment:
        assert command(live, "freeze", "--everything", "--reason", "restored")["kept_in"] == ["redis", "sql"]
        worker.terminate()
        worker = live.start_worker()
        worker.wait_for_log("nothing begins here")
    found = command(live, "thaw", "--everything", "--preview", "--missed", "none", "--since", at.isoformat())
    assert found["freeze"]["reason"] in {"restore", "restored"}
    assert {row["schedule_id"] for row in found["schedules"]} == {one.schedule_id for one in schedules}
    assert sum(row["missed"] for row in found["schedules"]) >= len(schedules)
    assert len(live.executions()) == ran

    done = command(live, "thaw", "--everything", "--missed", "none", "--since", at.isoformat(), "--cancel-pending")

    assert done["missed"] >= len(schedules)
    for schedule in schedules:
        live.wait_for_successes(schedule)
    assert paused.refresh().status == "paused"
    twice = [
        run for run, count in Counter((one.run_uid, one.attempt) for one in live.executions()).items() if count > 1
    ]
    assert twice == []
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("kind", ["forking", "runner"])
def test_an_idle_worker_executes_the_first_job_after_a_thaw(live: LiveEnv, kind: str) -> None:
    live.scheduler.freeze(everything=True)
    worker = live.start_worker() if kind == "forking" else live.start_runners(1)
    worker.wait_for_log("nothing begins here")
    wait_until(lambda: RqWorker.all(live.redis), what="a worker that waits for jobs")

    live.scheduler.thaw(everything=True)
    live.wait_for_status(live.run_now("after"), "succeeded")

    assert "waits: everything is frozen" not in worker.log()
