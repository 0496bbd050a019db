"""A freeze of everything stops all starts. Redis or SQL alone is enough to keep it until the operator thaws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import sqlalchemy as sa

from rqsched import Cron, Scheduler
from rqsched.errors import DatabaseUnavailableError, FrozenError, InvalidInputError, RedisUnavailableError
from rqsched.features.external import chain as external_runs
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.decide.policy import MissedPolicy, RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import metadata
from rqsched.kernel.store.tables import database_metadata, schedules
from tests.support.env import (
    HOUR,
    MINUTE,
    SECOND,
    Env,
    MakeEnv,
    events,
    job_id,
    occurrences,
    statuses,
    waiting_for_retry,
)
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.servers import PostgresServer, ValkeyServer

OPERATOR = CommandContext(principal="ann", source="cli")
PASSED = 20 * SECOND


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    env: Env = request.getfixturevalue("any_env" if "any_env" in request.fixturenames else "env")
    yield
    check_invariants(env.runtime)


def forget_in_redis(env: Env) -> None:
    """Redis lost the freeze: it was flushed."""
    env.redis.delete(env.transport.freeze_key)
    env.runtime.freezes.look(is_fresh=True)


def forget_in_sql(env: Env) -> None:
    """SQL lost the freeze: it was restored."""
    env.runtime.database.transact(lambda connection: connection.execute(sa.delete(database_metadata).where(_IS_FREEZE)))
    env.runtime.freezes.look(is_fresh=True)


_IS_FREEZE = database_metadata.c.name == "hold"
KEEPERS: dict[str, Callable[[Env], None]] = {
    "both": lambda _: None,
    "SQL": forget_in_redis,
    "Redis": forget_in_sql,
}
each_keeper = pytest.mark.parametrize("keeper", KEEPERS)


@each_keeper
def test_while_frozen_no_link_fires_and_then_the_policy_decides(any_env: Env, keeper: str) -> None:
    env, schedule = any_env, any_env.create()
    freeze = env.scheduler.freeze("restore", everything=True, context=OPERATOR)
    KEEPERS[keeper](env)
    assert (freeze.by, freeze.reason, freeze.since) == ("ann", "restore", env.clock.now())
    env.advance(5 * MINUTE)
    before = env.state(schedule)

    assert env.dispatch() == 0
    assert [(one.outcome, present(one.again_at) > env.clock.now()) for one in env.deliver(schedule)] == [
        ("all_frozen", True)
    ]
    assert env.scheduler.tick() == []
    assert env.state(schedule) == before

    env.scheduler.thaw(everything=True, context=OPERATOR)
    assert env.dispatch() == 1
    after = env.state(schedule)
    assert (after.run_count, after.missed_count) == (1, 4)
    assert env.scheduler.frozen() == []


@each_keeper
def test_a_popped_job_begins_nothing_and_comes_back_after_the_thaw(any_env: Env, keeper: str) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    env.scheduler.freeze(everything=True)
    KEEPERS[keeper](env)

    env.work()

    row = env.run_row(run.uid)
    assert (row.status, row.attempt, row.token, env.seen, env.queued()) == ("pending", 1, None, [], [])
    env.advance(PASSED)
    assert env.recover().deliveries == 0
    assert env.queued() == []

    env.scheduler.thaw(everything=True)
    env.recover()
    env.work()
    assert (run.refresh().status, run.attempt, len(env.seen)) == ("succeeded", 1, 1)


def test_a_claim_sees_a_freeze_of_sql_that_its_process_does_not_know(any_env: Env, make_env: MakeEnv) -> None:
    run = any_env.fire_next(any_env.create())
    other = Scheduler(settings=any_env.scheduler.settings, clock=any_env.clock)
    other.freeze(everything=True)

    assert not any_env.runtime.freezes.is_all_frozen
    assert claim_run(any_env.runtime, job_id(run.state)) is None
    assert any_env.run_row(run.uid).status == "pending"

    other.thaw(everything=True)
    assert claim_run(any_env.runtime, job_id(run.state)) is not None
    other.close()


def test_a_dispatcher_that_does_not_know_of_a_freeze_in_redis_leases_nothing(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    dispatcher, other = Dispatcher(env.runtime), Scheduler(settings=env.scheduler.settings, clock=env.clock)
    assert dispatcher.run_once() == 0
    env.advance()
    other.freeze(everything=True)
    before = env.armed()
    knew = env.runtime.freezes.is_all_frozen

    assert dispatcher.run_once() == 0
    assert env.armed() == before
    assert (knew, env.runtime.freezes.is_all_frozen) == (False, True)

    other.thaw(everything=True)
    assert dispatcher.run_once() == 1
    assert schedule.refresh().run_count == 1
    other.close()


def test_a_retry_waits_and_an_attempt_that_has_begun_goes_on(any_env: Env) -> None:
    env = any_env
    schedule, link = waiting_for_retry(env)
    claim = env.claim(present(env.create("hourly", HOUR).trigger().run))
    env.scheduler.freeze(everything=True)
    env.advance()

    assert [one.outcome for one in env.deliver(link)] == ["all_frozen"]
    assert statuses(schedule) == ["retrying"]
    assert claim.run.status == "running"

    env.scheduler.thaw(everything=True)
    assert [one.outcome for one in env.deliver(link)] == ["fired"]


def test_what_is_started_by_hand_is_refused_and_writes_nothing(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    failed = env.fail_next(env.create("failing", HOUR, retry=RetryPolicy(max_retries=0)), HOUR)
    env.scheduler.freeze("restore", everything=True)
    rows = env.state(schedule)
    since, now = env.clock.now() - HOUR, env.clock.now()

    for start in (
        schedule.trigger,
        lambda: schedule.backfill(since, now),
        failed.retry,
        lambda: schedule.trigger(idempotency_key="once"),
    ):
        with pytest.raises(FrozenError, match=r"frozen since .* \(restore\)"):
            start()

    assert env.state(schedule) == rows
    assert failed.refresh().status == "failed"
    assert env.create("meanwhile").status == "active"


def test_a_process_that_has_read_the_freeze_in_sql_learns_of_the_thaw(any_env: Env, make_env: MakeEnv) -> None:
    env, schedule = any_env, any_env.create()
    web = make_env(database_url=env.runtime.settings.database_url)
    env.scheduler.freeze(everything=True)
    assert web.runtime.freezes.look()
    env.scheduler.thaw(everything=True)
    env.advance()

    assert web.scheduler.get(schedule.schedule_id).trigger().run


def test_no_external_worker_is_handed_a_run(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(workflow="report.generate", executor="external")
    env.fire_next(schedule)
    env.scheduler.freeze(everything=True)
    assert external_runs.claim(env.runtime, ["default"], "one", namespace="default") == []
    forget_in_redis(env)
    assert external_runs.claim(env.runtime, ["default"], "one", namespace="default") == []

    env.scheduler.thaw(everything=True)

    assert len(external_runs.claim(env.runtime, ["default"], "one", namespace="default")) == 1


def test_a_pass_copies_a_freeze_to_where_it_is_missing(any_env: Env) -> None:
    env = any_env
    env.scheduler.freeze("restore", everything=True)
    for forget in (forget_in_redis, forget_in_sql):
        forget(env)
        assert len(env.scheduler.frozen()[0].kept_in) == 1

        env.recover()

        frozen = env.scheduler.frozen()[0]
        assert (frozen.kept_in, frozen.reason) == (("redis", "sql"), "restore")


def test_a_thawed_freeze_is_not_copied_back_by_a_pass_that_had_read_it(any_env: Env) -> None:
    env = any_env
    freeze = env.scheduler.freeze(everything=True)
    env.scheduler.thaw(everything=True)

    env.runtime.freezes.put_into_redis(freeze)
    env.runtime.freezes.put_into_sql(freeze)

    assert env.scheduler.frozen() == []
    assert env.scheduler.freeze(everything=True).uid != freeze.uid


@pytest.mark.parametrize("place", ["SQL", "Redis"])
def test_a_thawed_freeze_that_comes_back_with_a_place_that_went_back_is_over(any_env: Env, place: str) -> None:
    env = any_env
    freeze = env.scheduler.freeze("first", everything=True)
    env.scheduler.thaw(everything=True)
    come_back(env, place, freeze)
    assert env.scheduler.frozen()[0].kept_in == (place.lower(),)

    env.recover()
    assert env.scheduler.frozen() == []

    come_back(env, place, freeze)
    anew = env.scheduler.freeze("second", everything=True)
    assert (anew.uid != freeze.uid, anew.reason, anew.kept_in) == (True, "second", ("redis", "sql"))


def test_who_froze_and_thawed_everything_is_kept(any_env: Env) -> None:
    env, began = any_env, any_env.clock.now()
    assert env.scheduler.freezes(everything=True) == []
    env.scheduler.freeze("restore", everything=True, context=OPERATOR)
    assert [(one.by, one.kept_in, one.thawed_at) for one in env.scheduler.freezes(everything=True)] == [
        ("ann", ("redis", "sql"), None)
    ]
    env.advance(HOUR)
    env.scheduler.thaw(everything=True, reason="looked at", context=CommandContext(principal="bob"))
    env.scheduler.freeze("again", everything=True)

    lasting, over = env.scheduler.freezes(everything=True)

    assert (lasting.reason, lasting.thawed_at) == ("again", None)
    assert (over.by, over.since, over.reason, over.kept_in) == ("ann", began, "restore", ())
    assert (over.thawed_by, over.thawed_at, over.thaw_reason) == ("bob", began + HOUR, "looked at")
    for _ in range(metadata.MOST_THAWED + 1):
        env.scheduler.thaw(everything=True)
        env.scheduler.freeze(everything=True)
    assert len(env.scheduler.freezes(everything=True)) == metadata.MOST_THAWED + 1
    assert over not in env.scheduler.freezes(everything=True)


def test_a_freeze_whose_thaw_sql_has_not_seen_is_kept_without_its_end(env: Env) -> None:
    freeze = env.scheduler.freeze(everything=True)
    env.scheduler.thaw(everything=True)
    come_back(env, "SQL", freeze)
    env.recover()
    assert [
        (one.uid, one.thawed_at, one.covers(env.clock.now())) for one in env.scheduler.freezes(everything=True)
    ] == [(freeze.uid, None, False)]


def come_back(env: Env, place: str, freeze: Freeze) -> None:
    """A freeze is where it was before its thaw: an older state of that place is there again."""
    if place == "Redis":
        env.redis.delete(env.transport.freeze_key)
        env.transport.set_freeze(freeze.uid, freeze.to_text())
    else:
        forget = sa.delete(database_metadata).where(database_metadata.c.name.in_(["hold", "released"]))
        env.runtime.database.transact(lambda connection: connection.execute(forget))
        env.runtime.database.transact(lambda c: metadata.set_freeze(c, freeze))
    env.runtime.freezes.look(is_fresh=True)


def test_a_worker_that_has_not_heard_of_the_thaw_drops_no_job(any_env: Env, make_env: MakeEnv) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    env.scheduler.freeze(everything=True)
    env.runtime.freezes.ask_redis_now(None)
    other = Scheduler(settings=env.scheduler.settings, clock=env.clock)
    other.thaw(everything=True)
    other.close()
    assert env.runtime.freezes.is_all_frozen

    env.perform(str(job_id(run.state)))

    assert run.refresh().status == "succeeded"


def test_nobody_is_told_that_something_is_overdue_while_it_is_frozen(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR, expect_success_within=MINUTE)
    env.scheduler.freeze(everything=True)
    env.advance(5 * MINUTE)

    assert env.recover().overdue == 0

    env.scheduler.thaw(everything=True)
    assert env.recover().overdue == 1
    assert schedule.refresh().overdue_since is not None


def test_nobody_is_told_that_a_run_takes_long_while_everything_is_frozen(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR, expect_duration=MINUTE)
    env.claim(present(schedule.trigger().run))
    env.scheduler.freeze("restoring", everything=True)
    env.advance(2 * MINUTE)
    assert env.recover().long == 0
    env.scheduler.thaw(everything=True)
    assert env.recover().long == 1


def test_waiting_behind_a_run_goes_on_after_it_but_begins_later(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(overlap="buffer_one")
    claim = env.claim(env.fire_next(schedule))
    env.fire_next(schedule)
    assert statuses(schedule) == ["running", "buffered"]
    env.scheduler.freeze(everything=True)

    settle_run(env.runtime, claim.run.uid, AttemptResult(AttemptOutcome.SUCCEEDED), fence=lambda run: True)
    assert statuses(schedule) == ["succeeded", "pending"]
    env.work()
    assert statuses(schedule) == ["succeeded", "pending"]


def test_a_process_that_is_frozen_by_its_settings_begins_nothing(make_env: MakeEnv, env: Env) -> None:
    own = make_env(freeze=True)
    schedule = own.create()
    own.advance()

    assert own.dispatch() == 0
    with pytest.raises(FrozenError, match="RQSCHED_FREEZE of this process"):
        schedule.trigger()
    own.scheduler.thaw(everything=True)
    assert own.scheduler.frozen()[0].kept_in == ("process",)
    assert own.dispatch() == 0


def test_while_redis_is_away_the_last_answer_counts(env: Env, own_valkey: ValkeyServer, make_env: MakeEnv) -> None:
    far = make_env(redis_url=own_valkey.url)
    schedule = far.create()
    far.scheduler.freeze(everything=True)
    forget_in_sql(far)
    own_valkey.kill()

    far.runtime.freezes.look(is_fresh=True)

    assert far.runtime.freezes.is_all_frozen
    with pytest.raises(FrozenError):
        schedule.trigger()
    with pytest.raises(RedisUnavailableError, match="still frozen"):
        far.scheduler.thaw(everything=True)
    own_valkey.start()


@pytest.mark.postgres
def test_a_freeze_needs_no_sql(
    own_postgres: PostgresServer, own_postgres_url: str, make_env: MakeEnv, env: Env
) -> None:
    far = make_env(database_url=own_postgres_url)
    schedule = far.create()
    own_postgres.stop()

    freeze = far.scheduler.freeze("the database is away", everything=True)

    assert freeze.kept_in == ("redis",)
    with pytest.raises(DatabaseUnavailableError):
        far.scheduler.thaw(everything=True)
    own_postgres.start()
    far.advance()
    assert far.dispatch() == 0
    far.recover()
    assert far.scheduler.frozen()[0].kept_in == ("redis", "sql")
    far.scheduler.thaw(everything=True)
    assert far.dispatch() == 1
    assert schedule.refresh().run_count == 1


def test_a_preview_says_what_a_thaw_does(any_env: Env) -> None:
    env = any_env
    waiting = env.fire_next(env.create("waits", HOUR), HOUR)
    every = env.create("every", missed=MissedPolicy.ALL, overlap="allow_all")
    one = env.create("one")
    env.create("paused").pause()
    env.create("later", HOUR)
    env.scheduler.freeze(everything=True)
    began = env.clock.now()
    env.advance(4 * MINUTE)

    found = env.scheduler.preview_thaw(everything=True)

    rows = {row.schedule_id: row for row in found.schedules}
    assert {name: (row.fires, row.missed) for name, row in rows.items()} == {
        "every": ([began + n * MINUTE for n in (1, 2, 3, 4)], 0),
        "one": ([began + MINUTE], 3),
    }
    assert [(run.schedule_id, run.uid, run.status) for run in found.runs] == [("waits", waiting.uid, "pending")]
    assert (present(found.freeze).kept_in, found.has_more_schedules) == (("redis", "sql"), False)
    assert statuses(every) == statuses(one) == []

    env.scheduler.thaw(everything=True)
    env.dispatch()
    for schedule in (every, one):
        row = rows[schedule.schedule_id]
        after = schedule.refresh()
        assert occurrences(schedule) == row.fires
        assert (after.missed_count, after.next_run_at) == (row.missed, row.next_at)


def test_a_thaw_may_record_what_is_due_as_missed_and_cancel_what_waits(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    waiting = env.fire_next(schedule)
    paused = env.create("paused")
    paused.pause()
    env.scheduler.freeze(everything=True)
    env.advance(4 * MINUTE)

    done = env.scheduler.thaw(everything=True, missed="none", cancel_pending=True, context=OPERATOR)

    assert (done.schedules, done.missed, done.cancelled) == (1, 4, 1)
    assert waiting.refresh().status == "cancelled"
    env.dispatch()  # the links that were armed before are stale
    after = env.state(schedule)
    assert (after.run_count, after.missed_count) == (1, 4)
    (missed,) = events(schedule, "ScheduleMissed")
    assert (missed.payload["policy"], missed.payload["count"]) == ("frozen", 4)
    assert missed.payload["command_context"]["principal"] == "ann"
    assert paused.refresh().status == "paused"
    assert env.fire_next(schedule).status == "pending"


def test_a_schedule_that_cannot_be_evaluated_keeps_no_other_from_preview_and_thaw(any_env: Env) -> None:
    env = any_env
    broken = env.create("broken", spec=Cron("* * * * *", timezone="Europe/Berlin"))
    sound = env.create("sound")
    elsewhere = sa.func.replace(schedules.c.spec, "Europe/Berlin", "Mars/Olympus")
    lose_zone = sa.update(schedules).where(schedules.c.uid == broken.uid).values(spec=elsewhere)
    env.runtime.database.transact(lambda connection: connection.execute(lose_zone))
    env.scheduler.freeze(everything=True)
    env.advance(3 * MINUTE)

    found = {one.schedule_id: one for one in env.scheduler.preview_thaw(everything=True, missed="none").schedules}
    assert "Mars/Olympus" in present(found["broken"].error)
    assert (found["sound"].error, found["sound"].missed) == (None, 3)

    assert env.scheduler.thaw(everything=True, missed="none").schedules == 1
    assert (env.state(sound).missed_count, env.scheduler.frozen()) == (3, [])
    find_zone = lose_zone.values(spec=sa.func.replace(schedules.c.spec, "Mars/Olympus", "Europe/Berlin"))
    env.runtime.database.transact(lambda connection: connection.execute(find_zone))


@pytest.mark.parametrize("everything", [True, False])
def test_with_since_what_was_due_before_fires_and_only_the_rest_is_missed(any_env: Env, everything: bool) -> None:
    env, schedule = any_env, any_env.create()
    began = env.clock.now()
    env.scheduler.freeze(everything=everything)
    env.advance(5 * MINUTE)
    for missed in MISSED_WITHOUT_SINCE:
        with pytest.raises(InvalidInputError, match="missed='none'"):
            env.scheduler.thaw(everything=everything, since=began, missed=missed)

    preview = env.scheduler.preview_thaw(everything=everything, since=began + 3 * MINUTE, missed="none")
    done = env.scheduler.thaw(everything=everything, since=began + 3 * MINUTE, missed="none")

    assert [(row.fires, row.missed) for row in preview.schedules] == [([began + MINUTE], 4)]
    env.dispatch()
    assert (done.missed, len(statuses(schedule))) == (4, 1)


MISSED_WITHOUT_SINCE: tuple[Literal["one", "all"] | None, ...] = (None, "one", "all")


@pytest.mark.parametrize(("missed", "fired"), [("one", 1), ("all", 4), ("none", 0)])
def test_a_thaw_of_everything_fires_as_many_as_it_says_whatever_the_policy(
    any_env: Env, missed: Literal["one", "all", "none"], fired: int
) -> None:
    env, schedule = any_env, any_env.create(missed=MissedPolicy.SKIP, overlap="allow_all")
    env.scheduler.freeze(everything=True)
    env.advance(4 * MINUTE)

    preview = env.scheduler.preview_thaw(everything=True, missed=missed)
    done = env.scheduler.thaw(everything=True, missed=missed)

    assert [(len(row.fires), row.missed) for row in preview.schedules] == [(fired, 4 - fired)]
    assert (done.fired, done.missed, len(statuses(schedule))) == (fired, 4 - fired, fired)


def test_everything_and_a_namespace_are_not_frozen_or_thawed_in_one_call(any_env: Env) -> None:
    scheduler = any_env.scheduler
    scheduler.freeze("it moves")
    before = scheduler.frozen()
    for call in (scheduler.freeze, scheduler.thaw, scheduler.preview_thaw, scheduler.freezes):
        with pytest.raises(InvalidInputError, match="give one of them"):
            call(everything=True, namespace="default")
    assert scheduler.frozen() == before
    scheduler.freeze("restore", everything=True)
    assert [one.namespace for one in scheduler.frozen()] == [None, "default"]
    scheduler.thaw(everything=True)
    assert scheduler.frozen() == before
