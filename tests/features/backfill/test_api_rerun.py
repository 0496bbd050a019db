"""Backfills with `rerun="failed"`: occurrences whose run failed are retried, the others are left as they are."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched import Cron
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidPolicyError
from rqsched.features.backfill import chain as backfill
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.policy import Rerun
from tests.support.env import HOUR, NOON, ONCE, Env, all_runs, events, statuses
from tests.support.invariants import check_invariants

END = NOON + 4 * HOUR


def with_failures(env: Env, **options: Any) -> ScheduleHandle:
    """Hourly runs of which the first and the third failed; before them is an occurrence that never ran."""
    schedule = env.create(spec=Cron("0 * * * *"), retry=ONCE, **options)
    for is_failing in (True, False, True):
        env.failing = is_failing
        env.run_next(schedule, HOUR)
    env.failing = False
    env.advance(HOUR / 2)
    assert statuses(schedule) == ["failed", "succeeded", "failed"]
    return schedule


def test_failed_occurrences_are_retried_and_missing_ones_fired(any_env: Env) -> None:
    schedule = with_failures(any_env)
    failed = [run.uid for run in all_runs(schedule) if run.status == "failed"]

    result = schedule.backfill(NOON, END, rerun="failed")

    assert [(row.outcome, row.reason) for row in result.rows] == [
        ("buffered", None),
        ("started", "rerun"),
        ("already_run", None),
        ("buffered", "rerun"),
    ]
    assert [row.run_uid for row in result.rows if row.reason == "rerun"] == failed
    check_invariants(any_env.runtime)
    any_env.work()
    assert sorted(statuses(schedule)) == ["succeeded"] * 4
    assert len(events(schedule, audit.RUN_RETRY_REQUESTED)) == 2
    check_invariants(any_env.runtime)


def test_without_it_failed_occurrences_have_run(env: Env) -> None:
    schedule = with_failures(env)
    rows = schedule.backfill(NOON + HOUR, END).rows
    assert [row.outcome for row in rows] == ["already_run"] * 3


def test_dry_run_tells_what_would_be_retried(env: Env) -> None:
    schedule = with_failures(env)
    rows = schedule.backfill(NOON + HOUR, END, rerun="failed", dry_run=True).rows
    assert [(row.outcome, row.reason) for row in rows] == [
        ("would_start", "rerun"),
        ("already_run", None),
        ("would_start", "rerun"),
    ]
    assert statuses(schedule) == ["failed", "succeeded", "failed"]


def test_under_allow_all_they_start_together(env: Env) -> None:
    schedule = with_failures(env)
    rows = schedule.backfill(NOON + HOUR, END, rerun="failed", overlap="allow_all").rows
    assert [row.outcome for row in rows] == ["started", "already_run", "started"]
    check_invariants(env.runtime)


def test_retries_of_a_backfill_count_for_no_max_runs(env: Env) -> None:
    schedule = with_failures(env, max_runs=3)
    assert env.state(schedule).status == "done"
    rows = schedule.backfill(NOON + HOUR, END, rerun="failed").rows
    assert [row.outcome for row in rows] == ["started", "already_run", "buffered"]
    env.work()
    assert statuses(schedule) == ["succeeded"] * 3
    check_invariants(env.runtime)


def test_interrupted_backfill_continues_with_its_retries(env: Env) -> None:
    schedule = with_failures(env)
    wanted = backfill.BackfillRange(NOON + HOUR, END, rerun=Rerun.FAILED)
    opened = backfill.open_backfill(env.runtime, schedule.state, wanted, new_uid(env.clock.now()))
    env.advance(HOUR / 4)
    assert env.recover().backfills == 1
    env.work()
    assert statuses(schedule) == ["succeeded"] * 3
    assert backfill.get_backfill(env.runtime, opened.uid).started == 1


def test_run_that_failed_again_is_retried_by_the_next_backfill_only(env: Env) -> None:
    schedule = with_failures(env)
    env.failing = True
    schedule.backfill(NOON + HOUR, END, rerun="failed")
    env.work()
    assert [run.attempt for run in all_runs(schedule)] == [2, 1, 2]
    env.failing = False
    schedule.backfill(NOON + HOUR, END, rerun="failed")
    env.work()
    assert [(run.attempt, run.status) for run in all_runs(schedule)] == [
        (3, "succeeded"),
        (1, "succeeded"),
        (3, "succeeded"),
    ]


def test_unknown_word_is_refused(env: Env) -> None:
    schedule = with_failures(env)
    with pytest.raises(InvalidPolicyError, match="rerun"):
        schedule.backfill(NOON, END, rerun="succeeded")
    assert len(all_runs(schedule)) == 3
