"""`manage.py test` with our runner, beside a worker of development on the same database server and Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from redis import Redis

from tests.contrib.conftest import Project
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.timeout(300)
SOON = 90.0
RUNNER = "rqsched.contrib.django.runner.Runner"
TESTS = """
from django.contrib.auth.models import User
from django.test import Client, TransactionTestCase

from rqsched import Every, Scheduler
from rqsched.contrib.django import scheduler
from rqsched.testing import execute_pending


class Base:
    def test_a_user_is_renamed(self):
        user = User.objects.create(username="bob")
        scheduler.create(f"of-a-test-{type(self).__name__}", "rename", Every("1h"), args=[user.pk, "Bob"]).trigger()
        self.assertEqual(execute_pending(scheduler), 1)
        user.refresh_from_db()
        self.assertEqual(user.first_name, "Bob")

    def test_connections_may_be_left_open(self):
        other = Scheduler.from_env()
        self.assertEqual(list(other.list(owner="nobody").items), [])
        self.assertEqual(Client().get("/admin/login/").status_code, 200)


class First(Base, TransactionTestCase):
    pass


class Second(Base, TransactionTestCase):
    pass
"""
WORKER = {
    "rqsched_worker": ["python", "manage.py", "rqsched_worker"],
    "rq worker": ["rq", "worker", "-c", "rqsched.contrib.django.workflows", "rqsched", "default"],
}


@pytest.fixture
def on_postgres(project: Project, empty_postgres_url: str) -> Project:
    """The project on PostgreSQL, with tests and our runner."""
    at = urlsplit(empty_postgres_url)
    engine = {"ENGINE": "django.db.backends.postgresql", "HOST": at.hostname, "PORT": at.port, "USER": at.username}
    project.settings |= {"DATABASES": {"default": {**engine, "NAME": at.path[1:]}}, "TEST_RUNNER": RUNNER}
    project.write("visits/tests.py", TESTS)
    project.manage("migrate")
    return project


def servers_of_tests(project: Project) -> list[psutil.Process]:
    """The Valkeys that work in a folder of the project's; one that lost its folder is among them."""
    found = psutil.process_iter(["name", "cwd"])
    here = str(project.folder)
    return [one for one in found if "valkey" in one.info["name"] and (one.info["cwd"] or "").startswith(here)]


@pytest.mark.postgres
@pytest.mark.parametrize("kind", WORKER)
@pytest.mark.parametrize("options", [(), ("--parallel", "2")], ids=["one process", "parallel"])
def test_tests_end_and_no_worker_of_development_takes_their_runs(
    on_postgres: Project, redis_url: str, postgres_server: PostgresServer, kind: str, options: tuple[str, ...]
) -> None:
    url = ["--url", redis_url] if kind == "rq worker" else []
    worker = on_postgres.run(*WORKER[kind], *url)
    with Redis.from_url(redis_url) as redis:
        wait_until(lambda: redis.scard("rq:workers:default"), timeout=SOON, what=lambda: f"the worker\n{worker.log()}")

        told = on_postgres.manage("test", "visits", "--noinput", *options, RQSCHED_REDIS_URL=redis_url)

        assert "OK" in told
        assert "Ran 4 tests" in told
        assert not [key for key in redis.keys("rq:job:*") if b"run-" in key]
    assert "of-a-test" not in worker.log()
    assert "of-a-test" not in on_postgres.manage("rqsched", "list")
    name = on_postgres.settings["DATABASES"]["default"]["NAME"]
    with postgres_server.connect() as connection:
        left = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", [f"test_{name}%"]).fetchall()
    assert left == []
    assert servers_of_tests(on_postgres) == []
    assert list((on_postgres.folder / ".rqsched" / "test").glob("*")) == []


CASES: dict[str, dict[str, Any]] = {
    "a SQLite in memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"},
    "a SQLite file": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3", "TEST": {"NAME": "test.sqlite3"}},
}


@pytest.mark.parametrize("case", CASES)
def test_other_test_databases_are_isolated_too(project: Project, redis: Redis, case: str) -> None:
    project.settings |= {"DATABASES": {"default": CASES[case]}, "TEST_RUNNER": RUNNER}
    project.write("visits/tests.py", TESTS)

    assert "OK" in project.manage("test", "visits", "--noinput")

    assert redis.keys("*") == []


def test_tests_reach_no_server_that_a_file_or_a_credential_names(
    project: Project, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    project.settings |= {"DATABASES": {"default": CASES["a SQLite in memory"]}, "TEST_RUNNER": RUNNER}
    project.write("visits/tests.py", TESTS)
    (file := tmp_path / "of-redis").write_text(redis_url)
    (folder := tmp_path / "credentials").mkdir()
    (folder / "RQSCHED_DATABASE_URL").write_text(f"sqlite:///{tmp_path}/development.db")

    told = project.manage(
        "test", "visits", "--noinput", RQSCHED_REDIS_URL_FILE=str(file), CREDENTIALS_DIRECTORY=str(folder)
    )

    assert "OK" in told
    assert redis.keys("*") == []
    assert not (tmp_path / "development.db").exists()


def test_what_a_killed_test_run_left_is_removed_by_the_next(project: Project) -> None:
    project.settings |= {"TEST_RUNNER": RUNNER}
    waiting = (
        TESTS + "\n    def test_waits(self):\n        scheduler.list()\n        print('it waits', flush=True)\n"
        "        import time\n        time.sleep(600)\n"
    )
    project.write("visits/tests.py", waiting)
    killed = project.run("python", "manage.py", "test", "visits", "--noinput")
    killed.wait_for_log("it waits", timeout=SOON)
    (left,) = servers_of_tests(project)
    killed.kill_tree()
    assert left.is_running()

    project.write("visits/tests.py", TESTS)
    assert "OK" in project.manage("test", "visits", "--noinput")

    assert servers_of_tests(project) == []


OWN = """
from django.test.runner import DiscoverRunner
from rqsched.contrib.django.runner import Isolated


class Mine(Isolated, DiscoverRunner):
    pass
"""


def test_runner_of_the_project_inherits_the_isolation(project: Project, redis: Redis) -> None:
    project.write("visits/runner.py", OWN)
    project.settings |= {"TEST_RUNNER": "visits.runner.Mine"}
    project.write("visits/tests.py", TESTS)

    assert "OK" in project.manage("test", "visits", "--noinput")

    assert redis.keys("*") == []
