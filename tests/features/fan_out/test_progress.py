"""How far the targets of a run are, as every surface shows it; and the failed ones alone are handled again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every, RetryPolicy
from rqsched.api.run_handle import RunHandle
from rqsched.errors import InvalidInputError, InvalidLimitError, RunStateError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.dispatch import batch_of
from rqsched.features.fan_out.progress import progress_of
from rqsched.features.retry_on_request.chain import require_retryable
from rqsched.kernel.decide.ids import RetryLinkId, parse_link_id
from rqsched.kernel.store.tables import targets
from rqsched.testing import execute_pending
from rqsched.workflows import make_workflow
from tests.support.damage import pop
from tests.support.env import MINUTE, NOON, SECOND, Env, all_runs
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.pages import Pages


class Sweep:
    """A schedule whose runs call a workflow for five ids. The workflow raises for the ids in `broken`."""

    def __init__(self, env: Env, **options: Any) -> None:
        self.env, self.broken = env, set[str]()
        self.calls: list[str] = []
        env.registry.add(make_workflow("remind", self.remind, targets=lambda: [f"c-{n}" for n in range(1, 6)]))
        self.schedule = env.scheduler.create("nightly", "remind", Every("1d"), **options)

    def remind(self, customer: str) -> None:
        self.calls.append(customer)
        if customer in self.broken:
            raise RuntimeError(f"{customer} is away")

    def trigger(self) -> RunHandle:
        return present(self.schedule.trigger().run)

    def run(self) -> RunHandle:
        run = self.trigger()
        execute_pending(self.env.scheduler)
        return run.refresh()

    def work_one(self) -> None:
        """Take the first job of the queue and execute it."""
        self.env.perform(pop(self.env))


def test_a_run_says_how_far_its_targets_are_and_when_they_end(any_env: Env) -> None:
    sweep = Sweep(any_env)
    run = sweep.trigger()
    assert run.progress() is None, "it has not named any"
    sweep.work_one()
    any_env.advance(10 * SECOND)
    for _ in range(2):
        sweep.work_one()
    progress = present(run.refresh().progress())
    assert progress.counts == {"pending": 3, "succeeded": 2}
    assert (progress.total, progress.ended, progress.failed, progress.per_second) == (5, 2, 0, 0.2)
    assert progress.ends_at == any_env.clock.now() + 15 * SECOND
    any_env.advance(2 * MINUTE)
    assert present(run.progress()).ends_at is None, "none ended lately"
    execute_pending(any_env.scheduler)
    ended = present(run.refresh().progress())
    assert (ended.ended, ended.per_second, ended.ends_at) == (5, None, None)


def test_the_page_of_a_run_counts_targets_up_to_a_thousand_until_they_have_ended(any_pages: Pages) -> None:
    env = any_pages.env
    sweep = Sweep(env)
    run = sweep.trigger()
    sweep.work_one()
    env.advance(10 * SECOND)
    sweep.work_one()
    shown = any_pages.get(f"/runs/{run.uid}")
    assert "1 of 5 have ended, 0.1 a second, until about " in shown
    assert 'max="5" value="1"' in shown
    more = [f"d-{number}" for number in range(1_000)]
    batch = batch_of(env.runtime, run.uid)
    env.runtime.database.transact(lambda c: fan_out_targets.record(c, batch, more, 6, env.clock.now()))
    shown = any_pages.get(f"/runs/{run.uid}")
    assert "1 of 1000+ have ended<" in shown, "no pace is known"
    assert ">waiting</span> 1000+<" in shown
    assert ">succeeded</span> 1<" in shown
    assert "<progress" not in shown
    assert present(run.progress()).total == 1_005
    is_copy = targets.c.status == "waiting"
    ended = sa.update(targets).where(is_copy).values(status="succeeded", ended_at=env.clock.now())
    env.runtime.database.transact(lambda c: c.execute(ended))
    execute_pending(env.scheduler)
    assert "1005 of 1005 have ended" in any_pages.get(f"/runs/{run.uid}")


def test_targets_are_read_page_by_page_by_their_status_with_their_errors(any_env: Env) -> None:
    sweep = Sweep(any_env)
    sweep.broken = {"c-2", "c-4"}
    run = sweep.run()
    first = run.targets(3)
    rest = run.targets(3, first.next_cursor)
    assert [one.target_id for one in (*first.items, *rest.items)] == [f"c-{n}" for n in range(1, 6)]
    assert rest.next_cursor is None
    failed = run.targets(status="failed").items
    assert [(one.target_id, one.attempt, present(one.error).partition("\n")[0]) for one in failed] == [
        ("c-2", 1, "RuntimeError: c-2 is away"),
        ("c-4", 1, "RuntimeError: c-4 is away"),
    ]
    assert failed[0].ended_at == any_env.clock.now()
    assert ":" in present(failed[0].worker)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"status": "gone"}, InvalidInputError), ({"cursor": "x"}, InvalidInputError), ({"limit": 0}, InvalidLimitError)],
)
def test_a_page_of_targets_that_makes_no_sense_is_refused(
    env: Env, arguments: dict[str, Any], error: type[Exception]
) -> None:
    run = Sweep(env).run()
    with pytest.raises(error):
        run.targets(**arguments)


def test_the_failed_targets_of_a_run_that_succeeded_are_handled_again(any_env: Env) -> None:
    sweep = Sweep(any_env, fan_out="never")
    sweep.broken = {"c-2"}
    run = sweep.run()
    assert (run.status, run.target_counts) == ("succeeded", {"succeeded": 4, "failed": 1})
    with pytest.raises(RunStateError, match="Trigger the schedule"):
        run.retry()
    sweep.broken.clear()
    sweep.calls.clear()
    run.retry("the mail server is back", failed_targets=True)
    assert (run.status, run.attempt) == ("pending", 2)
    execute_pending(any_env.scheduler)
    assert (run.refresh().status, run.target_counts, sweep.calls) == ("succeeded", {"succeeded": 5}, ["c-2"])
    assert sweep.schedule.refresh().success_count == 1, "it is the same run"
    assert len(all_runs(sweep.schedule)) == 1
    check_invariants(any_env.runtime, with_redis=False)


def test_a_retry_of_failed_targets_is_refused_where_none_failed_or_the_run_is_not_over(any_env: Env) -> None:
    sweep = Sweep(any_env, overlap="allow_all")
    run, open_run = sweep.run(), sweep.trigger()
    with pytest.raises(RunStateError, match="None of its targets has failed"):
        run.retry(failed_targets=True)
    with pytest.raises(RunStateError, match="has not ended"):
        open_run.retry(failed_targets=True)
    with pytest.raises(RunStateError, match="None of its targets has failed"):
        require_retryable(any_env.runtime, run.uid, failed_targets=True)


def test_attempts_on_request_go_beyond_the_policy_once(any_env: Env) -> None:
    sweep = Sweep(any_env, target_retry=RetryPolicy(max_retries=1, base=SECOND))
    sweep.broken = {"c-1"}
    run = sweep.run()
    any_env.advance(SECOND)
    any_env.recover()
    execute_pending(any_env.scheduler)
    assert (run.refresh().status, sweep.calls.count("c-1")) == ("failed", 2)
    run.retry(failed_targets=True)
    execute_pending(any_env.scheduler)
    assert (run.refresh().status, sweep.calls.count("c-1")) == ("failed", 3), "it was the last attempt"


def test_targets_are_tried_again_though_their_link_was_armed_for_a_time_that_sql_has_lost(any_env: Env) -> None:
    sweep = Sweep(any_env, target_retry=RetryPolicy(max_retries=1, base=SECOND))
    sweep.broken = {"c-1", "c-5"}
    sweep.trigger()
    sweep.work_one()
    with pytest.raises(RuntimeError):
        sweep.work_one()
    (link,) = [link for link in any_env.armed() if isinstance(parse_link_id(link), RetryLinkId)]
    any_env.transport.put_back({link: any_env.clock.now() + timedelta(days=38)})

    execute_pending(any_env.scheduler)
    assert any_env.armed()[link] == (any_env.clock.now() + SECOND).timestamp(), "armed again by another target"

    any_env.transport.put_back({link: any_env.clock.now() + timedelta(days=38)})
    any_env.advance(SECOND)
    any_env.recover()
    execute_pending(any_env.scheduler)
    assert (sweep.calls.count("c-1"), sweep.calls.count("c-5")) == (2, 2)


def test_the_pace_counts_from_the_dispatch_and_at_most_a_minute() -> None:
    counts = {"succeeded": 30, "waiting": 60}
    young = progress_of(counts, 30, NOON - timedelta(seconds=10), NOON)
    old = progress_of(counts, 30, NOON - timedelta(hours=1), NOON)
    assert (young.per_second, young.ends_at) == (3.0, NOON + timedelta(seconds=20))
    assert (old.per_second, old.ends_at) == (0.5, NOON + timedelta(seconds=120))
    assert progress_of({"succeeded": 3}, 3, NOON, NOON).per_second is None
