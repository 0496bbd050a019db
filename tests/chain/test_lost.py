"""Lost runs: found by heartbeats that stand still in three passes, and by nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import RunHandle
from rqsched.chain.settling import settle_run
from rqsched.core.audit import Event
from rqsched.core.model import Change, RunStatus
from rqsched.core.policy import RetryPolicy
from rqsched.core.settle import AttemptOutcome, AttemptResult
from rqsched.store import changes
from rqsched.store.tables import runs
from tests.support.damage import HOUR, repaired, started
from tests.support.narrow import present
from tests.support.rig import MINUTE, ONCE, SECOND, Rig, statuses


def token_of(run: RunHandle) -> str:
    """What its process signs its heartbeats with."""
    return present(run.refresh().state.token)


def test_a_run_without_heartbeats_is_lost_after_three_sightings(any_rig: Rig) -> None:
    schedule, run = started(any_rig)
    seen = []
    for _ in range(5):
        any_rig.recover()
        seen.append(run.refresh().status)
        any_rig.advance(15 * SECOND)

    assert seen == ["running", "running", "running", "lost", "lost"], "the first pass has nothing to compare with"
    assert "no sign of life" in present(run.error)
    assert any_rig.state(schedule).error_count == 1


def test_sightings_closer_than_the_interval_do_not_count(rig: Rig) -> None:
    _, run = started(rig)
    for _ in range(20):
        rig.recover()
        rig.advance(timedelta(milliseconds=700))

    assert run.refresh().status == "running", "twenty passes, but 14 seconds"


def test_a_run_with_heartbeats_is_never_lost(rig: Rig) -> None:
    _, run = started(rig)
    token = token_of(run)
    for _ in range(8):
        rig.runtime.database.transact(lambda c: changes.record_heartbeat(c, run.uid, token))
        rig.recover()
        rig.advance(15 * SECOND)

    assert run.refresh().status == "running"


def test_a_heartbeat_resets_the_count_of_sightings(any_rig: Rig) -> None:
    _, run = started(any_rig)
    seen = []
    for i in range(8):
        if i == 3:
            any_rig.runtime.database.transact(lambda c: changes.record_heartbeat(c, run.uid, token_of(run)))
        any_rig.recover()
        seen.append(run.refresh().status)
        any_rig.advance(15 * SECOND)

    assert seen == ["running"] * 6 + ["lost"] * 2


def test_a_run_with_a_new_heartbeat_during_the_pass_is_not_lost(rig: Rig) -> None:
    """Its process was frozen and wakes up after the pass has read it as lifeless."""
    _, run = started(rig, retry=RetryPolicy(max_retries=0, then="dead"))
    _, awake = started(rig, schedule_id="other")
    token = token_of(awake)

    def wake_up(change: Change, event: Event) -> None:
        rig.runtime.database.transact(lambda c: changes.record_heartbeat(c, awake.uid, token))

    rig.runtime.subscribers.append(wake_up)

    for _ in range(4):
        rig.recover()
        rig.advance(15 * SECOND)

    assert (run.refresh().status, awake.refresh().status) == ("lost", "running")


def test_a_run_that_ends_during_the_pass_keeps_its_end(rig: Rig) -> None:
    """Its process was frozen and wakes up after the pass has read it as lifeless, just to record that it succeeded."""
    _, run = started(rig, retry=RetryPolicy(max_retries=0, then="dead"))
    _, ending = started(rig, schedule_id="other")
    success = AttemptResult(AttemptOutcome.SUCCEEDED)

    def end(change: Change, event: Event) -> None:
        settle_run(rig.runtime, ending.uid, success, fence=lambda found: found.status is RunStatus.RUNNING)

    rig.runtime.subscribers.append(end)

    for _ in range(4):
        rig.recover()
        rig.advance(15 * SECOND)

    assert (run.refresh().status, ending.refresh().status) == ("lost", "succeeded")


def test_a_lost_run_with_attempts_left_is_retried(any_rig: Rig) -> None:
    schedule, run = started(any_rig, retry=RetryPolicy(max_retries=1, base=MINUTE))
    for _ in range(4):
        any_rig.recover()
        any_rig.advance(15 * SECOND)

    assert run.refresh().status == "retrying"
    any_rig.clock.set(present(run.retry_at))
    any_rig.dispatch()
    any_rig.work()
    assert (run.refresh().status, run.attempt) == ("succeeded", 2)
    assert [attempt["outcome"] for attempt in run.attempts] == ["lost", "succeeded"]
    assert statuses(schedule) == ["succeeded"]


def test_a_waiting_run_starts_when_the_run_ahead_is_lost(rig: Rig) -> None:
    schedule, _ = started(rig, overlap="buffer_one")
    schedule.trigger()
    assert statuses(schedule) == ["running", "buffered"]

    for _ in range(4):
        rig.recover()
        rig.advance(15 * SECOND)

    assert statuses(schedule) == ["lost", "pending"]


def test_flushing_redis_loses_no_run_that_executes(rig: Rig) -> None:
    """RQ's hash is gone while the horse lives: it is no evidence."""
    schedule, run = started(rig)
    for _ in range(6):
        rig.runtime.database.transact(lambda c: changes.record_heartbeat(c, run.uid, token_of(run)))
        rig.redis.flushall()
        rig.recover()
        rig.advance(15 * SECOND)

    assert statuses(schedule) == ["running"]
    assert rig.queued() == [], "neither lost nor repeated"


def test_an_outage_of_sql_loses_no_run(rig: Rig) -> None:
    """No process could send a heartbeat or compare one. The first pass afterwards is one sighting, however late."""
    _, run = started(rig)
    rig.recover()
    rig.advance(3 * HOUR)
    rig.recover()
    rig.recover()

    assert run.refresh().status == "running"
    rig.runtime.database.transact(lambda c: changes.record_heartbeat(c, run.uid, token_of(run)))
    for _ in range(3):
        rig.advance(15 * SECOND)
        rig.recover()
    assert run.refresh().status == "running"


@pytest.mark.parametrize("jump", [5 * HOUR, -5 * HOUR], ids=["forward", "backward"])
def test_a_jump_of_the_clock_loses_no_run(rig: Rig, jump: timedelta) -> None:
    _, run = started(rig)
    rig.recover()
    rig.advance(jump)

    for _ in range(5):
        rig.recover()

    assert run.refresh().status == "running"


def test_a_clock_set_back_does_not_keep_a_dead_run_alive(rig: Rig) -> None:
    _, run = started(rig)
    rig.recover()
    rig.advance(-5 * HOUR)

    for _ in range(5):
        rig.recover()
        rig.advance(15 * SECOND)

    assert run.refresh().status == "lost"


def silent_external(rig: Rig, heartbeat_at: datetime | None) -> RunHandle:
    schedule = rig.create(executor="external", runs="anything", spec=HOUR, retry=ONCE)
    run = rig.occur(schedule, HOUR)
    values = {"status": "running", "token": "x" * 26, "started_at": rig.clock.now(), "heartbeat_at": heartbeat_at}
    fetch = sa.update(runs).where(runs.c.uid == run.uid).values(**values)
    rig.runtime.database.transact(lambda connection: connection.execute(fetch))
    return run


@pytest.mark.parametrize("has_heartbeat", [True, False], ids=["silent since a heartbeat", "silent from the start"])
def test_a_silent_external_run_is_lost(any_rig: Rig, has_heartbeat: bool) -> None:
    run = silent_external(any_rig, any_rig.clock.now() + HOUR if has_heartbeat else None)
    any_rig.recover()
    any_rig.advance(timedelta(minutes=9, seconds=59))
    any_rig.recover()
    assert run.refresh().status == "running"

    any_rig.advance(SECOND)
    assert repaired(any_rig)["lost"] == 1

    assert run.refresh().status == "lost"
    assert "no heartbeat" in present(run.error)


def test_an_external_run_is_not_judged_by_the_heartbeats_of_rq_runs(rig: Rig) -> None:
    run = silent_external(rig, rig.clock.now() + HOUR)

    for _ in range(6):
        rig.recover()
        rig.advance(15 * SECOND)

    assert run.refresh().status == "running"
