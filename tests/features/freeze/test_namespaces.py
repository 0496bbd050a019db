"""A freeze stops all starts in one namespace and none in others. SQL alone keeps it until a thaw is requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rqsched import Scheduler, jobs
from rqsched.errors import DatabaseUnavailableError, FrozenError, InvalidInputError
from rqsched.features.external import chain as external_runs
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.policy import MissedPolicy, RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import metadata
from tests.support.env import (
    HOUR,
    MINUTE,
    SECOND,
    Env,
    MakeEnv,
    events,
    job_id,
    link_id,
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


def test_nothing_of_a_frozen_namespace_fires_and_others_do(any_env: Env) -> None:
    env, schedule, other = any_env, any_env.create(), any_env.create("other", namespace="tenant")
    freeze = env.scheduler.freeze("it moves", context=OPERATOR)
    assert (freeze.namespace, freeze.by, freeze.reason, freeze.since) == ("default", "ann", "it moves", env.clock.now())
    assert env.scheduler.freeze("again") == freeze
    env.advance(5 * MINUTE)
    before = env.state(schedule)

    assert env.dispatch() == 2
    assert [one.outcome for one in env.deliver(schedule)] == ["frozen"]
    assert env.scheduler.tick() == []
    env.advance(PASSED)
    assert env.recover().links == 0
    assert (env.dispatch(), env.state(schedule), other.refresh().run_count) == (0, before, 1)

    ended = env.scheduler.thaw(context=OPERATOR)
    assert (present(ended.freeze).uid, ended.schedules) == (freeze.uid, 0)
    assert env.recover().links == 1
    assert env.dispatch() == 1
    after = env.state(schedule)
    assert (after.run_count, after.missed_count) == (1, 4)
    assert env.scheduler.frozen() == []


def test_a_plain_rq_worker_which_may_see_no_pass_tries_the_link_again_until_the_thaw(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    env.redis.set(env.transport.interval_key, 1)  # no pass is made
    env.scheduler.freeze()
    env.advance()
    link = link_id(schedule)
    with using(env.runtime):
        again = jobs.fire(link)
        assert (present(again).intervals, schedule.refresh().run_count) == ([15], 0)
        env.scheduler.thaw()
        jobs.fire(link)
    assert schedule.refresh().run_count == 1


def test_a_tick_fires_others_however_much_of_a_frozen_namespace_is_due(any_env: Env) -> None:
    env, schedule, other = any_env, any_env.create(), any_env.create("other", namespace="tenant")
    env.scheduler.freeze()
    env.advance()
    assert [row["schedule_id"] for row in env.scheduler.tick(limit=1)] == ["other"]
    assert (schedule.refresh().run_count, other.refresh().run_count) == (0, 1)


@pytest.mark.parametrize("frozen", ["default", "tenant"])
def test_a_freeze_keeps_the_queued_runs_of_its_namespace_and_no_other(any_env: Env, frozen: str) -> None:
    env, first, second = any_env, any_env.create(), any_env.create("other", namespace="tenant")
    env.fire_all(first, second)
    env.scheduler.freeze(namespace=frozen)

    env.work()

    begun = {one.namespace: one.runs().items[0].status for one in (first, second)}
    assert begun == {name: "pending" if name == frozen else "succeeded" for name in ("default", "tenant")}


def test_a_popped_job_of_a_frozen_namespace_begins_nothing_and_comes_back_after_the_thaw(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    env.scheduler.freeze()

    env.work()

    row = env.run_row(run.uid)
    assert (row.status, row.attempt, row.token, env.seen, env.queued()) == ("pending", 1, None, [], [])
    env.advance(PASSED)
    assert env.recover().deliveries == 0
    env.scheduler.thaw()
    env.recover()
    env.work()
    assert (run.refresh().status, run.attempt, len(env.seen)) == ("succeeded", 1, 1)


def test_fires_and_claims_see_a_freeze_that_redis_and_their_process_do_not_know(any_env: Env) -> None:
    env, schedule = any_env, any_env.create()
    run = env.fire_next(schedule)
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        other.freeze()
        env.redis.delete(env.transport.freeze_key)
        env.advance()

        assert env.runtime.freezes.frozen == {}
        assert claim_run(env.runtime, job_id(run.state)) is None
        assert [one.outcome for one in env.deliver(schedule.refresh())] == ["frozen"]

        other.thaw()
        assert claim_run(env.runtime, job_id(run.state)) is not None


def test_a_retry_waits_and_an_attempt_that_has_begun_goes_on(any_env: Env) -> None:
    env = any_env
    schedule, link = waiting_for_retry(env)
    claim = env.claim(present(env.create("hourly", HOUR).trigger().run))
    env.scheduler.freeze()
    env.advance()

    env.dispatch()
    assert [one.outcome for one in env.deliver(link)] == ["frozen"]
    assert env.recover().retries == 0
    assert statuses(schedule) == ["retrying"]
    settle_run(env.runtime, claim.run.uid, AttemptResult(AttemptOutcome.SUCCEEDED), fence=lambda run: True)

    env.scheduler.thaw()
    assert env.recover().retries == 1
    assert [one.outcome for one in env.deliver(link)] == ["fired"]


def test_what_is_started_by_hand_is_refused_and_writes_nothing(any_env: Env) -> None:
    env, schedule, other = any_env, any_env.create(), any_env.create("other", namespace="tenant")
    failed = env.fail_next(env.create("failing", HOUR, retry=RetryPolicy(max_retries=0)), HOUR)
    env.scheduler.freeze("it moves")
    rows = env.state(schedule)
    since, now = env.clock.now() - HOUR, env.clock.now()

    for start in (
        schedule.trigger,
        lambda: schedule.backfill(since, now),
        failed.retry,
        lambda: schedule.trigger(idempotency_key="once"),
        env.create("meanwhile").trigger,
    ):
        with pytest.raises(FrozenError, match=r"'default' is frozen since .* \(it moves\).*rqsched thaw default"):
            start()

    assert env.state(schedule) == rows
    assert failed.refresh().status == "failed"
    assert other.trigger().run


def test_another_process_refuses_a_trigger_once_redis_has_told_it_and_no_longer_after_the_thaw(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR, overlap="allow_all")
    schedule.trigger()
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        other.freeze()
        env.advance(SECOND)
        with pytest.raises(FrozenError):
            schedule.trigger()
        other.thaw()
        env.advance(SECOND)
        assert schedule.trigger()


def test_a_process_that_is_cut_off_from_redis_asks_sql(env: Env, own_valkey: ValkeyServer, make_env: MakeEnv) -> None:
    far = make_env(redis_url=own_valkey.url)
    schedule = far.create()
    own_valkey.kill()
    with closing(Scheduler(settings=far.scheduler.settings, clock=far.clock)) as other:
        assert other.freeze("Redis is away").kept_in == ("sql",)
        far.advance(SECOND)
        with pytest.raises(FrozenError):
            schedule.trigger()
        assert other.thaw(missed="none").freeze
    own_valkey.start()


@pytest.mark.parametrize("wrong", ["forgotten", "of another time"])
def test_a_pass_puts_right_what_redis_tells_of_frozen_namespaces(any_env: Env, wrong: str) -> None:
    env, schedule = any_env, any_env.create(spec=HOUR)
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        env.scheduler.freeze()
        told = env.transport.read_freeze()
        env.transport.tell_frozen(None if wrong == "forgotten" else "another")
        other.recover()
        assert env.transport.read_freeze() == told
        env.scheduler.thaw()
        env.transport.tell_frozen("another")
        other.recover()
        assert env.transport.read_freeze() == (None, None)
    assert schedule.trigger()


def test_no_external_worker_is_handed_a_run_of_a_frozen_namespace(any_env: Env) -> None:
    env = any_env
    for namespace in ("default", "tenant"):
        env.fire_next(env.create(namespace=namespace, workflow="report.generate", executor="external"))
    env.scheduler.freeze()
    claims = {
        name: external_runs.claim(env.runtime, ["default"], "one", namespace=name) for name in ("default", "tenant")
    }
    assert {name: len(found) for name, found in claims.items()} == {"default": 0, "tenant": 1}
    env.scheduler.thaw()
    assert len(external_runs.claim(env.runtime, ["default"], "one", namespace="default")) == 1


def test_nobody_is_told_that_something_of_a_frozen_namespace_is_overdue_or_takes_long(any_env: Env) -> None:
    env = any_env
    for namespace in ("default", "tenant"):
        env.create(spec=HOUR, expect_success_within=MINUTE, namespace=namespace)
        long = env.create("long", spec=HOUR, expect_duration=MINUTE, namespace=namespace)
        env.claim(present(long.trigger().run))
    env.scheduler.freeze()
    env.advance(5 * MINUTE)

    found = env.recover()
    assert (found.overdue, found.long) == (1, 1)

    env.scheduler.thaw()
    found = env.recover()
    assert (found.overdue, found.long) == (1, 1)


def test_waiting_behind_a_run_goes_on_after_it_but_begins_later(any_env: Env) -> None:
    env, schedule = any_env, any_env.create(overlap="buffer_one")
    claim = env.claim(env.fire_next(schedule))
    env.fire_next(schedule)
    env.scheduler.freeze()

    settle_run(env.runtime, claim.run.uid, AttemptResult(AttemptOutcome.SUCCEEDED), fence=lambda run: True)
    env.work()
    assert statuses(schedule) == ["succeeded", "pending"]


def test_a_process_that_is_frozen_by_its_settings_freezes_and_thaws(make_env: MakeEnv, env: Env) -> None:
    own = make_env(freeze=True)
    assert own.scheduler.freeze().namespace == "default"
    assert own.scheduler.thaw().freeze


def test_who_froze_and_thawed_is_kept_of_each_namespace(any_env: Env) -> None:
    env, began, longest = any_env, any_env.clock.now(), "n" * 255
    assert env.scheduler.freezes(namespace=longest) == []
    env.scheduler.freeze("it moves", namespace=longest, context=OPERATOR)
    env.scheduler.freeze("so does this")
    env.advance(HOUR)
    env.scheduler.thaw(namespace=longest, reason="it has", context=CommandContext(principal="bob"))
    env.scheduler.freeze("again", namespace=longest)

    lasting, over = env.scheduler.freezes(namespace=longest)

    assert (lasting.reason, lasting.thawed_at, lasting.kept_in) == ("again", None, ("sql",))
    assert (over.by, over.since, over.reason, over.kept_in, over.namespace) == ("ann", began, "it moves", (), longest)
    assert (over.thawed_by, over.thawed_at, over.thaw_reason) == ("bob", began + HOUR, "it has")
    assert [one.reason for one in env.scheduler.frozen()] == ["again", "so does this"]
    assert env.scheduler.freezes(everything=True) == []


def test_a_thaw_ends_only_the_freeze_that_it_has_read(any_env: Env) -> None:
    env = any_env
    env.scheduler.freeze("first")
    gate = env.runtime.freezes
    text, freeze = gate._in_sql["default"], gate.frozen["default"]
    with closing(Scheduler(settings=env.scheduler.settings, clock=env.clock)) as other:
        other.thaw()
        second = other.freeze("second")
    env.runtime.database.transact(lambda c: metadata.drop_freeze(c, [freeze], text=text, namespace="default"))
    assert [one.uid for one in env.scheduler.frozen()] == [second.uid]
    env.runtime.freezes.freeze(freeze)
    assert [one.uid for one in env.scheduler.frozen()] == [second.uid]


@pytest.mark.postgres
def test_a_freeze_needs_sql(own_postgres: PostgresServer, own_postgres_url: str, make_env: MakeEnv, env: Env) -> None:
    far = make_env(database_url=own_postgres_url)
    far.scheduler.freeze()
    own_postgres.stop()
    for do in (far.scheduler.thaw, far.scheduler.freeze):
        with pytest.raises(DatabaseUnavailableError):
            do()
    own_postgres.start()
    assert far.scheduler.thaw().freeze


def test_a_preview_says_what_a_thaw_does_and_names_nothing_of_others(any_env: Env) -> None:
    env = any_env
    env.create("elsewhere", namespace="tenant")
    waiting = env.fire_next(env.create("waits", HOUR), HOUR)
    every = env.create("every", missed=MissedPolicy.ALL, overlap="allow_all")
    one = env.create("one")
    env.create("paused").pause()
    env.scheduler.freeze()
    began = env.clock.now()
    env.advance(4 * MINUTE)

    found = env.scheduler.preview_thaw()

    rows = {row.schedule_id: row for row in found.schedules}
    assert {name: (row.fires, row.missed) for name, row in rows.items()} == {
        "every": ([began + n * MINUTE for n in (1, 2, 3, 4)], 0),
        "one": ([began + MINUTE], 3),
    }
    assert [run.uid for run in found.runs] == [waiting.uid]
    assert present(found.freeze).namespace == "default"
    assert {row.schedule_id for row in env.scheduler.preview_thaw(everything=True).schedules} == {"elsewhere"}

    env.scheduler.thaw()
    env.advance(PASSED)
    env.recover()
    env.dispatch()
    for schedule in (every, one):
        assert occurrences(schedule) == rows[schedule.schedule_id].fires


FIRES: dict[str | None, dict[str, tuple[list[int], int]]] = {
    None: {"skips": ([4], 3), "once": ([1], 3), "every": ([1, 2, 3, 4], 0), "bounded": ([3, 4], 2), "window": ([], 4)},
    "one": {"skips": ([1], 3), "once": ([1], 3), "every": ([1], 3), "bounded": ([1], 3), "window": ([1], 3)},
    "all": {
        "skips": ([1], 3),
        "once": ([1], 3),
        "every": ([1, 2, 3, 4], 0),
        "bounded": ([3, 4], 2),
        "window": ([1], 3),
    },
    "none": {name: ([], 4) for name in ("skips", "once", "every", "bounded", "window")},
}


@pytest.mark.parametrize("missed", FIRES)
def test_a_thaw_does_with_what_is_due_what_it_is_asked_and_the_preview_says_so(
    any_env: Env, missed: str | None
) -> None:
    env = any_env
    options = {
        "skips": {"missed": "skip"},
        "once": {},
        "every": {"missed": "all", "overlap": "allow_all"},
        "bounded": {"missed": "all", "overlap": "buffer_all", "missed_limit": 2},
        "window": {"fire_within": SECOND},
    }
    made = {name: env.create(name, **given) for name, given in options.items()}  # type: ignore[arg-type]
    elsewhere, paused = env.create("elsewhere", namespace="tenant"), env.create("paused")
    paused.pause()
    env.scheduler.freeze()
    began = env.clock.now()
    env.advance(4 * MINUTE + 30 * SECOND)
    expected = {name: ([began + n * MINUTE for n in fires], gone) for name, (fires, gone) in FIRES[missed].items()}
    found = env.scheduler.preview_thaw(missed=missed)  # type: ignore[arg-type]
    assert {row.schedule_id: (row.fires, row.missed) for row in found.schedules} == expected

    done = env.scheduler.thaw(missed=missed, context=OPERATOR)  # type: ignore[arg-type]

    counts = sum(gone for _, gone in expected.values()), sum(len(fires) for fires, _ in expected.values())
    assert (done.schedules, done.missed, done.fired) == ((0, 0, 0) if missed is None else (5, *counts))
    env.recover()
    env.dispatch()
    for name, schedule in made.items():
        assert (occurrences(schedule), schedule.refresh().missed_count) == expected[name], name
    assert (paused.refresh().status, elsewhere.refresh().run_count) == ("paused", 1)
    if missed == "none":
        (told,) = events(made["once"], "ScheduleMissed")
        assert (told.payload["policy"], told.payload["command_context"]["principal"]) == ("frozen", "ann")


def test_a_thaw_cancels_what_waits_in_its_scope_alone_and_leaves_what_is_frozen(
    any_env: Env,
) -> None:
    env = any_env
    here, there = (env.fire_next(env.create(spec=HOUR, namespace=name), HOUR) for name in ("default", "tenant"))
    env.scheduler.freeze()
    env.scheduler.freeze(everything=True)
    env.advance(HOUR)
    done = env.scheduler.thaw(everything=True, missed="none", cancel_pending=True)
    assert (done.schedules, done.cancelled, there.refresh().status, here.refresh().status) == (
        1,
        1,
        "cancelled",
        "pending",
    )
    assert env.scheduler.thaw(missed="none", cancel_pending=True).cancelled == 1
    assert here.refresh().status == "cancelled"


@pytest.mark.parametrize("everything", [False, True], ids=["a namespace", "everything"])
def test_a_thaw_of_what_is_not_frozen_does_nothing(any_env: Env, everything: bool) -> None:
    env, schedule = any_env, any_env.create()
    assert (waiting := schedule.trigger().run)
    env.advance(5 * MINUTE)
    done = env.scheduler.thaw(everything=everything, missed="none", cancel_pending=True)
    assert (done.freeze, done.missed, done.cancelled, env.state(schedule).missed_count) == (None, 0, 0, 0)
    assert waiting.refresh().status == "pending"
    with pytest.raises(InvalidInputError, match="missed"):
        env.scheduler.thaw(missed="some")  # type: ignore[arg-type]
