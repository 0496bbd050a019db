"""Retention: what workers and `prune` delete of a schedule's history, and what always stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidPolicyError
from rqsched.features.backfill.chain import BackfillRange
from rqsched.features.pruning import chain as prunings
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store.tables import deliveries, schedules
from tests.support.env import DAY, HOUR, NOON, SECOND, Env, MakeEnv, all_runs, events, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present

DAILY = Every(DAY)


def numbers(schedule: ScheduleHandle) -> list[int]:
    return [run.number for run in all_runs(schedule)]


def prune(env: Env, retention: str | None = None, **options: Any) -> dict[str, int]:
    """Prune, and return the counts of deleted rows that are not zero."""
    done = env.scheduler.prune(retention=retention, **options)
    counts = {name: getattr(done, name) for name in ("runs", "targets", "events", "backfills", "deliveries")}
    return {name: count for name, count in counts.items() if count}


def turned(env: Env, times: int, span: timedelta = DAY, **options: Any) -> ScheduleHandle:
    """A schedule of every day that has run so often, and everything is a while ago."""
    schedule = env.create("report", Every(span), **options)
    for _ in range(times):
        env.run_due(span)
    env.advance(SECOND)
    return schedule


def pruned_to(env: Env, schedule: ScheduleHandle) -> Any:
    found = sa.select(schedules.c.pruned_to).where(schedules.c.uid == schedule.uid)
    return env.runtime.database.read(lambda connection: connection.execute(found).scalar_one())


def test_by_default_ninety_days_are_kept(any_env: Env) -> None:
    schedule = turned(any_env, 94)
    assert prune(any_env) == {"runs": 4, "events": 5}
    assert numbers(schedule) == list(range(5, 95))
    assert prune(any_env) == {}
    check_invariants(any_env.runtime, with_redis=False)


def test_by_default_a_thousand_runs_are_kept_and_all_of_the_last_day(any_env: Env) -> None:
    schedule = turned(any_env, 12, HOUR, retention="10")
    assert prune(any_env) == {}, "all of it is younger than a day"
    for _ in range(30):
        any_env.run_due(HOUR)
    assert prune(any_env) == {"runs": 17, "events": 18}
    assert numbers(schedule)[0] == 18
    any_env.advance(DAY)
    assert prune(any_env)["runs"] == 15
    assert numbers(schedule)[0] == 33
    assert [event.sequence for event in events(schedule)][-1] == schedule.refresh().state.event_sequence
    check_invariants(any_env.runtime, with_redis=False)


def test_history_goes_from_its_beginning_and_leaves_no_gap(any_env: Env) -> None:
    schedule = turned(any_env, 20)
    assert prune(any_env, "7d") == {"runs": 13, "events": 14}
    kept = [event.sequence for event in events(schedule)]
    assert kept == list(range(kept[0], schedule.refresh().state.event_sequence + 1))
    any_env.run_due(DAY)
    assert (schedule.refresh().run_count, newest(schedule).number) == (21, 21), "counters and numbers continue"
    check_invariants(any_env.runtime, with_redis=False)


def test_the_last_run_and_the_last_success_stay_for_ever(any_env: Env) -> None:
    schedule = turned(any_env, 5)
    any_env.failing = True
    for _ in range(5):
        any_env.run_due(DAY)
        any_env.run_due(HOUR)
    schedule.pause()
    any_env.advance(1_000 * DAY)
    prune(any_env)
    assert (numbers(schedule)[0], numbers(schedule)[-1]) == (5, schedule.refresh().state.run_number)
    assert statuses(schedule)[0] == "succeeded"
    assert len(numbers(schedule)) == 2


def test_unfinished_runs_stay_however_old(any_env: Env) -> None:
    schedule = any_env.create("report", DAILY, overlap="buffer_all")
    for _ in range(3):
        any_env.tick(DAY)
    any_env.advance(500 * DAY)
    assert prune(any_env)["events"]
    assert statuses(schedule) == ["pending", "buffered", "buffered"]


def test_an_idempotency_key_that_is_alive_keeps_its_run(any_env: Env) -> None:
    schedule = turned(any_env, 1)
    first = present(schedule.trigger(overlap="allow_all", idempotency_key="once").run)
    any_env.execute_pending()
    for _ in range(3):
        schedule.trigger(overlap="allow_all")
    any_env.execute_pending()
    any_env.advance(DAY - SECOND)

    prune(any_env, "1")

    again = schedule.trigger(overlap="allow_all", idempotency_key="once")
    assert present(again.run).uid == first.uid
    assert first.refresh().status == "succeeded"


def test_a_schedules_own_retention_goes_before_the_setting(any_env: Env) -> None:
    other = any_env.create("all", DAILY, retention="0")
    mine = turned(any_env, 10, retention="5d")
    assert mine.describe().policies["retention"] == "5d"
    assert prune(any_env)["runs"] == 5
    assert (len(numbers(mine)), len(numbers(other))) == (5, 10)
    assert prune(any_env, "2d")["runs"] == 3 + 8, "an explicit one goes before both"


def test_a_setting_of_zero_keeps_everything(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, retention="0")
    schedule = turned(env, 10)
    env.advance(3_000 * DAY)
    assert prune(env) == {}
    assert len(numbers(schedule)) == 10


def test_a_retention_that_is_refused_names_itself_and_writes_nothing(env: Env) -> None:
    with pytest.raises(InvalidPolicyError, match="retention"):
        env.create("report", DAILY, retention="a while")
    with pytest.raises(InvalidPolicyError, match="retention"):
        env.scheduler.prune(retention="1h")
    assert env.scheduler.list().items == []


def test_a_dry_run_counts_and_deletes_nothing(any_env: Env) -> None:
    schedule = turned(any_env, 20)
    planned = prune(any_env, "7d", dry_run=True)
    assert len(numbers(schedule)) == 20
    assert prune(any_env, "7d") == planned == {"runs": 13, "events": 14}


def test_one_namespace_is_pruned_or_all(any_env: Env) -> None:
    turned(any_env, 10)
    assert prune(any_env, "5d", namespace="billing") == {}
    assert prune(any_env, "5d", namespace="default")["runs"] == 5


def test_a_backfill_after_a_pruning_runs_nothing_twice(any_env: Env) -> None:
    schedule = turned(any_env, 20)
    before = len(any_env.calls)
    prune(any_env, "7d")
    assert pruned_to(any_env, schedule) == NOON + 13 * DAY

    dry = schedule.backfill(NOON, NOON + 21 * DAY, dry_run=True)
    rows = schedule.backfill(NOON, NOON + 21 * DAY).rows
    any_env.execute_pending()

    assert [(row.outcome, row.reason) for row in rows] == [(row.outcome, row.reason) for row in dry.rows]
    assert [(row.outcome, row.reason) for row in rows[:14]] == [("already_run", "pruned")] * 14
    assert {(row.outcome, row.reason) for row in rows[14:]} == {("already_run", None)}
    assert len(any_env.calls) == before


def test_a_backfill_that_runs_all_again_fires_what_was_pruned(any_env: Env) -> None:
    schedule = turned(any_env, 10)
    before = len(any_env.calls)
    prune(any_env, "7d")
    assert {row.outcome for row in schedule.backfill(NOON, NOON + 4 * DAY, rerun="failed").rows} == {"already_run"}
    dry = schedule.backfill(NOON, NOON + 11 * DAY, rerun="all", dry_run=True)
    rows = schedule.backfill(NOON, NOON + 11 * DAY, rerun="all", overlap="allow_all").rows
    any_env.execute_pending()
    assert [row.outcome for row in dry.rows] == ["would_start"] * 4 + ["already_run"] * 7
    assert [row.outcome for row in rows] == ["started"] * 4 + ["already_run"] * 7
    assert len(any_env.calls) == before + 4


def test_nothing_is_pruned_of_a_schedule_while_its_backfill_fires(any_env: Env) -> None:
    schedule = turned(any_env, 20)
    firing = schedule.backfill_in_chunks(BackfillRange(NOON - 600 * DAY, NOON))
    assert next(firing).status == "running"
    any_env.advance(100 * DAY)
    assert "runs" not in prune(any_env)
    list(firing)
    assert "runs" in prune(any_env)


def test_the_run_of_an_occurrence_to_come_stays(any_env: Env) -> None:
    """A paused schedule may still fire a missed occurrence, which its backfill already ran."""
    schedule = turned(any_env, 3, retention="1")
    schedule.pause()
    any_env.advance(5 * DAY)
    schedule.backfill(NOON + 4 * DAY, NOON + 9 * DAY)
    for _ in range(6):
        any_env.execute_pending()
    any_env.advance(2 * DAY)
    prune(any_env)
    assert numbers(schedule) == [4, 5, 6, 7, 8]
    before = len(any_env.calls)
    schedule.resume(on_resume="once")
    any_env.run_due(timedelta(seconds=1))
    schedule.pause()
    assert len(any_env.calls) <= before + 1
    check_invariants(any_env.runtime, with_redis=False)


def test_backfills_and_deliveries_that_are_over_go_with_the_history(any_env: Env) -> None:
    schedule = turned(any_env, 3)
    schedule.backfill(NOON, NOON + DAY)
    for name, ended in (("over", any_env.clock.now()), ("open", None)):
        _deliver(any_env, schedule, name, ended)
    any_env.advance(100 * DAY)
    done = prune(any_env)
    assert (done["backfills"], done["deliveries"]) == (1, 1)


def _deliver(env: Env, schedule: ScheduleHandle, name: str, ended_at: Any) -> None:
    now = env.clock.now()
    row = {"uid": new_uid(now), "schedule_uid": schedule.uid, "kind": "webhook", "destination": name}
    row |= {"event_type": "RunFailed", "payload": "{}", "status": "succeeded" if ended_at else "pending"}
    values = {**row, "created_at": now, "due_at": now, "ended_at": ended_at}
    env.runtime.database.transact(lambda connection: connection.execute(sa.insert(deliveries).values(values)))


def test_deleted_schedules_are_pruned_too(any_env: Env) -> None:
    schedule = turned(any_env, 5)
    schedule.delete()
    any_env.advance(100 * DAY)
    assert prune(any_env) == {"runs": 4, "events": 7}
    assert numbers(schedule) == [5]


def test_many_runs_go_in_many_small_steps(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prunings, "BATCH", 20)
    schedule = any_env.create("report", Every("1h"), overlap="allow_all")
    schedule.backfill(NOON - 50 * HOUR, NOON)
    any_env.execute_pending()
    any_env.advance(100 * DAY)
    steps: list[prunings.Pruned] = []
    any_env.scheduler.prune(progress=steps.append)
    assert sum(step.runs for step in steps) == 49
    assert max(step.runs for step in steps) == 20


def test_a_schedule_that_another_transaction_holds_is_left_for_later(postgres_env: Env) -> None:
    free = postgres_env.create("free", DAILY)
    held = turned(postgres_env, 10)
    locked = sa.select(schedules.c.uid).where(schedules.c.uid == held.uid).with_for_update(key_share=True)
    with postgres_env.runtime.database.engine.connect() as connection, connection.begin():
        connection.execute(locked)
        done = postgres_env.scheduler.prune(retention="5d")
        assert (done.busy, done.runs) == (1, 5)
    assert (len(numbers(held)), len(numbers(free))) == (10, 5)
    assert prune(postgres_env, "5d")["runs"] == 5


def test_a_dispatcher_prunes_when_it_has_nothing_else_to_do(any_env: Env) -> None:
    schedule = turned(any_env, 10, retention="5d")
    dispatcher = Dispatcher(any_env.runtime)
    while dispatcher.keep_house():
        pass
    assert len(numbers(schedule)) == 5
    assert not Dispatcher(any_env.runtime).keep_house(), "once an interval, whichever dispatcher it is"


def test_a_dispatcher_leaves_alone_what_is_due_at_once(any_env: Env) -> None:
    schedule = turned(any_env, 10, retention="5d")
    any_env.advance(DAY)
    dispatcher = Dispatcher(any_env.runtime)
    while dispatcher.keep_house():
        pass
    assert len(numbers(schedule)) == 10
