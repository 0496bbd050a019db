"""Arming: one Lua call writes a link's hash and its place, leaves a live link alone and replaces a dead one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry

from rqsched import jobs
from rqsched.core.ids import LinkId, derived_uid
from rqsched.transport.job_queue import STARTED_GRACE, rq_time
from rqsched.transport.transport import FIRE, Arm
from tests.chain.conftest import MakeRig
from tests.support.narrow import present, text
from tests.support.rig import MINUTE, SECOND, Rig, link_id, run_job_id

LIST = "rqsched"


def arm(rig: Rig, n: int = 1, *, after: timedelta = MINUTE) -> Arm:
    """A link of some schedule, due so long after now."""
    now = rig.clock.now()
    return Arm(LinkId(derived_uid(now, "some schedule"), n), now + after)


def put(rig: Rig, *arms: Arm) -> int:
    return rig.transport.arm(arms, now=rig.clock.now())


def set_hash(rig: Rig, link: Arm, **fields: str) -> None:
    for name, value in fields.items():
        rig.redis.hset(f"rq:job:{link.id}", name, value)


def test_a_future_link_waits_in_the_scheduled_set_at_its_sub_second_score(rig: Rig) -> None:
    link = arm(rig, after=timedelta(seconds=90, microseconds=123_456))

    assert put(rig, link) == 1

    assert rig.armed() == {str(link.id): pytest.approx(link.due_at.timestamp(), abs=1e-6)}
    assert rig.queued(LIST) == []
    assert rig.job(link.id).get_status() is JobStatus.SCHEDULED


@pytest.mark.parametrize("after", [timedelta(0), -MINUTE], ids=["due now", "overdue"])
def test_a_due_link_goes_on_the_list(rig: Rig, after: timedelta) -> None:
    link = arm(rig, after=after)

    put(rig, link)

    assert rig.queued(LIST) == [str(link.id)]
    assert rig.armed() == {}
    assert rig.job(link.id).get_status() is JobStatus.QUEUED


def test_a_link_is_never_seen_without_its_hash(rig: Rig) -> None:
    """One script writes both: where the connection dies between two commands, neither or both are there."""
    rig.redis.config_resetstat()

    put(rig, arm(rig))

    calls = {name: int(stats["calls"]) for name, stats in rig.redis.info("commandstats").items()}
    scripts = calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0)
    assert scripts == 1
    by_client = {name for name in calls if name.removeprefix("cmdstat_") in {"multi", "exec"}}
    assert by_client == set(), "the hash and the place are written by the script, not by separate commands"


def test_many_links_are_armed_at_once(rig: Rig) -> None:
    links = [arm(rig, n, after=MINUTE + n * SECOND) for n in range(1, 351)]

    assert put(rig, *links) == 350

    assert list(rig.armed()) == [str(link.id) for link in links]
    assert all(rig.redis.exists(f"rq:job:{link.id}") for link in links)


def test_a_schedules_first_link_is_armed_when_it_is_created(rig: Rig) -> None:
    schedule = rig.create()

    assert rig.armed() == {link_id(schedule): present(schedule.state.due_at).timestamp()}


def test_rq_reads_an_armed_link_as_one_of_its_own_jobs(rig: Rig) -> None:
    link = arm(rig)

    put(rig, link)

    job = rig.job(link.id)
    assert (job.func_name, job.func, job.args, job.kwargs) == (FIRE, jobs.fire, [], {}), "its id says everything"
    assert (job.origin, job.timeout, job.result_ttl) == (LIST, 600, 0)
    assert job.retries_left == 60, "an outage of SQL is retried by RQ"
    assert job.created_at == rig.clock.now()
    assert ScheduledJobRegistry(LIST, connection=rig.redis).get_job_ids() == [str(link.id)]
    assert LIST in {text(key).removeprefix("rq:queue:") for key in rig.redis.smembers("rq:queues")}


def test_rq_reads_a_run_job_as_one_of_its_own(rig: Rig) -> None:
    run = rig.occur(rig.create(timeout=30))

    job = rig.job(run_job_id(run))

    assert (job.func, job.args) == (jobs.execute, [])
    outage = rig.scheduler.settings.completion_outage.total_seconds()
    assert job.timeout == 30 + outage, "RQ leaves time to record the end through an outage"
    assert (job.result_ttl, job.failure_ttl) == (0, 86_400)


def test_nothing_is_left_in_redis_of_a_run_that_succeeded(rig: Rig) -> None:
    run = rig.occur(rig.create())
    before = set(rig.redis.keys("*"))

    rig.work()

    assert run.refresh().status == "succeeded"
    job_id = run_job_id(run)
    assert f"rq:job:{job_id}".encode() in before
    assert [key for key in rig.redis.keys("*") if job_id.encode() in key] == []
    registry = FinishedJobRegistry(run.queue or "default", connection=rig.redis)
    assert registry.get_job_ids() == []


def test_the_job_of_a_run_that_succeeded_is_kept_as_long_as_the_setting_says(make_rig: MakeRig) -> None:
    rig = make_rig(rq_result_ttl=60)
    run = rig.occur(rig.create())

    rig.work()

    assert 0 < rig.redis.ttl(f"rq:job:{run_job_id(run)}") <= 60


def test_an_armed_schedule_costs_no_more_memory_than_a_scheduled_job_of_rq(rig: Rig) -> None:
    links = [arm(rig, n) for n in range(1, 2001)]
    put(rig, arm(rig, 9_999))
    before = rig.redis.info("memory")["used_memory"]

    put(rig, *links)

    assert (rig.redis.info("memory")["used_memory"] - before) / len(links) <= 625


def listed(rig: Rig, link: Arm) -> None:
    """It waits on the list, behind an older one."""
    put(rig, arm(rig, 99, after=-MINUTE))
    rig.clock.advance(SECOND)
    put(rig, replace(link, due_at=rig.clock.now()))


def head_of_list(rig: Rig, link: Arm) -> None:
    put(rig, replace(link, due_at=rig.clock.now()))


def in_the_set(rig: Rig, link: Arm) -> None:
    put(rig, link)


def just_started(rig: Rig, link: Arm) -> None:
    head_of_list(rig, link)
    rig.redis.lpop(f"rq:queue:{LIST}")
    started_at = rig.clock.now() - STARTED_GRACE + SECOND
    set_hash(rig, link, status="started", started_at=rq_time(started_at))


def leased(rig: Rig, link: Arm) -> None:
    head_of_list(rig, link)
    rig.transport.lease(now=rig.clock.now(), lease=2 * SECOND, limit=10)


def overdue_within_the_grace(rig: Rig, link: Arm) -> None:
    put(rig, replace(link, due_at=rig.clock.now() + SECOND))
    rig.clock.advance(5 * SECOND)


ALIVE = [in_the_set, head_of_list, listed, just_started, leased, overdue_within_the_grace]


@pytest.mark.parametrize("bring_to_life", ALIVE)
def test_a_live_link_is_left_alone(rig: Rig, bring_to_life: Callable[[Rig, Arm], None]) -> None:
    link = arm(rig)
    bring_to_life(rig, link)
    before = (rig.armed(), rig.queued(LIST), rig.redis.hgetall(f"rq:job:{link.id}"))

    rig.clock.advance(timedelta(milliseconds=1))
    assert put(rig, link) == 0

    assert (rig.armed(), rig.queued(LIST), rig.redis.hgetall(f"rq:job:{link.id}")) == before


def finished(rig: Rig, link: Arm) -> None:
    set_hash(rig, link, data="x", status="finished", enqueued_at=rq_time(rig.clock.now()))


def failed(rig: Rig, link: Arm) -> None:
    put(rig, link)
    job = rig.job(link.id)
    rig.redis.zrem(rig.transport.scheduled_key, str(link.id))
    job.set_status(JobStatus.FAILED)
    FailedJobRegistry(LIST, connection=rig.redis).add(job, ttl=86_400)


def expired(rig: Rig, link: Arm) -> None:
    put(rig, link)
    rig.redis.delete(f"rq:job:{link.id}")
    rig.redis.zrem(rig.transport.scheduled_key, str(link.id))


def without_a_hash(rig: Rig, link: Arm) -> None:
    put(rig, link)
    rig.redis.delete(f"rq:job:{link.id}")


def without_data(rig: Rig, link: Arm) -> None:
    """RQ has set a status on a hash that was flushed meanwhile."""
    rig.redis.zadd(rig.transport.scheduled_key, {str(link.id): 1})
    set_hash(rig, link, status="started", started_at=rq_time(rig.clock.now()))


def popped_from_an_empty_list(rig: Rig, link: Arm) -> None:
    head_of_list(rig, link)
    rig.redis.lpop(f"rq:queue:{LIST}")


def popped_before_the_head(rig: Rig, link: Arm) -> None:
    popped_from_an_empty_list(rig, link)
    rig.clock.advance(SECOND)
    put(rig, arm(rig, 99, after=timedelta(0)))


def started_long_ago(rig: Rig, link: Arm) -> None:
    popped_from_an_empty_list(rig, link)
    set_hash(rig, link, status="started", started_at=rq_time(rig.clock.now() - STARTED_GRACE))


def lost_from_the_set(rig: Rig, link: Arm) -> None:
    put(rig, link)
    rig.redis.zrem(rig.transport.scheduled_key, str(link.id))


def overdue_beyond_the_grace(rig: Rig, link: Arm) -> None:
    """Nobody promotes what waits there: RQ's scheduler lost its process, and no dispatcher runs."""
    put(rig, replace(link, due_at=rig.clock.now() + SECOND))
    rig.clock.advance(SECOND + rig.runtime.settings.grace + timedelta(milliseconds=1))


DEAD = [
    overdue_beyond_the_grace,
    finished,
    failed,
    expired,
    without_a_hash,
    without_data,
    popped_from_an_empty_list,
    popped_before_the_head,
    started_long_ago,
    lost_from_the_set,
]


@pytest.mark.parametrize("kill", DEAD)
def test_a_dead_link_under_the_same_id_is_replaced(rig: Rig, kill: Callable[[Rig, Arm], None]) -> None:
    link = arm(rig, after=10 * MINUTE)
    kill(rig, link)

    assert put(rig, link) == 1

    assert rig.armed()[str(link.id)] == link.due_at.timestamp()
    job = rig.job(link.id)
    assert job.get_status() is JobStatus.SCHEDULED
    assert job.started_at is None
    assert job.func is jobs.fire


@pytest.mark.parametrize("kill", DEAD)
def test_a_dead_link_that_is_due_is_on_the_list_and_nowhere_else(rig: Rig, kill: Callable[[Rig, Arm], None]) -> None:
    link = arm(rig, after=10 * MINUTE)
    kill(rig, link)

    assert put(rig, replace(link, due_at=rig.clock.now())) == 1

    assert str(link.id) in rig.queued(LIST)
    assert str(link.id) not in rig.armed()


def test_a_run_job_pushed_in_front_does_not_make_the_others_look_dead(rig: Rig) -> None:
    """The head of a run queue may be younger than what waits behind it."""
    waiting = rig.occur(rig.create("waiting", queue="high"))
    rig.clock.advance(SECOND)
    rig.occur(rig.create("urgent", queue="high", priority=5))
    assert rig.queued("high")[1] == run_job_id(waiting)

    live = rig.transport.live_deliveries([waiting.state], now=rig.clock.now())

    assert live == [True]
    rig.redis.lrem("rq:queue:high", 1, run_job_id(waiting))
    assert rig.transport.live_deliveries([waiting.state], now=rig.clock.now()) == [False]


def wakes(rig: Rig) -> int:
    return int(rig.redis.llen(rig.transport.wake_key))


def test_a_link_earlier_than_the_head_wakes_a_dispatcher(rig: Rig) -> None:
    put(rig, arm(rig, 1, after=10 * MINUTE))
    rig.redis.delete(rig.transport.wake_key)

    put(rig, arm(rig, 2, after=20 * MINUTE))
    assert wakes(rig) == 0

    put(rig, arm(rig, 3, after=5 * MINUTE))
    assert wakes(rig) == 1


def test_a_due_link_wakes_a_dispatcher(rig: Rig) -> None:
    put(rig, arm(rig, 1, after=-MINUTE))

    assert wakes(rig) == 1
    assert 0 < rig.redis.ttl(rig.transport.wake_key) <= 60, "nobody listening leaves nothing behind"


def test_a_live_link_wakes_no_dispatcher(rig: Rig) -> None:
    put(rig, arm(rig))
    rig.redis.delete(rig.transport.wake_key)

    put(rig, arm(rig))

    assert wakes(rig) == 0


def test_waiting_ends_at_once_with_a_wake(rig: Rig) -> None:
    put(rig, arm(rig, after=-MINUTE))

    rig.transport.wait_for_wake(60)  # a wait that is not woken runs into the test's own timeout

    assert wakes(rig) == 0
