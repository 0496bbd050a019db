"""Databases that store not every text, or say dates otherwise: all works, and what cannot be stored is escaped."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest
import sqlalchemy as sa

from rqsched import RunCancelled
from rqsched.api.health import Level, examine
from rqsched.errors import SchemaError
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.shared_engine import database_of
from rqsched.kernel.store.tables import metadata
from rqsched.run.worker import warn_of_encoding
from tests.support.env import ONCE, Env, MakeEnv, last, run_target
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.postgres
TEXTS = "é € \U0001f600 \0 \udc80"
KINDS = [
    "LATIN1", "SQL_ASCII", "EUC_JP", "UTF8", "German dates", "German dates behind a pooler", "LATIN1 behind a pooler",
]  # fmt: skip


def create(server: PostgresServer, kind: str) -> str:
    """A database without tables."""
    encoding = "UTF8" if kind.startswith("German") else kind.partition(" ")[0]
    url = server.create_database(template="template0")
    name = url.rpartition("/")[2]
    server.drop_database(url)
    server.execute(f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    if kind.startswith("German"):
        odd = {"datestyle": "German, DMY", "intervalstyle": "sql_standard", "timezone": "Asia/Kathmandu",
               "client_encoding": "LATIN1"}  # fmt: skip
        for setting, value in odd.items():
            server.execute(f"ALTER DATABASE \"{name}\" SET {setting} TO '{value}'")
    return url


@pytest.fixture(params=KINDS)
def odd_env(make_env: MakeEnv, postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Env:
    url = create(postgres_server, request.param)
    with closing(Database(url)) as database:
        database.transact(metadata.create_all)  # as an application has it that upgrades
        schema_version.upgrade(database)
    pooler = {"database_pooler": "transaction"} if "pooler" in request.param else {}
    return make_env(database_url=url, **pooler)


class Hostile:
    def __repr__(self) -> str:
        raise SystemExit(3)


class HostileDict(dict[str, int]):
    def items(self) -> object:  # type: ignore[override]
        raise KeyboardInterrupt


class Odd(RunCancelled):
    def __str__(self) -> str:
        raise SystemExit(3)


def raises(error: BaseException) -> object:
    raise error


def test_end_of_a_run_is_recorded_whatever_it_contains(odd_env: Env) -> None:
    env = odd_env
    failed = run_target(env, lambda: raises(ValueError(TEXTS)))
    assert failed.status == "failed"
    assert "ValueError: é" in present(failed.error) or "ValueError: \\u00e9" in present(failed.error)
    succeeded = run_target(env, lambda: [TEXTS[:5], "€"], schedule_id="texts")
    assert (succeeded.status, succeeded.result) == ("succeeded", [TEXTS[:5], "€"])
    cancelled = run_target(env, lambda: raises(RunCancelled(TEXTS)), schedule_id="cancelled")
    assert cancelled.status == "cancelled"
    assert "\\udc80" in present(cancelled.error)
    check_invariants(env.runtime, with_redis=False)


@pytest.mark.parametrize("result", [Hostile(), HostileDict(a=1)], ids=["repr", "items"])
def test_result_whose_own_code_ends_the_process_is_recorded(env: Env, result: object) -> None:
    run = run_target(env, lambda: result)
    assert run.status == "succeeded"
    assert type(result).__name__ in json.dumps(run.result) or run.result == "{'a': 1}"


def test_cancellation_that_cannot_say_why_is_recorded(env: Env) -> None:
    run = run_target(env, lambda: raises(Odd()))
    assert (run.status, run.error) == ("cancelled", "<Odd>")


@pytest.mark.parametrize("kind", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_upgrade_of_an_empty_database_refuses_any_encoding_but_utf8(
    postgres_server: PostgresServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Database(create(postgres_server, kind))) as database:
        with pytest.raises(SchemaError, match=rf"encoding is {kind}.*ENCODING 'UTF8' TEMPLATE template0"):
            schema_version.upgrade(database)
        assert database.read(lambda connection: sa.inspect(connection).get_table_names()) == []
        with caplog.at_level(logging.WARNING):
            warn_of_encoding(database)
    assert [record.action for record in caplog.records] == ["not_utf8"]  # type: ignore[attr-defined]


def test_doctor_reports_an_encoding_that_does_not_store_all(odd_env: Env, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["odd_env"]
    (found,) = [one for one in examine(odd_env.runtime) if one.check == "encoding"]
    is_utf8 = kind == "UTF8" or kind.startswith("German")
    assert found.level is (Level.OK if is_utf8 else Level.PROBLEM)


@pytest.mark.parametrize("text", [TEXTS, "x" * 20_000 + TEXTS], ids=["short", "long"])
def test_fire_that_fails_with_any_text_is_recorded(env: Env, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = env.create(retry=ONCE)
    monkeypatch.setattr("rqsched.kernel.chain.fire.decide_fire", lambda *_, **__: raises(ValueError(text)))
    env.advance()
    (fired,) = env.deliver(schedule)
    assert fired.outcome == "failed"
    assert "ValueError" in str(last(schedule, "FireFailed"))


def test_connection_of_an_application_s_engine_escapes_what_the_encoding_lacks(postgres_server: PostgresServer) -> None:
    engine = sa.create_engine(sa.make_url(create(postgres_server, "LATIN1")).set(drivername="postgresql+psycopg"))
    with closing(database_of(engine)) as database:
        said = database.transact(lambda c: c.execute(sa.select(sa.literal("é €", sa.Text))).scalar_one())
    engine.dispose()
    assert said == "é \\u20ac"
