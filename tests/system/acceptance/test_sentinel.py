"""Redis behind Sentinels: the master is killed under workers of each kind, and its replica takes over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rqsched import Every
from tests.support.env import SECOND
from tests.support.processes import BIN, rqsched_command, run_to_end, wait_until
from tests.support.sentinels import Sentinels, sentinels_in
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]
SOON = 120.0
RQ: list[str | Path] = [BIN / "rq", "worker", "-c", "rqsched.preload"]
KINDS: dict[str, list[str | Path]] = {
    "rqsched": rqsched_command("worker"),
    "runners": rqsched_command("worker", "--concurrency", "2"),
    "rq": [*RQ, "-w", "rqsched.rq.Worker", "rqsched", "default"],
    "simple": [*RQ, "-w", "rqsched.rq.SimpleWorker", "rqsched", "default"],
    "spawn": [*RQ, "-w", "rqsched.rq.SpawnWorker", "rqsched", "default"],
    "plain": [*RQ, "--with-scheduler", "rqsched", "default"],
}


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    with sentinels_in(tmp_path) as made:
        yield made


@pytest.fixture
def live(make_live: MakeLive, sqlite_url: str, sentinels: Sentinels) -> LiveEnv:
    return make_live(sqlite_url, redis_url=sentinels.url)


@pytest.mark.parametrize("kind", ["rqsched", "runners", "rq", "simple", "spawn"])
def test_schedules_fire_on_after_a_failover_and_nothing_runs_twice(
    live: LiveEnv, sentinels: Sentinels, kind: str
) -> None:
    overlap = "skip" if kind == "spawn" else "allow_all"  # a horse that starts anew may take longer than a second
    schedule = live.note_every("tick", Every(SECOND), overlap=overlap)
    live.start(KINDS[kind])
    live.wait_for_successes(schedule, timeout=SOON)

    began = time.monotonic()
    killed = sentinels.fail_over()
    promoted = time.monotonic()

    live.wait_for_successes(schedule, timeout=SOON)
    text = "%s: promoted %.1f s after the kill; two runs more %.1f s after the promotion"
    print(text % (kind, promoted - began, time.monotonic() - promoted))
    created = live.note_every("after", Every(SECOND), overlap=overlap)
    live.wait_for_successes(created, timeout=SOON)
    killed.start()  # the Sentinels make it a replica of the other one
    live.wait_for_successes(schedule, timeout=SOON)
    for one in (schedule, created):
        one.pause()
    live.check()


def test_what_a_failover_lost_is_repaired(live: LiveEnv, sentinels: Sentinels) -> None:
    """The replica is stopped while links are armed, and is promoted without them."""
    worker = live.start(KINDS["rqsched"])
    live.wait_for_successes(live.note_every("tick", Every(SECOND), overlap="allow_all"), timeout=SOON)
    worker.kill_tree()
    replica = next(server for server in sentinels.servers if server is not sentinels.master())
    with replica.hanging():
        later = live.note_every("later", Every(SECOND), overlap="allow_all")
        sentinels.master().kill()
    wait_until(lambda: sentinels.master() is replica, timeout=SOON, what="another master")

    live.start(KINDS["rqsched"])

    live.wait_for_successes(later, timeout=SOON)


def test_a_plain_rq_worker_finds_the_master_through_the_preload(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    live.start(KINDS["plain"])

    live.wait_for_successes(schedule, more=1, timeout=SOON)


def test_rqs_commands_find_the_master_through_the_preload(live: LiveEnv) -> None:
    live.hold_now()
    command: list[str | Path] = [BIN / "rq", "info", "--raw", "-c", "rqsched.preload"]

    shown = run_to_end(command, live.environment).stdout

    assert "queue default 1" in shown


def test_doctor_asks_the_master(live: LiveEnv) -> None:
    live.start(KINDS["rqsched"])
    live.wait_for_successes(live.note_every("tick", Every(SECOND), overlap="allow_all"), timeout=SOON)

    process = live.start(rqsched_command("doctor"))

    process.wait_for_log("Valkey", timeout=SOON)
    assert process.wait(timeout=SOON) in {0, 1}
