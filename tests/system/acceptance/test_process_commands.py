"""The commands that are processes, as somebody runs them who keeps workers of their own or collects logs."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from rqsched import Every
from tests.support.processes import BIN, Process, process_tree, rqsched_command, wait_until
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
SECOND = timedelta(seconds=1)
SOON = 60.0


def wait_for_successes(live: LiveEnv, count: int = 2) -> None:
    schedule = live.note_every("nightly", Every(SECOND), overlap="allow_all")
    wait_until(lambda: schedule.refresh().state.success_count >= count, timeout=SOON, what=f"{count} runs")
    schedule.pause()


def objects(process: Process) -> list[dict[str, Any]]:
    """Every line of a log, each of which is one object."""
    return [json.loads(line) for line in process.log().splitlines()]


def test_a_dispatcher_alone_fires_for_workers_of_ones_own(live: LiveEnv) -> None:
    dispatcher = live.start(rqsched_command("dispatcher"))
    live.start([BIN / "rq", "worker", "--url", live.environment["RQSCHED_REDIS_URL"], "default"])

    wait_for_successes(live)

    live.check()
    names = {process.name() for process in process_tree(dispatcher.pid)[1:]}
    assert names == {"rqsched-dispatc"}, "no worker of RQ beside it"
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.popen.wait(SOON) == 0


def test_a_dispatcher_whose_redis_belongs_to_another_database_does_not_start(live: LiveEnv, redis: Redis) -> None:
    redis.set("rqsched:epoch:rqsched", "another")

    dispatcher = live.start(rqsched_command("dispatcher"))

    assert dispatcher.popen.wait(SOON) == 2
    assert "belongs to another database" in dispatcher.log()


def test_a_worker_logs_each_run_as_json_and_nothing_else_but_json(make_live: MakeLive, empty_sqlite_url: str) -> None:
    """Its database is a new file, whose migrations are no news."""
    live = make_live(empty_sqlite_url)
    worker = live.start(rqsched_command("worker", "--log-format", "json"))
    wait_until(lambda: "dispatcher started" in worker.log(), timeout=SOON, what=f"a start: {worker.log()}")
    wait_for_successes(live)
    worker.signal(signal.SIGTERM)
    assert worker.popen.wait(SOON) == 0

    lines = objects(worker)

    ended = [one for one in lines if one.get("action") == "run_ended"]
    assert {(one["schedule"], one["attempt"], one["outcome"]) for one in ended} == {("nightly", 1, "succeeded")}
    assert {one["run"] for one in ended} == {one["run"] for one in lines if one.get("action") == "run_started"}
    assert all(one["duration"] >= 0 for one in ended)
    assert [one for one in lines if one["logger"].startswith("alembic")] == []
    assert all({"at", "level", "logger", "message", "pid"} <= set(one) for one in lines)


def test_a_worker_that_logs_errors_only_is_silent_while_all_is_well(live: LiveEnv) -> None:
    worker = live.start(rqsched_command("worker", "--log-level", "error"))

    wait_for_successes(live)

    worker.signal(signal.SIGTERM)
    assert worker.popen.wait(SOON) == 0
    assert worker.log() == ""


def test_web_logs_its_requests_as_json(live: LiveEnv) -> None:
    web = live.start(rqsched_command("web", "--port", "0", "--log-format", "json"))

    web.wait_for_log("Uvicorn running on", timeout=SOON)

    web.signal(signal.SIGTERM)
    assert web.popen.wait(SOON) in {0, -signal.SIGTERM}
    assert "uvicorn.error" in {one["logger"] for one in objects(web)}
