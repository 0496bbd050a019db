"""A hold stops all starts. Redis or SQL alone is enough to keep it until the operator releases it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from rqsched import Cron, Scheduler
from rqsched.errors import DatabaseUnavailableError, HeldError, InvalidInputError, RedisUnavailableError
from rqsched.features.external import chain as external_runs
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.hold import Hold
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
    """Redis lost the hold: it was flushed."""
    env.redis.delete(env.transport.hold_key)
    env.runtime.hold.look(is_fresh=True)


def forget_in_sql(env: Env) -> None:
    """SQL lost the hold: it was restored."""
    env.runtime.database.transact(lambda connection: connection.execute(sa.delete(database_metadata).where(_IS_HOLD)))
    env.runtime.hold.look(is_fresh=True)


_IS_HOLD = database_metadata.c.name == "hold"
KEEPERS: dict[str, Callable[[Env], None]] = {
    "both": lambda _: None,
    "SQL": forget_in_redis,
    "Redis": forget_in_sql,
}
each_keeper = pytest.mark.parametrize("keeper", KEEPERS)


@each_keeper
def test_while_held_no_link_fires_and_then_the_policy_decides(any_env: Env, keeper: str) -> None:
    env, schedule = any_env, any_env.create()
    hold = env.scheduler.hold("restore", context=OPERATOR)
    KEEPERS[keeper](env)
    assert (hold.by, hold.reason, hold.since) == ("ann", "restore", env.clock.now())
    env.advance(5 * MINUTE)
    before = env.state(schedule)

    assert env.dispatch() == 0
    assert [(one.outcome, present(one.again_at) > env.clock.now()) for one in env.deliver(schedule)] == [("held", True)]
    assert env.scheduler.tick() == []
    assert env.state(schedule) == before

    env.scheduler.release(context=OPERATOR)
    assert env.dispatch() == 1
    after = env.state(schedule)
    assert (after.run_count, after.missed_count) == (1, 4)
    assert env.scheduler.held() is None


@each_keeper
def test_a_popped_job_begins_nothing_and_comes_back_after_the_release(any_env: Env, keeper: str) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    env.scheduler.hold()
    KEEPERS[keeper](env)

    env.work()

    row = env.run_row(run.uid)
    assert (row.status, row.attempt, row.token, env.seen, env.queued()) == ("pending", 1, None, [], [])
    env.advance(PASSED)
    assert env.recover().deliveries == 0
    assert env.queued() == []

    env.scheduler.release()
    env.recover()
    env.work()
    assert (run.refresh().status, run.attempt, len(env.seen)) == ("succeeded", 1, 1)


def test_a_claim_sees_a_hold_of_sql_that_its_process_does_not_know(any_env: Env, make_env: MakeEnv) -> None:
    run = any_env.fire_next(any_env.create())
    other = Scheduler(settings=any_env.scheduler.settings, clock=any_env.clock)
    other.hold()

    assert not any_env.runtime.hold.is_on
    assert claim_run(any_env.runtime, job_id(run.state)) is None
    assert any_env.run_row(run.uid).status == "pending"

    other.release()
    assert claim_run(any_env.runtime, job_id(run.state)) is not None
    other.close()


def test_a_dispatcher_that_does_not_know_of_a_hold_in_redis_leases_nothing(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    dispatcher, other = Dispatcher(env.runtime), Scheduler(settings=env.scheduler.settings, clock=env.clock)
    assert dispatcher.run_once() == 0
    env.advance()
    other.hold()
    before = env.armed()
    knew = env.runtime.hold.is_on

    assert dispatcher.run_once() == 0
    assert env.armed() == before
    assert (knew, env.runtime.hold.is_on) == (False, True)

    other.release()
    assert dispatcher.run_once() == 1
    assert schedule.refresh().run_count == 1
    other.close()


def test_a_retry_waits_and_an_attempt_that_has_begun_goes_on(any_env: Env) -> None:
    env = any_env
    schedule, link = waiting_for_retry(env)
    claim = env.claim(present(env.create("hourly", HOUR).trigger().run))
    env.scheduler.hold()
    env.advance()

    assert [one.outcome for one in env.deliver(link)] == ["held"]
    assert statuses(schedule) == ["retrying"]
    assert claim.run.status == "running"

    env.scheduler.release()
    assert [one.outcome for one in env.deliver(link)] == ["fired"]


def test_what_is_started_by_hand_is_refused_and_writes_nothing(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    failed = env.fail_next(env.create("failing", HOUR, retry=RetryPolicy(max_retries=0)), HOUR)
    env.scheduler.hold("restore")
    rows = env.state(schedule)
    since, now = env.clock.now() - HOUR, env.clock.now()

    for start in (
        schedule.trigger,
        lambda: schedule.backfill(since, now),
        failed.retry,
        lambda: schedule.trigger(idempotency_key="once"),
    ):
        with pytest.raises(HeldError, match=r"held since .* \(restore\)"):
            start()

    assert env.state(schedule) == rows
    assert failed.refresh().status == "failed"
    assert env.create("meanwhile").status == "active"


def test_a_process_that_has_read_the_hold_in_sql_learns_of_the_release(any_env: Env, make_env: MakeEnv) -> None:
    env, schedule = any_env, any_env.create()
    web = make_env(database_url=env.runtime.settings.database_url)
    env.scheduler.hold()
    assert web.runtime.hold.look()
    env.scheduler.release()
    env.advance()

    assert web.scheduler.get(schedule.schedule_id).trigger().run


def test_no_external_worker_is_handed_a_run(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(workflow="report.generate", executor="external")
    env.fire_next(schedule)
    env.scheduler.hold()
    assert external_runs.claim(env.runtime, ["default"], "one", namespace="default") == []
    forget_in_redis(env)
    assert external_runs.claim(env.runtime, ["default"], "one", namespace="default") == []

    env.scheduler.release()

    assert len(external_runs.claim(env.runtime, ["default"], "one", namespace="default")) == 1


def test_a_pass_copies_a_hold_to_where_it_is_missing(any_env: Env) -> None:
    env = any_env
    env.scheduler.hold("restore")
    for forget in (forget_in_redis, forget_in_sql):
        forget(env)
        assert len(present(env.scheduler.held()).kept_in) == 1

        env.recover()

        held = present(env.scheduler.held())
        assert (held.kept_in, held.reason) == (("redis", "sql"), "restore")


def test_a_released_hold_is_not_copied_back_by_a_pass_that_had_read_it(any_env: Env) -> None:
    env = any_env
    hold = env.scheduler.hold()
    env.scheduler.release()

    env.runtime.hold.put_into_redis(hold)
    env.runtime.hold.put_into_sql(hold)

    assert env.scheduler.held() is None
    assert env.scheduler.hold().uid != hold.uid


@pytest.mark.parametrize("place", ["SQL", "Redis"])
def test_a_released_hold_that_comes_back_with_a_place_that_went_back_is_over(any_env: Env, place: str) -> None:
    env = any_env
    hold = env.scheduler.hold("first")
    env.scheduler.release()
    come_back(env, place, hold)
    assert present(env.scheduler.held()).kept_in == (place.lower(),)

    env.recover()
    assert env.scheduler.held() is None

    come_back(env, place, hold)
    anew = env.scheduler.hold("second")
    assert (anew.uid != hold.uid, anew.reason, anew.kept_in) == (True, "second", ("redis", "sql"))


def test_who_held_and_released_everything_is_kept(any_env: Env) -> None:
    env, began = any_env, any_env.clock.now()
    assert env.scheduler.holds() == []
    env.scheduler.hold("restore", context=OPERATOR)
    assert [(one.by, one.kept_in, one.released_at) for one in env.scheduler.holds()] == [
        ("ann", ("redis", "sql"), None)
    ]
    env.advance(HOUR)
    env.scheduler.release(reason="looked at", context=CommandContext(principal="bob"))
    env.scheduler.hold("again")

    lasting, over = env.scheduler.holds()

    assert (lasting.reason, lasting.released_at) == ("again", None)
    assert (over.by, over.since, over.reason, over.kept_in) == ("ann", began, "restore", ())
    assert (over.released_by, over.released_at, over.release_reason) == ("bob", began + HOUR, "looked at")
    for _ in range(metadata.MOST_RELEASED + 1):
        env.scheduler.release()
        env.scheduler.hold()
    assert len(env.scheduler.holds()) == metadata.MOST_RELEASED + 1
    assert over not in env.scheduler.holds()


def test_a_hold_whose_release_sql_has_not_seen_is_kept_without_its_end(env: Env) -> None:
    hold = env.scheduler.hold()
    env.scheduler.release()
    come_back(env, "SQL", hold)
    env.recover()
    assert [(one.uid, one.released_at, one.covers(env.clock.now())) for one in env.scheduler.holds()] == [
        (hold.uid, None, False)
    ]


def come_back(env: Env, place: str, hold: Hold) -> None:
    """A hold is where it was before its release: an older state of that place is there again."""
    if place == "Redis":
        env.redis.delete(env.transport.hold_key)
        env.transport.set_hold(hold.uid, hold.to_text())
    else:
        forget = sa.delete(database_metadata).where(database_metadata.c.name.in_(["hold", "released"]))
        env.runtime.database.transact(lambda connection: connection.execute(forget))
        env.runtime.database.transact(lambda c: metadata.set_hold(c, hold))
    env.runtime.hold.look(is_fresh=True)


def test_a_worker_that_has_not_heard_of_the_release_drops_no_job(any_env: Env, make_env: MakeEnv) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    env.scheduler.hold()
    env.runtime.hold.ask_redis_now(None)
    other = Scheduler(settings=env.scheduler.settings, clock=env.clock)
    other.release()
    other.close()
    assert env.runtime.hold.is_on

    env.perform(str(job_id(run.state)))

    assert run.refresh().status == "succeeded"


def test_nobody_is_told_that_something_is_overdue_while_it_is_held(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR, expect_success_within=MINUTE)
    env.scheduler.hold()
    env.advance(5 * MINUTE)

    assert env.recover().overdue == 0

    env.scheduler.release()
    assert env.recover().overdue == 1
    assert schedule.refresh().overdue_since is not None


def test_nobody_is_told_that_a_run_takes_long_while_everything_is_held(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR, expect_duration=MINUTE)
    env.claim(present(schedule.trigger().run))
    env.scheduler.hold("restoring")
    env.advance(2 * MINUTE)
    assert env.recover().long == 0
    env.scheduler.release()
    assert env.recover().long == 1


def test_waiting_behind_a_run_goes_on_after_it_but_begins_later(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(overlap="buffer_one")
    claim = env.claim(env.fire_next(schedule))
    env.fire_next(schedule)
    assert statuses(schedule) == ["running", "buffered"]
    env.scheduler.hold()

    settle_run(env.runtime, claim.run.uid, AttemptResult(AttemptOutcome.SUCCEEDED), fence=lambda run: True)
    assert statuses(schedule) == ["succeeded", "pending"]
    env.work()
    assert statuses(schedule) == ["succeeded", "pending"]


def test_a_process_that_is_held_by_its_settings_begins_nothing(make_env: MakeEnv, env: Env) -> None:
    held = make_env(hold=True)
    schedule = held.create()
    held.advance()

    assert held.dispatch() == 0
    with pytest.raises(HeldError, match="RQSCHED_HOLD of this process"):
        schedule.trigger()
    held.scheduler.release()
    assert present(held.scheduler.held()).kept_in == ("process",)
    assert held.dispatch() == 0


def test_while_redis_is_away_the_last_answer_counts(env: Env, own_valkey: ValkeyServer, make_env: MakeEnv) -> None:
    far = make_env(redis_url=own_valkey.url)
    schedule = far.create()
    far.scheduler.hold()
    forget_in_sql(far)
    own_valkey.kill()

    far.runtime.hold.look(is_fresh=True)

    assert far.runtime.hold.is_on
    with pytest.raises(HeldError):
        schedule.trigger()
    with pytest.raises(RedisUnavailableError, match="still held"):
        far.scheduler.release()
    own_valkey.start()


@pytest.mark.postgres
def test_a_hold_needs_no_sql(own_postgres: PostgresServer, own_postgres_url: str, make_env: MakeEnv, env: Env) -> None:
    far = make_env(database_url=own_postgres_url)
    schedule = far.create()
    own_postgres.stop()

    hold = far.scheduler.hold("the database is away")

    assert hold.kept_in == ("redis",)
    with pytest.raises(DatabaseUnavailableError):
        far.scheduler.release()
    own_postgres.start()
    far.advance()
    assert far.dispatch() == 0
    far.recover()
    assert present(far.scheduler.held()).kept_in == ("redis", "sql")
    far.scheduler.release()
    assert far.dispatch() == 1
    assert schedule.refresh().run_count == 1


def test_a_preview_says_what_a_release_does(any_env: Env) -> None:
    env = any_env
    waiting = env.fire_next(env.create("waits", HOUR), HOUR)
    every = env.create("every", missed=MissedPolicy.ALL, overlap="allow_all")
    one = env.create("one")
    env.create("paused").pause()
    env.create("later", HOUR)
    env.scheduler.hold()
    began = env.clock.now()
    env.advance(4 * MINUTE)

    found = env.scheduler.preview_release()

    rows = {row.schedule_id: row for row in found.schedules}
    assert {name: (row.fires, row.missed) for name, row in rows.items()} == {
        "every": ([began + n * MINUTE for n in (1, 2, 3, 4)], 0),
        "one": ([began + MINUTE], 3),
    }
    assert [(run.schedule_id, run.uid, run.status) for run in found.runs] == [("waits", waiting.uid, "pending")]
    assert (present(found.hold).kept_in, found.has_more) == (("redis", "sql"), False)
    assert statuses(every) == statuses(one) == []

    env.scheduler.release()
    env.dispatch()
    for schedule in (every, one):
        row = rows[schedule.schedule_id]
        after = schedule.refresh()
        assert occurrences(schedule) == row.fires
        assert (after.missed_count, after.next_run_at) == (row.missed, row.next_at)


def test_a_release_may_record_what_is_due_as_missed_and_cancel_what_waits(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    waiting = env.fire_next(schedule)
    paused = env.create("paused")
    paused.pause()
    env.scheduler.hold()
    env.advance(4 * MINUTE)

    done = env.scheduler.release(missed=True, cancel_pending=True, context=OPERATOR)

    assert (done.schedules, done.missed, done.cancelled) == (1, 4, 1)
    assert waiting.refresh().status == "cancelled"
    env.dispatch()  # the links that were armed before are stale
    after = env.state(schedule)
    assert (after.run_count, after.missed_count) == (1, 4)
    (missed,) = events(schedule, "ScheduleMissed")
    assert (missed.payload["policy"], missed.payload["count"]) == ("held", 4)
    assert missed.payload["command_context"]["principal"] == "ann"
    assert paused.refresh().status == "paused"
    assert env.fire_next(schedule).status == "pending"


def test_a_schedule_that_cannot_be_evaluated_keeps_no_other_from_preview_and_release(any_env: Env) -> None:
    env = any_env
    broken = env.create("broken", spec=Cron("* * * * *", timezone="Europe/Berlin"))
    sound = env.create("sound")
    elsewhere = sa.func.replace(schedules.c.spec, "Europe/Berlin", "Mars/Olympus")
    lose_zone = sa.update(schedules).where(schedules.c.uid == broken.uid).values(spec=elsewhere)
    env.runtime.database.transact(lambda connection: connection.execute(lose_zone))
    env.scheduler.hold()
    env.advance(3 * MINUTE)

    found = {one.schedule_id: one for one in env.scheduler.preview_release(missed=True).schedules}
    assert "Mars/Olympus" in present(found["broken"].error)
    assert (found["sound"].error, found["sound"].missed) == (None, 3)

    assert env.scheduler.release(missed=True).schedules == 1
    assert (env.state(sound).missed_count, env.scheduler.held()) == (3, None)
    find_zone = lose_zone.values(spec=sa.func.replace(schedules.c.spec, "Mars/Olympus", "Europe/Berlin"))
    env.runtime.database.transact(lambda connection: connection.execute(find_zone))


def test_with_since_what_was_due_before_fires_and_only_the_rest_is_missed(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    began = env.clock.now()
    env.scheduler.hold()
    env.advance(5 * MINUTE)

    preview = env.scheduler.preview_release(since=began + 3 * MINUTE, missed=True)
    done = env.scheduler.release(since=began + 3 * MINUTE, missed=True)

    assert [(row.fires, row.missed) for row in preview.schedules] == [([began + MINUTE], 4)]
    env.dispatch()
    assert (done.missed, len(statuses(schedule))) == (4, 1)
    with pytest.raises(InvalidInputError, match="missed"):
        env.scheduler.release(since=began)
