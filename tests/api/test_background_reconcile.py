"""`keep_recovering`: passes of reconcile in turn, in a thread of a process that serves requests."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rq import Queue, SimpleWorker

from rqsched import Scheduler
from rqsched.config import Settings
from rqsched.kernel.chain.imports import import_workflows
from tests.support.children import in_children
from tests.support.env import Env, MakeEnv
from tests.support.narrow import present
from tests.support.processes import REPOSITORY, SOON, Processes, wait_until
from tests.support.proxy import proxy_to
from tests.support.servers import PostgresServer, ValkeyServer

SETTINGS = {"reconcile_interval": 1, "heartbeat_interval": 0.5}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rqsched-recover"]


def wait_for_link(env: Env) -> None:
    wait_until(lambda: len(env.armed()) == 1, timeout=SOON, what="the link")


@pytest.fixture
def passing(make_env: MakeEnv) -> Env:
    """An environment whose passes are a second apart."""
    return make_env(**SETTINGS)


def test_passes_repair_what_redis_lost_until_the_scheduler_is_closed(passing: Env) -> None:
    passing.create()
    assert threads() == []

    passing.scheduler.keep_recovering()
    passing.scheduler.keep_recovering()
    for _ in range(2):
        passing.redis.flushall()
        wait_for_link(passing)
    assert len(threads()) == 1

    passing.scheduler.close()
    assert threads() == []


def test_forked_process_begins_its_own(passing: Env) -> None:
    passing.create()
    passing.scheduler.keep_recovering()
    wait_until(lambda: passing.redis.exists(passing.transport.interval_key), timeout=SOON, what="the first pass")

    with passing.scheduler:
        assert in_children(1, lambda: len(threads())) == [1]


@pytest.mark.postgres
def test_between_passes_there_is_no_connection_to_sql(
    make_env: MakeEnv, postgres_url: str, postgres_server: PostgresServer
) -> None:
    env = make_env(database_url=postgres_url, **SETTINGS)
    env.create()
    env.runtime.database.close()
    with env.scheduler, postgres_server.connect() as connection:

        def connected() -> int:
            name = postgres_url.rpartition("/")[2]
            counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
            return int(str(present(counted)[0]))

        before = connected()  # the fixture's own
        env.scheduler.keep_recovering()
        for _ in range(3):
            wait_until(lambda: connected() > before, timeout=SOON, interval=0.001, what="a pass")
            wait_until(lambda: connected() == before, timeout=SOON, what="the end of a pass")


def test_outage_is_logged_once_and_outlived(
    make_env: MakeEnv, own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(redis_url=own_valkey.url, **SETTINGS)
    env.create()
    with env.scheduler, caplog.at_level(logging.WARNING):
        for outage in (1, 2):
            own_valkey.stop()
            env.scheduler.keep_recovering()
            wait_until(lambda: len(failures(caplog)) == outage, timeout=SOON, what="the failure")  # noqa: B023
            own_valkey.start()
            env.redis.flushall()
            wait_for_link(env)
        assert len(failures(caplog)) == 2


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if getattr(record, "action", "") == "recover_failed"]


_of_job: list[Scheduler] = []


def keep_recovering_in_a_job() -> None:
    _of_job[0].keep_recovering()


def test_nothing_begins_in_a_job_of_rq(env: Env) -> None:
    _of_job[:] = [env.scheduler]
    job = Queue("default", connection=env.redis).enqueue(keep_recovering_in_a_job)
    SimpleWorker(["default"], connection=env.redis).work(burst=True)
    assert job.is_finished
    assert threads() == []


def test_nothing_begins_while_a_worker_or_command_imports_the_application(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _of_job[:] = [env.scheduler]
    (tmp_path / "application_of_test.py").write_text(
        f"from {__name__} import keep_recovering_in_a_job\nkeep_recovering_in_a_job()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import_workflows(Settings(imports="application_of_test"))
    assert "application_of_test" in sys.modules
    assert threads() == []


ENDING = """
import signal, sys, time
from rqsched import Scheduler
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
{opened}
scheduler.keep_recovering()
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.broad
@pytest.mark.postgres
@pytest.mark.parametrize("silent", ["sql", "redis"])
def test_servers_that_fall_silent_do_not_hold_up_the_end_of_a_process(
    postgres_env: Env, postgres_url: str, redis_url: str, tmp_path: Path, silent: str
) -> None:
    postgres_env.create()
    with proxy_to(postgres_url) as sql, proxy_to(redis_url) as redis:
        environment = {
            "RQSCHED_DATABASE_URL": sql.url(postgres_url), "RQSCHED_REDIS_URL": redis.url(redis_url),
            "RQSCHED_RECONCILE_INTERVAL": "1", "RQSCHED_HEARTBEAT_INTERVAL": "0.5",
        }  # fmt: skip
        processes = Processes(tmp_path, environment)
        try:
            script = ENDING.format(opened="scheduler = Scheduler()")
            closing = ENDING.format(opened="import atexit\nscheduler = Scheduler()\natexit.register(scheduler.close)")
            plain, closes = (processes.start([sys.executable, "-c", text]) for text in (script, closing))
            for process in (plain, closes):
                process.wait_for_log("begun")
            proxy = sql if silent == "sql" else redis
            proxy.is_silent = True
            proxy.swallow()
            known = proxy.connections
            wait_until(lambda: proxy.connections >= known + 2, timeout=SOON, what="passes that hang")
            for process in (plain, closes):
                process.signal(signal.SIGTERM)
            assert [process.wait() for process in (plain, closes)] == [0, 0]
        finally:
            processes.close()


def test_module_that_a_worker_of_rq_loads_begins_nothing(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    module = tmp_path / "app.py"
    module.write_text(
        "import threading\n"
        "from rqsched import Scheduler\n"
        f"scheduler = Scheduler(database_url={sqlite_url!r}, redis_url={redis_url!r})\n"
        "scheduler.keep_recovering()\n"
        "print('threads:', [one.name for one in threading.enumerate() if one.name == 'rqsched-recover'], flush=True)\n"
    )

    rq = str(Path(sys.executable).parent / "rq")
    command = [rq, "worker", "--burst", "--url", redis_url, "-c", "app", "default"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)

    assert "threads: []" in ended.stdout
