"""The policies of targets: retries and their times, concurrency, and functions that a worker lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from rq.job import Job

from rqsched import RetryPolicy
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.dispatch import fill
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid, parse_target_job_id
from rqsched.kernel.decide.model import TargetStatus
from rqsched.kernel.store.tables import targets as rows
from rqsched.machines import MachineScheduler
from rqsched.run.work_horse import horse_died
from rqsched.testing import execute_pending
from tests.support.env import HOUR, MINUTE, SECOND, Env, MakeEnv, module_level, retry_link_id
from tests.support.invariants import check_invariants
from tests.support.machine_case import EXPIRY, expiry_case
from tests.support.narrow import present

TWICE = RetryPolicy(max_retries=2, base=7 * SECOND)


class Broken(Counter[str]):
    """Raises for an instance as often as its count says."""

    def __call__(self, instance_id: str) -> None:
        if self[instance_id] > 0:
            self[instance_id] -= 1
            raise RuntimeError(f"{instance_id} is stuck")


def column(env: Env, run: Any, name: str, **where: Any) -> list[Any]:
    """One column of a run's targets, in the order they were named."""
    found = sa.select(rows.c[name]).where(rows.c.run_uid == run.uid, *(rows.c[key] == where[key] for key in where))
    return env.runtime.database.read(lambda c: list(c.execute(found.order_by(rows.c.number)).scalars()))


def claim_next(env: Env) -> TargetJobId:
    """A process claims the target that is next on the queue, and says nothing more."""
    job = parse_target_job_id(env.redis.lpop("rq:queue:default").decode())  # type: ignore[union-attr]
    assert isinstance(job, TargetJobId)
    now = env.clock.now()
    claim = partial(fan_out_targets.claim, job=job, token=new_uid(now), now=now)
    assert env.runtime.database.transact(claim) is not None
    return job


def die(env: Env, job: TargetJobId) -> None:
    """A worker sees the work horse of a target die."""
    horse_died(env.runtime, Job.create(module_level, id=str(job), connection=env.redis))


def test_a_target_that_failed_is_tried_again_after_its_backoff_and_the_run_waits_for_it(any_env: Env) -> None:
    case = expiry_case(any_env, acts=Broken({"a-2": 2}), target_retry=TWICE)
    run = case.begin()
    for wait in (7 * SECOND, 14 * SECOND):
        execute_pending(any_env.scheduler)
        assert (run.refresh().status, case.count(run)) == ("running", {"retrying": 1, "succeeded": 2})
        assert column(any_env, run, "retry_at", status="retrying") == [any_env.clock.now() + wait]
        any_env.advance(wait - SECOND)
        assert any_env.deliver(retry_link_id(run))[0].again_at == any_env.clock.now() + SECOND, "it is early"
        any_env.advance(SECOND)
        any_env.deliver(retry_link_id(run))
        assert case.count(run) == {"pending": 1, "succeeded": 2}
    execute_pending(any_env.scheduler)
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 3})
    assert case.log == ["a-1", "a-2", "a-3", "a-2", "a-2"]
    assert column(any_env, run, "attempt") == [1, 3, 1]
    check_invariants(any_env.runtime, with_redis=False)


def test_the_retry_link_of_the_run_is_armed_when_a_target_is_due(any_env: Env) -> None:
    case = expiry_case(any_env, acts=Broken({"a-2": 1}), target_retry=TWICE)
    run = case.begin()
    execute_pending(any_env.scheduler)
    due = any_env.clock.now() + 7 * SECOND
    assert any_env.armed()[retry_link_id(run)] == pytest.approx(due.timestamp())


def test_the_retry_link_of_the_run_is_brought_forward_for_a_target_that_is_due_earlier(any_env: Env) -> None:
    case = expiry_case(any_env, 2, acts=Broken({"a-1": 2, "a-2": 1}), target_retry=TWICE)
    run = case.begin()
    first, second = any_env.queued()
    again = f"{first}-d2"
    with suppress(RuntimeError):
        any_env.perform(first)
    any_env.advance(7 * SECOND)
    any_env.deliver(retry_link_id(run))
    any_env.redis.flushdb()
    with suppress(RuntimeError):
        any_env.perform(again)
    late = (any_env.clock.now() + 14 * SECOND).timestamp()
    assert any_env.armed()[retry_link_id(run)] == pytest.approx(late)

    with suppress(RuntimeError):
        any_env.perform(second)

    early = (any_env.clock.now() + 7 * SECOND).timestamp()
    assert any_env.armed()[retry_link_id(run)] == pytest.approx(early)


def test_a_target_whose_attempts_are_used_up_has_failed(any_env: Env) -> None:
    case = expiry_case(any_env, acts=Broken({"a-1": 9}), target_retry=TWICE)
    run = case.begin()
    for _ in range(4):
        execute_pending(any_env.scheduler)
        any_env.advance(MINUTE)
        any_env.recover()
    assert (run.refresh().status, run.target_counts) == ("failed", {"succeeded": 2, "failed": 1})
    assert case.log.count("a-1") == 3
    assert run.error == "1 of 3 targets failed, such as: RuntimeError: a-1 is stuck"


def test_without_a_link_reconcile_lets_targets_be_tried_again(any_env: Env) -> None:
    case = expiry_case(any_env, acts=Broken({"a-1": 1, "a-3": 1}), target_retry=TWICE)
    run = case.begin()
    execute_pending(any_env.scheduler)
    any_env.redis.flushdb()
    any_env.advance(6 * SECOND)
    assert any_env.recover().targets == 0, "none is due"
    any_env.advance(SECOND)
    assert any_env.recover().targets == 2
    execute_pending(any_env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 3}


def test_a_job_of_an_earlier_attempt_handles_nothing(any_env: Env) -> None:
    case = expiry_case(any_env, 1, acts=Broken({"a-1": 1}), target_retry=TWICE)
    run = case.begin()
    first = any_env.queued()[0]
    execute_pending(any_env.scheduler)
    any_env.perform(first)
    any_env.advance(7 * SECOND)
    any_env.recover()
    assert any_env.queued() == [f"{first}-d2"]
    any_env.perform(first)
    assert (case.log, case.count(run)) == (["a-1"], {"pending": 1})
    execute_pending(any_env.scheduler)
    assert (case.log, run.refresh().status) == (["a-1", "a-1"], "succeeded")


def test_a_target_whose_horse_died_is_tried_again_or_lost_as_its_policy_says(any_env: Env) -> None:
    case = expiry_case(any_env, 1, target_retry=RetryPolicy(max_retries=1, base=SECOND))
    run = case.begin()
    die(any_env, claim_next(any_env))
    assert case.count(run) == {"retrying": 1}
    any_env.advance(SECOND)
    any_env.deliver(retry_link_id(run))
    die(any_env, claim_next(any_env))
    assert (run.refresh().status, run.target_counts) == ("failed", {"lost": 1}), "the last target ends the run at once"
    assert run.error == "1 of 1 targets failed, such as: its work horse died"


def test_a_target_whose_process_vanished_is_tried_again_or_lost_as_its_policy_says(any_env: Env) -> None:
    case = expiry_case(any_env, 1, target_retry=RetryPolicy(max_retries=1, base=SECOND), target_timeout=5)
    run = case.begin()
    for counts in ({"pending": 1}, {"lost": 1}):
        claim_next(any_env)
        any_env.advance(timedelta(seconds=5) + any_env.runtime.settings.completion_outage + 61 * SECOND)
        any_env.recover()
        any_env.advance(SECOND)
        any_env.recover()
        assert case.count(run) == counts
    assert run.refresh().status == "failed"


def test_a_target_has_a_timeout_of_its_own(env: Env) -> None:
    def hang(instance_id: str) -> None:
        while instance_id == "a-2":
            pass

    case = expiry_case(env, 2, acts=hang, timeout=300, target_timeout=1)
    run = case.begin()
    execute_pending(env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 1, "failed": 1}
    assert run.error == ("1 of 2 targets failed, such as: timeout: Task exceeded maximum timeout value (1 seconds)")


def test_no_more_targets_than_max_parallel_are_on_the_queue_or_handled(any_env: Env) -> None:
    case = expiry_case(any_env, 7, acts=Broken({"a-3": 1, "a-6": 1}), max_parallel=2, fan_out="never")
    run = case.begin()
    most = 0
    while any_env.queued():
        counts = case.count(run)
        most = max(most, counts.get("pending", 0) + counts.get("running", 0))
        assert len(any_env.queued()) <= 2
        with pytest.raises(RuntimeError) if Counter(case.log)["a-2"] and len(case.log) in {2, 5} else nothing():
            case.work_one()
    assert most == 2
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 5, "failed": 2})
    assert case.log == [f"a-{number}" for number in range(1, 8)]


class nothing:  # noqa: N801 - reads as a word
    """A context in which nothing is expected."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def test_the_place_of_a_target_that_waits_for_its_retry_is_taken_by_the_next(any_env: Env) -> None:
    case = expiry_case(any_env, 3, acts=Broken({"a-1": 1}), max_parallel=1, target_retry=TWICE)
    run = case.begin()
    with pytest.raises(RuntimeError):
        case.work_one()
    assert case.count(run) == {"retrying": 1, "pending": 1, "waiting": 1}
    any_env.advance(7 * SECOND)
    any_env.deliver(retry_link_id(run))
    assert case.count(run) == {"waiting": 2, "pending": 1}, "it waits for a place"
    execute_pending(any_env.scheduler)
    assert case.log == ["a-1", "a-2", "a-1", "a-3"]
    assert run.refresh().target_counts == {"succeeded": 3}


def test_a_place_that_a_crash_left_empty_is_filled_once(any_env: Env) -> None:
    case = expiry_case(any_env, 7, max_parallel=3, target_timeout=1)
    run = case.begin()
    jobs = [claim_next(any_env), claim_next(any_env)]
    any_env.advance(any_env.runtime.settings.completion_outage + 70 * SECOND)
    any_env.recover()
    assert case.count(run) == {"lost": 2, "pending": 3, "waiting": 2}
    assert fill(any_env.runtime, run.uid) == 0
    die(any_env, jobs[0])
    assert case.count(run) == {"lost": 2, "pending": 3, "waiting": 2}
    execute_pending(any_env.scheduler)
    assert run.refresh().target_counts == {"lost": 2, "succeeded": 5}


def test_targets_named_after_the_schedule_got_a_limit_are_handled_too(any_env: Env) -> None:
    now, database = any_env.clock.now(), any_env.runtime.database
    before = Batch(new_uid(now), "note", now, timeout=60)
    database.transact(lambda c: fan_out_targets.record(c, before, ["a-1"], 1, now))
    database.transact(lambda c: fan_out_targets.record(c, before._replace(max_parallel=1), ["a-2", "a-3"], 2, now))
    taken, _ = database.transact(lambda c: fan_out_targets.take_chunk(c, BatchJobId(before.run_uid, 1), 1, now))
    assert [target.target_id for target in taken] == ["a-1"]
    database.transact(lambda c: c.execute(sa.update(rows).values(status="succeeded").where(rows.c.number == 1)))
    assert fill(any_env.runtime, before.run_uid) == 1


def test_a_report_of_a_dead_horse_that_comes_twice_takes_one_place(any_env: Env) -> None:
    case = expiry_case(any_env, 3, max_parallel=1)
    run = case.begin()
    job = claim_next(any_env)
    token, now = column(any_env, run, "token", status="running")[0], any_env.clock.now()
    target = present(any_env.runtime.database.read(lambda c: fan_out_targets.find_running(c, job)))
    die(any_env, job)
    end = partial(fan_out_targets.finish, target=target, token=token, end=TargetEnd(TargetStatus.SUCCEEDED), now=now)
    assert any_env.runtime.database.transact(end) == (False, []), "its process was only slow"
    assert case.count(run) == {"lost": 1, "pending": 1, "waiting": 1}


def test_targets_with_max_parallel_that_redis_lost_are_enqueued_again(any_env: Env) -> None:
    case = expiry_case(any_env, 4, max_parallel=2)
    run = case.begin()
    any_env.redis.flushdb()
    assert any_env.recover().targets == 2
    assert any_env.recover().targets == 0
    execute_pending(any_env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 4}
    assert Counter(case.log) == Counter(f"a-{number}" for number in range(1, 5))


@pytest.fixture
def old(make_env: MakeEnv, database_url: str) -> Env:
    """A worker of the old release, over the same database and Redis: it has no machine."""
    return make_env(database_url=database_url)


def test_a_target_whose_code_a_worker_lacks_is_blocked_and_offered_to_the_others(any_env: Env, old: Env) -> None:
    case = expiry_case(any_env, 2)
    run = case.begin()
    old.clock.set(any_env.clock.now())
    execute_pending(old.scheduler)
    assert (run.refresh().status, case.count(run)) == ("running", {"blocked": 2})
    (first, _) = MachineScheduler.targets(any_env.scheduler, run.uid, status="blocked")
    assert f"no workflow named '{EXPIRY}' is registered" in first["error"]
    any_env.advance(5 * SECOND)
    any_env.deliver(retry_link_id(run))
    assert case.count(run) == {"pending": 2}
    execute_pending(any_env.scheduler)
    assert (run.refresh().target_counts, column(any_env, run, "attempt")) == ({"succeeded": 2}, [1, 1])
    assert column(any_env, run, "error") == [None, None]


def test_a_target_that_no_worker_can_handle_has_failed_after_an_hour(any_env: Env) -> None:
    case = expiry_case(any_env, 2)
    run = case.begin()
    machine = present(any_env.runtime.workflows.get(EXPIRY))
    any_env.runtime.workflows.remove(EXPIRY)
    execute_pending(any_env.scheduler)
    waits = list(_waits(any_env, run, 4))
    assert waits == [5 * SECOND, 10 * SECOND, 20 * SECOND, 40 * SECOND]
    any_env.runtime.workflows.add(machine)
    any_env.advance(HOUR)
    any_env.recover()
    assert (run.refresh().status, run.target_counts) == ("failed", {"failed": 2})
    assert "no worker could find its workflow within 3600 s (RQSCHED_BLOCKED_TIMEOUT)" in present(run.error)


def _waits(env: Env, run: Any, times: int) -> Iterator[timedelta]:
    """After how long a blocked target is offered again, each time."""
    for _ in range(times):
        wait = column(env, run, "retry_at")[0] - env.clock.now()
        yield wait
        env.advance(wait)
        env.deliver(retry_link_id(run))
        execute_pending(env.scheduler)


def test_a_cancelled_run_gives_up_its_targets_that_wait_for_a_retry(any_env: Env) -> None:
    case = expiry_case(any_env, 2, acts=Broken({"a-1": 1}), target_retry=TWICE)
    run = case.begin()
    execute_pending(any_env.scheduler)
    run.cancel()
    any_env.recover()
    assert case.count(run) == {"cancelled": 1, "succeeded": 1}
    any_env.advance(MINUTE)
    any_env.recover()
    assert any_env.queued() == []


def test_a_target_of_a_fan_out_by_hand_is_not_tried_again(any_env: Env) -> None:
    case = expiry_case(any_env, 1, acts=Broken({"a-1": 1}), target_retry=TWICE)
    done = MachineScheduler.run(any_env.scheduler, case.machine, "CHECK_EXPIRY")
    execute_pending(any_env.scheduler)
    assert MachineScheduler.count(any_env.scheduler, done.run_uid) == {"failed": 1}
