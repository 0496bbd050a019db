"""Schedules in the transactions of a Django project, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis

from tests.support.processes import REPOSITORY
from tests.support.servers import PostgresServer, ValkeyServer

PUBLISHED = {"ordered": [], "names": ["report"], "linked": ["report"], "queued": 0}


@pytest.fixture(scope="module")
def postgres(
    postgres_server: PostgresServer, postgres_template: str, valkey_server: ValkeyServer
) -> Iterator[dict[str, Any]]:
    """The observations of a project on PostgreSQL."""
    url = postgres_server.create_database(template=postgres_template)
    parsed = sa.make_url(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parsed.database,
        "USER": parsed.username,
        "PASSWORD": parsed.password,
        "HOST": parsed.query.get("host", parsed.host),
        "PORT": str(parsed.port or ""),
    }
    yield _tell(database, valkey_server.url, url)
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory, valkey_server: ValkeyServer) -> dict[str, Any]:
    """The observations of a project on SQLite."""
    path = tmp_path_factory.mktemp("django") / "project.db"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 20}}
    return _tell(database, valkey_server.url, f"sqlite:///{path}")


def _tell(database: dict[str, Any], redis_url: str, url: str) -> dict[str, Any]:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    command = [sys.executable, "-m", "tests.support.django_transactions", json.dumps(database), redis_url, url]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.postgres
def test_schedule_is_written_with_djangos_rows_and_published_on_commit(postgres: dict[str, Any]) -> None:
    saw = postgres["commits"]
    assert saw.pop("inside") == {"aware": True, "ordered": [1], "names": [], "linked": [], "queued": 0}
    assert saw == {"ordered": [1], "names": ["report"], "linked": ["report"], "queued": 1}


@pytest.mark.postgres
def test_schedules_of_one_block_are_published_with_one_statement(postgres: dict[str, Any]) -> None:
    """In the block each schedule takes a savepoint, its release, and five statements in between."""
    names = [f"report-{number}" for number in range(5)]
    saw = postgres["publishes_together"]
    assert saw == {"inside": 35, "after": 1, "ordered": [], "names": names, "linked": names, "queued": 0}


@pytest.mark.postgres
def test_schedule_is_undone_with_djangos_rows(postgres: dict[str, Any]) -> None:
    assert postgres["fails"] == {"ordered": [], "names": [], "linked": [], "queued": 0}


@pytest.mark.postgres
def test_what_an_inner_block_undoes_is_not_published(postgres: dict[str, Any]) -> None:
    assert postgres["undoes_a_savepoint"] == {"ordered": [2], "names": ["kept"], "linked": ["kept"], "queued": 0}


@pytest.mark.postgres
def test_refused_operation_leaves_djangos_transaction_as_it_was(postgres: dict[str, Any]) -> None:
    assert postgres["goes_on_after_a_refusal"] == PUBLISHED | {"refused": "schedule_already_exists", "ordered": [1]}


@pytest.mark.postgres
def test_outside_of_atomic_it_is_refused(postgres: dict[str, Any]) -> None:
    saw = postgres["is_outside"]
    assert "transaction.atomic()" in saw.pop("refused")
    assert saw == {"ordered": [], "names": [], "linked": [], "queued": 0}


@pytest.mark.postgres
def test_each_connection_that_django_opens_is_the_one_that_is_used(postgres: dict[str, Any]) -> None:
    assert postgres["reconnects"]["linked"] == ["one", "two"]


@pytest.mark.postgres
def test_settings_of_djangos_connection_stay_as_they_are(postgres: dict[str, Any]) -> None:
    assert postgres["keeps_its_settings"] == {"same": True, "autocommit": True}


def test_on_sqlite_it_is_refused_with_what_to_do(sqlite: dict[str, Any]) -> None:
    assert "transaction.on_commit(lambda: scheduler.create(...))" in sqlite["is_outside"]["refused"]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_operation_in_on_commit_works_on_every_database(kind: str, request: pytest.FixtureRequest) -> None:
    saw = request.getfixturevalue(kind)["waits_for_on_commit"]
    assert saw.pop("inside") == {"ordered": [1], "names": [], "linked": [], "queued": 0}
    assert saw == PUBLISHED | {"ordered": [1]}
