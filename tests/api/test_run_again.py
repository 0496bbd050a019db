"""Runs that are run again: a new manual run for the occurrence of a run that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rqsched import CommandContext, RetryPolicy
from rqsched.aio import AsyncScheduler
from rqsched.api.build_description import describe_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.errors import (
    FrozenError,
    IdempotencyConflictError,
    InvalidInputError,
    InvalidPayloadError,
    RunNotFoundError,
    RunStateError,
)
from rqsched.kernel.decide import audit
from rqsched.when.spec import After, Once
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, Env, all_runs, events, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present

TIMES = ("status", "next_run_at", "due_at", "last_run_at", "last_run_uid", "run_count", "remaining", "success_count")
"""The columns of its schedule that a copy must not change."""


def test_a_run_that_succeeded_is_run_again_for_its_occurrence_as_a_run_of_its_own(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, kwargs={"part": 1}, labels={"team": "a"})
    yesterday = any_env.run_next(schedule, HOUR)
    any_env.advance(DAY)
    before = schedule.refresh().state

    copy = yesterday.run_again("the file was incomplete", context=CommandContext(principal="ada"))

    assert copy.uid != yesterday.uid
    assert (copy.kind, copy.status, copy.copied_from) == ("manual", "pending", yesterday.uid)
    any_env.work()
    seen = any_env.seen[-1]
    assert (seen.uid, seen.copied_from, seen.kind) == (copy.uid, yesterday.uid, "manual")
    assert seen.occurrence_at == seen.scheduled_at == yesterday.occurrence_at == NOON + HOUR
    assert (seen.payload, seen.labels, seen.attempt) == ({"part": 1}, {"team": "a"}, 1)
    assert any_env.seen[0].copied_from is yesterday.refresh().copied_from is None
    after = schedule.refresh().state
    assert [getattr(before, name) for name in TIMES] == [getattr(after, name) for name in TIMES]
    assert statuses(schedule) == ["succeeded", "succeeded"]
    (event,) = events(schedule, audit.RUN_COPIED)
    assert event.workflow_run_id == copy.uid
    asked = event.payload
    assert (asked["copied_from"], asked["outcome"], asked["downstream"]) == (yesterday.uid, "started", False)
    assert (asked["reason"], asked["command_context"]["principal"]) == ("the file was incomplete", "ada")
    assert "arguments" not in asked
    check_invariants(any_env.runtime)


def test_a_copy_is_not_the_run_of_its_occurrence(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, retry=ONCE)
    failed = any_env.fail_next(schedule, HOUR)
    copy = failed.run_again()
    any_env.work()
    assert (copy.refresh().status, failed.refresh().status) == ("succeeded", "failed")
    assert schedule.why(failed.occurrence_at).run_uid == failed.uid
    any_env.advance(MINUTE)
    plan = schedule.backfill(failed.occurrence_at, NOON + 2 * HOUR, rerun="failed", dry_run=True).rows
    assert [(row.outcome, row.run_uid) for row in plan] == [("would_start", failed.uid)]
    second = copy.run_again()
    assert (second.copied_from, second.occurrence_at) == (copy.uid, failed.occurrence_at)
    assert schedule.runs().items[0].copied_from == copy.uid


@pytest.mark.parametrize("overlap", ["skip", "buffer_all", "cancel_other", "terminate_other"])
def test_a_copy_waits_for_the_run_ahead_of_it_and_ends_none(any_env: Env, overlap: str) -> None:
    schedule = any_env.create(spec=HOUR, overlap=overlap)
    first = any_env.run_next(schedule, HOUR)
    ahead = any_env.fire_next(schedule, HOUR)

    copy = first.run_again()

    assert (copy.status, ahead.refresh().status, schedule.refresh().state.buffer_depth) == ("buffered", "pending", 1)
    assert events(schedule, audit.RUN_COPIED)[0].payload["blocking_run_id"] == ahead.uid
    check_invariants(any_env.runtime)
    any_env.work()
    assert [run.status for run in (ahead.refresh(), copy.refresh())] == ["succeeded", "succeeded"]
    assert any_env.seen[-1].occurrence_at == first.occurrence_at
    check_invariants(any_env.runtime)


def test_under_allow_all_a_copy_starts_beside_the_others(env: Env) -> None:
    schedule = env.create(spec=HOUR, overlap="allow_all")
    first = env.run_next(schedule, HOUR)
    env.fire_next(schedule, HOUR)
    assert first.run_again().status == "pending"


def _end(env: Env, how: str) -> tuple[ScheduleHandle, RunHandle]:
    """A schedule that fires no more, and its run, which has ended."""
    if how == "one-off":
        schedule = env.create(spec=Once(NOON + MINUTE))
    elif how == "max_runs":
        schedule = env.create(max_runs=1)
    else:
        schedule = env.create(retry=RetryPolicy(max_retries=0, then="dead" if how == "dead" else "continue"))
    run = env.fail_next(schedule)
    if how == "paused":
        schedule.pause()
    return schedule, run


@pytest.mark.parametrize(
    ("how", "status"), [("paused", "paused"), ("max_runs", "done"), ("one-off", "done"), ("dead", "dead")]
)
def test_a_run_is_run_again_even_if_its_schedule_does_not_fire(any_env: Env, how: str, status: str) -> None:
    schedule, run = _end(any_env, how)
    while run.refresh().status == "retrying":
        any_env.failing = True
        any_env.advance(HOUR)
        any_env.dispatch()
        any_env.work()
    any_env.failing = False
    assert schedule.refresh().status == status
    before = schedule.state

    first, second = run.run_again(), run.run_again()

    assert (first.status, second.status) == ("pending", "buffered")
    any_env.work()
    assert [one.refresh().status for one in (first, second)] == ["succeeded", "succeeded"]
    after = schedule.refresh().state
    assert [getattr(before, name) for name in TIMES] == [getattr(after, name) for name in TIMES]
    check_invariants(any_env.runtime)


def test_a_copy_counts_neither_for_max_runs_nor_for_max_successes(any_env: Env) -> None:
    schedule = any_env.create(max_runs=3, max_successes=2)
    run = any_env.run_next(schedule)
    for _ in range(3):
        run.run_again()
        any_env.work()
    assert statuses(schedule) == ["succeeded"] * 4
    state = schedule.refresh().state
    assert (state.status, state.remaining, state.success_count) == ("active", 2, 1)
    assert any_env.run_next(schedule).state.trigger_number == 2
    assert schedule.refresh().status == "done"
    check_invariants(any_env.runtime)


def test_a_copy_is_retried_by_its_policy_and_never_makes_its_schedule_dead(any_env: Env) -> None:
    retry = RetryPolicy(max_retries=1, base=MINUTE, then="dead", max_consecutive_failures=1)
    schedule = any_env.create(spec=DAY, retry=retry)
    run = any_env.run_next(schedule, DAY)
    any_env.failing = True
    copy = run.run_again()
    any_env.work()
    assert copy.refresh().status == "retrying"
    any_env.advance(HOUR)
    any_env.dispatch()
    any_env.work()
    assert (copy.refresh().status, copy.attempt) == ("failed", 2)
    state = schedule.refresh().state
    assert (state.status, state.consecutive_failures) == ("active", 0)
    assert copy.retry().attempt == 3
    any_env.work()
    assert (copy.refresh().status, schedule.refresh().status) == ("failed", "active")
    check_invariants(any_env.runtime)


def test_what_comes_after_is_started_only_if_that_is_asked(any_env: Env) -> None:
    nightly = any_env.create("nightly", HOUR)
    report = any_env.create("report", After("nightly"))
    run = any_env.run_next(nightly, HOUR)
    assert len(all_runs(report)) == 1
    any_env.work()

    run.run_again()
    any_env.work()
    assert len(all_runs(report)) == 1
    copy = run.run_again(downstream=True)
    any_env.work()

    assert len(all_runs(report)) == 2
    assert newest(report).upstream_run_uid == copy.uid
    of_report = newest(report).run_again()
    any_env.work()
    again = of_report.refresh().run_again()
    for one in (of_report, again):
        shown = any_env.scheduler.runs.get(one.uid)
        assert (shown.kind, shown.upstream_run_uid, shown.upstream_schedule_id) == ("manual", copy.uid, "nightly")
        assert describe_run(shown.state)["upstream_run_uid"] == copy.uid
    any_env.work()
    check_invariants(any_env.runtime)


def test_a_copy_that_never_began_starts_nothing_after_it(any_env: Env) -> None:
    nightly = any_env.create("nightly", HOUR)
    report = any_env.create("report", After("nightly", on="end"))
    run = any_env.run_next(nightly, HOUR)
    any_env.work()
    any_env.fire_next(nightly, HOUR)
    waiting = run.run_again(downstream=True)
    assert waiting.status == "buffered"
    waiting.cancel()
    assert len(all_runs(report)) == 1
    any_env.work()
    assert len(all_runs(report)) == 2
    check_invariants(any_env.runtime)


def test_other_arguments_need_a_reason_and_both_sets_are_recorded(any_env: Env) -> None:
    schedule = any_env.create(args=[1], kwargs={"part": 1})
    run = any_env.run_next(schedule)
    with pytest.raises(InvalidInputError, match="reason"):
        run.run_again(kwargs={"part": 2})
    with pytest.raises(InvalidPayloadError, match="JSON"):
        run.run_again("x", args=[object()])
    assert len(all_runs(schedule)) == 1
    run.run_again(kwargs={"part": 1})  # the same as before

    copy = run.run_again(kwargs={"part": 2}, context=CommandContext(reason="part 2 was lost"))

    any_env.work()
    assert [kwargs["part"] for _, kwargs in any_env.calls] == [1, 1, 2]
    assert (copy.args, copy.kwargs, run.refresh().kwargs) == ([1], {"part": 2}, {"part": 1})
    same, edited = (event.payload for event in events(schedule, audit.RUN_COPIED))
    assert same.keys() & {"arguments", "copied_arguments"} == set()
    assert edited["arguments"] == {"args": [1], "kwargs": {"part": 2}}
    assert edited["copied_arguments"] == {"args": [1], "kwargs": {"part": 1}}
    assert edited["command_context"]["reason"] == "part 2 was lost"
    assert schedule.refresh().state.definition.action == run.state.action


def test_the_same_key_makes_one_copy_and_another_request_with_it_is_refused(any_env: Env) -> None:
    schedule = any_env.create()
    run, other = any_env.run_next(schedule), any_env.run_next(schedule)
    copy = run.run_again(idempotency_key="again-1")
    assert run.run_again(idempotency_key="again-1").uid == copy.uid
    any_env.work()
    assert run.run_again(idempotency_key="again-1").status == "succeeded"
    requests: list[Callable[[], object]] = [
        lambda: other.run_again(idempotency_key="again-1"),
        lambda: run.run_again("x", args=[2], idempotency_key="again-1"),
        lambda: run.run_again(downstream=True, idempotency_key="again-1"),
        lambda: schedule.trigger(idempotency_key="again-1"),
    ]
    for request in requests:
        with pytest.raises(IdempotencyConflictError):
            request()
    assert len(all_runs(schedule)) == 3
    schedule.trigger(idempotency_key="trigger-1")
    with pytest.raises(IdempotencyConflictError):
        run.run_again(idempotency_key="trigger-1")


def test_what_cannot_be_run_again_is_refused_before_anything_is_written(any_env: Env) -> None:
    schedule = any_env.create()
    run = any_env.run_next(schedule)
    waiting = any_env.fire_next(schedule)
    with pytest.raises(RunStateError, match="has not ended"):
        waiting.run_again()
    any_env.work()
    any_env.scheduler.freeze("moving")
    with pytest.raises(FrozenError):
        run.run_again()
    any_env.scheduler.thaw()
    sequence = schedule.refresh().state.event_sequence
    schedule.delete()
    with pytest.raises(RunStateError, match="schedule is deleted"):
        run.run_again()
    assert schedule.history()[-1].sequence == sequence + 1
    assert len(all_runs(schedule)) == 2
    schedule.delete(purge=True)
    with pytest.raises(RunNotFoundError):
        run.run_again()


def test_a_copy_has_the_arguments_of_the_copied_run_and_all_else_as_the_schedule_has_it_now(env: Env) -> None:
    schedule = env.create(kwargs={"part": 1}, limit="before", limit_running=1, timeout="1m", labels={"team": "a"})
    run = env.run_next(schedule)
    schedule.update(kwargs={}, limit="after", limit_running=1, overlap="allow_all", timeout="1h", labels={"team": "b"})
    copy = run.run_again()
    assert (copy.kwargs, copy.limit, copy.timeout) == ({"part": 1}, "after", 3600)
    assert (copy.labels, copy.state.overlap) == ({"team": "b"}, "allow_all")


def test_a_run_of_another_workflow_than_the_schedule_has_now_is_refused(any_env: Env) -> None:
    any_env.register("renamed", lambda: None)
    schedule = any_env.create()
    run = any_env.run_next(schedule)
    schedule.update(workflow="renamed")
    with pytest.raises(RunStateError, match="'note', and its schedule executes 'renamed' now"):
        run.run_again()
    assert len(all_runs(schedule)) == 1


def test_a_copy_of_a_backfilled_run_is_a_manual_run_of_its_occurrence(env: Env) -> None:
    schedule = env.create(spec=HOUR)
    schedule.pause()
    env.advance(3 * HOUR)
    schedule.backfill(NOON, NOON + 2 * HOUR)
    env.work()
    run = all_runs(schedule)[0]
    copy = run.run_again()
    assert (copy.kind, copy.backfill_uid, copy.occurrence_at) == ("manual", None, run.occurrence_at)
    env.work()
    assert copy.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_a_copy_of_a_run_with_targets_names_them_again(env: Env) -> None:
    handled: list[str] = []
    due = ["a", "b"]
    env.register("each", handled.append)
    env.register("due", lambda: due)
    schedule = env.create(workflow="each", targets="due")
    run = present(schedule.trigger().run)
    env.execute_pending()
    due.append("c")
    copy = run.refresh().run_again()
    env.execute_pending()
    assert (copy.refresh().status, sorted(handled)) == ("succeeded", ["a", "a", "b", "b", "c"])
    assert (run.target_counts, copy.target_counts) == ({"succeeded": 2}, {"succeeded": 3})


def test_a_copy_says_nothing_about_whether_the_schedule_works_now(env: Env) -> None:
    schedule = env.create(spec=HOUR, expect_success_within="2h", retry=ONCE)
    run = env.run_next(schedule, HOUR)
    succeeded_at = present(schedule.refresh().state.last_success_at)
    env.fail_next(schedule, HOUR)
    copy = run.run_again()
    env.work()
    assert copy.refresh().status == "succeeded"
    assert schedule.refresh().state.last_success_at == succeeded_at


def _says_of_now(schedule: ScheduleHandle) -> list[object]:
    """The fields of a schedule that tell whether it succeeds at present."""
    state = schedule.refresh().state
    return [state.status, state.consecutive_failures, state.last_outcome, state.success_count]


def test_the_success_of_a_copy_ends_no_failure_of_its_schedule(any_env: Env) -> None:
    told: list[Any] = []
    any_env.register("calm", told.append)
    schedule = any_env.create(spec=HOUR, retry=ONCE, on_recovery="calm")
    old = any_env.run_next(schedule, HOUR)
    any_env.fail_next(schedule, HOUR)
    before = _says_of_now(schedule)
    assert before == ["active", 1, "failed", 1]

    copies = [old.run_again()]
    any_env.work()
    schedule.update(retry=RetryPolicy(max_retries=1, base=MINUTE))
    copies.append(old.run_again())
    any_env.failing = True
    any_env.work()
    any_env.failing = False
    any_env.advance(HOUR // 4)
    any_env.dispatch()
    any_env.work()

    assert [(copy.refresh().status, copy.attempt) for copy in copies] == [("succeeded", 1), ("succeeded", 2)]
    assert _says_of_now(schedule) == before
    (event,) = events(schedule, audit.RUN_SUCCEEDED)
    assert (event.workflow_run_id, event.payload.get("consecutive_failures")) == (copies[1].uid, None)
    any_env.work()
    assert told == []
    recovered = any_env.run_next(schedule, HOUR)
    assert _says_of_now(schedule) == ["active", 0, "succeeded", 2]
    any_env.work()
    assert [message["data"]["workflow_run_id"] for message in told] == [recovered.uid]


def test_the_failure_of_a_copy_does_not_say_that_its_schedule_fails(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, retry=ONCE)
    old = any_env.run_next(schedule, HOUR)
    before = _says_of_now(schedule)
    assert before == ["active", 0, "succeeded", 1]
    any_env.failing = True
    copy = old.run_again()
    any_env.work()
    assert copy.refresh().status == "failed"
    assert _says_of_now(schedule) == before
    assert copy.retry().attempt == 2
    any_env.work()
    assert (copy.refresh().status, _says_of_now(schedule)) == ("failed", before)
    any_env.failing = False
    any_env.run_next(schedule, HOUR)
    assert [event.workflow_run_id for event in events(schedule, audit.RUN_SUCCEEDED)] == []


def test_a_copy_that_expires_does_not_say_that_its_schedule_fails(any_env: Env) -> None:
    schedule = any_env.create(spec=HOUR, start_within="1m")
    old = any_env.run_next(schedule, HOUR)
    before = _says_of_now(schedule)
    copy = old.run_again()
    any_env.advance(2 * MINUTE)
    any_env.recover()
    assert present(copy.refresh().state.expired_at) > copy.state.created_at
    assert _says_of_now(schedule) == before


def test_a_blank_reason_is_none(env: Env) -> None:
    run = env.run_next(env.create(kwargs={"part": 1}))
    with pytest.raises(InvalidInputError, match="reason"):
        run.run_again("  ", kwargs={"part": 2}, context=CommandContext(reason="\t"))
    assert run.run_again("  ", kwargs={"part": 2}, context=CommandContext(reason="lost")).kwargs == {"part": 2}


def test_long_arguments_are_not_recorded_because_both_runs_have_them(env: Env) -> None:
    schedule = env.create(kwargs={"text": "a" * 2_000})
    run = env.run_next(schedule)
    run.run_again("shorter", kwargs={"text": "a" * 1_900})
    copy = run.run_again("longer", kwargs={"text": "a" * 2_100})
    short, long = (event.payload for event in events(schedule, audit.RUN_COPIED))
    assert short["arguments"]["kwargs"] == {"text": "a" * 1_900}
    assert long.keys() & {"arguments", "copied_arguments"} == set()
    assert (copy.kwargs, run.refresh().kwargs) == ({"text": "a" * 2_100}, {"text": "a" * 2_000})


def test_a_run_is_run_again_without_blocking_the_event_loop(env: Env) -> None:
    run = env.run_next(env.create())

    async def again() -> tuple[str | None, str]:
        found = await AsyncScheduler(env.scheduler).runs.get(run.uid)
        copy = await found.run_again()
        return copy.copied_from, found.uid

    assert asyncio.run(again()) == (run.uid, run.uid)
