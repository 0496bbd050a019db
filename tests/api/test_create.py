"""Creating schedules, strictly or by upsert: identities, workflows, refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from rqsched import Cron, Every, Once, RetryPolicy, Spec
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    InvalidIdError,
    InvalidInputError,
    InvalidSpecError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    UnknownWorkflowError,
)
from rqsched.workflows import registry, workflow
from tests.support.env import DAY, MINUTE, NOON, SECOND, Env, last, newest, statuses, types
from tests.support.narrow import present

FAILS_AT_ONCE = RetryPolicy(max_retries=0)


def module_function() -> str:
    return "by path"


class ModuleClass:
    def run(self) -> str:
        return "by path of a class"


def test_a_created_schedule_shows_its_fields_and_is_armed(any_env: Env) -> None:
    schedule = any_env.create("nightly", Cron("0 2 * * *"), timezone="America/New_York", note="at 2")

    assert (schedule.schedule_id, schedule.namespace, schedule.status) == ("nightly", "default", "active")
    assert schedule.next_run_at == datetime.fromisoformat("2026-01-16T02:00-05:00")
    assert (schedule.run_count, schedule.note, len(schedule.uid)) == (0, "at 2", 26)
    assert set(any_env.armed()) == {f"sched-{schedule.uid}-n0-rc0"}
    assert types(schedule) == ["Created"]


def test_create_refuses_a_taken_id_and_changes_nothing(any_env: Env) -> None:
    known = any_env.create(queue="high")

    with pytest.raises(ScheduleExistsError, match="use upsert"):
        any_env.create(queue="low")

    assert known.refresh().describe().queue == "high"
    assert types(known) == ["Created"]


def test_a_schedule_created_paused_does_not_fire_until_it_is_resumed(any_env: Env) -> None:
    schedule = any_env.create(paused=True)

    assert (schedule.status, schedule.next_run_at, set(any_env.armed())) == ("paused", None, set())
    assert any_env.tick(DAY) == []

    assert schedule.resume().next_run_at == NOON + DAY + MINUTE


def test_a_schedule_created_again_after_delete_is_a_new_incarnation(any_env: Env) -> None:
    first = any_env.create()
    any_env.run_due()
    first.delete()

    second = any_env.create()
    any_env.run_due()

    assert second.uid != first.uid
    assert (second.refresh().run_count, len(second.runs().items)) == (1, 1)
    assert types(first) == ["Created", "Triggered", "Deleted"]
    assert types(second) == ["Created", "Triggered"]
    assert any_env.scheduler.newest("report").uid == second.uid


WORKFLOWS = {
    "a registered name": "note",
    "a function by its path": f"{__name__}.module_function",
    "a class by its path": f"{__name__}:ModuleClass",
    "a function": module_function,
    "a class": ModuleClass,
}


@pytest.mark.parametrize("named", WORKFLOWS.values(), ids=WORKFLOWS.keys())
def test_a_workflow_is_accepted_as_name_path_function_or_class(env: Env, named: Any) -> None:
    schedule = env.create(workflow=named)

    env.run_due()

    assert statuses(schedule) == ["succeeded"]
    schedule.update("note")
    assert schedule.update(named).workflow == env.runtime.workflows.name_of(named), "by update, too"


def test_a_class_registered_by_the_decorator_is_known_by_its_name(env: Env) -> None:
    @workflow
    class DataSync:
        name = "data_sync"

        async def run(self, region: str) -> str:
            return region

    registered = present(registry.get("data_sync"))
    registry.remove("data_sync")
    env.runtime.workflows.add(registered)
    schedule = env.create(workflow=DataSync, kwargs={"region": "eu"})

    env.run_due()

    assert (schedule.workflow, newest(schedule).result) == ("data_sync", "eu")


def test_a_registered_function_is_known_by_its_name(env: Env) -> None:
    env.register("tidy", module_function)
    assert env.create(workflow=module_function).workflow == "tidy"


NO_WORKFLOWS = {
    "unknown name": "nobody",
    "path to nothing": f"{__name__}.nothing",
    "no such module": "no.such.module",
    "no callable": f"{__name__}.FAILS_AT_ONCE",
}


@pytest.mark.parametrize("named", NO_WORKFLOWS.values(), ids=NO_WORKFLOWS.keys())
def test_an_unknown_workflow_is_refused(env: Env, named: str) -> None:
    with pytest.raises(UnknownWorkflowError):
        env.create(workflow=named)
    assert env.scheduler.list().items == []


def test_a_value_that_cannot_be_a_workflow_is_refused(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="not a workflow"):
        env.create(workflow=42)


class Job:
    def method(self) -> None: ...

    @staticmethod
    def plain() -> None: ...

    def __call__(self) -> None: ...


def _made() -> Callable[..., Any]:
    def inner() -> None: ...

    return inner


def _of_the_program() -> Callable[..., Any]:
    """As a function is that stands in the script which Python was started with."""

    def found() -> None: ...

    found.__module__, found.__qualname__ = "__main__", "found"
    return found


UNREACHABLE = {
    "a lambda has no name": lambda: None,
    "is defined inside a function": _made(),
    "'Job.method' belongs to a class": Job().method,
    "'Job.plain' belongs to a class": Job.plain,
    "'found' is defined in the program that runs here": _of_the_program(),
    "not a workflow": partial(module_function),
    "is not a workflow": Job(),
}


@pytest.mark.parametrize(("reason", "target"), UNREACHABLE.items(), ids=UNREACHABLE.keys())
def test_a_function_that_no_worker_could_import_is_refused_with_what_to_write(
    env: Env, reason: str, target: Callable[..., Any]
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as refused:
        env.create(workflow=target)
    assert "<lambda>" not in str(refused.value)
    assert env.scheduler.list().items == []


@pytest.mark.parametrize("target", [lambda: None, partial(module_function), Job()], ids=["lambda", "partial", "object"])
def test_what_has_no_name_is_decorated_with_one(target: Callable[..., Any]) -> None:
    with pytest.raises(InvalidIdError, match="has no name of its own"):
        workflow(target)


def test_a_workflow_another_process_registered_may_be_named(make_env: Callable[..., Env], any_env: Env) -> None:
    any_env.register("elsewhere", module_function, queue="far", timeout=7)
    any_env.runtime.record_workflows()
    web = make_env(database_url=any_env.scheduler.runtime.database.url)

    described = web.create(workflow="elsewhere").describe()

    assert (described.queue, described.timeout) == ("far", 7)


IDS = {"one letter": "a", "digit first": "7", "all signs": "A.b_c:d-e", "255 long": "x" * 255}
NO_IDS = {
    "empty": "", "sign first": "-a", "space": "a b", "umlaut": "ä", "slash": "a/b", "newline": "a\n",
    "256 long": "x" * 256, "NUL": "a\x00", "no text": 5,
}  # fmt: skip


@pytest.mark.parametrize("schedule_id", IDS.values(), ids=IDS.keys())
def test_a_valid_id_is_accepted(env: Env, schedule_id: str) -> None:
    env.create(schedule_id)
    assert env.scheduler.get(schedule_id).schedule_id == schedule_id


@pytest.mark.parametrize("schedule_id", NO_IDS.values(), ids=NO_IDS.keys())
def test_an_id_is_refused_at_create_and_not_found_later(env: Env, schedule_id: Any) -> None:
    with pytest.raises(InvalidIdError):
        env.create(schedule_id)
    with pytest.raises(InvalidIdError):
        env.create(namespace=schedule_id)
    with pytest.raises(ScheduleNotFoundError):
        env.scheduler.get(schedule_id)
    with pytest.raises(ScheduleNotFoundError):
        env.scheduler.newest(schedule_id).history()


def test_a_spec_that_is_over_is_refused_at_create(env: Env) -> None:
    for spec in (Once(NOON), Spec("* * * * *", end_at=NOON + SECOND)):
        with pytest.raises(InvalidSpecError, match="no occurrence after"):
            env.create(spec=spec)


def test_upsert_says_created_updated_or_unchanged(any_env: Env) -> None:
    def upsert(**options: Any) -> tuple[ScheduleHandle, str]:
        return any_env.scheduler.upsert("report", "note", MINUTE, **options)

    assert upsert()[1] == "created"
    assert upsert()[1] == "unchanged"
    schedule, outcome = upsert(queue="high")
    assert outcome == "updated"
    version = schedule.version
    assert upsert(queue="high")[1] == "unchanged"

    assert schedule.refresh().version == version, "unchanged writes nothing"
    assert types(schedule) == ["Created", "Updated"]
    assert last(schedule, "Updated")["changed_fields"] == ["queue"]


def test_upsert_keeps_the_next_time_exactly_when_the_timing_is_the_same(any_env: Env) -> None:
    any_env.create(spec=Every("10m"))
    any_env.advance(4 * MINUTE)

    same, _ = any_env.scheduler.upsert("report", "note", Every("10m"), args=[1])
    assert same.next_run_at == NOON + 10 * MINUTE

    other, _ = any_env.scheduler.upsert("report", "note", Every("7m"))
    assert other.next_run_at == NOON + 11 * MINUTE


def test_upsert_pauses_and_resumes_only_when_told(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.pause()

    for paused, status in ((None, "paused"), (False, "active"), (None, "active"), (True, "paused")):
        handle, _ = any_env.scheduler.upsert("report", "note", MINUTE, paused=paused)
        assert handle.status == status

    assert types(schedule) == ["Created", "Paused", "Resumed", "Paused"]


def test_upsert_after_delete_creates(any_env: Env) -> None:
    deleted = any_env.create()
    deleted.delete()

    handle, outcome = any_env.scheduler.upsert("report", "note", MINUTE)

    assert outcome == "created"
    assert handle.uid != deleted.uid
