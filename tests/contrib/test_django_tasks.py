"""Django's tasks framework on rqsched: enqueueing, transactions and results."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import pytest

from tests.contrib.conftest import Project
from tests.support.processes import Process, wait_until

pytestmark = pytest.mark.timeout(300)
POSTGRES = "django.db.backends.postgresql"
BACKEND = "rqsched.contrib.django.tasks.RqschedBackend"
PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
SOON = 60.0

TASKS = f"""
import os
import time
from pathlib import Path
from django.contrib.auth.models import User
from {PACKAGE} import task
from {PACKAGE}.signals import task_enqueued, task_finished, task_started
from django.dispatch import receiver


class Boom(Exception):
    pass


@task
def rename(pk, name):
    User.objects.filter(pk=pk).update(first_name=name)
    return {{"renamed": [pk, name]}}


@task(takes_context=True)
def about(context, *, text):
    found = context.task_result
    return [context.attempt, found.id, str(found.status), found.kwargs, found.backend, found.task.queue_name, text]


@task
async def double(number):
    return 2 * await User.objects.acount() * number


@task
def yields():
    yield 1


@task
def fail(text):
    raise Boom(text)


@task
def returns_what_is_not_json():
    return object()


@task
def returns_too_much():
    return "x" * 70_000


@task
def hang(path):
    with Path(path).open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    if len(Path(path).read_text().split()) == 1:
        time.sleep(600)
    return "at last"


def told(name, task_result):
    if path := os.environ.get("TOLD"):
        with Path(path).open("a") as file:
            file.write(f"{{name}} {{task_result.task.name}} {{task_result.status}} {{len(task_result.worker_ids)}}\\n")


@receiver(task_enqueued)
def enqueued(sender, task_result, **others):
    told("enqueued", task_result)


@receiver(task_started)
def started(sender, task_result, **others):
    told("started", task_result)


@receiver(task_finished)
def finished(sender, task_result, **others):
    told("finished", task_result)
"""

BEGIN = f"""
import time
from datetime import timedelta
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from {PACKAGE} import task_backends
from {PACKAGE}.exceptions import TaskResultDoesNotExist
from visits import tasks

def shown(result):
    return {{
        "status": str(result.status), "attempts": result.attempts,
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
        "times": [at is not None for at in (result.enqueued_at, result.started_at, result.finished_at)],
    }}

def wait(**results):
    until = time.monotonic() + 50
    while any(not one.is_finished for one in results.values()) and time.monotonic() < until:
        time.sleep(0.1)
        for one in results.values():
            one.refresh()
    print(json.dumps({{name: shown(one) for name, one in results.items()}}))

def exists(result):
    try:
        return str(task_backends["default"].get_result(result.id).status)
    except TaskResultDoesNotExist:
        return None
"""


@pytest.fixture
def tasks(project: Project) -> Project:
    """A project with tasks, on SQLite."""
    settings: dict[str, Any] = {"TASKS": {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "slow"]}}}
    if django.VERSION < (6, 0):
        settings["INSTALLED_APPS"] = [
            "django.contrib.auth", "django.contrib.contenttypes", "django_tasks", "rqsched.contrib.django", "visits",
        ]  # fmt: skip
        settings |= {"ROOT_URLCONF": None, "MIDDLEWARE": []}
    project.settings |= settings
    project.write("visits/tasks.py", TASKS)
    return project


@pytest.fixture
def any_tasks(tasks: Project, request: pytest.FixtureRequest) -> Project:
    """A project with tasks, on the database that the test names, migrated."""
    if request.param == "postgres":
        at = urlsplit(request.getfixturevalue("empty_postgres_url"))
        default = {"ENGINE": POSTGRES, "HOST": at.hostname, "PORT": at.port, "USER": at.username, "NAME": at.path[1:]}
        tasks.settings["DATABASES"] = {"default": default}
    else:
        tasks.settings |= {"USE_TZ": False, "TIME_ZONE": "America/Chicago"}
    tasks.manage("migrate", "--verbosity", "0")
    return tasks


def answer(project: Project, script: str) -> Any:
    return json.loads(project.python(BEGIN + script).splitlines()[-1])


def worker(project: Project, *queues: str, **differs: str) -> Process:
    return project.run("python", "manage.py", "rqsched_worker", *queues, **differs)


EVERYTHING = """
ada = User.objects.create(username="ada")
wait(
    rename=tasks.rename.enqueue(ada.pk, name="Ada"),
    about=tasks.about.using(queue_name="slow").enqueue(text="hello"),
    double=tasks.double.enqueue(21),
    fail=tasks.fail.enqueue("not today"),
    yields=tasks.yields.enqueue(),
    not_json=tasks.returns_what_is_not_json.enqueue(),
    too_much=tasks.returns_too_much.enqueue(),
    later=tasks.double.using(run_after=timezone.now() + timedelta(seconds=2)).enqueue(1),
    before=tasks.double.using(run_after=timezone.now() - timedelta(days=2)).enqueue(2),
)
"""


@pytest.mark.parametrize("any_tasks", KINDS, indirect=True)
def test_worker_executes_what_is_enqueued_and_its_end_is_the_result(any_tasks: Project, tmp_path: Path) -> None:
    told = tmp_path / "told"
    worker(any_tasks, "default", "slow", TOLD=str(told))

    found = answer(any_tasks, EVERYTHING)

    values = {name: one["value"] for name, one in found.items() if one["status"] == "SUCCESSFUL"}
    about = values.pop("about")
    assert values == {"rename": {"renamed": [1, "Ada"]}, "double": 42, "later": 2, "before": 4}
    assert (about[0], *about[2:]) == (1, "RUNNING", {"text": "hello"}, "default", "slow", "hello")
    failed = {name: one["errors"] for name, one in found.items() if one["status"] == "FAILED"}
    assert {name: path for name, [[path, _]] in failed.items()} == {
        "fail": "visits.tasks.Boom",
        "yields": "rqsched.errors.NotExecutedError",
        "not_json": "builtins.TypeError",
        "too_much": "rqsched.errors.InvalidPayloadError",
    }
    assert "raise Boom(text)" in failed["fail"][0][1]
    assert all(one["attempts"] == 1 and all(one["times"]) for one in found.values())
    wait_until(lambda: told.read_text().count("finished") == 9, timeout=SOON, what="nine ends that are told")
    lines = told.read_text().splitlines()
    assert {"started fail RUNNING 1", "finished fail FAILED 1", "finished rename SUCCESSFUL 1"} <= {*lines}


@pytest.mark.parametrize(("any_tasks", "retries"), [("sqlite", 0), ("sqlite", 1)], indirect=["any_tasks"])
def test_task_whose_worker_is_killed_is_executed_again_if_it_is_retried(
    any_tasks: Project, tmp_path: Path, retries: int
) -> None:
    retry = {"OPTIONS": {"retry": {"max_retries": 1, "base": "1s"}}} if retries else {}
    any_tasks.settings["TASKS"]["default"] |= retry
    any_tasks.settings["RQSCHED"] |= {"RECONCILE_INTERVAL": 1, "HEARTBEAT_INTERVAL": 0.3, "REPAIR_GRACE": 0.5}
    path = tmp_path / "began"
    first = worker(any_tasks)
    print_id = f"print(json.dumps(tasks.hang.enqueue({str(path)!r}).id))"
    id_ = answer(any_tasks, print_id)
    wait_until(lambda: path.exists() and path.read_text(), timeout=SOON, what=f"the task begins\n{first.log()}")

    os.kill(int(path.read_text()), signal.SIGKILL)
    first.popen.kill()
    worker(any_tasks)

    found = answer(any_tasks, f"wait(hang=task_backends['default'].get_result({id_!r}))")["hang"]
    lost = [path for path, _ in found["errors"]]
    assert lost == ["rqsched.contrib.django.tasks.WorkerLostError"]
    expected = ("SUCCESSFUL", "at last", 2) if retries else ("FAILED", None, 1)
    assert (found["status"], found["value"], found["attempts"]) == expected


TRANSACTIONS = """
seen = {}
with transaction.atomic():
    kept = tasks.double.enqueue(1)
    seen["in the block"] = exists(kept), kept.enqueued_at is not None
    try:
        with transaction.atomic():
            undone = tasks.double.enqueue(2)
            raise ZeroDivisionError
    except ZeroDivisionError:
        seen["undone, in the block"] = exists(undone)
seen["after it"] = exists(kept), kept.enqueued_at is not None, exists(undone)
try:
    with transaction.atomic():
        User.objects.create(username="eve")
        gone = tasks.double.enqueue(3)
        raise ZeroDivisionError
except ZeroDivisionError:
    seen["rolled back"] = exists(gone)
from rqsched.contrib.django import scheduler
queued = scheduler.runtime.transport.redis.llen("rq:queue:default")
print(json.dumps([seen, scheduler.count(namespace="tasks"), queued]))
"""


@pytest.mark.parametrize("any_tasks", KINDS, indirect=True)
def test_task_is_enqueued_with_the_transaction_it_is_enqueued_in(
    any_tasks: Project, request: pytest.FixtureRequest
) -> None:
    seen, count, queued = answer(any_tasks, TRANSACTIONS)

    is_shared = "postgres" in request.node.callspec.id
    assert seen["in the block"] == (["READY", True] if is_shared else [None, False])
    assert seen["undone, in the block"] is None
    assert seen["after it"] == ["READY", True, None]
    assert seen["rolled back"] is None
    assert (count, queued) == (1, 1)


REFUSALS = """
from rqsched.contrib.django import scheduler
from rqsched.errors import InvalidPayloadError

def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

told = {
    "priority": refused(lambda: tasks.double.using(priority=5)),
    "queue": refused(lambda: tasks.double.using(queue_name="other")),
    "arguments": refused(lambda: tasks.double.enqueue(object())),
    "size": refused(lambda: tasks.double.enqueue("x" * 300_000)),
    "unknown": refused(lambda: task_backends["default"].get_result("01ARZ3NDEKTSV4RRFFQ69G5FAV")),
    "no id": refused(lambda: task_backends["default"].get_result("../x")),
}
scheduler.create("mine", "visits.tasks.double", "1h", namespace="tasks")
told["a schedule"] = refused(lambda: task_backends["default"].get_result("mine"))
print(json.dumps([told, scheduler.count(namespace="tasks")]))
"""


@pytest.mark.parametrize("any_tasks", ["sqlite"], indirect=True)
def test_what_the_backend_cannot_do_is_refused_before_anything_is_written(any_tasks: Project) -> None:
    told, count = answer(any_tasks, REFUSALS)

    assert count == 1
    assert "priority" in told["priority"]
    assert "'other' is not valid" in told["queue"]
    assert told["arguments"].startswith("TypeError")
    assert "more than 262144 characters" in told["size"]
    for name in ("unknown", "no id", "a schedule"):
        assert told[name].startswith("TaskResultDoesNotExist")


ASYNC = """
import asyncio

async def main():
    result = await tasks.double.aenqueue(1)
    found = await tasks.double.aget_result(result.id)
    return [found.id == result.id, str(found.status), found.args]

print(json.dumps(asyncio.run(main())))
"""


@pytest.mark.parametrize("any_tasks", KINDS, indirect=True)
def test_task_is_enqueued_and_read_in_an_event_loop(any_tasks: Project) -> None:
    assert answer(any_tasks, ASYNC) == [True, "READY", [1]]


SCHEDULED = """
from rqsched.contrib.django import scheduler
from rqsched.testing import execute_pending

run = scheduler.create("nightly", tasks.double, "1d", args=[3]).trigger().run
execute_pending(scheduler)
told = [run.refresh().result, scheduler.get("nightly").describe().workflow]
task = tasks.fail.enqueue("no")
scheduler.get(task.id, namespace="tasks").delete()
task.refresh()
print(json.dumps([told, shown(task)]))
"""


@pytest.mark.parametrize("any_tasks", ["sqlite"], indirect=True)
def test_task_may_be_what_a_schedule_runs_and_is_deleted_as_one(any_tasks: Project) -> None:
    scheduled, deleted = answer(any_tasks, SCHEDULED)
    assert scheduled == [0, "visits.tasks.double"]
    assert deleted["status"] == "READY"  # deleting a schedule leaves the run that has begun to wait on its queue


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an option that is none": ({"OPTIONS": {"retries": 3}}, "retries: is not an option of tasks"),
    "an option out of range": ({"OPTIONS": {"retry": {"max_retries": -1}}}, "retry.max_retries"),
    "a namespace that is none": ({"OPTIONS": {"namespace": "a b"}}, "namespace"),
    "the queue of links": ({"QUEUES": ["rqsched"]}, "control queue"),
    "a queue that is none": ({"QUEUES": ["a b"]}, "'a b' is refused"),
}


@pytest.mark.parametrize(("params", "expected"), WRONG.values(), ids=WRONG.keys())
def test_check_says_what_is_wrong_with_the_backend(tasks: Project, params: dict[str, Any], expected: str) -> None:
    tasks.settings["TASKS"] = {"default": {"BACKEND": BACKEND, **params}}
    told = tasks.manage("check", code=1)
    assert "rqsched.E005" in told
    assert expected in told


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django itself has the framework")
def test_check_says_that_the_framework_is_missing(tasks: Project) -> None:
    tasks.settings["INSTALLED_APPS"].remove("django_tasks")
    tasks.write("django_tasks.py", "raise ModuleNotFoundError('no module of this name', name='django_tasks')")
    told = tasks.manage("check", code=1)
    assert "rqsched.E006" in told
    assert "pip install django-tasks" in told


def test_check_is_content_with_the_backend_and_all_its_options(tasks: Project) -> None:
    options = {"namespace": "jobs", "retry": {"max_retries": 3}, "retention": "7d", "timeout": "5m"}
    tasks.settings["TASKS"] = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    assert "no issues" in tasks.manage("check")
