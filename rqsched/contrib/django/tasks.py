"""A backend for `django.tasks` (Django 6, or the package django-tasks). Each task is stored in SQL before it is a job.

>>> TASKS = {"default": {"BACKEND": "rqsched.contrib.django.tasks.RqschedBackend"}}  # in the settings

An enqueued task is a schedule of one run, in a namespace for tasks. The run starts at once, or at `run_after`, and
stores the task's result. Inside `atomic()`, the task is committed with the caller's rows (see
`RqschedBackend.enqueue`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string
from ulid import ULID

from rqsched.config import Settings
from rqsched.contrib.django import project
from rqsched.contrib.django.lazy import scheduler
from rqsched.contrib.django_transaction import InAtomic, in_atomic
from rqsched.errors import ConfigError, InvalidInputError, InvalidPayloadError, error_line
from rqsched.kernel.chain import create, option_checks
from rqsched.kernel.chain.change import read_in
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.chain.execution import MAX_RESULT
from rqsched.kernel.chain.run_log import on_end
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.ids import is_uid, new_uid
from rqsched.kernel.decide.model import TASK, Definition, Run, RunStatus, Schedule
from rqsched.kernel.decide.options import require_id
from rqsched.kernel.decide.payload import dumps, loads
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.when.spec import Every, Once
from rqsched.workflows import RunContext, callable_of, current_run, require_executed

_PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
_base: Any = import_module(f"{_PACKAGE}.base")
_backends: Any = import_module(f"{_PACKAGE}.backends.base")
_exceptions: Any = import_module(f"{_PACKAGE}.exceptions")
_signals: Any = import_module(f"{_PACKAGE}.signals")
Task, TaskContext, TaskError, TaskResult = _base.Task, _base.TaskContext, _base.TaskError, _base.TaskResult
Status = _base.TaskResultStatus

NAMESPACE = "tasks"
"""The default namespace of the schedules for tasks. OPTIONS may name another namespace."""
OPTIONS = (
    "connection", "description", "labels", "memo", "notifications", "on_failure", "on_recovery", "owner", "retention",
    "retry", "timeout",
)  # fmt: skip
"""The options of schedules that OPTIONS of a backend may set for its tasks, besides `namespace`."""
_STATUS = {
    RunStatus.RUNNING: Status.RUNNING,
    RunStatus.SUCCEEDED: Status.SUCCESSFUL,
    **dict.fromkeys((RunStatus.FAILED, RunStatus.LOST, RunStatus.CANCELLED, RunStatus.TERMINATED), Status.FAILED),
}
"""The task status for each run status. If a run has another status, it waits to start or to be retried: READY."""
_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*")
_UNKNOWN = "unknown"
"""The name for the workers of earlier attempts, because only the worker of the newest attempt is stored."""


class WorkerLostError(Exception):
    """The error of a task whose worker died during its last attempt."""


class TaskStoppedError(Exception):
    """The error of a task that was cancelled, terminated or deleted."""


class RqschedBackend(_backends.BaseTaskBackend):
    """Enqueue tasks durably, and read their results from SQL.

    The setting OPTIONS may contain the `namespace` of the tasks, and the options of schedules that `OPTIONS` of this
    module lists. An example is `{"retry": {"max_retries": 3}, "retention": "7d"}`. If neither OPTIONS nor RQSCHED
    contains `retry`, a task has one attempt.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = False

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._given = dict(self.options)
        self.namespace = self._given.pop("namespace", NAMESPACE)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task. Return its result, whose status is READY.

        Outside of `atomic()`, the task is committed at once. Inside `atomic()`, if rqsched uses the same PostgreSQL
        database, the task is written in the same transaction. If rqsched uses another database, the task is written
        after the commit of the block, and `enqueued_at` is None until then. Raises TypeError for arguments that are not
        JSON, and InvalidPayloadError for more than 256 KiB of arguments.
        """
        self.validate_task(task)
        runtime = scheduler.runtime
        result = self._result(task, new_uid(runtime.now()), args, kwargs)
        request = ScheduleRequest(
            Named(self.namespace, result.id), self._definition(result), must_have_future=False, starts_past=True
        )
        using, within = _open_block()
        if using is None or within is not None:
            self._write(request, result, within)
        else:
            transaction.on_commit(partial(self._write, request, result, None), using=using)
        return result

    def _write(self, request: ScheduleRequest, result: Any, within: InAtomic | None) -> None:
        made = create.create(scheduler.runtime, request, within=within)
        object.__setattr__(result, "enqueued_at", _shown(made.created_at))  # the framework's backends set it so too
        _signals.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task; raises TaskResultDoesNotExist if it never existed or was pruned."""
        found = None
        if isinstance(result_id, str) and is_uid(result_id):
            _, within = _open_block()
            found = read_in(within, scheduler.runtime, partial(_find, self.namespace, result_id))
        if found is None or found[0].definition.managed_by != TASK:
            raise _exceptions.TaskResultDoesNotExist(result_id)
        return _result_of(*found)

    def check(self, **others: Any) -> Iterable[checks.CheckMessage]:
        """Report settings that would make every enqueue fail."""
        yield from super().check(**others)
        if not apps.is_installed("rqsched.contrib.django"):
            hint = "Add 'rqsched.contrib.django' to INSTALLED_APPS; it creates the tables, and provides the worker."
            yield checks.Error("TASKS names rqsched, which is not installed.", hint=hint, id="rqsched.E004")
        try:
            settings = Settings()
        except ConfigError:
            return  # E001 reports it
        try:
            for queue in (*self.queues, None):
                define(None, self._options(settings, queue), workflow=TASK, spec=Every("1h"))
        except InvalidInputError as error:
            where = f"TASKS[{self.alias!r}]"
            hint = f"OPTIONS takes namespace and options of schedules: {', '.join(OPTIONS)}. QUEUES takes queue names."
            yield checks.Error(f"{where}: {error}.", hint=hint, id="rqsched.E005")

    def _options(self, settings: Settings, queue: str | None) -> dict[str, Any]:
        """Return the options that are the same for every task of a queue; raises InvalidInputError."""
        require_id(self.namespace, "namespace")
        for name in self._given:
            if name not in OPTIONS:
                raise InvalidInputError(name, f"is not an option of tasks; use one of {', '.join(OPTIONS)}")
        if queue == settings.control_queue:
            raise InvalidInputError("QUEUES", f"{queue!r} is the control queue, which carries links only; name another")
        once = {"retry": {"max_retries": 0}} if settings.retry is None else {}
        return {**once, **self._given, "queue": queue, "managed_by": TASK}

    def _result(self, task: Any, id_: str, args: Any, kwargs: Any) -> Any:
        return TaskResult(
            task=task, id=id_, status=Status.READY, enqueued_at=None, started_at=None, last_attempted_at=None,
            finished_at=None, args=list(args), kwargs=kwargs, backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip

    def _definition(self, result: Any) -> Definition:
        """Return the definition of a task's schedule; raises InvalidInputError for a forbidden value in OPTIONS."""
        runtime, task = scheduler.runtime, result.task
        queue = None if task.queue_name == _base.DEFAULT_TASK_QUEUE_NAME else task.queue_name
        memo = {**(self._given.get("memo") or {}), TASK: {"backend": self.alias, "queue": task.queue_name}}
        own = {"args": result.args, "kwargs": result.kwargs, "memo": memo}
        at = runtime.now() if task.run_after is None else task.run_after
        spec = Once(at if timezone.is_aware(at) else timezone.make_aware(at))
        options = {**self._options(runtime.settings, queue), **own}
        # `is_external` avoids an SQL read. A task's dotted path need not be registered, and has no default options.
        return option_checks.new_definition(runtime, task.module_path, spec, options, is_external=True)


def _open_block() -> tuple[str | None, InAtomic | None]:
    """Return the alias of a database with an open `atomic()` block, and the `session` if rqsched can join the block."""
    for using in dict.fromkeys((project.alias(), DEFAULT_DB_ALIAS)):
        if using not in connections:
            continue
        connection = connections[using]
        if connection.in_atomic_block:
            is_ours = project.shares_database() and using == project.alias() and connection.vendor == "postgresql"
            return using, in_atomic(using) if is_ours and connection.Database.__name__ == "psycopg" else None
    return None, None


def _find(namespace: str, result_id: str, connection: Connection) -> tuple[Schedule, Run | None] | None:
    schedule = schedule_queries.find_newest(connection, namespace, result_id)
    if schedule is None:
        return None
    run = None if schedule.last_run_uid is None else changes.find_run(connection, schedule.last_run_uid)
    return schedule, run


def _result_of(schedule: Schedule, run: Run | None) -> Any:
    """Return a task's result from its rows; raises ImportError if its code does not exist any more."""
    definition = schedule.definition
    task, told = import_string(definition.workflow), loads(definition.memo).get(TASK, {})
    if not isinstance(task, Task):
        raise ImportError(f"{definition.workflow} is not a task any more")  # noqa: TRY004 - its code does not exist
    action, (once,) = loads(definition.action), schedule.spec.members
    at = once.instant if isinstance(once, Once) and once.instant > schedule.created_at else None
    without_run = Status.FAILED if schedule.has_ended else Status.READY
    found = TaskResult(
        task=task.using(
            queue_name=told.get("queue"), backend=told.get("backend"),
            run_after=_shown(at),
        ),
        id=schedule.schedule_id,
        status=without_run if run is None else _STATUS.get(run.status, Status.READY),
        enqueued_at=_shown(schedule.created_at),
        started_at=run and _first_start(run),
        last_attempted_at=run and _shown(run.started_at),
        finished_at=_shown(run.ended_at if run else schedule.deleted_at),
        args=action["args"],
        kwargs=action["kwargs"],
        backend=told.get("backend", task.backend),
        errors=_errors_of(run) if run else [],
        worker_ids=_workers_of(run) if run else [],
    )  # fmt: skip
    if found.status == Status.SUCCESSFUL and run is not None and run.result is not None:
        object.__setattr__(found, "_return_value", json.loads(run.result))
    return found


def _first_start(run: Run) -> datetime | None:
    first = next((entry["started_at"] for entry in json.loads(run.attempts) if entry["started_at"]), None)
    return _shown(run.started_at if first is None else datetime.fromisoformat(first))


def _errors_of(run: Run) -> list[Any]:
    """Return an error for each attempt that did not succeed. Only the newest error has its complete text."""
    entries = [entry for entry in json.loads(run.attempts) if entry["outcome"] != "succeeded"]
    texts = [entry["error"] or "" for entry in entries]
    if texts and run.error and run.status is not RunStatus.SUCCEEDED:
        texts[-1] = run.error
    return [_error_of(entry["outcome"], text) for entry, text in zip(entries, texts, strict=True)]


def _error_of(outcome: str, text: str) -> Any:
    named = {"lost": WorkerLostError, "cancelled": TaskStoppedError, "terminated": TaskStoppedError}
    if outcome in named:
        path = f"{__name__}.{named[outcome].__name__}"
    elif text.startswith("timeout: "):
        path = "rq.timeouts.JobTimeoutException"
    else:
        first = error_line(text).partition(":")[0]
        path = first if _CLASS.fullmatch(first) else "Exception"
    where = text.find("Traceback (most recent call last)")
    return TaskError(
        exception_class_path=path if "." in path else f"builtins.{path}",
        traceback=text[max(where, 0) :] or outcome,
    )


def _workers_of(run: Run) -> list[str]:
    """Return the worker of each attempt that began, because the framework counts attempts by this list."""
    before = [_UNKNOWN] * (run.attempt - 1)
    return before if run.worker is None else [*before, run.worker]


def _shown(at: datetime | None) -> datetime | None:
    """Return an instant in Django's form: aware if USE_TZ is set, else naive and in Django's time zone."""
    return at if at is None or django_settings.USE_TZ else timezone.make_naive(at)


@callable_of.register(Task)
def _callable_of(task: Any) -> Any:
    """Return the function with which a worker executes a task."""
    return partial(perform, task)


def perform(task: Any, *args: Any, **kwargs: Any) -> Any:
    """Execute a task in a worker. Raises the task's errors, or an error if its result is not JSON of at most 64 KiB."""
    result = _running(task, current_run(), args, kwargs)
    _signals.task_started.send(type(result.task.get_backend()), task_result=result)
    given = (TaskContext(task_result=result), *args) if task.takes_context else args
    value = _base.normalize_json(require_executed(task.call(*given, **kwargs)))
    if (size := len(dumps(value))) > MAX_RESULT:
        raise InvalidPayloadError("return value", f"has {size} characters of JSON; the limit is {MAX_RESULT}. Store it")
    return value


def _running(task: Any, run: RunContext, args: Any, kwargs: Any) -> Any:
    """Return the result object of the task that executes now. It is made from the context of its run, without SQL."""
    told = run.memo.get(TASK, {})
    at = _shown(run.started_at)
    return TaskResult(
        task=task.using(queue_name=told.get("queue"), backend=told.get("backend")),
        id=run.schedule_id,
        status=Status.RUNNING,
        enqueued_at=_shown(ULID.from_str(run.schedule_id).datetime if is_uid(run.schedule_id) else run.scheduled_at),
        started_at=at,
        last_attempted_at=at,
        finished_at=None,
        args=list(args),
        kwargs=kwargs,
        backend=told.get("backend", task.backend),
        errors=[] if run.error is None else [_error_of("failed", run.error)],
        worker_ids=[_UNKNOWN] * run.attempt,
    )


@on_end
def _tell_end(schedule: Schedule, run: Run) -> None:
    """Send `task_finished` for a task. This is called after its end was committed, in the process that committed it."""
    if schedule.definition.managed_by == TASK:
        result = _result_of(schedule, run)
        _signals.task_finished.send(type(result.task.get_backend()), task_result=result)
