"""A real PostgreSQL that is a standby: what is read is answered, what is written waits, and a promotion is enough."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.errors import DatabaseUnavailableError
from rqsched.store.database import Database
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE
from tests.system.acceptance.chores import NOTE
from tests.system.acceptance.live import MakeLive

pytestmark = [pytest.mark.postgres, pytest.mark.acceptance, pytest.mark.timeout(180)]


def demote(server: PostgresServer) -> None:
    """Restart it as a standby, which takes no write until it is promoted."""
    server.stop()
    (server.folder / "standby.signal").touch()
    server.start()


def promote(server: PostgresServer) -> None:
    server.execute("SELECT pg_promote()")


def test_a_write_after_a_read_meets_a_standby_as_an_outage_and_continues_when_it_is_promoted(
    own_postgres: PostgresServer,
) -> None:
    with closing(Database(own_postgres.create_database())) as database:
        database.transact(lambda connection: connection.execute(sa.text("CREATE TABLE t (a int)")))
        demote(own_postgres)
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
    wait_until(lambda: len(live.executions()) > 1, timeout=60, what="two executions")
    demote(own_postgres)
    began = len(live.executions())
    wait_until(lambda: "read-only" in worker.log(), timeout=60, what="a word of the standby")

    promote(own_postgres)

    wait_until(lambda: len(live.executions()) > began + 3, timeout=60, what="executions after the promotion")
    assert "Traceback" not in worker.log()
    assert worker.is_running
    live.scheduler.get("note").pause()
    assert live.scheduler.create("other", NOTE, Every("1h"), kwargs={"log": str(live.log)}).status == "active"
