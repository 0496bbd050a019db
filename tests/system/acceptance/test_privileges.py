"""Real processes whose user of PostgreSQL loses a privilege: they take nothing, say why, lose nothing, and go on."""

from __future__ import annotations

import httpx
import pytest

from rqsched import Every, RetryPolicy
from tests.support.processes import rqsched_command, run_to_end
from tests.support.servers import PostgresServer, free_port
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.postgres, pytest.mark.acceptance, pytest.mark.timeout(300)]

STARTS = {
    "worker": lambda live: live.start_worker(),
    "runner": lambda live: live.start_runners(1),
    "plain": lambda live: live.start_rq("worker", "-c", "rqsched.preload"),
}


@pytest.fixture
def live(make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str) -> LiveEnv:
    """An installation whose user owns nothing and may do everything with the tables."""
    alter(own_postgres, own_postgres_url, "CREATE ROLE app LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
    return make_live(own_postgres_url.replace("postgres@", "app@"))


def alter(server: PostgresServer, url: str, statements: str) -> None:
    ended = run_to_end([server.binaries / "psql", plain(url), "-v", "ON_ERROR_STOP=1", "-c", statements], {})
    assert ended.returncode == 0, ended.stderr


def plain(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


@pytest.mark.parametrize("kind", STARTS)
def test_a_run_that_ends_without_the_privilege_is_recorded_when_it_is_granted(
    live: LiveEnv, own_postgres: PostgresServer, own_postgres_url: str, kind: str
) -> None:
    worker, port = STARTS[kind](live), free_port()
    web = live.start(rqsched_command("web", "--port", str(port)))
    live.note_every("note", Every("1s"), overlap="allow_all")
    run = live.hold_now(retry=RetryPolicy(max_retries=3))
    live.wait_for_status(run, "running")
    web.wait_for_log("Uvicorn running")

    alter(own_postgres, own_postgres_url, "REVOKE INSERT, UPDATE ON rqsched_runs FROM app")
    live.open_gate()
    worker.wait_for_log("GRANT INSERT, UPDATE ON rqsched_runs TO app;", timeout=90)
    asked = httpx.post(f"http://127.0.0.1:{port}/api/v1/schedules/note/trigger/", timeout=60)
    doctor = run_to_end(rqsched_command("doctor"), live.environment)

    assert (asked.status_code, asked.json()["code"]) == (503, "database_privilege")
    assert "GRANT INSERT, UPDATE ON rqsched_runs" in asked.json()["detail"]
    assert doctor.returncode != 0
    assert "GRANT INSERT, UPDATE ON rqsched_runs TO app;" in doctor.stdout

    alter(own_postgres, own_postgres_url, "GRANT INSERT, UPDATE ON rqsched_runs TO app")
    live.wait_for_status(run, "succeeded", timeout=90)
    assert run.refresh().attempt == 1
    live.wait_for_fires(live.scheduler.get("note"))
