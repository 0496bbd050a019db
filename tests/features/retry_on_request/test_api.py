"""Retries on request over the Python API: one run by its uid, and all that failed since an instant."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from rqsched import CommandContext
from rqsched.aio import AsyncScheduler
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError, InvalidLimitError, RunNotFoundError, RunStateError
from rqsched.features.retry_on_request.chain import require_retryable
from rqsched.kernel.decide import audit
from tests.support.env import DAY, HOUR, MINUTE, ONCE, Env, events, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present


def failing(env: Env, schedule_id: str, runs: int = 1, **options: object) -> ScheduleHandle:
    """A schedule of which so many hourly runs have failed."""
    schedule = env.create(schedule_id, HOUR, **{"retry": ONCE, **options})
    for _ in range(runs):
        env.fail_next(schedule, HOUR)
    return schedule


def test_all_that_failed_since_then_is_retried_one_after_another(any_env: Env) -> None:
    schedule = failing(any_env, "a", 3)
    other = failing(any_env, "b")
    context = CommandContext(principal="ada")

    rows = any_env.scheduler.runs.retry_failed(10 * HOUR, reason="repaired", context=context)

    assert [(row.schedule_id, row.outcome) for row in rows] == [
        ("a", "started"),
        ("a", "buffered"),
        ("a", "buffered"),
        ("b", "started"),
    ]
    asked = [event.payload for event in events(schedule, audit.RUN_RETRY_REQUESTED)]
    assert [payload["reason"] for payload in asked] == ["repaired"] * 3
    assert {payload["command_context"]["principal"] for payload in asked} == {"ada"}
    check_invariants(any_env.runtime)
    any_env.work()
    assert statuses(schedule) == ["succeeded"] * 3
    assert statuses(other) == ["succeeded"]
    assert any_env.scheduler.runs.retry_failed(10 * HOUR) == []
    check_invariants(any_env.runtime)


def test_dry_run_tells_what_would_be_retried_and_writes_nothing(any_env: Env) -> None:
    schedule = failing(any_env, "a", 2)
    rows = any_env.scheduler.runs.retry_failed(DAY, dry_run=True)
    assert [(row.instance_id, row.outcome) for row in rows] == [
        (run.instance_id, "would_retry") for run in reversed(schedule.runs().items)
    ]
    assert statuses(schedule) == ["failed"] * 2
    assert events(schedule, audit.RUN_RETRY_REQUESTED) == []


def test_filters_name_the_time_the_schedule_the_workflow_and_the_namespace(env: Env) -> None:
    first = failing(env, "a", 2)
    failing(env, "b")
    failing(env, "c", namespace="other")
    last = present(newest(first).ended_at)
    find = env.scheduler.runs.retry_failed
    assert len(find(DAY, dry_run=True)) == 3
    assert [row.schedule_id for row in find(DAY, schedule_id="b", dry_run=True)] == ["b"]
    assert [row.schedule_id for row in find(DAY, namespace="other", dry_run=True)] == ["c"]
    assert len(find(last, dry_run=True)) == 2
    assert len(find(DAY, until=last, dry_run=True)) == 1
    assert find(DAY, workflow="nothing", dry_run=True) == []
    first.delete()
    assert [row.schedule_id for row in find(DAY, dry_run=True)] == ["b"]


def test_more_than_the_bound_retries_none(env: Env) -> None:
    schedule = failing(env, "a", 3)
    with pytest.raises(InvalidLimitError, match="more than 2 runs have failed"):
        env.scheduler.runs.retry_failed(DAY, bound=2)
    with pytest.raises(InvalidLimitError, match="at least 1"):
        env.scheduler.runs.retry_failed(DAY, bound=0)
    assert statuses(schedule) == ["failed"] * 3


def test_naive_instants_are_refused(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="naive"):
        env.scheduler.runs.retry_failed(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInputError, match="naive"):
        env.scheduler.runs.retry_failed(DAY, until=datetime(2026, 1, 1))  # noqa: DTZ001


def test_run_that_changed_meanwhile_is_skipped_with_the_reason(env: Env) -> None:
    schedule = failing(env, "a", 2)
    told: list[str] = []

    def meanwhile(row: object) -> None:
        if not told:
            schedule.delete()
        told.append(str(row))

    rows = env.scheduler.runs.retry_failed(DAY, progress=meanwhile)
    assert [row.outcome for row in rows] == ["started", "skipped"]
    assert "schedule is deleted" in str(rows[1].reason)
    assert len(told) == 2


def test_a_run_is_found_by_its_uid_in_its_namespace(env: Env) -> None:
    run = newest(failing(env, "a"))
    assert env.scheduler.runs.get(run.uid.lower()).instance_id == run.instance_id
    with pytest.raises(RunNotFoundError):
        env.scheduler.runs.get(run.uid, namespace="other")
    require_retryable(env.runtime, run.uid)
    run.retry()
    require_retryable(env.runtime, run.uid)
    env.work()
    with pytest.raises(RunStateError):
        require_retryable(env.runtime, run.uid)


def test_async_scheduler_retries_what_failed(env: Env) -> None:
    failing(env, "a")

    async def retry() -> list[str]:
        scheduler = AsyncScheduler(env.scheduler)
        rows = await scheduler.runs.retry_failed(timedelta(hours=3))
        assert (await scheduler.runs.get(rows[0].run_uid)).status == "pending"
        return [row.outcome for row in rows]

    assert asyncio.run(retry()) == ["started"]


def test_note_that_is_too_long_is_refused_before_anything_is_written(env: Env) -> None:
    schedule = failing(env, "a")
    with pytest.raises(InvalidInputError, match="reason"):
        newest(schedule).retry("x" * 5000)
    with pytest.raises(InvalidInputError, match="reason"):
        env.scheduler.runs.retry_failed(DAY, reason="x" * 5000)
    env.advance(MINUTE)
    assert statuses(schedule) == ["failed"]
