"""A dispatcher never waits for a schedule or run that another process has locked, and never overlooks it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rqsched.errors import BackendUnavailableError
from rqsched.features.backfill.chain import DEFAULT_BOUND, BackfillRange, get_backfill, open_backfill
from rqsched.kernel.chain import fire
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store import claims
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs, schedules
from tests.support.env import MINUTE, NOON, SECOND, Env, MakeEnv, link_id, newest
from tests.support.sql import NO_PATIENCE, statements

pytestmark = pytest.mark.postgres


@pytest.fixture
def env(make_env: MakeEnv, postgres_url: str) -> Env:
    """An environment in which each wait for a lock ends at once, with an error."""
    return make_env(database_url=f"{postgres_url}?options=-c%20lock_timeout=1ms")


@contextmanager
def held(env: Env, table: sa.Table, uid: str) -> Iterator[None]:
    """Inside the block another process holds this row."""
    engine = Database(env.runtime.database.url).engine
    with engine.begin() as connection:
        connection.execute(sa.select(table.c.uid).where(table.c.uid == uid).with_for_update(key_share=True))
        yield
    engine.dispose()


def test_schedule_whose_run_is_being_claimed_skips_and_starts_no_second_run(env: Env) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)
    env.advance()
    with held(env, runs, run.uid):
        [fired] = fire.fire(env.runtime, [link_id(schedule.refresh())], skip_locked=True)
    assert fired.outcome == "fired"
    assert env.state(schedule).last_skip_reason == "overlap_policy_skip"
    assert [one.uid for one in schedule.runs().items] == [run.uid]


@pytest.mark.parametrize("overlap", ["cancel_other", "terminate_other"])
def test_schedule_that_would_replace_a_held_run_is_left_for_the_next_turn(env: Env, overlap: str) -> None:
    schedule, other = env.create(overlap=overlap), env.create("other", overlap=overlap)
    run = env.fire_next(schedule)
    env.deliver(other)
    env.advance()
    links = [link_id(schedule.refresh()), link_id(other.refresh())]
    with held(env, runs, run.uid):
        fired = fire.fire(env.runtime, links, skip_locked=True)
        assert {one.id: one.outcome for one in fired} == {links[0]: "locked", links[1]: "fired"}
        assert fired[[one.id for one in fired].index(links[0])].again_at == env.clock.now() + fire.LOCKED_AGAIN
    assert run.refresh().status == "pending"

    [fired_again] = fire.fire(env.runtime, links[:1], skip_locked=True)
    assert (fired_again.outcome, run.refresh().status != "pending", newest(schedule).uid != run.uid) == (
        "fired", True, True
    )  # fmt: skip


def test_reconcile_pass_leaves_what_is_held_and_repairs_the_rest(env: Env) -> None:
    lacking = [env.create(name) for name in ("a", "b")]
    database = env.runtime.database
    database.transact(lambda c: c.execute(sa.update(schedules).values(due_at=None, next_run_at=None)))
    with held(env, schedules, lacking[0].uid):
        recovered = env.recover()
    assert (recovered.next_times, recovered.failed) == (1, 0)
    assert [schedule.refresh().next_run_at is None for schedule in lacking] == [True, False]


def test_lost_run_that_is_held_is_settled_by_a_later_pass(env: Env) -> None:
    schedule = env.create()
    run = env.fire_next(schedule)
    start = {"token": "t", "started_at": env.clock.now()}
    env.runtime.database.transact(lambda c: claims.start_run(c, run.uid, 1, 1, start))
    env.runtime.database.transact(lambda c: c.execute(sa.update(runs).values(sightings=3, seen_at=NOON + MINUTE)))
    with held(env, schedules, schedule.uid):
        recovered = env.recover()
        assert (recovered.lost, recovered.failed) == (0, 0)
    assert env.recover().lost == 1


def test_interrupted_backfill_of_a_held_schedule_is_continued_by_a_later_pass(env: Env) -> None:
    schedule = env.create(overlap="allow_all")
    wanted = BackfillRange(NOON - 5 * MINUTE, NOON, bound=DEFAULT_BOUND)
    uid = new_uid(env.clock.now())
    env.advance(SECOND)
    open_backfill(env.runtime, schedule.state, wanted, uid)
    env.advance(timedelta(seconds=30))
    with held(env, schedules, schedule.uid):
        assert env.recover().failed == 0
        assert get_backfill(env.runtime, uid).attempted == 0
    env.recover()
    assert get_backfill(env.runtime, uid).attempted == 5


def test_tick_fires_what_is_free_before_it_waits_for_what_is_held(env: Env) -> None:
    held_one, free = env.create("held"), env.create("free")
    env.advance()
    env.runtime.database.patience = NO_PATIENCE
    with held(env, schedules, held_one.uid), pytest.raises(BackendUnavailableError):
        env.scheduler.tick()
    assert [one.refresh().run_count for one in (held_one, free)] == [0, 1]


@pytest.mark.parametrize("overlap", ["cancel_other", "terminate_other"])
def test_thaw_that_replaces_a_run_locks_it_before_it_writes(env: Env, overlap: str) -> None:
    schedule = env.create(overlap=overlap)
    run = env.fire_next(schedule)
    env.scheduler.freeze(everything=True)
    env.advance(3 * MINUTE)
    engine, tried = Database(env.runtime.database.url, patience=NO_PATIENCE).engine, list[str]()
    locked = sa.select(runs.c.uid).where(runs.c.uid == run.uid).with_for_update(key_share=True, nowait=True)

    def lock(word: str) -> None:
        if word != "SELECT" and not tried:
            try:
                with engine.begin() as connection:
                    connection.execute(locked)
                tried.append("nobody has locked it")
            except sa.exc.OperationalError as error:
                tried.append(type(error.orig).__name__)

    with statements(env.runtime, lock):
        assert env.scheduler.thaw(everything=True, missed="none", since=env.clock.now() - MINUTE).missed
    engine.dispose()

    assert tried == ["LockNotAvailable"]
    assert run.refresh().status in {"cancelled", "terminated"}
