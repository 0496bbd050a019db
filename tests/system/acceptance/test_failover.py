"""Real servers with streaming replication: a promotion, an old primary that comes back, and a copy of the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.kernel.chain import rollback_marks
from rqsched.kernel.decide.rollback_marks import WentBack
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from rqsched.kernel.transport import redis_keys
from tests.support import servers
from tests.support.processes import rqsched_command, run_to_end, wait_until
from tests.support.servers import PostgresServer
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.postgres, pytest.mark.acceptance, pytest.mark.timeout(400)]


@pytest.fixture
def standby(own_postgres: PostgresServer, own_postgres_url: str) -> Iterator[PostgresServer]:
    """A replica of `own_postgres`, with the tables of `own_postgres_url`."""
    with servers.standby_of(own_postgres) as server:
        yield server


def either(primary: str, standby: PostgresServer) -> str:
    """The URL of whichever of the two takes writes, the standby first."""
    host, _, name = primary.rpartition("@")[2].partition("/")
    return f"postgresql+psycopg://postgres@/{name}?host=127.0.0.1:{standby.port}&host={host}&target_session_attrs=read-write"


def count_runs(url: str) -> int:
    with closing(Database(url)) as database:
        found: Any = database.read(lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(runs)))
        return int(found)


def executed(live: LiveEnv, more: int) -> None:
    began = len(live.executions())
    wait_until(lambda: len(live.executions()) >= began + more, timeout=90, what=f"{more} more executions")


def test_a_promotion_is_followed_at_once_and_the_old_primary_is_refused_when_it_comes_back(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str, standby: PostgresServer
) -> None:
    live = make_live(either(own_postgres_url, standby))
    worker = live.start_worker()
    live.note_every("note", Every("1s"))
    executed(live, 3)

    own_postgres.kill()
    standby.execute("SELECT pg_promote()")
    executed(live, 4)
    wait_until(lambda: "goes on with another server" in worker.log(), what="a word of the promotion")

    own_postgres.start()
    known = count_runs(own_postgres_url)
    old = live.start(rqsched_command("worker"), RQSCHED_DATABASE_URL=own_postgres_url)
    old.wait_for_log("is of an earlier timeline", timeout=90)
    assert old.wait(timeout=60) != 0
    executed(live, 4)
    assert count_runs(own_postgres_url) == known
    assert worker.is_running
    assert "Traceback" not in worker.log()


BY = {
    "worker": lambda live: live.start_worker(),
    "plain": lambda live: live.start_rq("worker", "-c", "rqsched.preload"),
}
"""What executes: our worker, and a plain one of RQ's whose work horses connect anew for each run."""


@pytest.mark.parametrize("kind", BY)
def test_processes_that_start_reach_the_new_primary_when_the_old_one_is_back_as_the_first_host(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str, standby: PostgresServer, kind: str
) -> None:
    first, _, name = own_postgres_url.rpartition("@")[2].partition("/")
    hosts = f"host={first}&host=127.0.0.1:{standby.port}"
    url = f"postgresql+psycopg://postgres@/{name}?{hosts}&target_session_attrs=read-write"
    live = make_live(url)
    worker = live.start_worker()
    live.note_every("note", Every("1s"))
    executed(live, 2)
    own_postgres.kill()
    standby.execute("SELECT pg_promote()")
    executed(live, 2)  # Redis knows the new primary
    worker.kill_tree()
    own_postgres.start()
    known = count_runs(own_postgres_url)

    started = BY[kind](live)

    executed(live, 5)
    assert "earlier timeline" not in started.log()
    assert count_runs(url) > known, "a process that Redis tells nothing compares the hosts"
    assert count_runs(own_postgres_url) == known


def test_a_restored_snapshot_of_an_earlier_timeline_is_adopted_as_one_of_two_hosts(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str, standby: PostgresServer
) -> None:
    live = make_live(either(own_postgres_url, standby))
    standby.execute("SELECT pg_promote()")
    live.redis.set(redis_keys.database_id("rqsched"), live.scheduler.runtime.ownership.database_id())
    live.redis.set(redis_keys.identity("rqsched"), recorded_later(standby.url(own_postgres_url.rpartition("/")[2])))
    standby.kill()  # the right server is gone, and the snapshot is older

    refused = run_to_end(rqsched_command("worker"), live.environment)
    assert "is of an earlier timeline" in refused.stderr
    adopted = run_to_end(rqsched_command("db", "adopt", "--yes"), live.environment)
    assert adopted.returncode == 0, adopted.stderr

    live.start_worker()
    live.note_every("note", Every("1s"))
    executed(live, 2)


def recorded_later(url: str) -> str:
    with closing(Database(url)) as database:
        wait_until(lambda: "2" in str(database.identify()).split(), what="a promoted server")
        return str(database.identity)


def test_a_clone_beside_the_redis_of_its_original_executes_nothing_until_it_is_adopted(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    live = make_live(own_postgres_url)
    live.note_every("note", Every("1s"))
    live.scheduler.recover()
    live.scheduler.runtime.database.close()
    clone = own_postgres.create_database(template=own_postgres_url.rpartition("/")[2])
    worker = live.start_worker()
    executed(live, 3)

    refused = live.start(rqsched_command("worker"), RQSCHED_DATABASE_URL=clone)
    refused.wait_for_log("is a copy", timeout=90)
    assert refused.wait(timeout=60) != 0
    executed(live, 2)
    assert count_runs(clone) == 0

    worker.kill_tree()
    adopted = live.start(rqsched_command("db", "adopt", "--yes"), RQSCHED_DATABASE_URL=clone)
    assert adopted.wait(timeout=60) == 0, adopted.log()
    live.start(rqsched_command("worker"), RQSCHED_DATABASE_URL=clone)
    executed(live, 3)
    assert count_runs(clone) >= 3


def test_two_copies_of_one_data_directory_look_alike_and_are_told_by_their_marks(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str, standby: PostgresServer
) -> None:
    """Both are promoted or both started from the same files, so the servers report equal identities."""
    standby.stop()
    (standby.folder / "standby.signal").unlink()
    standby.start()
    copy = standby.url(own_postgres_url.rpartition("/")[2])
    ours, theirs = (make_live(url).scheduler.runtime for url in (own_postgres_url, copy))
    ours.database.ping()
    theirs.database.ping()
    assert ours.database.identity == theirs.database.identity
    owner = ours.ownership.database_id()
    theirs.database.transact(lambda connection: metadata.set_value(connection, metadata.DATABASE_ID, owner))
    for _ in range(2):
        for runtime in (ours, theirs):
            pass_now(runtime)
    found = ours.database.read(partial(rollback_marks.find_told, ours, ours.now()))
    assert WentBack.TWO_DATABASES in {one.which for one in found}


def pass_now(runtime: Any) -> None:
    """A pass, as if the interval were over."""
    runtime.settings = runtime.settings.model_copy(update={"reconcile_interval": rollback_marks.STANDS * 0})
    rollback_marks.leave_mark(runtime)
