"""Overlap in motion: what waits drains when the run ahead ends, and runs are cancelled and terminated from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis
from sqlalchemy.engine import Connection

from rqsched import current_run
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.chain.execution import Claim, claim_run
from rqsched.core import audit
from rqsched.core.policy import RetryPolicy
from rqsched.store.tables import runs, schedules
from tests.support.narrow import present
from tests.support.rig import MINUTE, ONCE, Rig, events, job_id, run_job_id, statuses


def running(rig: Rig, schedule: ScheduleHandle) -> tuple[RunHandle, Claim]:
    """A run that some process executes."""
    run = rig.occur(schedule)
    claim = claim_run(rig.runtime, job_id(run.state))
    assert claim is not None
    rig.redis.lrem("rq:queue:default", 0, run_job_id(run))
    return run.refresh(), claim


def runs_of(schedule: ScheduleHandle) -> list[RunHandle]:
    return list(reversed(schedule.runs(limit=500).items))


def test_a_waiting_run_starts_when_the_run_ahead_ends(any_rig: Rig) -> None:
    schedule = any_rig.create(overlap="buffer_all")
    any_rig.occur(schedule)
    any_rig.occur(schedule)
    any_rig.occur(schedule)
    assert statuses(schedule) == ["pending", "buffered", "buffered"]

    any_rig.work()

    assert statuses(schedule) == ["succeeded"] * 3, "each end has put the next one on the queue"
    assert len(any_rig.calls) == 3
    assert any_rig.state(schedule).buffer_depth == 0


def test_waiting_runs_start_one_at_a_time_first_in_first_out(any_rig: Rig) -> None:
    order: list[str] = []

    def note() -> list[str]:
        order.append(current_run().instance_id)
        return [run.status for run in runs_of(schedule)]

    any_rig.register("note", note)
    schedule = any_rig.create(overlap="buffer_all")
    for _ in range(4):
        any_rig.occur(schedule)

    any_rig.work()

    runs = runs_of(schedule)
    assert order == [run.instance_id for run in runs]
    assert [[status in {"pending", "running"} for status in run.result].count(True) for run in runs] == [1] * 4


@pytest.mark.parametrize("policy", ["buffer_one", "buffer_all"])
def test_a_waiting_run_waits_for_the_retries_of_the_one_ahead(rig: Rig, policy: str) -> None:
    def fail_once() -> None:
        if current_run().attempt == 1:
            raise ValueError("not yet")

    rig.register("flaky", fail_once)
    schedule = rig.create(runs="flaky", overlap=policy, retry=RetryPolicy(max_retries=1, base=3 * MINUTE))
    rig.turn(schedule)
    rig.occur(schedule)
    assert statuses(schedule) == ["retrying", "buffered"]

    rig.clock.set(present(runs_of(schedule)[0].retry_at))
    rig.dispatch()
    rig.work()

    assert statuses(schedule)[0] == "succeeded"
    assert "buffered" not in statuses(schedule)[:2]


@pytest.mark.parametrize("end", ["failure", "cancel", "terminate"])
def test_a_waiting_run_starts_whatever_the_outcome_of_the_run_ahead(any_rig: Rig, end: str) -> None:
    schedule = any_rig.create(overlap="buffer_one", retry=ONCE, runs="fail")
    first = any_rig.occur(schedule)
    any_rig.occur(schedule)
    assert statuses(schedule) == ["pending", "buffered"]

    endings: dict[str, Callable[[], object]] = {
        "failure": any_rig.work,
        "cancel": first.cancel,
        "terminate": first.terminate,
    }
    endings[end]()

    ended, drained = statuses(schedule)
    assert ended == {"failure": "failed", "cancel": "cancelled", "terminate": "terminated"}[end]
    assert drained in {"pending", "failed"}


@pytest.fixture(autouse=True)
def _failing(request: pytest.FixtureRequest) -> None:
    """The workflow `fail`."""
    for name in ("rig", "any_rig"):
        if name in request.fixturenames:
            request.getfixturevalue(name).register("fail", lambda: 1 / 0)


def test_waiting_runs_of_a_paused_schedule_start_after_resume(any_rig: Rig) -> None:
    schedule = any_rig.create(overlap="buffer_all")
    any_rig.occur(schedule)
    any_rig.occur(schedule)
    schedule.pause()

    any_rig.work()
    assert statuses(schedule) == ["succeeded", "buffered"]
    assert any_rig.recover().drained == 0

    schedule.resume()
    any_rig.work()
    assert statuses(schedule) == ["succeeded", "succeeded"]


def test_a_deleted_schedules_waiting_runs_are_dropped_with_one_event(rig: Rig) -> None:
    schedule = rig.create(overlap="buffer_all")
    for _ in range(3):
        rig.occur(schedule)

    schedule.delete()
    rig.work()

    assert statuses(schedule) == ["succeeded", "cancelled", "cancelled"]
    (deleted,) = events(schedule, audit.DELETED)
    assert deleted.payload["dropped_buffered"] == 2


def test_a_trigger_waits_behind_an_occurrence(rig: Rig) -> None:
    schedule = rig.create(overlap="buffer_all")
    rig.occur(schedule)

    result = schedule.trigger()

    assert (result.outcome, result.buffer_depth) == ("buffered", 1)
    rig.work()
    assert [(run.kind, run.status) for run in runs_of(schedule)] == [
        ("scheduled", "succeeded"),
        ("manual", "succeeded"),
    ]


def test_a_serial_backfill_runs_one_occurrence_after_another(any_rig: Rig) -> None:
    schedule = any_rig.create(spec="* * * * *")
    any_rig.advance(5 * MINUTE)
    start = any_rig.clock.now() - 4 * MINUTE

    schedule.backfill(start, any_rig.clock.now())
    assert sorted(statuses(schedule)) == ["buffered"] * 3 + ["pending"]
    any_rig.work()

    assert statuses(schedule) == ["succeeded"] * 4
    assert any_rig.state(schedule).backfill_waiting == 0


OVER = "2026-01-15T12:02:30Z"
"""Two occurrences after a rig's clock starts: a spec that ends here is over then."""


@pytest.mark.parametrize("status", ["active", "paused", "done", "dead"])
def test_reconcile_drains_a_backfill_in_every_status(any_rig: Rig, status: str) -> None:
    schedule = any_rig.create(
        spec={"cron_expressions": ["* * * * *"], **({"end_at": OVER} if status == "done" else {})}
    )
    if status == "dead":
        schedule.update("fail", retry=RetryPolicy(max_retries=0, then="dead"))
    start = any_rig.clock.now()
    for _ in range(3):
        any_rig.turn(schedule)
    if status == "paused":
        schedule.pause()
    assert any_rig.state(schedule).status == status
    schedule.backfill(start - 3 * MINUTE, start)
    first = runs_of(schedule)[-3]
    assert (first.status, any_rig.state(schedule).backfill_waiting) == ("pending", 2)

    lose_drain(any_rig, first)

    assert any_rig.recover().drained == 1
    assert statuses(schedule)[-3:] == ["succeeded", "pending", "buffered"]
    assert any_rig.recover().drained == 0, "the one ahead is unfinished now"


def lose_drain(rig: Rig, run: RunHandle) -> None:
    """The run has ended and what waited for it has not started: a writer that knew nothing of drains."""

    def work(connection: Connection) -> None:
        connection.execute(sa.update(runs).where(runs.c.uid == run.uid).values(status="succeeded"))
        connection.execute(
            sa.update(schedules).where(schedules.c.uid == run.state.schedule_uid).values(backfill_unfinished=0)
        )

    rig.runtime.database.transact(work)
    rig.redis.lrem("rq:queue:default", 0, run_job_id(run))


def test_a_cancelled_pending_run_is_taken_off_its_queue(any_rig: Rig) -> None:
    schedule = any_rig.create()
    run = any_rig.occur(schedule)

    run.cancel()

    assert run.status == "cancelled"
    assert any_rig.queued() == []
    assert not any_rig.redis.exists(f"rq:job:{run_job_id(run)}")
    any_rig.work()
    assert any_rig.calls == []


@pytest.mark.parametrize("end", [RunHandle.cancel, RunHandle.terminate], ids=["cancel", "terminate"])
def test_ending_an_ended_run_changes_nothing(rig: Rig, end: Callable[[RunHandle], RunHandle]) -> None:
    schedule = rig.create()
    run = rig.turn(schedule)

    assert end(run).status == "succeeded", "one that has ended already is left as it is"
    other = rig.occur(schedule)
    first = end(other).status
    assert end(other).status == first
    assert rig.state(schedule).error_count == 0


def test_a_cancelled_retrying_run_is_not_retried(rig: Rig) -> None:
    schedule = rig.create(runs="fail", spec="0 * * * *", retry=RetryPolicy(max_retries=3, base=MINUTE))
    run = rig.turn(schedule, 60 * MINUTE)

    run.cancel()
    rig.advance(MINUTE)
    rig.dispatch()

    assert run.refresh().status == "cancelled"
    assert rig.queued() == []


def test_a_cancelled_waiting_run_leaves_the_buffer(rig: Rig) -> None:
    schedule = rig.create(overlap="buffer_all")
    for _ in range(3):
        rig.occur(schedule)

    runs_of(schedule)[1].cancel()

    assert rig.state(schedule).buffer_depth == 1
    rig.work()
    assert statuses(schedule) == ["succeeded", "cancelled", "succeeded"]


@pytest.fixture
def commands(redis: Redis) -> Iterator[Callable[[], list[Any]]]:
    """What RQ's workers are told, read from the channel of the worker `somebody`."""
    ear = redis.pubsub(ignore_subscribe_messages=True)
    ear.subscribe("rq:pubsub:somebody")
    ear.get_message(timeout=5)
    yield lambda: [message["data"] for _ in range(20) if (message := ear.get_message(timeout=0.01))]
    ear.close()


def perform_as_somebody(rig: Rig, run: RunHandle) -> None:
    """RQ has noted that the worker `somebody` performs the run's job."""
    rig.redis.hset(f"rq:job:{run_job_id(run)}", mapping={"status": "started", "worker_name": "somebody"})


def test_terminating_a_running_run_tells_rq_to_kill_its_horse(any_rig: Rig, commands: Callable[[], list[Any]]) -> None:
    run, _ = running(any_rig, any_rig.create())
    perform_as_somebody(any_rig, run)

    run.terminate()

    assert run.status == "terminated"
    (command,) = commands()
    assert b'"command": "stop-job"' in command
    assert run_job_id(run).encode() in command


def test_cancelling_a_running_run_kills_nothing(rig: Rig, commands: Callable[[], list[Any]]) -> None:
    run, _ = running(rig, rig.create())
    perform_as_somebody(rig, run)

    run.cancel()

    assert run.status == "cancelled"
    assert commands() == []


def test_terminating_a_run_without_a_job_in_redis_still_ends_it(rig: Rig) -> None:
    run, _ = running(rig, rig.create())
    rig.redis.flushall()

    assert run.terminate().status == "terminated"


@pytest.mark.parametrize(
    ("policy", "status"),
    [("cancel_other", "cancelled"), ("terminate_other", "terminated")],
    ids=["cancel", "terminate"],
)
def test_a_replaced_pending_run_never_starts(any_rig: Rig, policy: str, status: str) -> None:
    schedule = any_rig.create(overlap=policy)
    first = any_rig.occur(schedule)

    second = any_rig.occur(schedule)

    assert statuses(schedule) == [status, "pending"]
    assert any_rig.queued() == [run_job_id(second)]
    assert claim_run(any_rig.runtime, job_id(first.state)) is None


def test_terminate_other_kills_the_old_horse_and_starts_the_new_run(
    rig: Rig, commands: Callable[[], list[Any]]
) -> None:
    schedule = rig.create(overlap="terminate_other")
    run, _ = running(rig, schedule)
    perform_as_somebody(rig, run)

    rig.occur(schedule)

    assert statuses(schedule) == ["terminated", "pending"]
    assert b"stop-job" in commands()[0]


def test_cancel_other_stops_the_old_run_at_its_next_checkpoint(rig: Rig) -> None:
    """The first run executes in this thread; the next occurrence fires in another one meanwhile."""
    steps: list[str] = []

    def work() -> None:
        if len(runs_of(schedule)) > 1:
            return
        rig.advance()
        fire = threading.Thread(target=lambda: rig.fire(schedule.refresh()))
        fire.start()
        fire.join()
        steps.append("before")
        current_run().checkpoint()
        steps.append("after")

    rig.register("work", work)
    schedule = rig.create(runs="work", overlap="cancel_other")

    rig.turn(schedule)

    assert steps == ["before"]
    assert statuses(schedule) == ["cancelled", "succeeded"]


def test_allow_all_runs_side_by_side(rig: Rig) -> None:
    schedule = rig.create(overlap="allow_all")
    for _ in range(3):
        rig.occur(schedule)

    assert statuses(schedule) == ["pending"] * 3
    assert len(rig.queued()) == 3
