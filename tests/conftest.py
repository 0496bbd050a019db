"""Fixtures every test may use: real servers, one of each per test process, clean for every test."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rqsched import embedded
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.testing import ManualClock
from tests.support import breadth, servers, warm
from tests.support.compiled import share_compiled_statements
from tests.support.env import NOON, Env, MakeEnv, open_env
from tests.support.receiver import Receiver, receiver
from tests.support.servers import PostgresServer, ValkeyServer

pytest_plugins = ["tests.support.repeats"]

_TESTS = Path(__file__).parent
_SURFACES = tuple(
    _TESTS / name
    for name in (
        *("api", "cli", "client", "dashboard", "durable_workflow", "http", "importers", "machines", "ojs", "simulate"),
    )
)
_SURFACES_OF_FEATURES = ("test_api", "test_cli", "test_http", "test_page")
_PROTOCOL = ("test_chain", "test_store")
"""Tests of the SQL of a feature, and of its steps in the protocol. `make test` runs them on both databases."""
# Their HTTP answers, dispatches and messages are proven on PostgreSQL by tests/http, kernel and system/crash.
_EXAMPLES = tuple(_TESTS / "system" / "acceptance" / f"test_{name}.py" for name in ("dashboard", "machines_example"))
_WAITING = (_TESTS / "system" / "acceptance", _TESTS / "system" / "applications", _TESTS / "system" / "concurrency")
_SPREAD = 0.85
"""The part of the run over which modules that mostly wait for processes are spread; the rest keeps its end short."""
_GARBAGE_THRESHOLDS = (10_000, 20, 20)

share_compiled_statements()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the broad tests and those for `make nightly`, and mix computing tests with waiting ones."""
    for item in items:
        if breadth.is_on_second_database(item) and item.nodeid not in breadth.NAMED:
            if _is_surface(item) and item.get_closest_marker("every_database") is None:
                item.add_marker(pytest.mark.nightly)
            elif _is_surface(item) or (_is_of_feature(item) and not item.path.name.startswith(_PROTOCOL)):
                item.add_marker(pytest.mark.broad)
    breadth.mark_broad(items)
    breadth.require_named(items)
    items[:] = _mixed(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which `make test` runs nothing, in `make test`."""
    return breadth.has_nothing_for(config.option.markexpr, collection_path) or None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates in a report: a test process could not send it, and would end the whole run."""
    return _escaped((yield))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _escaped(one) for key, one in value.items()}
    return type(value)(map(_escaped, value)) if type(value) in {list, tuple} else value


def pytest_collection_finish() -> None:
    """Freeze the imported and collected objects: they live to the end, so the garbage collector need not walk them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Spread the modules that wait evenly among those that compute; no module is torn apart.

    Each test process gets a part of the list in this order, so that at any time some wait and some compute.
    """
    waiting, computing = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (waiting if any(item.path.is_relative_to(path) for path in _WAITING) else computing).append(item)
    places: dict[Path, float] = {}
    for group, spread in ((waiting, _SPREAD), (computing, 1.0)):
        for index, item in enumerate(group):
            places.setdefault(item.path, spread * index / len(group))
    return sorted(items, key=lambda item: places[item.path])


def _is_of_feature(item: pytest.Item) -> bool:
    return item.path.is_relative_to(_TESTS / "features")


def _is_surface(item: pytest.Item) -> bool:
    is_of_feature = _is_of_feature(item) and item.path.name.startswith(_SURFACES_OF_FEATURES)
    return is_of_feature or any(item.path.is_relative_to(path) for path in (*_SURFACES, *_EXAMPLES))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RQSCHED_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def cold_commands() -> Iterator[None]:
    """Commands start as in production: the test includes their imports."""
    with warm.cold():
        yield


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when told; it starts at noon of an ordinary Thursday."""
    return ManualClock(NOON)


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """The test process's Valkey. Do not stop it: `own_valkey` is for that."""
    with servers.valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def _kept_redis(valkey_server: ValkeyServer) -> Iterator[Redis]:
    """A connection that empties the Redis before each test: a new one would cost ten times as much as that."""
    with Redis.from_url(valkey_server.url, retry=Retry(NoBackoff(), 1)) as connection:
        yield connection


@pytest.fixture
def redis_url(valkey_server: ValkeyServer, _kept_redis: Redis) -> str:
    """An empty Redis."""
    _kept_redis.flushall()
    return valkey_server.url


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """A connection to `redis_url`."""
    with Redis.from_url(redis_url) as connection:
        yield connection


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey of this test alone, to stop, kill and restart."""
    with servers.valkey(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The test process's PostgreSQL. Do not stop it: `own_postgres` is for that."""
    with servers.postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The migrated database every `postgres_url` is a copy of."""
    with closing(Database(postgres_server.create_database("rqsched_template"))) as database:
        schema_version.upgrade(database)
    return "rqsched_template"


@pytest.fixture
def fresh_postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh PostgreSQL database with every table."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def postgres_url(fresh_postgres_url: str) -> str:
    """The PostgreSQL database of a test; folders of tests that share one override this."""
    return fresh_postgres_url


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test alone, to stop, kill and restart; about a second."""
    with servers.postgres() as server:
        yield server


@pytest.fixture
def own_postgres_url(own_postgres: PostgresServer) -> str:
    """A database of `own_postgres` with every table."""
    url = own_postgres.create_database()
    with closing(Database(url)) as database:
        schema_version.upgrade(database)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The migrated file every `sqlite_url` is a copy of."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        schema_version.upgrade(database)
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh SQLite file with every table."""
    path = tmp_path / "rqsched.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn: the one suite of store tests runs on all of them."""
    kind: str = request.param
    return kind


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database_kind: str) -> str:
    """A fresh database of each kind, with every table."""
    url: str = request.getfixturevalue(f"{database_kind}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Each database in turn, with every table and no rows; closed at the end."""
    with closing(Database(database_url)) as database:
        yield database


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[Database]:
    """PostgreSQL alone, with every table and no rows; closed at the end."""
    with closing(Database(postgres_url)) as database:
        yield database


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A PostgreSQL database without any table."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def empty_database_url(request: pytest.FixtureRequest, database_kind: str) -> str:
    """A database of each kind without any table."""
    url: str = request.getfixturevalue(f"empty_{database_kind}_url")
    return url


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    """Each database in turn, without any table; closed at the end."""
    with closing(Database(empty_database_url)) as database:
        yield database


@pytest.fixture
def make_env(clock: ManualClock, redis_url: str, sqlite_url: str) -> Iterator[MakeEnv]:
    """Environments over one clock, with settings of their own; SQLite and this process's Valkey unless named."""
    with ExitStack() as stack:

        def make(**options: Any) -> Env:
            urls = {"database_url": sqlite_url, "redis_url": redis_url}
            return stack.enter_context(open_env(clock, **{**urls, **options}))

        yield make


@pytest.fixture
def env(make_env: MakeEnv) -> Env:
    """An environment over SQLite, for what SQL does not matter to."""
    return make_env()


@pytest.fixture
def any_env(make_env: MakeEnv, database_url: str) -> Env:
    """An environment over each database in turn."""
    return make_env(database_url=database_url)


@pytest.fixture
def postgres_env(make_env: MakeEnv, postgres_url: str) -> Env:
    """An environment over PostgreSQL, for its own behaviour."""
    return make_env(database_url=postgres_url)


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Receiver]:
    """A receiver of webhooks and heartbeats."""
    with receiver(tmp_path) as running:
        yield running


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A folder for embedded servers, which end with the test."""
    folder = tmp_path / "data"
    yield folder
    embedded.stop(folder)
