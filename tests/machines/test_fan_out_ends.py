"""The end of a fan-out: its run goes on until the last target has ended, and the targets say how it ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.run_end import end_if_over
from rqsched.kernel.chain.settle import lose_run
from rqsched.kernel.decide.ids import RunJobId, TargetJobId, parse_target_job_id
from rqsched.kernel.decide.model import TargetStatus
from rqsched.machines import MachineScheduler
from rqsched.testing import execute_pending
from tests.support.env import MINUTE, Env, events, last, newest, types
from tests.support.invariants import check_invariants
from tests.support.machine_case import EXPIRY, expiry_case, open_case
from tests.support.narrow import present


def failing(*names: str) -> Callable[[str], None]:
    """Return an action that raises for the given instances."""

    def act(instance_id: str) -> None:
        if instance_id in names:
            raise RuntimeError(f"{instance_id} is stuck")

    return act


def test_a_run_goes_on_until_its_last_target_has_ended(any_env: Env) -> None:
    case = expiry_case(any_env)
    run = case.begin()
    for _ in range(3):
        assert (run.refresh().status, run.ended_at, run.target_counts) == ("running", None, None)
        assert run.dispatched_at == any_env.clock.now()
        case.work_one()
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 3})
    assert run.result == {"targets": 3, "filtered": 0}
    check_invariants(any_env.runtime, with_redis=False)


OUTCOMES = {
    "any_failed, one failed": ("any_failed", ("a-1",), "failed"),
    "any_failed, none failed": ("any_failed", (), "succeeded"),
    "all_failed, one failed": ("all_failed", ("a-1",), "succeeded"),
    "all_failed, all failed": ("all_failed", ("a-1", "a-2"), "failed"),
    "never, all failed": ("never", ("a-1", "a-2"), "succeeded"),
}


@pytest.mark.parametrize(("policy", "fails", "status"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_policy_decides_whether_failed_targets_fail_the_run(
    env: Env, policy: str, fails: tuple[str, ...], status: str
) -> None:
    case = expiry_case(env, 2, acts=failing(*fails), fan_out=policy)
    run = case.begin()
    execute_pending(env.scheduler)
    run.refresh()
    counts = {"succeeded": 2 - len(fails), "failed": len(fails)}
    assert (run.status, run.attempt) == (status, 1), "it is not attempted again as a whole"
    assert run.target_counts == {name: count for name, count in counts.items() if count}


def test_a_failed_fan_out_says_how_many_failed_and_why(any_env: Env) -> None:
    case = expiry_case(any_env, acts=failing("a-2", "a-3"))
    run = case.run()
    schedule = any_env.scheduler.get(EXPIRY)
    assert run.error == "2 of 3 targets failed, such as: RuntimeError: a-2 is stuck"
    assert (schedule.consecutive_failures, schedule.error_count, schedule.status) == (1, 1, "active")
    assert types(schedule)[-2:] == ["FanOutEnded", "RunFailed"]
    ended = next(event.payload for event in events(schedule) if event.event_type == "FanOutEnded")
    assert (ended["targets"], ended["outcome"]) == ({"succeeded": 1, "failed": 2}, "failed")


def test_a_sweep_that_is_not_over_blocks_the_next_one(any_env: Env) -> None:
    case = expiry_case(any_env)
    case.begin()
    assert present(any_env.scheduler.get(EXPIRY).trigger()).reason == "overlap_policy_skip"
    execute_pending(any_env.scheduler)
    assert any_env.scheduler.get(EXPIRY).trigger().outcome == "triggered"


def test_a_sweep_may_begin_when_the_one_before_is_dispatched(any_env: Env) -> None:
    case = expiry_case(any_env, overlap="buffer_one", overlap_until="dispatched")
    schedule = any_env.scheduler.get(EXPIRY)
    first, second = present(schedule.trigger().run), present(schedule.trigger().run)
    assert second.status == "buffered"
    case.work_one()
    assert (first.refresh().status, second.refresh().status) == ("running", "pending"), "it started at once"
    execute_pending(any_env.scheduler)
    assert (first.refresh().status, second.refresh().status) == ("succeeded", "succeeded")
    check_invariants(any_env.runtime, with_redis=False)


def test_by_default_a_waiting_sweep_starts_when_the_one_before_has_ended(any_env: Env) -> None:
    case = expiry_case(any_env, overlap="buffer_one")
    schedule = any_env.scheduler.get(EXPIRY)
    first, second = present(schedule.trigger().run), present(schedule.trigger().run)
    case.work_one()
    assert (first.refresh().status, second.refresh().status) == ("running", "buffered")
    for _ in range(3):
        case.work_one()
    assert (first.refresh().status, second.refresh().status) == ("succeeded", "pending")


def test_a_dispatched_run_needs_no_heartbeats_and_no_horse(any_env: Env) -> None:
    case = expiry_case(any_env)
    run = case.begin()
    lose_run(any_env.runtime, RunJobId(run.uid, 1, 1), "its work horse died")
    for _ in range(5):
        any_env.advance(timedelta(seconds=20))
        any_env.recover()
    assert run.refresh().status == "running"
    execute_pending(any_env.scheduler)
    assert run.refresh().status == "succeeded"


def end_last_target(env: Env) -> None:
    """End the only target on the queue, as a process that dies before it ends the run."""
    job = parse_target_job_id(env.queued()[0])
    assert isinstance(job, TargetJobId)
    now, transact = env.clock.now(), env.runtime.database.transact
    target = present(transact(lambda c: fan_out_targets.claim(c, job, "mine", now))).target
    done = TargetEnd(TargetStatus.SUCCEEDED)
    end = partial(fan_out_targets.finish, target=target, token="mine", end=done, now=now)
    assert transact(end) == (True, []), "it may be the last one"


def test_reconcile_ends_a_run_whose_last_process_died_before_it_could(any_env: Env) -> None:
    run = expiry_case(any_env, 1).begin()
    end_last_target(any_env)
    assert run.refresh().status == "running"
    assert any_env.recover().targets == 1
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 1})


def test_pass_ends_the_runs_of_fan_outs_before_it_looks_for_overdue_schedules(any_env: Env) -> None:
    """If it reported first, it would report a schedule whose run has succeeded."""
    run = expiry_case(any_env, 1, expect_success_within="90s").begin()
    end_last_target(any_env)
    any_env.advance(2 * MINUTE)
    counts = any_env.recover()
    assert (run.refresh().status, counts.targets, counts.overdue) == ("succeeded", 1, 0)


def test_a_run_is_ended_once_however_many_see_that_it_is_over(any_env: Env) -> None:
    case = expiry_case(any_env)
    run = case.begin()
    assert end_if_over(any_env.runtime, run.uid) is None, "targets are open"
    execute_pending(any_env.scheduler)
    assert end_if_over(any_env.runtime, run.uid) is None
    assert types(any_env.scheduler.get(EXPIRY)).count("FanOutEnded") == 1


def test_a_cancelled_sweep_gives_up_what_has_not_begun(any_env: Env) -> None:
    case = expiry_case(any_env)
    run = case.begin()
    case.work_one()
    run.cancel()
    any_env.recover()
    assert (run.refresh().status, case.count(run)) == ("cancelled", {"succeeded": 1, "cancelled": 2})
    execute_pending(any_env.scheduler)
    assert len(case.log) == 1


def test_a_retried_run_handles_its_failed_targets_again(any_env: Env) -> None:
    broken = ["a-2"]
    case = open_case(any_env, acts=lambda name: failing(*broken)(name))
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))
    run = case.run()
    assert (run.status, case.log) == ("failed", ["a-1", "a-2"])
    broken.clear()
    run.retry()
    assert (run.refresh().dispatched_at, run.target_counts) == (None, None)
    execute_pending(any_env.scheduler)
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 2})
    assert case.log == ["a-1", "a-2", "a-2"]
    assert last(any_env.scheduler.get(EXPIRY), "Triggered")


def test_no_targets_are_a_success_at_once(env: Env) -> None:
    case = open_case(env)
    run = case.run()
    assert (run.status, run.dispatched_at, run.target_counts) == ("succeeded", None, None)
    assert newest(env.scheduler.get(EXPIRY)).uid == run.uid


def test_a_fan_out_by_hand_has_no_run_to_end(env: Env) -> None:
    case = expiry_case(env, acts=failing("a-1"))
    done = MachineScheduler.run(env.scheduler, case.machine, "CHECK_EXPIRY")
    execute_pending(env.scheduler)
    assert MachineScheduler.count(env.scheduler, done.run_uid) == {"succeeded": 2, "failed": 1}
