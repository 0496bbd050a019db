"""One schedule after another: each end that counts has one outcome for each schedule after it, whatever crashes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import After, Declaration, Every, Spec
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError, InvalidSpecError, ScheduleNotFoundError, UpstreamError
from rqsched.features.after import store as upstream_ends
from rqsched.features.after.chain import MOST_AT_ONCE
from rqsched.features.external import chain as external_runs
from rqsched.features.freeze import chain as freezing
from rqsched.kernel.chain.settle import lose_run, publish_end, write_end
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import tables
from rqsched.kernel.store.database import Patience
from rqsched.kernel.store.rows import columns_of, insert_rows
from rqsched.when.members import ENDS
from tests.support.damage import set_columns
from tests.support.env import (
    HOUR,
    MINUTE,
    NOON,
    ONCE,
    SECOND,
    Env,
    all_runs,
    events,
    job_id,
    last,
    statuses,
)
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import silent_database, statements, wait_for_a_lock

SUCCESS, BRIEF = AttemptResult(AttemptOutcome.SUCCEEDED), Patience(total=MINUTE)


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    given = (name for name in ("any_env", "postgres_env") if name in request.fixturenames)
    env: Env = request.getfixturevalue(next(given, "env"))
    yield
    env.recover()
    check_invariants(env.runtime)


def pair(env: Env, on: str = "success", **options: object) -> tuple[ScheduleHandle, ScheduleHandle]:
    """A schedule every minute without retries, and one after it."""
    return env.create("nightly", retry=ONCE), env.create("report", After("nightly", on=on), **options)


def test_a_success_starts_one_run_of_the_schedule_after_it(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    assert report.next_run_at is None
    assert report.status == "active"
    upstream = env.run_next(nightly)
    env.work()
    (run,) = all_runs(report)
    assert (run.status, run.kind, run.state.upstream_run_uid) == ("succeeded", "after", upstream.uid)
    assert run.occurrence_at == upstream.ended_at
    assert run.instance_id == f"schedule:report:after:{upstream.uid.lower()}"
    told = last(report, "Triggered")
    assert (told["upstream_run_id"], told["upstream_schedule_id"]) == (upstream.uid, "nightly")
    assert [one.upstream_schedule_id for one in (run, run.refresh(), report.run(run.uid))] == ["nightly"] * 3
    assert upstream.refresh().upstream_schedule_id is None
    env.recover()
    assert len(all_runs(report)) == env.state(report).run_count == 1
    assert report.refresh().status == "active"


@pytest.mark.parametrize("on", ["success", "failure", "end"])
@pytest.mark.parametrize("fails", [False, True])
def test_only_the_ends_that_are_named_count(env: Env, on: str, fails: bool) -> None:
    nightly, report = pair(env, on)
    (env.fail_next if fails else env.run_next)(nightly)
    env.recover()
    assert len(all_runs(report)) == (on == "end" or (on == "failure") is fails)


@pytest.mark.parametrize("outcome", ["cancelled", "terminated", "lost", "expired"])
def test_every_end_but_a_success_is_a_failure(any_env: Env, outcome: str) -> None:
    env = any_env
    within = {"start_within": 10 * SECOND} if outcome == "expired" else {}
    nightly = env.create("nightly", retry=ONCE, **within)
    after = {on: env.create(f"on-{on}", After("nightly", on=on)) for on in ENDS}
    run = env.fire_next(nightly)
    if outcome == "expired":
        env.advance(11 * SECOND)
        env.recover()
    elif outcome == "lost":
        env.claim(run)
        assert lose_run(env.runtime, job_id(run.refresh().state), "it died") is not None
    else:
        run.cancel() if outcome == "cancelled" else run.terminate()
    assert run.refresh().state.shown_status == outcome
    assert {on: len(all_runs(schedule)) for on, schedule in after.items()} == {"success": 0, "failure": 1, "end": 1}


def test_a_manual_run_and_a_retry_count_and_a_backfilled_run_does_not(any_env: Env) -> None:
    env = any_env
    nightly, report = env.create("nightly", retry=RetryPolicy(base=MINUTE)), env.create("report", After("nightly"))
    env.failing = True
    nightly.trigger()
    env.work()
    assert (statuses(nightly), statuses(report)) == (["retrying"], [])
    env.failing = False
    env.advance(2 * MINUTE)
    env.dispatch()
    env.work()
    assert statuses(nightly)[0] == "succeeded"
    assert len(all_runs(report)) == 1

    nightly.pause()
    nightly.backfill(NOON - 3 * MINUTE, NOON)
    for _ in range(4):
        env.work()
        env.recover()
    assert statuses(nightly).count("succeeded") >= 4
    assert len(all_runs(report)) == sum(
        run.kind != "backfill" and run.status == "succeeded" for run in all_runs(nightly)
    )


def test_a_run_that_is_retried_on_request_and_ends_anew_starts_nothing_again(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env, "end")
    failure = env.create("alarm", After("nightly", on="failure"))
    success = env.create("publish", After("nightly", on="success"))
    run = env.fail_next(nightly)
    env.work()
    assert [len(all_runs(one)) for one in (report, failure, success)] == [1, 1, 0]
    env.failing = True
    run.retry()
    env.work()
    env.failing = False
    run.retry()
    env.work()
    assert run.refresh().status == "succeeded"
    assert [len(all_runs(one)) for one in (report, failure, success)] == [1, 1, 1]


def test_what_waited_behind_another_run_and_never_began_is_no_end(env: Env) -> None:
    nightly = env.create("nightly", retry=ONCE, overlap="buffer_all")
    report = env.create("report", After("nightly", on="end"), overlap="allow_all")
    env.fire_next(nightly)
    env.fire_next(nightly)
    env.fire_next(nightly)
    assert statuses(nightly) == ["pending", "buffered", "buffered"]
    all_runs(nightly)[1].cancel()
    nightly.delete()
    env.work()
    assert statuses(nightly) == ["succeeded", "cancelled", "cancelled"]
    assert len(all_runs(report)) == 1


def test_a_deleted_schedule_ends_its_retries_and_each_is_a_failure(any_env: Env) -> None:
    env = any_env
    nightly, report = (
        env.create("nightly", retry=RetryPolicy(base=HOUR)),
        env.create("report", After("nightly", on="failure")),
    )
    assert env.fail_next(nightly).status == "retrying"
    nightly.delete()
    env.advance(MINUTE)
    env.recover()
    assert statuses(nightly) == ["cancelled"]
    assert len(all_runs(report)) == 1


def test_a_schedule_that_is_created_again_is_still_come_after(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    nightly.delete()
    # With more columns than most: on PostgreSQL that is another statement.
    again = env.create("nightly", retry=ONCE, context=CommandContext(traceparent=f"00-{'a' * 32}-{'b' * 16}-01"))
    env.run_next(again)
    assert len(all_runs(report)) == 1
    again.delete()
    env.create("nightly", paused=True).delete()
    env.scheduler.upsert("nightly", "note", MINUTE)
    env.run_next(env.scheduler.get("nightly"))
    assert len(all_runs(report)) == 2


def test_a_sync_that_creates_many_again_notes_which_of_them_is_come_after(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    nightly.delete()
    env.scheduler.sync(Declaration(name, "note", MINUTE) for name in ("daily", "nightly", "weekly"))
    declared = [env.state(env.scheduler.get(name)).followed_at for name in ("daily", "nightly", "weekly")]
    assert declared == [None, NOON, None]
    env.run_next(env.scheduler.get("nightly"))
    assert len(all_runs(report)) == 1


def test_a_schedule_that_nobody_comes_after_any_more_forgets_it_at_its_next_end(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    assert env.state(nightly).followed_at == NOON
    report.update(spec=HOUR)
    assert report.next_run_at is not None
    assert report.state.upstream_id is None
    env.run_next(nightly)
    assert env.state(nightly).followed_at is None
    report.update(spec=After("nightly"))
    assert env.state(nightly).followed_at == NOON + MINUTE
    env.run_next(nightly)
    assert [run.kind for run in all_runs(report)] == ["after"]


@pytest.mark.parametrize("options", [
    {"jitter": MINUTE}, {"spread": MINUTE}, {"exclude": "Sat, Sun"}, {"dst_gap": "skip"}, {"dst_fold": "both"},
    {"timezone": "Europe/Berlin"},
])  # fmt: skip
def test_what_says_when_is_refused_beside_it(env: Env, options: dict[str, Any]) -> None:
    env.create("nightly")
    with pytest.raises(InvalidInputError) as refused:
        env.create("report", After("nightly"), **options)
    assert refused.value.field in options
    assert [one.schedule_id for one in env.scheduler.iter()] == ["nightly"]


@pytest.mark.parametrize("refused", [
    lambda: Spec([After("a"), MINUTE]), lambda: Spec(After("a"), start_at=NOON), lambda: Spec(After("a"), end_at=NOON),
    lambda: After(""), lambda: After("a", on="start"),
])  # fmt: skip
def test_it_is_alone_in_its_spec_and_has_no_window(refused: Callable[[], object]) -> None:
    with pytest.raises(InvalidSpecError):
        refused()


def test_a_backfill_and_a_skip_of_the_next_are_refused(env: Env) -> None:
    _, report = pair(env)
    with pytest.raises(InvalidInputError, match="no past occurrences"):
        report.backfill(NOON - HOUR, NOON)
    with pytest.raises(InvalidInputError, match="no times ahead"):
        report.skip_next()
    assert report.upcoming() == []


def test_what_it_comes_after_must_be_there(env: Env) -> None:
    with pytest.raises(UpstreamError, match=r"create '.*' first"):
        env.create("report", After("nightly"))
    with pytest.raises(UpstreamError):
        env.scheduler.upsert("report", "note", After("nightly"))
    nightly, report = pair(env)
    with pytest.raises(UpstreamError):
        report.update(spec=After("elsewhere"))
    nightly.delete()
    report.update(note="its upstream is gone, and that is no news")
    env.scheduler.upsert("report", "note", After("nightly", on="end"))
    env.create("other", namespace="tenant")
    with pytest.raises(UpstreamError):
        env.create("third", After("other"))


def test_a_circle_is_refused_and_named(any_env: Env) -> None:
    env = any_env
    with pytest.raises(UpstreamError):
        env.create("a", After("a"))
    first = env.create("a")
    with pytest.raises(UpstreamError, match="a after a"):
        first.update(spec=After("a"))
    env.create("b", After("a"))
    env.create("c", After("b"))
    for change in (
        lambda: first.update(spec=After("c")),
        lambda: env.scheduler.upsert("a", "note", After("c")),
        lambda: env.scheduler.sync([Declaration("a", "note", After("c"))]),
    ):
        with pytest.raises(UpstreamError, match="a after c after b after a"):
            change()
    first.delete()
    with pytest.raises(UpstreamError, match="a after c after b after a"):
        env.create("a", After("c"))
    assert {one.schedule_id for one in env.scheduler.iter()} == {"b", "c"}


def test_circle_is_not_closed_by_two_changes_at_once_that_name_no_schedule_in_common(postgres_env: Env) -> None:
    env = postgres_env
    first, third = env.create("a"), env.create("c")
    env.create("b", After("c"))
    env.create("d", After("a"))
    with ThreadPoolExecutor(1) as threads:
        with env.runtime.database.engine.begin() as other:
            first.update(spec=After("b"), connection=other)
            closing = threads.submit(third.update, spec=After("d"))
            wait_for_a_lock(env.runtime.database)
        with pytest.raises(UpstreamError, match="is a cycle"):
            closing.result()


def test_the_order_in_a_set_that_is_synced_does_not_matter(any_env: Env) -> None:
    env = any_env
    declared = [Declaration(f"s{n}", "note", After(f"s{n - 1}") if n else MINUTE) for n in range(6)]
    assert set(env.scheduler.sync(declared[::-1]).created) == {one.schedule_id for one in declared}
    assert len(env.scheduler.sync(declared[::-1]).unchanged) == 6
    env.run_next(env.scheduler.get("s0"))
    env.work()
    assert all(statuses(env.scheduler.get(f"s{n}")) == ["succeeded"] for n in range(6))
    with pytest.raises(UpstreamError, match="is a cycle"):
        env.scheduler.sync([*declared[1:], Declaration("s0", "note", After("s5"))])
    with pytest.raises(UpstreamError, match=r"create '.*' first"):
        env.scheduler.sync([Declaration("new", "note", MINUTE), Declaration("x", "note", After("nowhere"))])
    with pytest.raises(ScheduleNotFoundError):
        env.scheduler.get("new")


@pytest.mark.parametrize("mode", ["next", "once", "from_now"])
def test_a_pause_leaves_one_missed_run_which_a_resume_may_fire(any_env: Env, mode: str) -> None:
    env = any_env
    nightly, report = pair(env)
    report.pause()
    upstream = [env.run_next(nightly) for _ in range(3)][-1]
    assert all_runs(report) == []
    assert env.state(report).missed_count == 2
    report.resume(on_resume=mode)
    found = [run.state.upstream_run_uid for run in all_runs(report)]
    assert found == ([upstream.uid] if mode == "once" else [])
    assert env.state(report).missed_count == (2 if mode == "once" else 3)
    env.work()
    env.run_next(nightly)
    assert len(all_runs(report)) == len(found) + 1


def missed_by_a_pause(env: Env, **options: Any) -> ScheduleHandle:
    """A schedule that is paused, and of which one run is missed."""
    nightly, report = pair(env, **options)
    report.pause()
    env.run_next(nightly)
    return report


def named_upstreams(schedule: ScheduleHandle, event_type: str) -> list[tuple[str, str]]:
    """The run and the schedule that each event of a type names as those before."""
    told = [event.payload for event in events(schedule, event_type)]
    return [(one["upstream_run_id"], one["upstream_schedule_id"]) for one in told]


@pytest.mark.parametrize("ending", ["next", "from_now", "delete"])
def test_each_run_that_a_pause_missed_is_told_with_the_schedule_before(env: Env, ending: Any) -> None:
    nightly, report = pair(env)
    report.pause()
    upstream = [env.run_next(nightly).uid for _ in range(2)]
    report.delete() if ending == "delete" else report.resume(on_resume=ending)
    assert named_upstreams(report, "ScheduleMissed") == [(uid, "nightly") for uid in upstream]


def test_what_a_pause_missed_after_another_schedule_than_now_names_none(env: Env) -> None:
    nightly, report = pair(env)
    env.create("weekly")
    report.pause()
    upstream = env.run_next(nightly)
    report.update(spec=After("weekly"))
    report.resume(on_resume="next")
    told = last(report, "Missed")
    assert (told["upstream_run_id"], told.get("upstream_schedule_id")) == (upstream.uid, None)


def test_what_a_pause_missed_fires_after_a_process_whose_clock_is_behind_changed_the_timing(env: Env) -> None:
    report = missed_by_a_pause(env)
    now = env.clock.now()
    env.clock.set(now - SECOND)
    report.update(spec=After("nightly", on="end"))
    env.clock.set(now)
    report.resume(on_resume="once")
    assert [run.kind for run in all_runs(report)] == ["after"]


def test_what_a_pause_missed_fires_where_the_schedule_comes_after_no_other_any_more(env: Env) -> None:
    report = missed_by_a_pause(env)
    report.update(spec=Every("1h"))
    report.resume(on_resume="once")
    assert [run.kind for run in all_runs(report)] == ["after"]


def test_an_end_that_is_due_at_the_instant_of_a_tick_is_followed_by_that_tick(env: Env) -> None:
    report = missed_by_a_pause(env)
    until = env.clock.now() + HOUR
    report.refresh()
    report.resume()
    report.pause(until=until, on_resume="once")
    env.run_next(env.scheduler.get("nightly"))
    env.scheduler.tick(now=until + SECOND)
    assert [run.kind for run in all_runs(report)] == ["after"]


def test_a_run_that_waited_names_the_schedule_before_when_it_starts(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env, overlap="buffer_all")
    blocking = present(report.trigger().run)
    upstream = list[str]()
    for _ in range(2):
        env.execute(run := env.fire_next(nightly))
        upstream.append(run.uid)
    env.create("weekly")
    report.update(spec=After("weekly"))
    env.execute(blocking)
    env.work()
    assert named_upstreams(report, "ScheduleBuffered") == [(uid, "nightly") for uid in upstream]
    started = [event for event in events(report, "ScheduleTriggered") if "upstream_run_id" in event.payload]
    assert [one.payload["upstream_run_id"] for one in started] == upstream
    assert [one.payload["upstream_schedule_id"] for one in started] == ["nightly"] * 2


def test_a_resume_with_once_starts_nothing_in_another_environment(any_env: Env) -> None:
    report = missed_by_a_pause(any_env, environments=["production"])
    report.resume(on_resume="once")
    assert all_runs(report) == []
    assert last(report, "TriggerSkipped")["reason"] == "environment"


@pytest.mark.parametrize(("missed", "count"), [(None, 1), ("none", 0)])
def test_what_a_resume_fires_in_a_frozen_namespace_waits_for_the_thaw(any_env: Env, missed: Any, count: int) -> None:
    env = any_env
    report = missed_by_a_pause(env)
    env.scheduler.freeze("it moves")
    report.resume(on_resume="once")
    env.advance(MINUTE)
    env.recover()
    assert (report.refresh().status, all_runs(report), env.state(report).missed_count) == ("active", [], 0)
    env.scheduler.thaw(missed=missed)
    assert (len(all_runs(report)), env.state(report).missed_count) == (count, 1 - count)


def test_what_a_resume_fires_may_be_older_than_fire_within(env: Env) -> None:
    report = missed_by_a_pause(env, fire_within=MINUTE)
    env.advance(HOUR)
    report.resume(on_resume="once")
    assert len(all_runs(report)) == 1


def test_a_resume_fires_what_was_missed_after_the_run_before_was_pruned_and_its_schedule_purged(any_env: Env) -> None:
    env = any_env
    report = missed_by_a_pause(env)
    upstream = env.scheduler.get("nightly")
    upstream.delete(purge=True)
    report.resume(on_resume="once")
    (run,) = all_runs(report)
    assert run.kind == "after"
    assert run.upstream_schedule_id is None


def test_a_resume_in_a_transaction_of_the_caller_fires_what_was_missed_after_its_commit(env: Env) -> None:
    report = missed_by_a_pause(env)
    with env.runtime.database.engine.begin() as connection:
        report.resume(on_resume="once", connection=connection)
        assert all_runs(report) == []
    assert len(all_runs(report)) == 1


def test_what_is_owed_to_a_purged_schedule_is_removed(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    claim = env.claim(env.fire_next(nightly))
    write_end(env.runtime, claim, SUCCESS, patience=BRIEF)
    uid = report.uid
    with env.runtime.database.engine.begin() as connection:  # as when the end is written while it is purged
        owed = upstream_ends.read_owed(connection, uid, None, 9)
    report.delete(purge=True)
    with env.runtime.database.engine.begin() as connection:
        insert_rows(connection, tables.upstream_ends, columns_of([asdict(one) for one in owed]))

    env.advance(SECOND)
    env.recover()

    with env.runtime.database.engine.begin() as connection:
        assert len(owed) == 1
        assert upstream_ends.read_owed(connection, uid, None, 9) == []


def test_a_pause_that_ends_by_deletion_leaves_what_it_missed_as_missed(env: Env) -> None:
    nightly, report = pair(env)
    report.pause()
    upstream = env.run_next(nightly)
    report.delete()
    assert last(report, "Missed")["upstream_run_id"] == upstream.uid


def test_a_pause_that_ends_by_itself_fires_what_it_missed(env: Env) -> None:
    nightly, report = pair(env)
    report.pause(until=NOON + 5 * MINUTE, on_resume="once")
    env.run_next(nightly)
    env.advance(10 * MINUTE)
    env.recover()
    assert [run.kind for run in all_runs(report)] == ["after"]


@pytest.mark.parametrize(("missed", "count"), [(None, 1), ("one", 1), ("all", 3), ("none", 0)])
def test_what_came_during_a_freeze_is_one_at_the_thaw(any_env: Env, missed: Any, count: int) -> None:
    env = any_env
    nightly, report = pair(env, overlap="allow_all")
    first = env.fire_next(nightly)
    nightly.update(overlap="allow_all")
    runs = [first, *(present(nightly.trigger().run) for _ in range(2))]
    claims = [env.claim(run) for run in runs]
    env.scheduler.freeze("it moves")
    for claim in claims:
        env.advance(SECOND)
        publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=BRIEF))
    env.advance(MINUTE)
    env.recover()
    assert all_runs(report) == []
    env.scheduler.thaw(missed=missed)
    assert len(all_runs(report)) == count
    assert env.state(report).missed_count == 3 - count
    env.recover()
    assert len(all_runs(report)) == count


def test_nothing_comes_after_while_everything_is_frozen(env: Env) -> None:
    nightly, report = pair(env)
    claim = env.claim(env.fire_next(nightly))
    env.scheduler.freeze("wait", everything=True)
    publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=BRIEF))
    env.advance(MINUTE)
    env.recover()
    assert all_runs(report) == []
    env.scheduler.thaw(everything=True)
    assert len(all_runs(report)) == 1


def test_overlap_max_runs_and_environments_apply(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env, max_runs=1)
    other = env.create("elsewhere", After("nightly"), environments=["production"])
    env.run_next(nightly)
    env.run_next(nightly)
    assert (statuses(report), report.refresh().status) == (["succeeded"], "done")
    reasons = [event.payload["reason"] for event in events(report, "ScheduleTriggerSkipped")]
    assert reasons == ["remaining_actions_exhausted"]
    assert [event.payload["reason"] for event in events(other, "ScheduleTriggerSkipped")] == ["environment"] * 2


def test_a_run_that_is_in_its_way_is_told(env: Env) -> None:
    nightly, report = pair(env)
    env.run_next(nightly)
    report = env.create("slow", After("nightly"))
    run = present(nightly.trigger().run)
    blocking = present(report.trigger().run)
    env.execute(run)
    skipped = last(report, "TriggerSkipped")
    assert (skipped["reason"], skipped["blocking_run_id"]) == ("overlap_policy_skip", blocking.uid)
    assert (skipped["upstream_run_id"], skipped["upstream_schedule_id"]) == (run.uid, "nightly")


def test_an_end_that_is_later_than_the_window_is_missed(env: Env) -> None:
    nightly, report = pair(env, fire_within=MINUTE)
    claim = env.claim(env.fire_next(nightly))
    write_end(env.runtime, claim, SUCCESS, patience=BRIEF)
    env.advance(2 * MINUTE)
    env.recover()
    assert all_runs(report) == []
    assert env.state(report).missed_count == 1


def test_what_cannot_be_decided_is_tried_for_ever(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    set_columns(env, report, policies=json.dumps({"overlap": "nonsense"}))
    env.run_next(nightly)
    for tries in range(1, 12):
        (owed,) = env.runtime.database.read(lambda c: upstream_ends.read_owed(c, report.uid, None, 9))
        assert owed.tries == tries
        assert "InvalidPolicyError" in (owed.error or "")
        assert owed.due_at is not None
        assert timedelta(0) < owed.due_at - env.clock.now() <= 5 * MINUTE
        env.advance(5 * MINUTE + SECOND)
        env.recover()
    set_columns(env, report, policies=report.state.definition.policies)
    env.advance(6 * MINUTE)
    env.recover()
    assert len(all_runs(report)) == 1


def test_one_that_cannot_be_decided_stops_no_other_that_comes_after_the_same(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    others = [env.create(f"other{number}", After("nightly")) for number in range(3)]
    policies = report.state.definition.policies
    set_columns(env, report, policies=json.dumps({"overlap": "nonsense"}))
    env.run_next(nightly)
    assert [len(all_runs(one)) for one in others] == [1, 1, 1]
    set_columns(env, report, policies=policies)
    env.advance(MINUTE)
    env.recover()
    assert len(all_runs(report)) == 1


def test_one_that_a_long_transaction_holds_keeps_no_other_that_comes_after_the_same(postgres_env: Env) -> None:
    env = postgres_env
    nightly, report = pair(env)
    others = [env.create(f"other{number}", After("nightly")) for number in range(3)]
    written = write_end(env.runtime, env.claim(env.fire_next(nightly)), SUCCESS, patience=BRIEF)
    row = sa.select(tables.schedules).where(tables.schedules.c.uid == report.uid)
    with ThreadPoolExecutor(1) as threads:
        with env.runtime.database.engine.begin() as connection:
            connection.execute(row.with_for_update())
            ending = threads.submit(publish_end, env.runtime, written)
            wait_for_a_lock(env.runtime.database)
            assert [len(all_runs(one)) for one in (report, *others)] == [0, 1, 1, 1]
        ending.result()
    assert len(all_runs(report)) == 1


def test_each_that_comes_after_the_same_starts_once_though_the_answer_is_lost(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    others = [report, *(env.create(f"other{number}", After("nightly")) for number in range(3))]
    claim = env.claim(env.fire_next(nightly))
    written = write_end(env.runtime, claim, SUCCESS, patience=BRIEF)
    silent_database(env.runtime).lose()
    publish_end(env.runtime, written)
    assert [len(all_runs(one)) for one in others] == [1] * 4
    assert len(env.queued()) == 4


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_newer_release_says_of_what_comes_after_is_owed_and_left_to_it(any_env: Env, fails: bool) -> None:
    env = any_env
    nightly, report = pair(env)
    known = json.loads(report.state.definition.spec)
    set_columns(env, report, spec=json.dumps({**known, "after": {**known["after"], "delay": 5}}))
    (env.fail_next if fails else env.run_next)(nightly)
    env.recover()
    assert all_runs(report) == []
    set_columns(env, report, spec=report.state.definition.spec)
    env.recover()
    assert len(all_runs(report)) == (not fails)


@pytest.mark.parametrize("spec", ["nonsense", "{}", "[]"])
def test_a_schedule_that_cannot_be_read_keeps_no_run_before_it_from_ending(any_env: Env, spec: str) -> None:
    env = any_env
    nightly, report = pair(env)
    other = env.create("other", After("nightly"))
    set_columns(env, report, spec=spec)
    assert env.run_next(nightly).status == "succeeded"
    assert len(all_runs(other)) == 1
    set_columns(env, report, spec=report.state.definition.spec)
    env.advance(6 * MINUTE)
    env.recover()
    assert len(all_runs(report)) == 1


def test_the_process_that_dies_after_the_end_leaves_the_rest_to_a_pass(any_env: Env) -> None:
    env = any_env
    nightly, report = pair(env)
    claim = env.claim(env.fire_next(nightly))
    write_end(env.runtime, claim, SUCCESS, patience=BRIEF)
    assert all_runs(report) == []
    env.advance(SECOND)
    assert env.recover().followed == 1
    assert len(all_runs(report)) == 1
    env.redis.flushall()
    env.advance(20 * SECOND)
    env.recover()
    env.work()
    assert statuses(report) == ["succeeded"]


def test_an_external_worker_s_end_is_followed_and_what_follows_may_be_external(any_env: Env) -> None:
    env = any_env
    nightly = env.create("nightly", workflow="elsewhere", executor="external", retry=ONCE)
    report = env.create("report", After("nightly"), workflow="elsewhere", executor="external")
    env.fire_next(nightly)
    for handle in (nightly, report):
        (mine,) = external_runs.claim(env.runtime, ("default",), "one", namespace="default", count=1)
        assert mine.run.schedule_uid == handle.uid
        assert external_runs.finish(env.runtime, mine.run, SUCCESS) is not None
    assert statuses(report) == ["succeeded"]


def test_the_end_of_a_schedule_that_nothing_comes_after_is_one_statement(postgres_env: Env) -> None:
    env = postgres_env
    claim = env.claim(env.fire_next(env.create("nightly")))
    with statements(env.runtime) as seen:
        publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=BRIEF))
    assert seen == ["WITH"]


@pytest.mark.parametrize("is_of_all", [False, True], ids=["a namespace", "everything"])
def test_ends_of_a_freeze_are_one_also_where_they_are_more_than_a_transaction_follows_else(
    env: Env, is_of_all: bool
) -> None:
    number = MOST_AT_ONCE + 1
    nightly = env.create("nightly", SECOND, retry=ONCE, overlap="allow_all")
    report = env.create("report", After("nightly"))
    claims = [env.claim(env.fire_next(nightly, SECOND)) for _ in range(number)]
    nightly.pause()
    context = CommandContext()
    scope = None if is_of_all else "default"
    freezing.freeze(env.runtime, scope, context)
    for claim in claims:
        publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=BRIEF))
    assert all_runs(report) == []

    freezing.thaw(env.runtime, scope, context)
    env.recover()

    assert (len(all_runs(report)), report.refresh().state.missed_count) == (1, number - 1)
