"""A copy of a database, or an old primary, at the Redis of the original: processes that continue or are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from rqsched.api import health
from rqsched.api.health import Level
from rqsched.errors import DatabaseUnavailableError, WrongDatabaseError
from rqsched.kernel.chain import rollback_marks
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.server_identity import IdentityReader, ServerIdentity
from rqsched.kernel.transport import redis_keys
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, run_job_id, statuses
from tests.support.narrow import present, text
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE, statements

pytestmark = pytest.mark.postgres

HERE, OTHER_DATABASE, OTHER_SYSTEM = ("7501", "16384"), ("7501", "16999"), ("7502", "16384")
OPEN = ("-", "-")


class Pretended(IdentityReader):
    """Reads an identity from the test instead of the server."""

    def __init__(self, server: tuple[str, str], timeline: object) -> None:
        super().__init__()
        self._parts = *server, str(timeline)

    @property
    def query(self) -> str:
        return "SELECT " + ", ".join("NULL" if part == "-" else f"'{part}'" for part in self._parts)


def move(env: Env, server: tuple[str, str], timeline: object) -> None:
    """The next connections of an environment reach another server."""
    env.runtime.database._identities = Pretended(server, timeline)
    env.runtime.database.close()


@pytest.fixture
def original(postgres_env: Env) -> Env:
    """On timeline 2 of a server, which has made a pass."""
    move(postgres_env, HERE, 2)
    postgres_env.recover()
    return postgres_env


@pytest.fixture
def copy(make_env: MakeEnv, original: Env, postgres_server: PostgresServer) -> Iterator[Callable[[], Env]]:
    """Makes a copy of the database, as CREATE DATABASE ... TEMPLATE does."""
    made: list[str] = []

    def copy() -> Env:
        original.runtime.database.close()
        made.append(postgres_server.create_database(template=present(original.runtime.database.engine.url.database)))
        env = make_env(database_url=made[-1])
        move(env, OTHER_DATABASE, 2)
        return env

    yield copy
    for url in made:
        postgres_server.drop_database(url)


def recorded(env: Env) -> str:
    return text(env.redis.get(redis_keys.identity("rqsched")))


def silence(env: Env) -> None:
    """The last pass of the recorded server was six minutes ago."""
    key = redis_keys.identity_seen("rqsched")
    at, owner = text(env.redis.get(key)).split()
    env.redis.set(key, f"{int(at) - 360} {owner}")


def wait_as_heir(env: Env) -> None:
    """The server that wants to take over has waited for half a minute."""
    key = redis_keys.identity_heir("rqsched")
    env.redis.set(key, int(text(env.redis.get(key))) - 30, ex=300)


def pass_of(env: Env) -> None:
    env.advance(16 * SECOND)
    env.recover()


def test_a_connection_knows_its_server(postgres_url: str) -> None:
    query = "SELECT (SELECT system_identifier FROM pg_control_system()), oid FROM pg_database WHERE datname = "
    with closing(Database(postgres_url)) as database:
        system, oid = database.read(lambda c: c.exec_driver_sql(f"{query} current_database()").one())
        assert database.identity == ServerIdentity(str(system), str(oid), "1")
        assert database.identify() == database.identity


def test_a_role_that_may_not_read_it_all_reads_a_part(postgres_url: str, postgres_server: PostgresServer) -> None:
    role = f"limited_{postgres_url[-8:]}"
    with closing(Database(postgres_url)) as database:
        revoke, create = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", f"CREATE ROLE {role} LOGIN"
        database.transact(lambda connection: connection.exec_driver_sql(f"{revoke}; {create}"))
    with closing(Database(postgres_url.replace("postgres@", f"{role}@"))) as database:
        database.ping()
        known = present(database.identity)
        assert (known.system, known.timeline, known.database.isdigit()) == ("-", "1", True)
        assert database.identify() == known
    postgres_server.execute(f"DROP ROLE {role}")


def test_connections_to_another_server_than_the_newest_are_given_up(postgres_env: Env) -> None:
    database = postgres_env.runtime.database
    move(postgres_env, HERE, 1)
    old, new = database.engine.connect(), None
    with old:
        left = old.connection.driver_connection
        database._identities = Pretended(HERE, 2)
        new = database.engine.connect()
    with new:
        new.exec_driver_sql("SELECT 1")

    with database.engine.connect() as first, database.engine.connect() as second:
        assert left not in {first.connection.driver_connection, second.connection.driver_connection}
    assert str(database.identity) == "7501 16384 2"


@pytest.mark.parametrize("newest", [(HERE, "-"), (HERE, 2), (("-", "16384"), 2)])
def test_connections_to_a_replica_and_its_primary_stay_side_by_side(
    postgres_env: Env, newest: tuple[tuple[str, str], object]
) -> None:
    database = postgres_env.runtime.database
    move(postgres_env, HERE, 2)
    with database.engine.connect() as old:
        kept = old.connection.driver_connection
        database._identities = Pretended(*newest)
        new = database.engine.connect()
    new.close()

    with database.engine.connect() as first, database.engine.connect() as second:
        assert kept in {first.connection.driver_connection, second.connection.driver_connection}


def test_a_server_of_an_earlier_timeline_is_not_connected_to_after_a_later_one(postgres_env: Env) -> None:
    """An old primary that comes back may be the first host of the URL."""
    database = postgres_env.runtime.database
    move(postgres_env, HERE, 2)
    database.ping()
    move(postgres_env, HERE, 1)

    with pytest.raises(DatabaseUnavailableError, match="an old primary answers: timeline 1 after 2"):
        database.transact(lambda connection: connection.exec_driver_sql("SELECT 1"), patience=NO_PATIENCE)

    move(postgres_env, HERE, 2)
    database.ping()


def test_the_first_pass_records_the_server_and_later_ones_find_it(original: Env) -> None:
    assert recorded(original) == "7501 16384 2"
    pass_of(original)
    assert original.runtime.ownership.standing().outcome == "same"


@pytest.mark.parametrize(
    ("server", "timeline", "then"),
    [
        (HERE, 2, "7501 16384 2"),
        (HERE, 3, "7501 16384 3"),
        (HERE, 10, "7501 16384 10"),
        (HERE, "-", "7501 16384 2"),
        (OPEN, "-", "7501 16384 2"),
        (("-", "16384"), 3, "7501 16384 3"),
    ],
    ids=["the same", "promoted", "promoted often", "a timeline nobody may read", "nothing is readable", "a part is"],
)
def test_a_failover_never_waits(original: Env, server: tuple[str, str], timeline: object, then: str) -> None:
    """An unreadable part of the identity matches anything. LEASE itself takes over, before any pass."""
    schedule = original.create()
    original.advance(MINUTE)
    move(original, server, timeline)

    assert original.dispatch() == 1

    assert statuses(schedule) == ["pending"]
    assert recorded(original) == (then if timeline != 2 else "7501 16384 2")
    pass_of(original)
    assert recorded(original) == then


def test_a_promotion_is_logged_once(original: Env, caplog: pytest.LogCaptureFixture) -> None:
    move(original, HERE, 3)
    with caplog.at_level(logging.WARNING):
        pass_of(original)
        pass_of(original)
    assert [record.__dict__["action"] for record in caplog.records] == ["server_promoted"]


def test_a_record_is_completed_by_who_may_read_more(postgres_env: Env) -> None:
    move(postgres_env, ("-", "16384"), "-")
    pass_of(postgres_env)
    assert recorded(postgres_env) == "- 16384 -"
    move(postgres_env, HERE, 2)
    pass_of(postgres_env)
    assert recorded(postgres_env) == "7501 16384 2"


def test_an_old_primary_that_comes_back_is_refused_for_ever(original: Env, make_env: MakeEnv) -> None:
    schedule = original.create()
    old = make_env(database_url=str(original.runtime.settings.database_url))
    move(old, HERE, 1)
    old.advance(MINUTE)

    with pytest.raises(WrongDatabaseError, match=r"earlier timeline.*rqsched db adopt"):
        Dispatcher(old.runtime).run_once()
    silence(original)
    with pytest.raises(WrongDatabaseError, match="earlier timeline"):
        old.recover()
    with pytest.raises(WrongDatabaseError, match="earlier timeline"):
        old.scheduler.create("other", "note", MINUTE)

    assert statuses(schedule) == []
    assert list(original.armed()) == [link_id(schedule)]
    assert recorded(original) == "7501 16384 2"


def test_a_process_whose_pool_leads_to_an_old_primary_moves_to_the_new_one(original: Env) -> None:
    """Its old connections are alive. The refusal makes it open a new one, which reaches the other processes' server."""
    schedule = original.create()
    original.advance(MINUTE)
    original.redis.set(redis_keys.identity("rqsched"), "7501 16384 3")
    original.runtime.database.ping()
    original.runtime.database._identities = Pretended(HERE, 3)

    original.dispatch()

    assert statuses(schedule) == ["pending"]


@pytest.mark.parametrize("server", [OTHER_DATABASE, OTHER_SYSTEM], ids=["another database", "another cluster"])
def test_a_copy_is_refused_while_processes_of_the_original_live(
    original: Env, copy: Callable[[], Env], server: tuple[str, str]
) -> None:
    schedule = original.create()
    clone = copy()
    move(clone, server, 7)
    clone.advance(MINUTE)

    for refused in (
        lambda: Dispatcher(clone.runtime).run_once(),
        clone.recover,
        lambda: clone.scheduler.create("other", "note", MINUTE),
        lambda: clone.scheduler.get("report").trigger(),
    ):
        with pytest.raises(WrongDatabaseError, match=r"is a copy.*rqsched db new-identity"):
            refused()

    assert statuses(clone.scheduler.get("report")) == []
    original.dispatch()
    assert statuses(schedule) == ["pending"]


def test_what_a_copy_has_written_reaches_no_queue(original: Env, copy: Callable[[], Env]) -> None:
    """ARM refuses the links that a bare `rq worker` fired in the copy. The original's link fires."""
    schedule = original.create()
    clone = copy()
    clone.advance(MINUTE)
    before = original.armed()

    clone.deliver(clone.scheduler.get("report"))

    assert original.queued() == []
    assert original.armed() == before or original.armed() == {}
    pass_of(original)
    original.dispatch()
    assert statuses(schedule) == ["pending"]


def test_a_copy_takes_over_when_nobody_of_the_original_was_seen_for_five_minutes(
    original: Env, copy: Callable[[], Env], caplog: pytest.LogCaptureFixture
) -> None:
    original.create()
    clone = copy()
    silence(original)
    with pytest.raises(WrongDatabaseError, match="takes over when none was seen"):
        clone.recover()
    wait_as_heir(clone)

    with caplog.at_level(logging.ERROR):
        pass_of(clone)

    assert recorded(clone) == "7501 16999 2"
    assert [record.__dict__["action"] for record in caplog.records] == ["server_taken_over"]
    (found,) = [one for one in health.examine(clone.runtime) if one.check == "went back"]
    assert found.level is Level.WARNING
    assert "took over from that of another server, 7501 16384 2" in found.detail
    with pytest.raises(WrongDatabaseError, match="is a copy"):
        original.recover()


def test_an_original_that_was_only_silent_keeps_its_queue(original: Env, copy: Callable[[], Env]) -> None:
    """As after an outage of Redis of more than five minutes, in which no process was seen."""
    clone = copy()
    silence(original)
    with pytest.raises(WrongDatabaseError, match="takes over"):
        clone.recover()

    pass_of(original)

    wait = pytest.raises(WrongDatabaseError, match="is a copy")
    with wait:
        clone.recover()
    assert original.redis.get(redis_keys.identity_heir("rqsched")) is None


def test_a_flush_does_not_let_a_refused_copy_come_first(original: Env, copy: Callable[[], Env]) -> None:
    clone = copy()
    with pytest.raises(WrongDatabaseError):
        clone.recover()
    original.redis.flushall()

    with pytest.raises(WrongDatabaseError, match="was flushed"):
        clone.recover()
    original.recover()

    assert recorded(original) == "7501 16384 2"


def test_a_copy_is_adopted_at_once_and_what_was_found_ends(original: Env, copy: Callable[[], Env]) -> None:
    clone = copy()
    clone.runtime.database.transact(
        lambda connection: metadata.set_value(connection, metadata.TAKEN_OVER, f"{clone.clock.now().isoformat()} x")
    )

    assert clone.runtime.ownership.adopt_server().outcome == "adopted"

    clone.recover()
    assert recorded(clone) == "7501 16999 2"
    assert clone.runtime.database.read(partial(rollback_marks.find_told, clone.runtime, clone.clock.now())) == []
    with pytest.raises(WrongDatabaseError, match="is a copy"):
        original.recover()


def test_a_copy_with_another_id_lives_beside_the_original(original: Env, copy: Callable[[], Env]) -> None:
    clone = copy()
    clone.runtime.database.transact(lambda connection: metadata.renew_id(connection, "01JNEWJNEWJNEWJNEWJNEWJNEW"))
    with pytest.raises(WrongDatabaseError, match="belongs to another database"):
        clone.recover()
    clone.redis.delete(clone.transport.database_id_key)

    clone.recover()

    assert recorded(clone) == "7501 16999 2", "another database's server is no server of this one"


def test_a_run_of_the_original_is_refused_by_a_worker_of_the_copy(original: Env, copy: Callable[[], Env]) -> None:
    run = original.fire_next(original.create())
    assert original.job(run_job_id(run)).meta["server"] == "7501 16384 2"
    clone = copy()

    clone.work()

    assert clone.calls == []
    assert run.refresh().status == "pending"


@pytest.mark.parametrize("timeline", [2, 3])
def test_a_run_is_executed_before_and_after_a_promotion(original: Env, timeline: int) -> None:
    run = original.fire_next(original.create())
    move(original, HERE, timeline)

    original.work()

    assert run.refresh().status == "succeeded"


def test_fires_and_claims_ask_as_much_as_without_an_identity(original: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity is part of requests that are sent anyway."""
    original.create()
    asked = list[str]()
    send: Any = original.redis.execute_command

    def note(*args: object, **options: object) -> object:
        asked.append(str(args[0]))
        return send(*args, **options)

    monkeypatch.setattr(original.redis, "execute_command", note)
    original.redis.set(original.transport.interval_key, 1)  # no pass between
    found = []
    for _ in range(3):
        asked.clear()
        original.advance(MINUTE)
        with statements(original.runtime) as sent:
            original.dispatch()
            original.work()
        found.append((sent, asked.copy()))
        if len(found) == 2:
            original.transport.server = ""

    first, known, without = found
    assert known == without
    assert "EVALSHA" in known[1]
    assert first[0] == known[0]
    assert len(original.calls) == 3


def test_sqlite_has_no_identity(env: Env) -> None:
    env.fire_next(env.create())
    env.recover()
    assert env.redis.get(redis_keys.identity("rqsched")) is None
    assert env.transport.server == ""
