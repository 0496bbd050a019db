"""External runs: claimed by one worker each, kept alive by heartbeats, ended once, lost in silence and given again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain import external_runs
from rqsched.chain.external_runs import Claimed
from rqsched.chain.reconcile.runs import EXTERNAL_SILENCE
from rqsched.core.model import Run
from rqsched.core.policy import RetryPolicy
from rqsched.core.settle import AttemptOutcome, AttemptResult
from rqsched.errors import RunNotFoundError
from rqsched.store.database import Database
from tests.store.children import in_children
from tests.support.invariants import check_invariants
from tests.support.rig import MINUTE, ONCE, SECOND, Rig, newest, statuses

T = TypeVar("T")
DONE = AttemptResult(AttemptOutcome.SUCCEEDED, result='"sent"')
FAILED = AttemptResult(AttemptOutcome.FAILED, error="no answer")


@pytest.fixture(autouse=True)
def _invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    rig: Rig = request.getfixturevalue("any_rig" if "any_rig" in request.fixturenames else "rig")
    yield
    check_invariants(rig.runtime)


def made(rig: Rig, schedule_id: str = "report", **options: Any) -> ScheduleHandle:
    """A schedule every minute whose runs wait for a worker of any language."""
    given = {"overlap": "allow_all", "retry": RetryPolicy(max_retries=1, base=MINUTE, then="continue"), **options}
    return rig.create(schedule_id, runs="report.generate", executor="external", **given)


def claim(rig: Rig, *queues: str, worker: str = "one", count: int = 1, namespace: str = "default") -> list[Claimed]:
    return external_runs.claim(rig.runtime, queues or ("default",), worker, namespace=namespace, count=count)


def claimed(rig: Rig, **options: Any) -> Run:
    """The one run that waits, claimed."""
    (found,) = claim(rig, **options)
    return found.run


def heartbeat(rig: Rig, *runs: Run, worker: str = "one", namespace: str = "default") -> tuple[list[str], list[str]]:
    return external_runs.heartbeat(rig.runtime, worker, [run.uid for run in runs], namespace=namespace)


def test_a_claimed_run_is_not_given_to_another_worker(any_rig: Rig) -> None:
    schedule = made(any_rig)
    run = any_rig.occur(schedule)

    mine = claimed(any_rig)

    assert (mine.uid, mine.status, mine.worker, mine.attempt) == (run.uid, "running", "one", 1)
    assert mine.started_at == mine.heartbeat_at == any_rig.clock.now()
    assert claim(any_rig, worker="two") == []


def test_runs_executed_by_rq_cannot_be_claimed(rig: Rig) -> None:
    rig.occur(rig.create())
    assert claim(rig) == []


def test_an_external_run_is_on_no_queue_of_rq(any_rig: Rig) -> None:
    any_rig.occur(made(any_rig))
    any_rig.advance(MINUTE)
    assert any_rig.recover().deliveries == 0
    assert any_rig.queued() == []


def test_workers_that_claim_at_once_never_get_the_same_run(any_rig: Rig) -> None:
    schedule = made(any_rig)
    for _ in range(40):
        any_rig.occur(schedule)

    def work() -> list[str]:
        found: list[str] = []
        while some := claim(any_rig, count=3):
            found += [one.run.uid for one in some]
        return found

    taken = [uid for uids in in_children(4, work) for uid in uids]

    assert len(taken) == len(set(taken)) == 40
    assert statuses(schedule) == ["running"] * 40


def test_a_worker_takes_from_its_queues_the_most_important_first_and_then_the_oldest(any_rig: Rig) -> None:
    for name, options in (("a", {}), ("b", {"queue": "high"}), ("c", {"priority": 5}), ("d", {"queue": "other"})):
        made(any_rig, name, **options).trigger()
        any_rig.advance(SECOND)

    order = [found.schedule.schedule_id for found in claim(any_rig, "default", "high", count=100)]

    assert order == ["c", "a", "b"]
    assert claim(any_rig, "default", "high") == []


def test_a_claim_returns_up_to_the_requested_count(any_rig: Rig) -> None:
    schedule = made(any_rig)
    for _ in range(3):
        any_rig.occur(schedule)
    assert [len(claim(any_rig, count=2)) for _ in range(3)] == [2, 1, 0]


def test_runs_of_another_namespace_cannot_be_claimed_or_found(any_rig: Rig) -> None:
    run = any_rig.occur(made(any_rig, namespace="tenant"))

    assert claim(any_rig) == []
    mine = claimed(any_rig, namespace="tenant")
    assert heartbeat(any_rig, mine) == ([], [run.uid])
    assert heartbeat(any_rig, mine, namespace="tenant") == ([run.uid], [])
    assert external_runs.find(any_rig.runtime, run.uid, "tenant").run.uid == run.uid
    with pytest.raises(RunNotFoundError):
        external_runs.find(any_rig.runtime, run.uid, "default")


def test_a_run_of_a_paused_or_deleted_schedule_can_be_claimed(any_rig: Rig) -> None:
    paused, deleted = made(any_rig, "paused"), made(any_rig, "deleted")
    for schedule in (paused, deleted):
        schedule.trigger()
    paused.pause()
    deleted.delete()
    assert {found.schedule.schedule_id for found in claim(any_rig, count=9)} == {"paused", "deleted"}


def test_a_run_ends_once(any_rig: Rig) -> None:
    schedule = made(any_rig)
    any_rig.occur(schedule)
    mine = claimed(any_rig)

    assert external_runs.finish(any_rig.runtime, mine, DONE) is not None
    assert external_runs.finish(any_rig.runtime, mine, DONE) is None
    assert external_runs.finish(any_rig.runtime, mine, FAILED) is None

    run = newest(schedule)
    assert (run.status, run.result, any_rig.state(schedule).success_count) == ("succeeded", "sent", 1)


def test_a_failed_attempt_is_retried_by_any_worker(any_rig: Rig) -> None:
    schedule = made(any_rig)
    any_rig.occur(schedule)
    first = claimed(any_rig)

    external_runs.finish(any_rig.runtime, first, FAILED)
    assert (newest(schedule).status, claim(any_rig)) == ("retrying", [])
    schedule.pause()
    any_rig.advance(MINUTE)
    any_rig.dispatch()

    second = claimed(any_rig, worker="two")
    assert (second.uid, second.attempt, second.worker) == (first.uid, 2, "two")
    external_runs.finish(any_rig.runtime, second, FAILED)
    assert (newest(schedule).status, any_rig.state(schedule).status) == ("failed", "paused")


def test_a_final_failure_is_not_retried(rig: Rig) -> None:
    schedule = made(rig)
    rig.occur(schedule)
    external_runs.finish(
        rig.runtime, claimed(rig), AttemptResult(AttemptOutcome.FAILED, error="no such user", is_final=True)
    )
    assert newest(schedule).status == "failed"


def test_a_run_waiting_for_an_external_run_starts_when_it_ends(any_rig: Rig) -> None:
    schedule = made(any_rig, overlap="buffer_all")
    any_rig.occur(schedule)
    any_rig.occur(schedule)
    mine = claimed(any_rig, count=5)

    assert (statuses(schedule), claim(any_rig)) == (["running", "buffered"], [])
    external_runs.finish(any_rig.runtime, mine, DONE)

    assert claimed(any_rig).number == 2


def test_a_run_stays_active_for_ten_minutes_without_a_heartbeat_and_not_longer(any_rig: Rig) -> None:
    schedule = made(any_rig, retry=ONCE)
    any_rig.occur(schedule)
    claimed(any_rig)
    schedule.pause()

    any_rig.advance(EXTERNAL_SILENCE - SECOND)
    assert (any_rig.recover().lost, newest(schedule).status) == (0, "running")
    any_rig.advance(SECOND)
    assert (any_rig.recover().lost, newest(schedule).status) == (1, "lost")
    assert timedelta(minutes=10) == EXTERNAL_SILENCE


def test_heartbeats_keep_a_run_alive(any_rig: Rig) -> None:
    schedule = made(any_rig)
    any_rig.occur(schedule)
    mine = claimed(any_rig)
    schedule.pause()

    for _ in range(5):
        any_rig.advance(EXTERNAL_SILENCE - SECOND)
        assert heartbeat(any_rig, mine) == ([mine.uid], [])
        assert any_rig.recover().lost == 0

    assert external_runs.finish(any_rig.runtime, mine, DONE) is not None


def test_a_lost_run_is_claimed_again_and_its_first_worker_is_fenced_out(any_rig: Rig) -> None:
    schedule = made(any_rig)
    any_rig.occur(schedule)
    first = claimed(any_rig)
    schedule.pause()

    any_rig.advance(EXTERNAL_SILENCE)
    any_rig.recover()
    assert newest(schedule).status == "retrying"
    assert external_runs.finish(any_rig.runtime, first, DONE) is None, "while it waits for its retry"
    any_rig.advance(MINUTE)
    any_rig.dispatch()
    assert external_runs.finish(any_rig.runtime, first, DONE) is None, "while it waits for a worker"
    second = claimed(any_rig, worker="two")

    assert external_runs.finish(any_rig.runtime, first, DONE) is None, "while another worker holds it"
    assert heartbeat(any_rig, first) == ([], [first.uid])
    assert external_runs.finish(any_rig.runtime, second, DONE) is not None
    assert newest(schedule).state.attempt == 2


def test_the_same_worker_is_fenced_out_of_its_own_lost_attempt(rig: Rig) -> None:
    schedule = made(rig)
    rig.occur(schedule)
    first = claimed(rig)
    schedule.pause()
    rig.advance(EXTERNAL_SILENCE)
    rig.recover()
    rig.advance(MINUTE)
    rig.dispatch()

    again = claimed(rig)

    assert (again.uid, again.worker, again.token == first.token) == (first.uid, first.worker, False)
    assert external_runs.finish(rig.runtime, first, DONE) is None


@pytest.mark.parametrize("how", ["cancel", "terminate", "replaced"])
def test_a_worker_learns_with_its_heartbeat_which_run_to_stop(any_rig: Rig, how: str) -> None:
    schedule = made(any_rig, overlap="cancel_other")
    run = any_rig.occur(schedule)
    mine = claimed(any_rig)
    kept = made(any_rig, "kept")
    kept.trigger()
    other = claimed(any_rig)

    if how == "replaced":
        any_rig.occur(schedule)
    else:
        getattr(run, how)()

    assert heartbeat(any_rig, mine, other) == ([other.uid], [mine.uid])
    assert external_runs.finish(any_rig.runtime, mine, DONE) is None
    assert run.refresh().status == ("terminated" if how == "terminate" else "cancelled")


def test_a_cancelled_waiting_run_cannot_be_claimed(any_rig: Rig) -> None:
    any_rig.occur(made(any_rig)).cancel()
    assert claim(any_rig) == []


def test_a_heartbeat_ignores_runs_of_other_workers(any_rig: Rig) -> None:
    any_rig.occur(made(any_rig))
    mine = claimed(any_rig)
    any_rig.advance(SECOND)

    assert heartbeat(any_rig, mine, worker="two") == ([], [mine.uid])
    assert any_rig.run_row(mine.uid).heartbeat_at == mine.heartbeat_at
    assert external_runs.heartbeat(any_rig.runtime, "one", ["nothing", mine.uid, mine.uid], namespace="default") == (
        [mine.uid],
        ["nothing"],
    )


def test_concurrent_heartbeats_fires_and_claims_lose_no_run(any_rig: Rig) -> None:
    schedule = made(any_rig)
    for _ in range(30):
        any_rig.occur(schedule)
    mine = [found.run for found in claim(any_rig, count=30)]

    def work() -> int:
        shuffled = mine[::-1]
        return min(len(heartbeat(any_rig, *batch)[0]) for batch in (mine, shuffled) for _ in range(10))

    assert in_children(3, work) == [30, 30, 30]
    for run in mine:
        assert external_runs.finish(any_rig.runtime, run, DONE) is not None


class ForgetfulDatabase(Database):
    """A database that commits and then does not answer, as often as it is told."""

    silent = 0

    def _once(self, work: Callable[[Connection], T], *, is_read_only: bool = False) -> T:
        result = super()._once(work, is_read_only=is_read_only)
        if self.silent and not is_read_only:
            self.silent -= 1
            raise sa.exc.OperationalError("COMMIT", {}, sqlite3.OperationalError("database is locked"))
        return result


@pytest.fixture
def forgetful(any_rig: Rig) -> ForgetfulDatabase:
    any_rig.runtime.database.close()
    any_rig.runtime.database = ForgetfulDatabase(any_rig.runtime.database.url)
    return any_rig.runtime.database


def test_a_claim_whose_answer_was_lost_returns_the_same_runs(any_rig: Rig, forgetful: ForgetfulDatabase) -> None:
    schedule = made(any_rig)
    for _ in range(4):
        any_rig.occur(schedule)
    forgetful.silent = 2

    mine = claim(any_rig, count=2)

    assert [found.run.number for found in mine] == [1, 2]
    assert statuses(schedule) == ["running", "running", "pending", "pending"]


def test_an_end_whose_answer_was_lost_is_recognised_when_repeated(any_rig: Rig, forgetful: ForgetfulDatabase) -> None:
    schedule = made(any_rig)
    any_rig.occur(schedule)
    mine = claimed(any_rig)
    forgetful.silent = 2

    assert external_runs.finish(any_rig.runtime, mine, DONE) is not None
    assert external_runs.finish(any_rig.runtime, mine, DONE) is None
    assert any_rig.state(schedule).success_count == 1
