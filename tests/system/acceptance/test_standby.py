"""A real PostgreSQL standby answers reads. Writes wait until it is promoted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic

import httpx
import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.errors import DatabaseReadOnlyError, DatabaseUnavailableError
from rqsched.kernel.store.database import Database
from rqsched.run.vital_signs import ask_all
from tests.support.processes import Process, rqsched_command, run_to_end, wait_until
from tests.support.servers import PostgresServer, free_port
from tests.support.sql import NO_PATIENCE
from tests.system.acceptance.chores import NOTE
from tests.system.acceptance.live import RQ_KINDS, LiveEnv, MakeLive

pytestmark = [pytest.mark.postgres, pytest.mark.acceptance, pytest.mark.timeout(180)]


def promote(server: PostgresServer) -> None:
    server.execute("SELECT pg_promote()")


def test_a_write_after_a_read_meets_a_standby_as_an_outage_and_continues_when_it_is_promoted(
    own_postgres: PostgresServer,
) -> None:
    with closing(Database(own_postgres.create_database())) as database:
        database.transact(lambda connection: connection.execute(sa.text("CREATE TABLE t (a int)")))
        own_postgres.demote()
        query, insert = sa.text("SELECT count(*) FROM t"), sa.text("INSERT INTO t VALUES (1)")
        assert database.read(lambda connection: connection.execute(query).scalar()) == 0

        for write in (database.transact, database.transact_alone):
            with pytest.raises(DatabaseUnavailableError, match="read-only transaction"):
                write(lambda connection: connection.execute(insert), patience=NO_PATIENCE)

        promote(own_postgres)
        database.transact(lambda connection: connection.execute(insert))
        assert database.read(lambda connection: connection.execute(query).scalar()) == 1


def test_a_dispatcher_beside_a_standby_lives_and_fires_when_it_is_promoted(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    live = make_live(own_postgres_url)
    worker = live.start_worker()
    live.note_every("note", Every("1s"))
    wait_until(lambda: len(live.executions()) > 1, what="two executions")
    own_postgres.demote()
    began = len(live.executions())
    wait_until(lambda: "read-only" in worker.log(), what="a word of the standby")

    promote(own_postgres)

    wait_until(lambda: len(live.executions()) > began + 3, what="executions after the promotion")
    assert "Traceback" not in worker.log()
    assert worker.is_running
    live.scheduler.get("note").pause()
    assert live.scheduler.create("other", NOTE, Every("1h"), kwargs={"log": str(live.log)}).status == "active"


KINDS: dict[str, Callable[[LiveEnv], Process]] = {
    "forking": lambda live: live.start_worker(),
    "runner": lambda live: live.start_runners(1),
    "class": lambda live: live.start_rq(*RQ_KINDS["fork"]),
    "preload": lambda live: live.start_rq("worker", "-c", "rqsched.preload"),
}
WAITS = "the database takes no writes"


def test_workers_started_on_a_standby_take_nothing_and_begin_when_it_is_promoted(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    live = make_live(own_postgres_url)
    note = live.note_every("note", Every("1s"), overlap="allow_all")
    run = live.run_now("now")
    live.scheduler.runtime.record_workflows()
    armed = live.redis.zrange("rq:scheduled:rqsched", 0, -1, withscores=True)
    own_postgres.demote()

    workers = {kind: start(live) for kind, start in KINDS.items()}
    for worker in workers.values():
        worker.wait_for_log(WAITS)
    wait_until(lambda: len(waiting(live)) == 6, what="dispatchers and runs that wait")
    pinged = run_to_end(rqsched_command("ping"), live.environment)
    assert pinged.returncode == 0
    assert pinged.stdout.count("waits for a database that takes writes") == len(KINDS)
    found = run_to_end(rqsched_command("doctor", "-o", "json"), live.environment)
    told = {one["check"]: one for one in json.loads(found.stdout)["findings"]}
    assert (told["writes"]["level"], told["writes"]["detail"][:28]) == ("warning", "The database takes no writes")
    assert told["dispatchers"]["detail"].startswith("No dispatcher is alive")
    assert live.redis.zrange("rq:scheduled:rqsched", 0, -1, withscores=True) == armed
    assert live.redis.llen("rq:queue:default") == 1

    promote(own_postgres)

    live.wait_for_status(run, "succeeded")
    live.wait_for_successes(note)
    for kind, worker in workers.items():
        assert worker.is_running
        assert 1 <= worker.log().count(WAITS) <= 3, f"{kind}, once in each process: {worker.log()}"
        assert "Traceback" not in worker.log()
    wait_until(lambda: not waiting(live), what="the end of all waiting")


def waiting(live: LiveEnv) -> list[str]:
    """The children of this machine's supervisors that wait for a database that takes writes."""
    states = [answer.state or {} for answer in ask_all(Path(live.environment["RQSCHED_RUN_DIR"]), 5)]
    return [one["role"] for state in states for one in state.get("children", []) if one["waits_for_writes"]]


def test_a_burst_on_a_standby_is_refused(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    live = make_live(own_postgres_url)
    own_postgres.demote()

    ended = run_to_end(rqsched_command("worker", "--burst"), live.environment)

    assert ended.returncode == DatabaseReadOnlyError.exit_code
    assert "the database takes no writes" in ended.stderr


def test_a_web_process_on_a_standby_reads_and_refuses_writes_at_once(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    live, port = make_live(own_postgres_url), free_port()
    live.note_every("note", Every("1h"))
    live.redis.delete("rqsched:reconcile:rqsched")
    own_postgres.demote()
    web = live.start(rqsched_command("web", "--port", str(port)))
    web.wait_for_log(WAITS)
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=f"{url}/api/v1/schedules/", timeout=60) as client:
        assert client.get(f"{url}/readyz").status_code == 200
        assert [one["schedule_id"] for one in client.get("").json()["items"]] == ["note"]
        for path in ("note/trigger/", "note/pause/"):
            began = monotonic()
            refused = client.post(path)
            took = monotonic() - began
            assert (refused.status_code, refused.json()["code"]) == (503, "database_read_only")
            assert "standby" in refused.json()["detail"]
            assert took < 2.9  # a database that does not answer is waited for 3 s
        assert "takes no writes" in client.get(url).text
        assert live.redis.get("rqsched:reconcile:rqsched") is None, "its passes are left to others"

        promote(own_postgres)

        wait_until(lambda: client.post("note/pause/").status_code == 200, what="a write")
    wait_until(lambda: live.redis.get("rqsched:reconcile:rqsched"), what="a pass")
    assert "Traceback" not in web.log()
