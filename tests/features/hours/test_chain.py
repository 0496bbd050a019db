"""Runs are counted by their hours beside all else: by reconcile when there are some, and before they are pruned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.hours import chain as hours
from rqsched.features.hours import store as run_hours
from rqsched.features.hours.decide import hour_of
from rqsched.features.pruning.chain import Pruning, prune_all
from rqsched.features.pruning.decide import HOURS_KEPT
from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.model import Change, RunStatus
from rqsched.kernel.decide.retention import Retention
from rqsched.kernel.store import changes
from rqsched.kernel.store.tables import counted
from rqsched.kernel.store.tables import hours as hours_table
from tests.kernel.store.samples import run_of
from tests.support.env import HOUR, MINUTE, ONCE, Env

DAY = timedelta(days=1)


def shown(env: Env, schedule: ScheduleHandle) -> Counter[tuple[int, str]]:
    """How many runs of each outcome are in each hour, as readers see it."""
    found = env.runtime.database.read(lambda c: run_hours.read(c, schedule.uid, 0, 10**9))
    return Counter({(key.hour, key.outcome): one.count for key, one in found.items()})


def in_hours(env: Env, schedule: ScheduleHandle) -> int:
    """How many are in the table."""
    total = sa.select(sa.func.coalesce(sa.func.sum(hours_table.c.count), 0))
    mine = total.where(hours_table.c.schedule_uid == schedule.uid, hours_table.c.width == 1)
    return int(env.runtime.database.read(lambda c: c.execute(mine).scalar_one()))


def add_history(env: Env, schedule: ScheduleHandle, number: int, *, since: datetime) -> None:
    """Write runs that ended one a minute."""
    state = env.state(schedule)
    runs = []
    for n in range(1, number + 1):
        at = since + n * MINUTE
        run = run_of(state, n, RunStatus.SUCCEEDED, occurrence_at=at, due_at=at, started_at=at, ended_at=at)
        runs.append(replace(run, uid=derived_uid(at, schedule.uid, n), created_at=at))
    change = Change(state, replace(state, run_number=number), new_runs=tuple(runs))
    env.runtime.database.transact(lambda connection: changes.write(connection, [change]))


def test_a_pass_counts_a_schedule_when_it_is_worth_a_transaction(any_env: Env) -> None:
    often, seldom = any_env.create("often", overlap="allow_all"), any_env.create("seldom", spec=HOUR)
    while any_env.state(often).run_number < run_hours.LEAST:
        any_env.run_due()
    any_env.recover()
    assert in_hours(any_env, often) == 0, "the youngest may not be committed yet"
    any_env.advance(2 * MINUTE)
    before = shown(any_env, often)
    any_env.recover()
    assert in_hours(any_env, often) == run_hours.LEAST
    assert in_hours(any_env, seldom) == 0
    assert shown(any_env, often) == before
    assert shown(any_env, seldom).total() == 1


def test_a_year_of_an_older_database_is_counted_over_passes_that_end(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "MOST_STEPS", 3)
    schedule = any_env.create(spec=DAY)
    add_history(any_env, schedule, 4_000, since=any_env.clock.now() - 10 * DAY)
    steps = []
    for _ in range(4):
        before = in_hours(any_env, schedule)
        any_env.recover()
        steps.append(in_hours(any_env, schedule) - before)
    assert steps == [1_500, 1_500, 1_000, 0]
    assert shown(any_env, schedule).total() == 4_000


def test_a_schedule_that_cannot_be_counted_starves_no_other(any_env: Env) -> None:
    broken, whole = any_env.create("broken", spec=DAY), any_env.create("whole", spec=DAY)
    for schedule in (broken, whole):
        add_history(any_env, schedule, 100, since=any_env.clock.now() - DAY)
    insert = sa.insert(hours_table).values(
        schedule_uid=broken.uid, width=1, hour=hour_of(any_env.clock.now() - DAY), is_backfilled=False,
        outcome="succeeded", count=1, waits="not JSON",
    )  # fmt: skip
    any_env.runtime.database.transact(lambda connection: connection.execute(insert))
    any_env.recover()
    assert (in_hours(any_env, broken), in_hours(any_env, whole)) == (1, 100)


def test_a_run_that_is_retried_is_counted_where_it_ends_anew(any_env: Env) -> None:
    schedule = any_env.create(retry=ONCE)
    run = any_env.fail_next(schedule)
    first = hour_of(any_env.clock.now())
    any_env.runtime.database.transact(lambda c: run_hours.count_some(c, schedule.uid))
    assert shown(any_env, schedule) == {(first, "failed"): 1}
    any_env.advance(3 * HOUR)
    run.retry()
    assert shown(any_env, schedule) == {}
    any_env.work()
    assert run.refresh().status == "succeeded"
    assert shown(any_env, schedule) == {(first + 3, "succeeded"): 1}
    any_env.runtime.database.transact(lambda c: run_hours.count_some(c, schedule.uid))
    assert in_hours(any_env, schedule) == 1
    assert shown(any_env, schedule) == {(first + 3, "succeeded"): 1}


def test_hours_of_pruned_runs_stay_for_more_than_a_year(any_env: Env) -> None:
    schedule = any_env.create(spec=DAY)
    add_history(any_env, schedule, 900, since=any_env.clock.now() - 10 * DAY)
    before = shown(any_env, schedule)
    done = prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d")))
    assert done.runs == 899, "the newest stays"
    assert shown(any_env, schedule) == before
    prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d")))
    assert shown(any_env, schedule) == before


def test_a_dry_pruning_counts_nothing(any_env: Env) -> None:
    schedule = any_env.create(spec=DAY)
    add_history(any_env, schedule, 50, since=any_env.clock.now() - 10 * DAY)
    assert prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d"), is_dry=True)).runs == 49
    assert any_env.runtime.database.read(lambda c: c.execute(sa.select(counted)).all()) == []


def test_hours_that_no_picture_shows_go_with_the_runs(any_env: Env) -> None:
    schedule = any_env.create(spec=DAY)
    add_history(any_env, schedule, 90, since=any_env.clock.now() - HOURS_KEPT - HOUR)
    prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d")))
    edge = hour_of(any_env.clock.now() - HOURS_KEPT)
    assert {hour for hour, _ in shown(any_env, schedule)} == {edge}


def test_backfilled_runs_of_long_ago_are_shown_while_they_are_there(any_env: Env) -> None:
    schedule = any_env.create(spec="0 6 * * *")
    add_history(any_env, schedule, 9, since=any_env.clock.now() - 10 * DAY)
    start = any_env.clock.now() - HOURS_KEPT - 10 * DAY
    schedule.backfill(start, start + 2 * DAY)
    any_env.work()
    long_ago = {one: n for one, n in shown(any_env, schedule).items() if one[0] <= hour_of(start + 2 * DAY)}
    assert sum(long_ago.values()) == 2
    assert prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d"))).runs == 9
    assert long_ago.items() <= shown(any_env, schedule).items()


@pytest.mark.parametrize("number", [149, run_hours.BATCH + 1])
def test_many_open_runs_keep_no_run_from_being_pruned(any_env: Env, number: int) -> None:
    schedule = any_env.create(spec=DAY)
    state = any_env.state(schedule)
    at = any_env.clock.now() - 10 * DAY
    open_ones = [replace(run_of(state, n, RunStatus.BUFFERED, occurrence_at=at + n * MINUTE), created_at=at)
                 for n in range(1, number + 1)]  # fmt: skip
    ended = [replace(run_of(state, n, RunStatus.SUCCEEDED, occurrence_at=at + n * MINUTE, ended_at=at), created_at=at)
             for n in range(number + 1, number + 11)]  # fmt: skip
    change = Change(state, replace(state, run_number=number + 10), new_runs=(*open_ones, *ended))
    any_env.runtime.database.transact(lambda connection: changes.write(connection, [change]))
    assert prune_all(any_env.runtime, Pruning(retention=Retention.parse("2d"))).runs == 9
    assert shown(any_env, schedule) == {(hour_of(at), "succeeded"): 10}
