"""The time of a start, an end or a decision is read once its row is locked, and again when a transaction is repeated.

Another connection holds the row, the clock goes on, and the row is let go: nothing is recorded as earlier than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from rqsched import After, RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.features.external import chain as external_runs
from rqsched.features.fan_out import dispatch as fan_out
from rqsched.features.fan_out import execution as target_execution
from rqsched.features.fan_out.execution import claim_target
from rqsched.features.freeze import chain as freezing
from rqsched.features.limits.chain import grant
from rqsched.features.notifications import chain as delivering
from rqsched.features.notifications import store
from rqsched.features.notifications.decide import Delivery, next_attempt_at
from rqsched.kernel.chain import rollback_marks
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.reconcile.lost_attempts import settle_lost
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import DeliveryJobId, TargetJobId
from rqsched.kernel.decide.rollback_marks import parse_mark
from rqsched.kernel.store import metadata
from rqsched.kernel.store.tables import (
    database_metadata,
    deliveries,
    limits,
    namespace_metadata,
    runs,
    schedules,
    targets,
)
from rqsched.kernel.store.tables import machine_states as instances
from rqsched.machines import MachineStates
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env, all_runs, job_id, newest
from tests.support.invariants import check_invariants
from tests.support.lamp import lamp_of
from tests.support.narrow import present
from tests.support.sql import silent_database, wait_for_a_lock

pytestmark = pytest.mark.postgres
T = TypeVar("T")
WAIT = 4 * SECOND


@contextmanager
def held(env: Env, row: sa.Select[Any]) -> Iterator[None]:
    """Another process holds a row."""
    engine = sa.create_engine(env.runtime.database.url)
    with engine.connect() as connection:
        assert connection.execute(row.with_for_update()).all()
        yield
        connection.rollback()
    engine.dispose()


@contextmanager
def held_a_while(env: Env, row: sa.Select[Any]) -> Iterator[None]:
    """Another process holds a row until somebody waits for it; then `WAIT` passes, and it lets go."""

    def let_go() -> None:
        try:
            wait_for_a_lock(env.runtime.database)
            env.advance(WAIT)
        finally:
            other.close()

    with ThreadPoolExecutor(1) as threads, ExitStack() as other:
        other.enter_context(held(env, row))
        letting_go = threads.submit(let_go)
        yield
        letting_go.result()


def after_a_wait(env: Env, row: sa.Select[Any], call: Callable[[], T]) -> T:
    with held_a_while(env, row):
        return call()


def row_of(schedule: ScheduleHandle) -> sa.Select[Any]:
    return sa.select(schedules.c.uid).where(schedules.c.uid == schedule.uid)


def row_of_run(run: RunHandle) -> sa.Select[Any]:
    return sa.select(runs.c.uid).where(runs.c.uid == run.uid)


def read(env: Env, column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> Any:
    return env.runtime.database.read(lambda c: c.execute(sa.select(column).where(*where)).scalar_one())


def test_run_after_another_starts_when_its_schedule_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    env.create("nightly", retry=ONCE)
    report = env.create("report", After("nightly"))
    began = env.clock.now() + MINUTE
    after_a_wait(env, row_of(report), partial(env.run_next, env.scheduler.get("nightly")))

    (run,) = all_runs(report)
    assert present(run.state.queued_at) >= began + WAIT
    env.recover()
    check_invariants(env.runtime)


def test_what_is_due_at_the_end_of_a_freeze_is_decided_when_its_schedule_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    schedule = env.create()
    context = CommandContext()
    freezing.freeze(env.runtime, "default", context)
    env.advance()
    began = env.clock.now()

    after_a_wait(env, row_of(schedule), partial(freezing.thaw, env.runtime, "default", context, missed="one"))

    assert present(newest(schedule).state.queued_at) >= began + WAIT


def test_claim_starts_when_its_run_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    run = env.fire_next(env.create())
    began = env.clock.now()
    claim = present(after_a_wait(env, row_of_run(run), partial(claim_run, env.runtime, job_id(run.state))))
    assert present(claim.run.started_at) >= began + WAIT


def test_run_that_may_not_start_any_more_after_a_wait_is_not_claimed(postgres_env: Env) -> None:
    env = postgres_env
    run = env.fire_next(env.create(start_within=2 * SECOND))
    claim = after_a_wait(env, row_of_run(run), partial(claim_run, env.runtime, job_id(run.state)))
    assert claim is None


def test_claim_whose_transaction_is_repeated_starts_then(postgres_env: Env) -> None:
    env = postgres_env
    run = env.fire_next(env.create())
    began = env.clock.now()
    database, failures = env.runtime.database, [1]

    def fail(connection: sa.Connection, _c: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE") and failures:
            failures.clear()
            env.advance(WAIT)
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$")

    sa.event.listen(database.engine, "before_cursor_execute", fail)
    claim = present(claim_run(env.runtime, job_id(run.state)))
    sa.event.remove(database.engine, "before_cursor_execute", fail)

    assert present(claim.run.started_at) >= began + WAIT


def fan_out_of(env: Env, **options: Any) -> tuple[ScheduleHandle, list[TargetJobId]]:
    """A schedule whose run has named three targets, and their first jobs."""
    env.register("handle", lambda target: None)
    env.register("which", lambda: ["a", "b", "c"])
    schedule = env.create(workflow="handle", targets="which", retry=ONCE, **options)
    env.execute(env.fire_next(schedule))
    found = env.runtime.database.read(lambda c: c.execute(sa.select(targets.c.uid).order_by(targets.c.number)).all())
    return schedule, [TargetJobId(row.uid) for row in found]


def row_of_target(job: TargetJobId) -> sa.Select[Any]:
    return sa.select(targets.c.uid).where(targets.c.uid == job.uid)


def test_target_starts_when_it_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    _, (job, *_) = fan_out_of(env)
    began = env.clock.now()
    claimed = after_a_wait(env, row_of_target(job), partial(claim_target, env.runtime, job, "mine", "worker"))
    assert present(claimed).started_at >= began + WAIT


@pytest.mark.parametrize("options", [{}, {"max_parallel": 1}], ids=["one statement", "one at a time"])
def test_target_ends_and_the_next_one_follows_when_it_is_locked(postgres_env: Env, options: dict[str, Any]) -> None:
    env = postgres_env
    _, (job, following, _) = fan_out_of(env, **options)
    began = env.clock.now()

    def wait(_: str) -> None:
        waiting.enter_context(held_a_while(env, row_of_target(job)))

    env.register("handle", wait)
    with ExitStack() as waiting:
        target_execution.execute(env.runtime, job)

    assert read(env, targets.c.ended_at, targets.c.uid == job.uid) >= began + WAIT
    if options:
        assert read(env, targets.c.queued_at, targets.c.uid == following.uid) >= began + WAIT


def test_target_that_failed_is_tried_again_a_backoff_after_it_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    _, (job, *_) = fan_out_of(env, target_retry=RetryPolicy(base=MINUTE, jitter=timedelta(0)))
    began = env.clock.now()

    def fail(_: str) -> None:
        waiting.enter_context(held_a_while(env, row_of_target(job)))
        raise ValueError("not today")

    env.register("handle", fail)
    with ExitStack() as waiting, pytest.raises(ValueError, match="not today"):
        target_execution.execute(env.runtime, job)

    assert read(env, targets.c.retry_at, targets.c.uid == job.uid) >= began + WAIT + MINUTE


def test_next_targets_are_enqueued_when_they_are_locked(postgres_env: Env) -> None:
    env = postgres_env
    schedule, jobs = fan_out_of(env)
    waits = {"status": "waiting", "queued_at": None}
    env.runtime.database.transact(lambda c: c.execute(sa.update(targets).values(**waits)))
    began = env.clock.now()

    after_a_wait(env, row_of_target(jobs[0]), partial(fan_out.dispatch_first, env.runtime, newest(schedule).uid))

    assert read(env, targets.c.queued_at, targets.c.uid == jobs[0].uid) >= began + WAIT


def test_free_places_are_filled_when_the_first_target_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    schedule, jobs = fan_out_of(env, max_parallel=1)
    env.runtime.database.transact(lambda c: c.execute(sa.update(targets).where(targets.c.number == 1).values(
        status="succeeded")))  # fmt: skip
    began = env.clock.now()

    after_a_wait(env, row_of_target(jobs[0]), partial(fan_out.fill, env.runtime, newest(schedule).uid))

    assert read(env, targets.c.queued_at, targets.c.uid == jobs[1].uid) >= began + WAIT


def delivery_of(env: Env) -> Delivery:
    """A notification that waits to be delivered to a workflow."""
    env.register("alert", lambda message: None)
    env.failing = True
    with pytest.raises(RuntimeError):
        env.execute(env.fire_next(env.create(retry=ONCE, on_failure="alert")))
    uid = read(env, deliveries.c.uid)
    return present(env.runtime.database.read(lambda c: store.find(c, uid)))


def row_of_delivery(delivery: Delivery) -> sa.Select[Any]:
    return sa.select(deliveries.c.uid).where(deliveries.c.uid == delivery.uid)


def test_delivery_starts_when_it_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    delivery = delivery_of(env)
    began = env.clock.now()
    deliver = partial(delivering.execute, env.runtime, DeliveryJobId(delivery.uid, delivery.attempt))
    after_a_wait(env, row_of_delivery(delivery), deliver)
    assert read(env, deliveries.c.started_at) >= began + WAIT
    assert read(env, deliveries.c.ended_at) >= began + WAIT


def test_delivery_that_failed_is_tried_again_a_backoff_after_it_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    delivery = delivery_of(env)
    began = env.clock.now()

    def fail(_: object) -> None:
        waiting.enter_context(held_a_while(env, row_of_delivery(delivery)))
        raise ValueError("not today")

    env.register("alert", fail)
    with ExitStack() as waiting, pytest.raises(ValueError, match="not today"):
        delivering.execute(env.runtime, DeliveryJobId(delivery.uid, delivery.attempt))

    assert read(env, deliveries.c.due_at) == next_attempt_at(delivery, began + WAIT)


def test_instance_enters_its_state_when_it_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    lamp = lamp_of(env)
    states = MachineStates(env.scheduler, lamp)
    states.put("a", "off")
    began = env.clock.now()

    after_a_wait(env, sa.select(instances.c.version), partial(states.put, "a", "on"))
    assert states.entered_at("a") == began + WAIT

    workflow = env.registry.resolve(f"machine:{lamp.__name__}:SWITCH")
    with using(env.runtime):
        after_a_wait(env, sa.select(instances.c.version), partial(present(workflow.each), "a"))
    assert (states.get("a"), states.entered_at("a")) == ("off", began + 2 * WAIT)


def test_place_of_a_group_is_given_when_the_group_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    first, second = env.fire_all(*(env.create(name, HOUR, limit="shop", limit_running=1) for name in ("a", "b")))
    end = sa.update(runs).where(runs.c.uid == first.uid).values(status="succeeded", ended_at=env.clock.now())
    env.runtime.database.transact(lambda connection: connection.execute(end))
    began = env.clock.now()

    after_a_wait(env, sa.select(limits.c.number), partial(grant, env.runtime, ["default/shop"]))

    assert present(second.refresh().state.granted_at) >= began + WAIT


def test_external_worker_has_its_run_from_when_that_is_locked(postgres_env: Env) -> None:
    env = postgres_env
    env.fire_next(env.create(executor="external", queue="far"))
    (claimed,) = external_runs.claim(env.runtime, ["far"], "w-1", namespace="default")
    began = env.clock.now()
    beat = partial(external_runs.heartbeat, env.runtime, "w-1", [claimed.run.uid], namespace="default", held_for=MINUTE)

    after_a_wait(env, sa.select(runs.c.uid).where(runs.c.uid == claimed.run.uid), beat)

    assert read(env, runs.c.held_until, runs.c.uid == claimed.run.uid) == began + WAIT + MINUTE


def test_run_that_started_while_a_fire_waited_for_it_does_not_end_before_it_started(postgres_env: Env) -> None:
    env = postgres_env
    schedule = env.create(overlap="terminate_other")
    run = env.fire_next(schedule)
    env.advance()
    engine = sa.create_engine(env.runtime.database.url)
    with ThreadPoolExecutor(1) as threads, engine.connect() as other:
        other.execute(row_of_run(run).with_for_update())
        firing = threads.submit(env.deliver, schedule.refresh())
        wait_for_a_lock(env.runtime.database)
        started = sa.update(runs).where(runs.c.uid == run.uid)
        other.execute(started.values(status="running", token="t", started_at=env.advance(WAIT)))
        other.commit()
        firing.result()
    engine.dispose()

    ended = run.refresh().state
    assert (ended.status.value, present(ended.ended_at) >= present(ended.started_at)) == ("terminated", True)


def test_freeze_begins_and_ends_when_others_who_set_one_are_done(postgres_env: Env) -> None:
    env = postgres_env
    context = CommandContext()
    freezing.freeze(env.runtime, "default", context)
    freezing.thaw(env.runtime, "default", context)
    began, row = env.clock.now(), sa.select(namespace_metadata.c.value).where(namespace_metadata.c.name == "released")

    freeze = after_a_wait(env, row, partial(freezing.freeze, env.runtime, "default", context))
    assert freeze.since == began + WAIT

    after_a_wait(env, row, partial(env.runtime.freezes.thaw, "default"))
    newest_first = env.runtime.database.read(lambda c: metadata.find_freezes(c, "default"))
    assert newest_first[0].thawed_at == began + 2 * WAIT


def test_mark_of_a_pass_that_met_another_one_is_not_of_before(postgres_env: Env) -> None:
    env = postgres_env
    env.recover()
    env.advance()
    name = metadata.of_queue(metadata.MARK, env.transport.control.name)
    before = read(env, database_metadata.c.value, database_metadata.c.name == name)
    with held(env, sa.select(database_metadata.c.value).where(database_metadata.c.name == name)):
        rollback_marks.leave_mark(env.runtime)
    assert read(env, database_metadata.c.value, database_metadata.c.name == name) == before

    database, tried = silent_database(env.runtime), env.advance()
    database.lose(meanwhile=lambda: env.advance(WAIT))
    rollback_marks.leave_mark(env.runtime)
    mark = parse_mark(read(env, database_metadata.c.value, database_metadata.c.name == name))
    assert mark.at == tried, "the answer was lost, and the mark is that of the attempt that wrote it"
    assert env.transport.newest_mark(env.runtime.ownership.known_database_id()) == str(mark)


def test_heartbeat_that_a_slow_pass_saw_counts_from_when_it_saw_it(postgres_env: Env) -> None:
    """Otherwise a pass that waited for SQL would see the same heartbeat twice within a moment."""
    env = postgres_env
    run = env.fire_next(env.create())
    env.claim(run)
    began, passed = env.clock.now(), settle_lost(env.runtime)
    database = env.runtime.database
    failures = [1]

    def fail(connection: sa.Connection, _c: object, statement: str, *_: object) -> None:
        if "seen_at" in statement and failures:
            failures.clear()
            env.advance(WAIT)
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01'; END $$")

    sa.event.listen(database.engine, "before_cursor_execute", fail)
    assert [one.lost for one in passed] == [0]
    sa.event.remove(database.engine, "before_cursor_execute", fail)

    assert read(env, runs.c.seen_at, runs.c.uid == run.uid) == began + WAIT
