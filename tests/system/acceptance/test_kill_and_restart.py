"""SIGKILL of a worker and all its children at any moment, boot included: by a restart the chains go on."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from rqsched import Every
from tests.support.invariants import i3_live_links
from tests.support.processes import REPOSITORY, Process, rqsched_command, wait_until
from tests.support.sizes import sized
from tests.system.acceptance.live import LiveEnv, MakeLive

KILLS = sized(4, 10)
"""A case; there are four."""
LONGEST_LIFE = 2.0
GOES_ON_WITHIN = 60.0
"""Seconds, for a machine that many share. One with nothing else to do needs 2 to 4, nearly all for Python's imports."""
COMMANDS: dict[str, list[str | Path]] = {
    "rqsched worker": rqsched_command("worker"),
    "runners": rqsched_command("worker", "--concurrency", "2"),
    "python worker.py": [sys.executable, REPOSITORY / "worker.py"],
}
CASES = [
    pytest.param("sqlite_url", "rqsched worker", 1, id="sqlite", marks=pytest.mark.once),
    pytest.param("postgres_url", "rqsched worker", 2, id="postgres", marks=pytest.mark.postgres),
    pytest.param("sqlite_url", "python worker.py", 3, id="worker.py"),
    pytest.param("postgres_url", "runners", 4, id="runners", marks=pytest.mark.postgres),
]


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("database", "command", "seed"), CASES)
def test_chains_go_on_after_each_of_many_kills_at_random_moments(
    make_live: MakeLive,
    request: pytest.FixtureRequest,
    record_testsuite_property: Callable[[str, object], None],
    database: str,
    command: str,
    seed: int,
) -> None:
    live = make_live(request.getfixturevalue(database))
    create_schedules(live)
    moments = random.Random(seed)
    waits: list[float] = []
    for _ in range(KILLS):
        worker = live.start(COMMANDS[command])
        live_for(worker, moments.uniform(0, LONGEST_LIFE))
        worker.kill_tree()
        waits.append(seconds_until_all_went_on(live, live.start(COMMANDS[command])))
        live.started[-1].kill_tree()
    record_testsuite_property(f"seconds until the chains went on, {request.node.name}", sorted(waits))

    last = live.start(COMMANDS[command])
    seconds_until_all_went_on(live, last)
    assert last.terminate(timeout=GOES_ON_WITHIN) == 0
    live.scheduler.recover()
    live.check()
    assert [problem for story in live.stories() for problem in i3_live_links(live.scheduler.runtime, story)] == []


def create_schedules(live: LiveEnv) -> None:
    live.note_every("one-at-a-time", Every(timedelta(seconds=1)))
    live.note_every("at-once", Every(timedelta(seconds=1)), overlap="allow_all")
    live.note_every("on-the-grid", Every(timedelta(seconds=2), offset=timedelta(0)), overlap="buffer_one")
    live.note_every("with-jitter", Every(timedelta(seconds=2)), jitter=timedelta(seconds=1), overlap="allow_all")


def live_for(process: Process, seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
        pytest.fail(f"it ended by itself:\n{process.log()}")


def seconds_until_all_went_on(live: LiveEnv, worker: Process) -> float:
    """Wait until each schedule has given an outcome to an occurrence of the time since now."""
    began, now = monotonic(), live.scheduler.runtime.now()
    what = f"an outcome of each schedule after {now}; {worker.log_path} may say why"
    wait_until(lambda: all(evaluated_to >= now for evaluated_to in positions(live)), timeout=GOES_ON_WITHIN, what=what)
    return monotonic() - began


def positions(live: LiveEnv) -> list[datetime]:
    return [handle.state.evaluated_to for handle in live.scheduler.list().items]
