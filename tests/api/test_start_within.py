"""`start_within` expires a run that did not start in time: in the claim, by a pass, for every kind of run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched import Every, RetryPolicy
from rqsched.errors import InvalidInputError
from rqsched.features.external import chain as external_runs
from rqsched.kernel.chain.settle import expire_run
from rqsched.kernel.decide.model import RunStatus
from tests.support.env import (
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    Env,
    all_runs,
    block,
    last,
    newest,
    retry_link_id,
    run_job_id,
    statuses,
    types,
)
from tests.support.invariants import check_invariants
from tests.support.narrow import present

WITHIN = timedelta(minutes=10)
LATE = WITHIN


def create(env: Env, **options: Any) -> Any:
    return env.create(spec=Every("1h"), start_within=WITHIN, **options)


@pytest.mark.every_database
def test_run_that_nobody_takes_in_time_ends_as_expired_by_a_pass(any_env: Env) -> None:
    schedule = create(any_env)
    run = any_env.fire_next(schedule, HOUR)
    assert run.start_by == any_env.clock.now() + WITHIN

    any_env.advance(LATE - SECOND)
    assert any_env.recover().expired == 0
    any_env.advance(SECOND)
    assert any_env.recover().expired == 1

    assert (run.refresh().status, run.state.shown_status, run.expired_at) == (
        "cancelled", "expired", any_env.clock.now(),
    )  # fmt: skip
    assert last(schedule, "RunExpired") == {
        "workflow_instance_id": run.instance_id, "workflow_run_id": run.uid, "attempt": 1,
        "occurrence_time": "2026-01-15T13:00:00Z", "error": "it was not started by 2026-01-15T13:10:00Z",
        "queued_at": "2026-01-15T13:00:00Z", "start_by": "2026-01-15T13:10:00Z",
    }  # fmt: skip
    assert (schedule.refresh().last_outcome, schedule.consecutive_failures) == ("expired", 0)
    assert any_env.queued() == []
    any_env.work()
    assert any_env.seen == []
    check_invariants(any_env.runtime)


@pytest.mark.every_database
def test_late_worker_never_starts_it_and_ends_it_itself(any_env: Env) -> None:
    schedule = create(any_env)
    run = any_env.fire_next(schedule, HOUR)
    any_env.advance(LATE)

    any_env.work()

    assert (any_env.seen, run.refresh().state.shown_status) == ([], "expired")
    assert types(schedule).count("RunExpired") == 1
    any_env.perform(run_job_id(run))
    assert any_env.seen == []
    assert any_env.recover().expired == 0
    check_invariants(any_env.runtime)


def test_run_that_was_taken_meanwhile_is_not_ended(any_env: Env) -> None:
    schedule = create(any_env)
    run = any_env.fire_next(schedule, HOUR)
    any_env.claim(run)
    any_env.advance(LATE)

    assert not expire_run(any_env.runtime, run.state)  # as a pass read it before

    assert run.refresh().status == "running"


def test_run_that_starts_in_time_may_take_as_long_as_it_likes(env: Env) -> None:
    schedule = create(env)
    run = env.fire_next(schedule, HOUR)
    env.advance(LATE - SECOND)

    env.claim(run)
    env.advance(HOUR)

    assert env.recover().expired == 0
    assert run.refresh().status == "running"


def test_what_waits_starts_when_the_run_before_it_has_expired(any_env: Env) -> None:
    schedule = create(any_env, overlap="buffer_one")
    first = any_env.fire_next(schedule, HOUR)
    any_env.deliver(schedule.refresh())
    schedule.trigger(overlap="buffer_one")
    any_env.advance(LATE)

    any_env.recover()

    assert first.refresh().expired_at is not None
    second = newest(schedule)
    assert (second.status, second.start_by) == ("pending", any_env.clock.now() + WITHIN)
    any_env.work()
    assert statuses(schedule) == ["cancelled", "succeeded"]
    check_invariants(any_env.runtime)


def test_it_is_not_retried_and_counts_in_max_runs(env: Env) -> None:
    schedule = create(env, max_runs=1, retry=RetryPolicy(3, then="dead"))
    env.fire_next(schedule, HOUR)
    env.advance(LATE)

    env.recover()

    assert (schedule.refresh().status, schedule.status_reason) == ("done", "max_runs_exhausted")
    assert statuses(schedule) == ["cancelled"]
    assert all_runs(schedule)[0].attempt == 1


def test_schedule_does_not_die_of_runs_that_nobody_started(env: Env) -> None:
    schedule = create(env, retry=RetryPolicy(0, then="dead", max_consecutive_failures=1))
    for _ in range(3):
        env.fire_next(schedule, HOUR)
        env.advance(LATE)
        env.recover()
        env.clock.set(schedule.refresh().due_at - HOUR)
    assert (schedule.status, schedule.consecutive_failures) == ("active", 0)


def test_each_attempt_has_its_own_time(env: Env) -> None:
    env.failing = True
    schedule = create(env, retry=RetryPolicy(3, base=HOUR))
    run = env.run_next(schedule, HOUR)
    assert run.status == "retrying"
    env.advance(HOUR)
    env.deliver(retry_link_id(run))
    assert run.refresh().start_by == env.clock.now() + WITHIN

    env.advance(LATE)
    env.recover()

    assert (run.refresh().state.shown_status, run.attempt) == ("expired", 2)
    listed = [(one["attempt"], one["outcome"], one["started_at"] is None) for one in run.attempts]
    assert listed == [(1, "failed", False), (2, "expired", True)]
    assert run.started_at is None


def test_what_somebody_retries_has_its_time_anew(any_env: Env) -> None:
    schedule = create(any_env)
    run = any_env.fire_next(schedule, HOUR)
    any_env.advance(LATE)
    any_env.recover()

    run.retry("the workers are back")

    assert (run.status, run.expired_at, run.start_by) == ("pending", None, any_env.clock.now() + WITHIN)
    any_env.work()
    assert run.refresh().status == "succeeded"
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("kind", ["manual", "backfill"])
def test_runs_on_request_expire_too(env: Env, kind: str) -> None:
    schedule = create(env)
    env.advance(HOUR + MINUTE)
    if kind == "manual":
        schedule.trigger()
    else:
        schedule.backfill(NOON + MINUTE, NOON + HOUR + SECOND)
    run = newest(schedule)
    env.advance(LATE)

    env.recover()

    assert (run.kind, run.refresh().state.shown_status) == (kind, "expired")


@pytest.mark.every_database
def test_external_worker_gets_none_that_is_late(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("1h"), start_within=WITHIN, executor="external", queue="outside")
    run = any_env.fire_next(schedule, HOUR)
    any_env.advance(LATE)

    assert external_runs.claim(any_env.runtime, ["outside"], "w", namespace="default") == []
    assert any_env.recover().expired == 1

    assert run.refresh().state.shown_status == "expired"


def test_external_worker_gets_one_that_is_in_time(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("1h"), start_within=WITHIN, executor="external", queue="outside")
    any_env.fire_next(schedule, HOUR)
    any_env.advance(LATE - SECOND)

    (claimed,) = external_runs.claim(any_env.runtime, ["outside"], "w", namespace="default")

    assert claimed.run.status is RunStatus.RUNNING


def test_hold_counts(env: Env) -> None:
    schedule = create(env)
    run = env.fire_next(schedule, HOUR)
    env.scheduler.freeze("restoring", everything=True)
    env.advance(LATE)
    env.recover()
    env.scheduler.thaw(everything=True)

    assert run.refresh().state.shown_status == "expired"


@pytest.mark.every_database
def test_run_that_waits_in_a_frozen_namespace_expires_and_a_thaw_starts_it_no_more(any_env: Env) -> None:
    schedule = create(any_env)
    run, other = any_env.fire_next(schedule, HOUR), any_env.create("other", namespace="tenant", start_within=WITHIN)
    waits = present(other.trigger().run)
    any_env.scheduler.freeze("it moves")
    any_env.advance(LATE - SECOND)
    assert any_env.recover().expired == 0
    any_env.advance(SECOND)

    assert any_env.recover().expired == 2, "the one of the namespace that is not frozen, too"
    any_env.scheduler.thaw()
    any_env.work()

    assert (run.refresh().state.shown_status, waits.refresh().state.shown_status) == ("expired", "expired")
    assert run.expired_at == any_env.clock.now()
    assert any_env.seen == []
    check_invariants(any_env.runtime)


def test_blocked_run_expires_however_late_it_is_offered_again(env: Env) -> None:
    schedule = create(env)
    run = block(env.runtime, env.fire_next(schedule, HOUR))
    assert run.is_blocked
    while env.clock.now() < NOON + HOUR + LATE:
        env.advance(MINUTE)
    env.recover()
    assert run.refresh().state.shown_status == "expired"


def test_interval_from_completion_counts_from_the_end(env: Env) -> None:
    schedule = env.create(spec=Every("1h", from_completion=True), start_within=WITHIN)
    env.fire_next(schedule, HOUR)
    env.advance(LATE)
    env.recover()
    assert schedule.refresh().next_run_at == env.clock.now() + HOUR


def test_change_of_the_option_concerns_what_is_queued_from_then_on(env: Env) -> None:
    schedule = create(env)
    run = env.fire_next(schedule, HOUR)
    schedule.update(start_within=None)
    assert run.refresh().start_by is not None
    env.work()
    assert env.fire_next(schedule, HOUR).start_by is None


def test_success_after_it_is_told_as_a_recovery(env: Env) -> None:
    told: list[Any] = []
    env.register("tell", told.append)
    schedule = create(env, on_failure="tell", on_recovery="tell")
    env.fire_next(schedule, HOUR)
    env.advance(LATE)
    env.recover()
    env.work()
    env.run_next(schedule, HOUR)
    env.work()

    assert [message["event"] for message in told] == ["RunExpired", "RunSucceeded"]
    assert schedule.refresh().last_outcome == "succeeded"


def test_why_says_that_it_was_not_started_in_time(env: Env) -> None:
    schedule = create(env)
    env.fire_next(schedule, HOUR)
    env.advance(LATE)
    env.recover()

    told = schedule.why(NOON + HOUR)

    assert told.answer == "not_started"
    assert told.text.startswith("Its run #1 expired")
    assert told.text.endswith("it was not started by 2026-01-15T13:10:00Z.")


def test_lists_filter_by_it(any_env: Env) -> None:
    schedule = create(any_env)
    any_env.fire_next(schedule, HOUR)
    any_env.advance(LATE)
    any_env.recover()
    schedule.trigger().run.cancel()

    assert [run.number for run in schedule.runs(statuses=("expired",)).items] == [1]
    assert [run.number for run in schedule.runs(statuses=("cancelled",)).items] == [2, 1]
    assert [run.number for _, run in any_env.scheduler.runs.list(status="expired").items] == [1]
    assert any_env.scheduler.count(outcome="expired") == 1


@pytest.mark.parametrize("within", [timedelta(0), -MINUTE, timedelta(days=367), "soon"])
def test_what_is_no_such_length_is_refused(env: Env, within: Any) -> None:
    with pytest.raises(InvalidInputError, match="start_within"):
        env.create(start_within=within)
    assert env.scheduler.count() == 0
