"""A Django project with rqsched in INSTALLED_APPS: its settings, commands, workers, tests and dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rqsched import RunHandle, Scheduler
from tests.contrib.conftest import Project
from tests.support.narrow import present
from tests.support.processes import Process, wait_until
from tests.support.servers import PostgresServer, free_port
from tests.support.serving import status_of

pytestmark = pytest.mark.timeout(300)
from_nothing = pytest.mark.usefixtures("cold_commands")
"""The project's processes import everything anew, as in production."""
SOON = 90.0
SQLITE = {"ENGINE": "django.db.backends.sqlite3"}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key that nothing reads": ({"RQSCHED": {"REDIS_ULR": "redis://x/0"}}, "did you mean 'REDIS_URL'?"),
    "no dictionary": ({"RQSCHED": ["redis://x/0"]}, "RQSCHED is list; write a dictionary"),
    "a Redis URL that is none": ({"RQSCHED": {"REDIS_URL": "localhost"}}, "RQSCHED['REDIS_URL']: write redis://"),
    "a database URL that is none": (
        {"RQSCHED": {"REDIS_URL": "redis://x/0", "DATABASE_URL": "mysql://u:hunter2@h/d"}},
        "RQSCHED['DATABASE_URL']: write postgresql://",
    ),
    "an alias that is not there": ({"RQSCHED": {"DATABASE": "jobs"}}, "'jobs', which is not in DATABASES"),
    "no database": ({"DATABASES": {}}, "DATABASES['default'] has no ENGINE"),
    "a database in memory": ({"DATABASES": {"default": {**SQLITE, "NAME": ":memory:"}}}, "is in memory"),
    "a queue that is not there": (
        {"RQSCHED": {"RQ_QUEUE": "high"}, "RQ_QUEUES": {"default": {"URL": "redis://x/0"}}},
        "'high', which is not in RQ_QUEUES",
    ),
    "a queue without a URL": (
        {"RQSCHED": {}, "RQ_QUEUES": {"default": {"USE_REDIS_CACHE": "default"}}},
        "RQ_QUEUES['default'] uses USE_REDIS_CACHE",
    ),
    "an operator that cannot be imported": ({"RQSCHED": {"OPERATOR": "visits.nobody"}}, "rqsched.E002"),
    "a timezone without rules": ({"TIME_ZONE": "EST"}, "TIME_ZONE: 'EST' is refused"),
    "retries that are none": ({"RQSCHED": {"RETRY": {"retries": 3}}}, "RQSCHED['RETRY']: retries: is not known"),
    "a value out of range": ({"RQSCHED": {"FIRE_BATCH": 0}}, "RQSCHED['FIRE_BATCH']"),
}


CHECK = """
import json, os, subprocess, sys
import django.core.management
import rqsched.contrib.django.apps
told = {}
for case, settings in json.loads(os.environ["CASES"]).items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.environ["SETTINGS"] = json.dumps(settings)
        django.core.management.execute_from_command_line(["manage.py", "check"])
    os.close(writing)
    with os.fdopen(reading) as output:
        told[case] = output.read()
print(json.dumps(told))
"""


def test_check_says_what_is_wrong_and_repeats_no_secret(project: Project) -> None:
    process = project.run(
        "python", "-c", CHECK, CASES=json.dumps({case: settings for case, (settings, _) in WRONG.items()})
    )
    assert process.wait(timeout=120) == 0, process.log()
    told = json.loads(process.log())
    silent = {
        case: told[case]
        for case, (_, expected) in WRONG.items()
        if expected not in told[case] or "rqsched.E0" not in told[case] or "hunter2" in told[case]
    }
    assert silent == {}


def test_doctor_names_what_one_sets_and_types_in_a_project(project: Project) -> None:
    found = json.loads(project.manage("rqsched", "doctor", "-o", "json", code=1))["findings"]
    advice = {one["check"]: one["advice"] for one in found}
    assert advice["schema"] == "Run `python manage.py migrate`."

    project.manage("migrate")
    project.settings["RQSCHED"]["REDIS_URL"] = "redis://127.0.0.1:1/0"
    found = json.loads(project.manage("rqsched", "doctor", "-o", "json", code=1))["findings"]
    advice = {one["check"]: one["advice"] for one in found}
    assert advice["redis"] == "Start it, or set RQSCHED['REDIS_URL'] to where it is."
    told = project.manage("rqsched", "doctor", "-o", "json", code=1, RQSCHED_REDIS_URL="redis://127.0.0.1:2/0")
    assert "set RQSCHED_REDIS_URL to where it is" in told


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "DATABASES['default'], RQSCHED['REDIS_URL'], TIME_ZONE"),
        ({"RQSCHED": {"DATABASE": "jobs"}}, "DATABASES['jobs'], RQSCHED['REDIS_URL'], TIME_ZONE"),
        ({"RQ_QUEUES": {"default": {"URL": "redis://x/0"}}}, "DATABASES['default'], RQ_QUEUES['default'], TIME_ZONE"),
        ({"RQSCHED": {"TIMEZONE": "UTC", "DATABASE_URL": "sqlite:///x"}},
         "RQSCHED['DATABASE_URL'], RQSCHED['REDIS_URL'], RQSCHED['TIMEZONE']"),
    ],
    ids=["nothing", "an alias", "django-rq", "its own"],
)  # fmt: skip
def test_a_setting_is_named_where_the_project_has_it(project: Project, settings: dict[str, Any], expected: str) -> None:
    project.settings = {"TIME_ZONE": "UTC", **settings}
    texts = ["RQSCHED_DATABASE_URL, RQSCHED_REDIS_URL, RQSCHED_TIMEZONE", "RQSCHED_NOT_OURS, `rqsched runs ID`"]
    told = project.python(
        f"from rqsched.errors import ConfigError\nfor text in {texts}:\n    print(ConfigError(text))"
    ).splitlines()
    assert told == [expected, "RQSCHED_NOT_OURS, `python manage.py rqsched runs ID`"]


def test_check_is_content_with_one_line_in_installed_apps_and_warns_where_production_would_not_be(
    project: Project,
) -> None:
    project.settings = {}
    assert "no issues" in project.manage("check")
    project.settings = {"DEBUG": False}
    assert "rqsched.W001" in project.manage("check")


def test_check_says_that_the_dashboard_needs_users(project: Project) -> None:
    project.write(
        "urls.py",
        "from django.urls import include, path\nurlpatterns = [path('', include('rqsched.contrib.django.urls'))]",
    )
    project.settings = {
        "INSTALLED_APPS": ["django.contrib.contenttypes", "django.contrib.auth", "rqsched.contrib.django"]
    }
    told = project.manage("check", code=1)
    assert "rqsched.E003" in told
    assert "django.contrib.sessions is not installed" in told


POSTGRES = "django.db.backends.postgresql"
URLS: list[tuple[dict[str, Any], str]] = [
    ({"ENGINE": POSTGRES, "NAME": "shop"}, "postgresql:///shop"),
    (
        {"ENGINE": POSTGRES, "NAME": "a/b", "USER": "me@x", "PASSWORD": "p:w/d", "HOST": "db", "PORT": "6543"},
        "postgresql://me%40x:p%3Aw%2Fd@db:6543/a%2Fb",
    ),
    ({"ENGINE": POSTGRES, "NAME": "shop", "HOST": "::1"}, "postgresql://[::1]/shop"),
    ({"ENGINE": POSTGRES, "NAME": "s", "HOST": "/run/pg", "USER": "me"}, "postgresql://me@/s?host=%2Frun%2Fpg"),
    (
        {"ENGINE": POSTGRES, "NAME": "s", "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2}},
        "postgresql:///s?sslmode=require",
    ),
]
QUEUES: list[tuple[dict[str, Any], str]] = [
    ({"URL": "redis://q/3"}, "redis://q/3"),
    ({"HOST": "q", "PORT": 6380, "DB": 2, "PASSWORD": "s@"}, "redis://:s%40@q:6380/2"),
    (
        {"HOST": "q", "USERNAME": "u", "PASSWORD": "s", "SSL": True, "SSL_CERT_REQS": "none"},
        "rediss://u:s@q:6379/0?ssl_cert_reqs=none",
    ),
    ({"UNIX_SOCKET_PATH": "/run/redis", "DB": 1}, "unix:///run/redis?db=1"),
    (
        {
            "SENTINELS": [("s1", 26379), ("s2", 26380)],
            "MASTER_NAME": "main",
            "DB": 1,
            "PASSWORD": "p",
            "SENTINEL_KWARGS": {"password": "q&", "socket_timeout": 1},
        },
        "redis+sentinel://:p@s1:26379,s2:26380/main/1?sentinel_password=q%26",
    ),
]
TELL = """
from rqsched.contrib.django.project import database_url, redis_url
from django.conf import settings
print(json.dumps([[database_url(f"d{n}") for n in range(%d)], [redis_url(f"q{n}") for n in range(%d)]]))
"""


def test_databases_and_queues_of_the_project_become_urls(project: Project) -> None:
    databases = {f"d{number}": settings for number, (settings, _) in enumerate(URLS)}
    project.settings = {
        "DATABASES": {"default": {**SQLITE, "NAME": "db"}, **databases},
        "RQ_QUEUES": {f"q{number}": settings for number, (settings, _) in enumerate(QUEUES)},
    }
    assert json.loads(project.python(TELL % (len(URLS), len(QUEUES)))) == [
        [url for _, url in URLS],
        [url for _, url in QUEUES],
    ]


def test_the_environment_wins_over_the_settings(project: Project, redis_url: str) -> None:
    project.settings["RQSCHED"] = {"REDIS_URL": "redis://nowhere.invalid/0", "NAMESPACE": "of-settings"}
    project.manage("migrate")
    listed = project.manage("rqsched", "list", RQSCHED_REDIS_URL=redis_url, RQSCHED_NAMESPACE="of-environment")
    assert "Namespace: of-environment" in listed


@from_nothing
def test_a_deploy_migrates_and_syncs_and_prunes_what_is_declared_no_more(project: Project) -> None:
    project.manage("migrate")
    assert "1 created" in project.manage("rqsched", "sync", "--delete-removed")
    (shown,) = json.loads(project.manage("rqsched", "list", "-o", "json"))["schedules"]
    assert (shown["schedule_id"], shown["status"]) == ("tidy_up", "active")

    project.write("visits/schedules.py", SCHEDULE_OF_NEXT_RELEASE)
    assert "1 created, 0 updated, 0 unchanged, 1 removed" in project.manage("rqsched", "sync", "--delete-removed")


SCHEDULE_OF_NEXT_RELEASE = """
from rqsched.contrib.django import scheduler

@scheduler.every("1d")
def count_visits():
    pass
"""


def test_commands_have_the_exit_codes_and_help_of_rqsched_and_djangos_own_options(project: Project) -> None:
    project.manage("migrate")
    assert "no schedule 'nope'" in project.manage("rqsched", "describe", "nope", code=3)
    assert "manage.py rqsched list" in project.manage("rqsched", "list", "--help")
    project.write("other.py", "from settings import *\nRQSCHED = {**RQSCHED, 'NAMESPACE': 'other'}\n")
    assert "Namespace: other" in project.manage("rqsched", "list", "--settings", "other", DJANGO_SETTINGS_MODULE="")


def test_call_command_returns_or_raises_with_the_exit_code(project: Project) -> None:
    project.manage("migrate")
    script = """
from django.core.management import CommandError, call_command
call_command("rqsched", "sync")
call_command("rqsched", "pause", "tidy_up")
try:
    call_command("rqsched", "pause", "nope")
except CommandError as error:
    print("code", error.returncode)
"""
    told = project.python(script)
    assert "Schedule tidy_up paused" in told
    assert "code 3" in told


WORKERS = {
    "rqsched_worker": ["python", "manage.py", "rqsched_worker"],
    "rq worker": ["rq", "worker", "-c", "rqsched.contrib.django.workflows", "-w", "rqsched.rq.Worker"],
    "spawned": ["rq", "worker", "-c", "rqsched.contrib.django.workflows", "-w", "rqsched.rq.SpawnWorker"],
}


RENAME = """
from django.contrib.auth.models import User
from django.core.management import call_command
from rqsched.contrib.django import scheduler
call_command("migrate", verbosity=0)
ada = User.objects.create(username="ada")
scheduler.create("rename-ada", "rename", "1d", args=[ada.pk, "Ada"]).trigger()
"""


def wait_for_runs(project: Project, worker: Process, count: int) -> list[RunHandle]:
    """The runs of that schedule, when so many succeeded."""
    redis_url = project.settings["RQSCHED"]["REDIS_URL"]
    database_url = project.database_url or f"sqlite:///{project.folder}/db.sqlite3"
    with Scheduler(database_url=database_url, redis_url=redis_url) as scheduler:
        schedule = scheduler.get("rename-ada")

        def succeeded() -> bool:
            return len([run for run in schedule.runs().items if run.status == "succeeded"]) >= count

        wait_until(succeeded, timeout=SOON, interval=0.2, what=lambda: f"{count} runs\n{worker.log()}")
        return schedule.runs().items


@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_executes_workflows_of_schedules_py_with_djangos_models(
    project: Project, redis_url: str, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "rqsched_worker":
        request.getfixturevalue("cold_commands")
    project.python(RENAME)
    url = ["--url", redis_url, "default"] if "rq" in WORKERS[kind] else []

    worker = project.run(*WORKERS[kind], *url)

    (run,) = wait_for_runs(project, worker, 1)
    assert run.result == 1


@pytest.mark.postgres
def test_a_worker_that_does_not_fork_gets_a_new_connection_after_the_old_one_broke(
    project: Project, redis_url: str, empty_postgres_url: str, postgres_server: PostgresServer
) -> None:
    at = urlsplit(empty_postgres_url)
    name = at.path.removeprefix("/")
    project.settings["DATABASES"] = {
        "default": {
            "ENGINE": POSTGRES, "HOST": at.hostname, "PORT": at.port, "USER": at.username, "NAME": name,
            "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True,
        }
    }  # fmt: skip
    project.database_url = empty_postgres_url
    project.python(RENAME)
    command = ["rq", "worker", "-c", "rqsched.contrib.django.workflows", "-w", "rqsched.rq.SimpleWorker"]
    worker = project.run(*command, "--url", redis_url, "default")
    wait_for_runs(project, worker, 1)

    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    project.manage("rqsched", "trigger", "rename-ada")

    assert [run.attempt for run in wait_for_runs(project, worker, 2)] == [1, 1]


TESTS = """
from django.test import TransactionTestCase

from rqsched import Every
from rqsched.contrib.django import scheduler
from rqsched.testing import execute_pending
from django.contrib.auth.models import User


class Reminders(TransactionTestCase):
    def test_a_user_is_renamed(self):
        self.addCleanup(scheduler.close)
        user = User.objects.create(username="bob")
        scheduler.create("of-a-test", "rename", Every("1h"), args=[user.pk, "Bob"]).trigger()
        self.assertEqual(execute_pending(scheduler), 1)
        user.refresh_from_db()
        self.assertEqual(user.first_name, "Bob")
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_tests_of_the_project_use_its_test_database(
    project: Project, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "postgres":
        at = urlsplit(request.getfixturevalue("empty_postgres_url"))
        default = {"ENGINE": POSTGRES, "HOST": at.hostname, "PORT": at.port, "USER": at.username, "NAME": at.path[1:]}
    else:
        default = {**SQLITE, "NAME": "db.sqlite3", "TEST": {"NAME": "test.sqlite3"}}
    project.settings["DATABASES"] = {"default": default}
    project.write("visits/tests.py", TESTS)

    assert "OK" in project.manage("test", "visits", "--noinput")

    project.settings["RQSCHED"] = {**project.settings["RQSCHED"], "CONTROL_QUEUE": "of-production"}
    project.manage("migrate")
    assert "of-a-test" not in project.manage("rqsched", "list")


class Visitor:
    """The site in a browser's place: one visitor with cookies."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self._base, timeout=60)

    def log_in(self, name: str) -> Visitor:
        page = self.client.get("/admin/login/").text
        found = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', page)
        assert found is not None, page
        fields = {"username": name, "password": "pw", "csrfmiddlewaretoken": found[1], "next": "/jobs/"}
        self.client.post("/admin/login/", data=fields, headers={"Referer": f"{self._base}/admin/login/"})
        return self

    def act(self, csrf: str, **fields: str) -> httpx.Response:
        return self.client.post("/jobs/schedules/tidy_up/do", data={"csrf": csrf, **fields})


SERVERS = {
    "wsgi": ["python", "manage.py", "runserver", "--noreload"],
    "asgi": ["uvicorn", "asgi:application", "--port"],
}
USERS = """
from django.contrib.auth.models import User
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("rqsched", "sync")
User.objects.create_superuser("root", password="pw")
User.objects.create_user("ada", password="pw", is_staff=True)
User.objects.create_user("bob", password="pw")
"""


@pytest.mark.parametrize("kind", SERVERS)
def test_the_dashboard_is_behind_djangos_own_login(project: Project, kind: str) -> None:
    project.python(USERS)
    port = free_port()
    server = project.run(*SERVERS[kind], str(port))
    login = f"http://127.0.0.1:{port}/admin/login/"
    wait_until(lambda: status_of(login) == 200, timeout=SOON, what=lambda: f"the site\n{server.log()}")
    nobody, root, ada, bob = Visitor(port), *(Visitor(port).log_in(name) for name in ("root", "ada", "bob"))

    assert nobody.client.get("/jobs/schedules").headers["location"] == "/admin/login/?next=/jobs/schedules"
    assert bob.client.get("/jobs/").status_code == 302  # the admin's login admits only staff
    seen = {name: site.client.get("/jobs/schedules/tidy_up") for name, site in {"root": root, "ada": ada}.items()}
    assert [page.status_code for page in seen.values()] == [200, 200]
    assert seen["root"].headers["content-security-policy"].startswith("default-src 'none'")
    found = present(re.search(r'name="csrf" value="([^"]+)"', seen["root"].text))

    assert root.act("0" * 32, action="pause").status_code == 403
    assert ada.act(found[1], action="pause").status_code == 403
    done = root.act(found[1], action="pause", reason="holidays")

    assert (done.status_code, done.headers["location"]) == (303, "/jobs/schedules/tidy_up")
    assert "tidy_up is paused." in root.client.get("/jobs/schedules/tidy_up").text
    history = project.manage("rqsched", "history", "tidy_up", "-o", "json")
    assert {"principal": "root", "source": "dashboard", "reason": "holidays"}.items() <= (
        json.loads(history)["events"][-1]["payload"]["command_context"].items()
    )


def test_an_operator_function_of_the_project_decides(project: Project) -> None:
    project.write(
        "visits/operators.py",
        "from rqsched.dashboard import Principal, Role\n\n"
        "def operator(request):\n"
        "    name = request.headers.get('X-Operator')\n"
        "    return Principal(name, Role.OPERATE) if name else None\n",
    )
    project.settings["RQSCHED"] |= {"OPERATOR": "visits.operators.operator"}
    project.manage("migrate")
    script = """
from django.test import Client
client = Client(SERVER_NAME="127.0.0.1")
print([client.get("/jobs/", headers=headers).status_code for headers in ({}, {"X-Operator": "ada"})])
"""
    assert "[302, 200]" in project.python(script)


ZONES: dict[str, tuple[dict[str, Any], str]] = {
    "Django's": ({"TIME_ZONE": "Europe/Berlin"}, "Europe/Berlin"),
    "its own": ({"TIME_ZONE": "Europe/Berlin", "RQSCHED": {"TIMEZONE": "Asia/Tokyo"}}, "Asia/Tokyo"),
    "none": ({}, "UTC"),
}


@pytest.mark.parametrize(("settings", "expected"), ZONES.values(), ids=ZONES.keys())
def test_timezone_of_schedules_is_the_projects_unless_it_sets_another(
    project: Project, redis_url: str, settings: dict[str, Any], expected: str
) -> None:
    project.settings = {**settings, "RQSCHED": {"REDIS_URL": redis_url, **settings.get("RQSCHED", {})}}
    script = """
from django.core.management import call_command
from rqsched.contrib.django import scheduler
call_command("migrate", verbosity=0)
scheduler.sync()
print(scheduler.get("tidy_up").describe().timezone)
"""
    assert project.python(script).splitlines()[-1] == expected


@from_nothing
def test_importing_the_scheduler_opens_nothing(project: Project, tmp_path: Path) -> None:
    """Commands of an image's build must not need the database or Redis, which are absent then."""
    project.settings = {
        "DATABASES": {"default": {"ENGINE": POSTGRES, "HOST": "nowhere.invalid", "NAME": "none"}},
        "RQSCHED": {"REDIS_URL": "redis://nowhere.invalid/0"},
    }
    assert "no issues" in project.manage("check")


def test_many_threads_may_be_the_first_to_use_the_scheduler(project: Project) -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
from rqsched.contrib.django import scheduler
def first(number):
    return scheduler.upsert(f"s{number}", "rename", "1h")[1]
with ThreadPoolExecutor(16) as threads:
    print(sorted(set(threads.map(first, range(16)))), len({id(scheduler.runtime)}))
"""
    assert "['created'] 1" in project.python(script)
