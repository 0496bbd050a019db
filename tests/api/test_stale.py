"""Handles that are out of date, occurrences that are due, and what each operation writes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import RqschedError, ScheduleNotFoundError, ScheduleStateError
from tests.support.env import HOUR, MINUTE, NOON, OPERATIONS, SECOND, Env, types


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_handle_of_a_deleted_schedule_does_not_touch_the_next_incarnation(
    env: Env, operation: Callable[[ScheduleHandle], Any]
) -> None:
    stale = env.create()
    env.scheduler.get("report").delete()
    new = env.create()

    with pytest.raises(ScheduleNotFoundError):
        operation(stale)

    assert new.refresh().status == "active"
    assert types(new) == ["Created"]
    assert types(stale) == ["Created", "Deleted"]


def test_a_stale_handle_neither_pauses_again_nor_resumes_what_changed(any_env: Env) -> None:
    schedule, stale = any_env.create(), any_env.scheduler.get("report")
    schedule.pause()
    with pytest.raises(ScheduleStateError):
        stale.pause()
    schedule.resume()
    assert stale.status == "active", "it shows what it read"
    with pytest.raises(ScheduleStateError):
        stale.resume()
    assert types(schedule) == ["Created", "Paused", "Resumed"]


def test_a_stale_handle_updates_the_current_state(any_env: Env) -> None:
    schedule, stale = any_env.create(), any_env.scheduler.get("report")
    schedule.update(queue="high", labels={"a": "b"})

    stale.update(queue="low")

    assert (stale.describe().queue, stale.describe().labels) == ("low", {"a": "b"})


DUE: dict[str, Callable[[Env, ScheduleHandle], Any]] = {
    "an update": lambda env, schedule: schedule.update(queue="high"),
    "a new spec": lambda env, schedule: schedule.update(spec="0 * * * *"),
    "a change of jitter": lambda env, schedule: schedule.update(jitter=30 * SECOND),
    "jitter taken away": lambda env, schedule: schedule.update(jitter=timedelta(0)),
    "an upsert": lambda env, schedule: env.scheduler.upsert("report", "note", "0 * * * *", overlap="allow_all"),
    "a trigger": lambda env, schedule: schedule.trigger(),
    "a drain": lambda env, schedule: env.execute_pending(),
    "a backfill": lambda env, schedule: schedule.backfill(NOON - 3 * MINUTE, NOON),
    "a recover": lambda env, schedule: env.scheduler.recover(),
}


@pytest.mark.parametrize("operation", DUE.values(), ids=DUE.keys())
@pytest.mark.parametrize("jitter", [timedelta(0), 40 * SECOND], ids=["exact", "jittered"])
def test_a_due_occurrence_survives_every_operation(
    env: Env, jitter: timedelta, operation: Callable[[Env, ScheduleHandle], Any]
) -> None:
    schedule = env.create(jitter=jitter, overlap="allow_all")
    schedule.trigger()
    env.advance(MINUTE + SECOND)

    operation(env, schedule)
    env.run_due(50 * SECOND)

    assert NOON + MINUTE in [run.occurrence_at for run in schedule.runs().items if run.kind == "scheduled"]


def test_each_operation_writes_its_event_and_counts_a_version(any_env: Env) -> None:
    schedule = any_env.create(max_runs=2)
    steps: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: schedule.update(queue="high"), ["Updated"]),
        (lambda: schedule.pause(), ["Paused"]),
        (lambda: schedule.resume(), ["Resumed"]),
        (lambda: schedule.trigger(), ["Triggered"]),
        (lambda: schedule.trigger(), ["TriggerSkipped"]),
        (lambda: schedule.trigger("allow"), ["Triggered", "Completed"]),
        (lambda: schedule.restart(), ["Resumed"]),
        (lambda: schedule.delete(), ["Deleted"]),
    ]
    expected = ["Created"]
    for operation, new in steps:
        operation()
        expected += new
        assert types(schedule) == expected
    assert [event.sequence for event in schedule.iter_history()] == list(range(1, len(expected) + 1))


REFUSED: dict[str, Callable[[ScheduleHandle], Any]] = {
    "update": lambda schedule: schedule.update(queue="no queue"),
    "update with a wrong version": lambda schedule: schedule.update(queue="high", if_version=99),
    "update to an unknown workflow": lambda schedule: schedule.update("nobody"),
    "pause with a long note": lambda schedule: schedule.pause("x" * 5000),
    "delete with a long reason": lambda schedule: schedule.delete(reason="x" * 5000),
    "resume": lambda schedule: schedule.resume(),
    "resume in no known way": lambda schedule: schedule.resume("later"),
    "trigger with no known policy": lambda schedule: schedule.trigger("maybe"),
    "backfill of the future": lambda schedule: schedule.backfill(NOON + HOUR, NOON + 2 * HOUR),
}


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_operation_writes_nothing(env: Env, operation: Callable[[ScheduleHandle], Any]) -> None:
    schedule = env.create()
    before = schedule.state

    with pytest.raises(RqschedError):
        operation(schedule)

    assert schedule.refresh().state == before
    assert types(schedule) == ["Created"]
