"""The commands that run as processes, for users who keep their own workers or collect logs."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psutil
import pytest
from redis import Redis

from rqsched import Every
from tests.support.env import SECOND
from tests.support.narrow import present
from tests.support.processes import SOON, Process, process_tree, rqsched_command, run_to_end, wait_until
from tests.support.servers import ValkeyServer
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180), pytest.mark.usefixtures("cold_commands")]


def run_twice(live: LiveEnv) -> None:
    schedule = live.note_every("nightly", Every(SECOND), overlap="allow_all")
    live.wait_for_successes(schedule)
    schedule.pause()


def objects(process: Process) -> list[dict[str, Any]]:
    """Every line of a log, each of which is one object."""
    return [json.loads(line) for line in process.log().splitlines()]


@pytest.mark.once
def test_a_dispatcher_alone_fires_for_workers_of_ones_own(live: LiveEnv) -> None:
    dispatcher = live.start(rqsched_command("dispatcher"))
    live.start_rq("worker", queues=("default",))

    run_twice(live)

    live.check()
    names = {process.name() for process in process_tree(dispatcher.pid)[1:]}
    assert names == {"rqsched-dispatc"}, "no worker of RQ beside it"
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0


def test_a_dispatcher_whose_redis_belongs_to_another_database_does_not_start(live: LiveEnv, redis: Redis) -> None:
    redis.set("rqsched:epoch:rqsched", "another")

    dispatcher = live.start(rqsched_command("dispatcher"))

    assert dispatcher.wait() == 2
    assert "belongs to another database" in dispatcher.log()


def test_a_worker_logs_each_run_as_json_and_nothing_else_but_json(make_live: MakeLive, empty_sqlite_url: str) -> None:
    """The database is a new file, and its migrations are not logged."""
    live = make_live(empty_sqlite_url)
    worker = live.start(rqsched_command("worker", "--log-format", "json"))
    wait_until(lambda: "dispatcher started" in worker.log(), timeout=SOON, what=lambda: f"a start: {worker.log()}")
    run_twice(live)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    lines = objects(worker)

    ended = [one for one in lines if one.get("action") == "run_ended"]
    assert {(one["schedule"], one["attempt"], one["outcome"]) for one in ended} == {("nightly", 1, "succeeded")}
    assert {one["run"] for one in ended} == {one["run"] for one in lines if one.get("action") == "run_started"}
    assert all(one["duration"] >= 0 for one in ended)
    assert [one for one in lines if one["logger"].startswith("alembic")] == []
    assert all({"at", "level", "logger", "message", "pid"} <= set(one) for one in lines)


def test_a_worker_that_logs_errors_only_is_silent_while_all_is_well(live: LiveEnv) -> None:
    worker = live.start(rqsched_command("worker", "--log-level", "error"))

    run_twice(live)

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.log() == ""


def test_web_logs_its_requests_as_json(live: LiveEnv) -> None:
    web = live.start(rqsched_command("web", "--port", "0", "--log-format", "json"))

    web.wait_for_log("Uvicorn running on")

    web.signal(signal.SIGTERM)
    assert web.wait() in {0, -signal.SIGTERM}
    assert "uvicorn.error" in {one["logger"] for one in objects(web)}


def ping(live: LiveEnv, *options: str) -> tuple[int, str]:
    asked = run_to_end(rqsched_command("ping", *options), live.environment)
    return asked.returncode, asked.stdout + asked.stderr


def wait_until_ready(live: LiveEnv) -> None:
    wait_until(lambda: ping(live, "--ready")[0] == 0, timeout=SOON, what="a worker that is ready")


@pytest.mark.parametrize("command", [pytest.param("worker", marks=pytest.mark.once), "dispatcher"])
def test_a_ping_finds_who_lives_and_fails_once_it_has_ended(live: LiveEnv, command: str) -> None:
    assert ping(live) == (
        1,
        f"Error: no worker or dispatcher of this user runs here; looked for their sockets in {live.folder}/run. "
        "Of RQ's own workers, only those with a dispatcher answer; `rq info` shows the others.\n",
    )
    process = live.start(rqsched_command(command))
    wait_until_ready(live)

    code, text = ping(live)
    assert (code, text.partition(" (")[0]) == (0, f"{command}-{process.pid} is alive")
    answered = json.loads(ping(live, "--json")[1])
    roles = {"worker": ["dispatcher", "runs"], "dispatcher": ["dispatcher"]}[command]
    assert [child["role"] for child in answered["children"]] == roles
    assert (answered["is_alive"], answered["is_ready"], answered["is_stopping"]) == (True, True, False)

    process.kill_tree()
    assert ping(live)[0] == 1


def test_a_ping_says_that_sockets_do_not_fit_into_a_folder_with_a_long_name(live: LiveEnv) -> None:
    environment = {**live.environment, "RQSCHED_RUN_DIR": f"{live.folder}/{'long' * 25}"}
    asked = run_to_end(rqsched_command("ping"), environment)
    assert asked.returncode == 1
    assert "set RQSCHED_RUN_DIR to a shorter one" in asked.stderr


@pytest.mark.parametrize("kind", ["Worker", "SimpleWorker", "SpawnWorker"])
def test_a_ping_finds_a_worker_of_rq_with_our_class_also_while_it_executes(live: LiveEnv, kind: str) -> None:
    worker = live.start_rq("worker", "-w", f"rqsched.rq.{kind}")
    wait_until_ready(live)
    live.wait_for_execution(live.hold_now())

    code, text = ping(live)

    assert (code, text.partition(" ")[0]) == (0, f"rq-{worker.pid}")
    assert json.loads(ping(live, "--json")[1])["kind"] == "rq"
    worker.signal(signal.SIGKILL)
    wait_until(lambda: ping(live)[0] == 1, timeout=SOON, what="nobody who answers for a dead worker")


def test_a_worker_that_stands_still_does_not_answer(live: LiveEnv) -> None:
    worker = live.start_worker()
    wait_until_ready(live)
    with stopped(worker):
        assert ping(live, "--timeout", "1") == (1, f"worker-{worker.pid} does not answer within 1 s\n")
    wait_until(lambda: ping(live)[0] == 0, timeout=SOON, what="an answer")


def test_a_worker_lives_while_redis_does_not(make_live: MakeLive, sqlite_url: str, own_valkey: ValkeyServer) -> None:
    live = make_live(sqlite_url, redis_url=own_valkey.url)
    live.start_worker()
    wait_until_ready(live)

    own_valkey.kill()

    assert ping(live)[0] == 0


def test_a_worker_is_alive_and_not_ready_while_it_ends(live: LiveEnv) -> None:
    worker = live.start_worker()
    run = live.hold_now()
    live.wait_for_execution(run)

    worker.signal(signal.SIGTERM)

    wait_until(lambda: "is about to end" in ping(live)[1], timeout=SOON, what="an end that is told")
    assert (ping(live)[0], ping(live, "--ready")[0]) == (0, 1)
    live.open_gate()
    assert worker.wait() == 0


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@pytest.fixture
def systemd(live: LiveEnv) -> Iterator[socket.socket]:
    """systemd's end of the socket that processes find in their environment."""
    path = live.folder / "notify"
    live.environment |= {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1000000"}
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(path))
        listening.settimeout(SOON)
        yield listening


def hear(listening: socket.socket, state: str) -> list[str]:
    """Return the notifications up to and including a state."""
    found: list[str] = []
    while state not in found:
        found.append(listening.recv(1024).decode())
    return found


@pytest.mark.parametrize(
    "words",
    [["worker"], ["dispatcher"], ["web", "--port", "0"], ["web", "--port", "0", "--workers", "2"]],
    ids=["worker", "dispatcher", "web", "several-webs"],
)
def test_systemd_is_told_of_a_start_that_it_lives_and_of_its_end(
    live: LiveEnv, systemd: socket.socket, words: list[str]
) -> None:
    process = live.start(rqsched_command(*words))

    assert set(hear(systemd, "READY=1")) <= {"WATCHDOG=1", "READY=1"}
    hear(systemd, "WATCHDOG=1")
    hear(systemd, "WATCHDOG=1")

    process.signal(signal.SIGTERM)
    assert set(hear(systemd, "STOPPING=1")) <= {"WATCHDOG=1", "STOPPING=1"}
    assert process.wait() in {0, -signal.SIGTERM}


def test_a_worker_that_stands_still_is_silent_to_systemds_watchdog(live: LiveEnv, systemd: socket.socket) -> None:
    worker = live.start_worker()
    hear(systemd, "READY=1")
    with stopped(worker):
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, what="a stop")
        systemd.setblocking(False)
        with suppress(BlockingIOError):
            while systemd.recv(1024):
                continue
        systemd.settimeout(3)
        with pytest.raises(TimeoutError):
            systemd.recv(1024)
    systemd.settimeout(SOON)
    hear(systemd, "WATCHDOG=1")


def test_a_run_cannot_speak_to_systemd_in_the_name_of_its_worker(live: LiveEnv, systemd: socket.socket) -> None:
    schedule = live.scheduler.create("env", "os.getenv", Every("24h"), args=["NOTIFY_SOCKET", "none"])
    run = present(schedule.trigger().run)

    live.start_worker()

    assert live.wait_for_status(run, "succeeded").result == "none"
