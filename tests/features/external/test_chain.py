"""External runs: claimed by one worker each, kept alive by heartbeats, ended once, lost in silence and given again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import RunNotFoundError
from rqsched.features.external import chain as external_runs
from rqsched.features.external.chain import ClaimedRun
from rqsched.kernel.decide.model import Run, fence_of
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from tests.support.children import in_children
from tests.support.env import MINUTE, ONCE, SECOND, Env, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import SilentDatabase, silent_database

EXTERNAL_SILENCE = timedelta(minutes=10)
DONE = AttemptResult(AttemptOutcome.SUCCEEDED, result='"sent"')
FAILED = AttemptResult(AttemptOutcome.FAILED, error="no answer")


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    env: Env = request.getfixturevalue("any_env" if "any_env" in request.fixturenames else "env")
    yield
    check_invariants(env.runtime)


def made(env: Env, schedule_id: str = "report", **options: Any) -> ScheduleHandle:
    """A schedule every minute whose runs wait for a worker of any language."""
    given = {"overlap": "allow_all", "retry": RetryPolicy(max_retries=1, base=MINUTE, then="continue"), **options}
    return env.create(schedule_id, workflow="report.generate", executor="external", **given)


def claim(env: Env, *queues: str, worker: str = "one", count: int = 1, namespace: str = "default") -> list[ClaimedRun]:
    return external_runs.claim(env.runtime, queues or ("default",), worker, namespace=namespace, count=count)


def claimed(env: Env, **options: Any) -> Run:
    """The one run that waits, claimed."""
    (found,) = claim(env, **options)
    return found.run


def heartbeat(env: Env, *runs: Run, worker: str = "one", namespace: str = "default") -> tuple[list[str], list[str]]:
    return external_runs.heartbeat(env.runtime, worker, [run.uid for run in runs], namespace=namespace)


def test_a_claimed_run_is_not_given_to_another_worker(any_env: Env) -> None:
    schedule = made(any_env)
    run = any_env.fire_next(schedule)

    mine = claimed(any_env)

    assert (mine.uid, mine.status, mine.worker, mine.attempt) == (run.uid, "running", "one", 1)
    assert mine.started_at == mine.heartbeat_at == any_env.clock.now()
    assert claim(any_env, worker="two") == []


def test_runs_executed_by_rq_cannot_be_claimed(env: Env) -> None:
    env.fire_next(env.create())
    assert claim(env) == []


def test_an_external_run_is_on_no_queue_of_rq(any_env: Env) -> None:
    any_env.fire_next(made(any_env))
    any_env.advance(MINUTE)
    assert any_env.recover().deliveries == 0
    assert any_env.queued() == []


def test_workers_that_claim_at_once_never_get_the_same_run(any_env: Env) -> None:
    schedule = made(any_env)
    for _ in range(40):
        any_env.fire_next(schedule)

    def work() -> list[str]:
        found: list[str] = []
        while some := claim(any_env, count=3):
            found += [one.run.uid for one in some]
        return found

    taken = [uid for uids in in_children(4, work) for uid in uids]

    assert len(taken) == len(set(taken)) == 40
    assert statuses(schedule) == ["running"] * 40


def test_a_worker_takes_from_its_queues_the_most_important_first_and_then_the_oldest(any_env: Env) -> None:
    for name, options in (("a", {}), ("b", {"queue": "high"}), ("c", {"priority": 5}), ("d", {"queue": "other"})):
        made(any_env, name, **options).trigger()
        any_env.advance(SECOND)

    order = [found.schedule.schedule_id for found in claim(any_env, "default", "high", count=100)]

    assert order == ["c", "a", "b"]
    assert claim(any_env, "default", "high") == []


def test_a_claim_returns_up_to_the_requested_count(any_env: Env) -> None:
    schedule = made(any_env)
    for _ in range(3):
        any_env.fire_next(schedule)
    assert [len(claim(any_env, count=2)) for _ in range(3)] == [2, 1, 0]


def test_runs_of_another_namespace_cannot_be_claimed_or_found(any_env: Env) -> None:
    run = any_env.fire_next(made(any_env, namespace="tenant"))

    assert claim(any_env) == []
    mine = claimed(any_env, namespace="tenant")
    assert heartbeat(any_env, mine) == ([], [run.uid])
    assert heartbeat(any_env, mine, namespace="tenant") == ([run.uid], [])
    assert external_runs.find(any_env.runtime, run.uid, "tenant").run.uid == run.uid
    with pytest.raises(RunNotFoundError):
        external_runs.find(any_env.runtime, run.uid, "default")


def test_a_run_of_a_paused_or_deleted_schedule_can_be_claimed(any_env: Env) -> None:
    paused, deleted = made(any_env, "paused"), made(any_env, "deleted")
    for schedule in (paused, deleted):
        schedule.trigger()
    paused.pause()
    deleted.delete()
    assert {found.schedule.schedule_id for found in claim(any_env, count=9)} == {"paused", "deleted"}


def test_a_run_ends_once(any_env: Env) -> None:
    schedule = made(any_env)
    any_env.fire_next(schedule)
    mine = claimed(any_env)

    assert external_runs.finish(any_env.runtime, mine, DONE) is not None
    assert external_runs.finish(any_env.runtime, mine, DONE) is None
    assert external_runs.finish(any_env.runtime, mine, FAILED) is None

    run = newest(schedule)
    assert (run.status, run.result, any_env.state(schedule).success_count) == ("succeeded", "sent", 1)


def test_a_failed_attempt_is_retried_by_any_worker(any_env: Env) -> None:
    schedule = made(any_env)
    any_env.fire_next(schedule)
    first = claimed(any_env)

    external_runs.finish(any_env.runtime, first, FAILED)
    assert (newest(schedule).status, claim(any_env)) == ("retrying", [])
    schedule.pause()
    any_env.advance(MINUTE)
    any_env.dispatch()

    second = claimed(any_env, worker="two")
    assert (second.uid, second.attempt, second.worker) == (first.uid, 2, "two")
    external_runs.finish(any_env.runtime, second, FAILED)
    assert (newest(schedule).status, any_env.state(schedule).status) == ("failed", "paused")


def test_a_final_failure_is_not_retried(env: Env) -> None:
    schedule = made(env)
    env.fire_next(schedule)
    external_runs.finish(
        env.runtime, claimed(env), AttemptResult(AttemptOutcome.FAILED, error="no such user", is_final=True)
    )
    assert newest(schedule).status == "failed"


def test_a_run_waiting_for_an_external_run_starts_when_it_ends(any_env: Env) -> None:
    schedule = made(any_env, overlap="buffer_all")
    any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    mine = claimed(any_env, count=5)

    assert (statuses(schedule), claim(any_env)) == (["running", "buffered"], [])
    external_runs.finish(any_env.runtime, mine, DONE)

    assert claimed(any_env).number == 2


def test_a_run_stays_active_for_ten_minutes_without_a_heartbeat_and_not_longer(any_env: Env) -> None:
    schedule = made(any_env, retry=ONCE)
    any_env.fire_next(schedule)
    claimed(any_env)
    schedule.pause()

    any_env.advance(EXTERNAL_SILENCE - SECOND)
    assert (any_env.recover().lost, newest(schedule).status) == (0, "running")
    any_env.advance(SECOND)
    assert (any_env.recover().lost, newest(schedule).status) == (1, "lost")


def test_heartbeats_keep_a_run_alive(any_env: Env) -> None:
    schedule = made(any_env)
    any_env.fire_next(schedule)
    mine = claimed(any_env)
    schedule.pause()

    for _ in range(5):
        any_env.advance(EXTERNAL_SILENCE - SECOND)
        assert heartbeat(any_env, mine) == ([mine.uid], [])
        assert any_env.recover().lost == 0

    assert external_runs.finish(any_env.runtime, mine, DONE) is not None


def test_a_lost_run_is_claimed_again_and_its_first_worker_is_fenced_out(any_env: Env) -> None:
    schedule = made(any_env)
    any_env.fire_next(schedule)
    first = claimed(any_env)
    schedule.pause()

    any_env.advance(EXTERNAL_SILENCE)
    any_env.recover()
    assert newest(schedule).status == "retrying"
    assert external_runs.finish(any_env.runtime, first, DONE) is None, "while it waits for its retry"
    any_env.advance(MINUTE)
    any_env.dispatch()
    assert external_runs.finish(any_env.runtime, first, DONE) is None, "while it waits for a worker"
    any_env.clock.set(present(first.started_at) - MINUTE)  # another server answers, and its clock is behind
    second = claimed(any_env, worker="two")
    assert fence_of(present(second.started_at)) == fence_of(present(first.started_at)) + 1

    assert external_runs.finish(any_env.runtime, first, DONE) is None, "while another worker holds it"
    assert heartbeat(any_env, first) == ([], [first.uid])
    assert external_runs.finish(any_env.runtime, second, DONE) is not None
    assert newest(schedule).state.attempt == 2


def test_the_same_worker_is_fenced_out_of_its_own_lost_attempt(env: Env) -> None:
    schedule = made(env)
    env.fire_next(schedule)
    first = claimed(env)
    schedule.pause()
    env.advance(EXTERNAL_SILENCE)
    env.recover()
    env.advance(MINUTE)
    env.dispatch()

    again = claimed(env)

    assert (again.uid, again.worker, again.token == first.token) == (first.uid, first.worker, False)
    assert external_runs.finish(env.runtime, first, DONE) is None


@pytest.mark.parametrize("how", ["cancel", "terminate", "replaced"])
def test_a_worker_learns_with_its_heartbeat_which_run_to_stop(any_env: Env, how: str) -> None:
    schedule = made(any_env, overlap="cancel_other")
    run = any_env.fire_next(schedule)
    mine = claimed(any_env)
    kept = made(any_env, "kept")
    kept.trigger()
    other = claimed(any_env)

    if how == "replaced":
        any_env.fire_next(schedule)
    else:
        getattr(run, how)()

    assert heartbeat(any_env, mine, other) == ([other.uid], [mine.uid])
    assert external_runs.finish(any_env.runtime, mine, DONE) is None
    assert run.refresh().status == ("terminated" if how == "terminate" else "cancelled")


def test_a_cancelled_waiting_run_cannot_be_claimed(any_env: Env) -> None:
    any_env.fire_next(made(any_env)).cancel()
    assert claim(any_env) == []


def test_a_heartbeat_ignores_runs_of_other_workers(any_env: Env) -> None:
    any_env.fire_next(made(any_env))
    mine = claimed(any_env)
    any_env.advance(SECOND)

    assert heartbeat(any_env, mine, worker="two") == ([], [mine.uid])
    assert any_env.run_row(mine.uid).heartbeat_at == mine.heartbeat_at
    assert external_runs.heartbeat(any_env.runtime, "one", ["nothing", mine.uid, mine.uid], namespace="default") == (
        [mine.uid],
        ["nothing"],
    )


def test_concurrent_heartbeats_fires_and_claims_lose_no_run(any_env: Env) -> None:
    schedule = made(any_env)
    for _ in range(30):
        any_env.fire_next(schedule)
    mine = [found.run for found in claim(any_env, count=30)]

    def work() -> int:
        shuffled = mine[::-1]
        return min(len(heartbeat(any_env, *batch)[0]) for batch in (mine, shuffled) for _ in range(10))

    assert in_children(3, work) == [30, 30, 30]
    for run in mine:
        assert external_runs.finish(any_env.runtime, run, DONE) is not None


@pytest.fixture
def silent(any_env: Env) -> SilentDatabase:
    return silent_database(any_env.runtime)


def test_a_claim_whose_answer_was_lost_returns_the_same_runs(any_env: Env, silent: SilentDatabase) -> None:
    schedule = made(any_env)
    for _ in range(4):
        any_env.fire_next(schedule)
    silent.lose(2)

    mine = claim(any_env, count=2)

    assert [found.run.number for found in mine] == [1, 2]
    assert statuses(schedule) == ["running", "running", "pending", "pending"]


def test_an_end_whose_answer_was_lost_is_recognised_when_repeated(any_env: Env, silent: SilentDatabase) -> None:
    schedule = made(any_env)
    any_env.fire_next(schedule)
    mine = claimed(any_env)
    silent.lose(2)

    assert external_runs.finish(any_env.runtime, mine, DONE) is not None
    assert external_runs.finish(any_env.runtime, mine, DONE) is None
    assert any_env.state(schedule).success_count == 1
