"""Operations on a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rqsched import RunHandle, current_run
from rqsched.aio import AsyncScheduler
from rqsched.errors import RqschedError
from rqsched.testing import execute_pending
from tests.support.env import Env, block, newest, statuses
from tests.support.narrow import present


@pytest.mark.parametrize(("end", "status"), [(RunHandle.cancel, "cancelled"), (RunHandle.terminate, "terminated")])
def test_a_waiting_run_that_is_ended_never_starts(
    any_env: Env, end: Callable[[RunHandle], RunHandle], status: str
) -> None:
    schedule = any_env.create()
    run = present(schedule.trigger().run)

    assert end(run).status == status

    assert (any_env.queued(), any_env.execute_pending(), any_env.calls) == ([], 0, [])
    assert run.cancel().status == run.terminate().status == status, "what has ended stays as it is"
    assert schedule.trigger().outcome == "triggered", "and blocks nothing"


def test_a_running_run_sees_its_cancellation_at_its_next_checkpoint(any_env: Env) -> None:
    steps: list[str] = []

    def cancelled_on_the_way() -> None:
        current = any_env.scheduler.get("report").runs().items[0]
        current.cancel()
        steps.append("before")
        current_run().checkpoint()
        steps.append("after")

    any_env.register("slow", cancelled_on_the_way)
    schedule = any_env.create(workflow="slow")

    any_env.run_due()

    assert (steps, statuses(schedule)) == (["before"], ["cancelled"])
    assert schedule.refresh().error_count == 0


def test_a_run_is_found_by_uid_number_and_instance_id(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.run_due()
    any_env.run_due()
    second = newest(schedule)

    for name in (second.uid, second.uid.lower(), "2", second.instance_id):
        assert schedule.run(name).uid == second.uid
    assert [run.number for run in schedule.runs(statuses=("succeeded",)).items] == [2, 1]
    page = schedule.runs(limit=1)
    assert [run.number for run in schedule.runs(cursor=page.next_cursor).items] == [1]
    with pytest.raises(RqschedError):
        schedule.run("nobody")


def test_a_blocked_run_says_so_on_its_handle_in_its_list_and_in_the_description(any_env: Env) -> None:
    schedule = any_env.create(overlap="allow_all")
    run = block(any_env.runtime, present(schedule.trigger().run))

    assert (run.status, run.is_blocked, run.blocked_at) == ("pending", True, any_env.clock.now())
    assert [found.uid for found in schedule.runs(statuses=("blocked",)).items] == [run.uid]
    assert present(schedule.refresh().describe().blocked_reason).endswith("no module named 'billing'")

    other = present(schedule.trigger().run)
    assert [found.uid for found in schedule.runs(statuses=("blocked",)).items] == [run.uid]
    assert {found.uid for found in schedule.runs(statuses=("blocked", "pending")).items} == {run.uid, other.uid}
    assert schedule.describe().blocked_reason is None


def test_wait_returns_when_the_run_has_ended_elsewhere(any_env: Env) -> None:
    run = present(any_env.create(workflow="note", args=["x"]).trigger().run)
    assert (run.has_ended, run.result) == (False, None)
    with pytest.raises(TimeoutError, match="has not ended within"):
        run.wait(0.05)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run.wait, 60)
        execute_pending(any_env.scheduler)
        ended = waiting.result()

    assert (ended.status, ended.has_ended, ended.wait(0).result) == ("succeeded", True, ended.result)


def test_awaited_wait_does_not_block_the_loop(env: Env) -> None:
    env.create()

    async def story() -> str:
        schedule = await AsyncScheduler(env.scheduler).get("report")
        run = present((await schedule.trigger()).run)
        same = await schedule.run(run.uid)
        ended, _ = await asyncio.gather(run.wait(60), same.cancel())
        return ended.status

    assert asyncio.run(story()) == "cancelled"
