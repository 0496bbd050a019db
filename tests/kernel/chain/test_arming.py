"""Arming: one Lua call writes a link's hash and its place, leaves a live link alone and replaces a dead one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry

from rqsched import jobs
from rqsched.kernel.chain import fire
from rqsched.kernel.transport.job_queue import rq_time
from rqsched.kernel.transport.transport import FIRE, LINK_STARTED_GRACE, LONGEST_RETRY, Arm
from tests.support.env import DAY, MINUTE, SECOND, Env, MakeEnv, link_id, run_job_id
from tests.support.links import LIST, arm, lease, put, set_hash
from tests.support.narrow import present, text


def test_a_future_link_waits_in_the_scheduled_set_at_its_sub_second_score(env: Env) -> None:
    link = arm(env, after=timedelta(seconds=90, microseconds=123_456))

    assert put(env, link) == 1

    assert env.armed() == {str(link.id): pytest.approx(link.due_at.timestamp(), abs=1e-6)}
    assert env.queued(LIST) == []
    assert env.job(link.id).get_status() is JobStatus.SCHEDULED


@pytest.mark.parametrize("after", [timedelta(0), -MINUTE], ids=["due now", "late"])
def test_a_due_link_goes_on_the_list(env: Env, after: timedelta) -> None:
    link = arm(env, after=after)

    put(env, link)

    assert env.queued(LIST) == [str(link.id)]
    assert env.armed() == {}
    assert env.job(link.id).get_status() is JobStatus.QUEUED


def test_a_link_is_never_seen_without_its_hash(env: Env) -> None:
    """One script writes both. If the connection dies, either both exist or neither."""
    put(env, arm(env, 99))  # now Redis knows the script
    env.redis.config_resetstat()

    put(env, arm(env))

    calls = {name: int(stats["calls"]) for name, stats in env.redis.info("commandstats").items()}
    scripts = calls.get("cmdstat_evalsha", 0) + calls.get("cmdstat_eval", 0)
    assert scripts == 1
    by_client = {name for name in calls if name.removeprefix("cmdstat_") in {"multi", "exec"}}
    assert by_client == set(), "the hash and the place are written by the script, not by separate commands"


def test_many_links_are_armed_at_once(env: Env) -> None:
    links = [arm(env, n, after=MINUTE + n * SECOND) for n in range(1, 351)]

    assert put(env, *links) == 350

    assert list(env.armed()) == [str(link.id) for link in links]
    assert all(env.redis.exists(f"rq:job:{link.id}") for link in links)


def test_a_schedules_first_link_is_armed_when_it_is_created(env: Env) -> None:
    schedule = env.create()

    assert env.armed() == {link_id(schedule): present(schedule.state.due_at).timestamp()}


def test_rq_reads_an_armed_link_as_one_of_its_own_jobs(env: Env) -> None:
    link = arm(env)

    put(env, link)

    job = env.job(link.id)
    assert (job.func_name, job.func, job.args, job.kwargs) == (FIRE, jobs.fire, [], {}), "its id says everything"
    assert (job.origin, job.timeout, job.result_ttl) == (LIST, 600, 0)
    assert job.retries_left == 60, "an outage of SQL is retried by RQ"
    assert job.created_at == env.clock.now()
    assert ScheduledJobRegistry(LIST, connection=env.redis).get_job_ids() == [str(link.id)]
    assert LIST in {text(key).removeprefix("rq:queue:") for key in env.redis.smembers("rq:queues")}


def test_rq_reads_a_run_job_as_one_of_its_own(env: Env) -> None:
    run = env.fire_next(env.create(timeout=30))

    job = env.job(run_job_id(run))

    assert (job.func, job.args) == (jobs.execute, [])
    outage = env.scheduler.settings.completion_outage.total_seconds()
    assert job.timeout == 30 + outage, "RQ leaves time to record the end through an outage"
    assert (job.result_ttl, job.failure_ttl) == (0, 86_400)


def test_nothing_is_left_in_redis_of_a_run_that_succeeded(env: Env) -> None:
    run = env.fire_next(env.create())
    before = set(env.redis.keys("*"))

    env.work()

    assert run.refresh().status == "succeeded"
    job_id = run_job_id(run)
    assert f"rq:job:{job_id}".encode() in before
    assert [key for key in env.redis.keys("*") if job_id.encode() in key] == []
    registry = FinishedJobRegistry(run.queue or "default", connection=env.redis)
    assert registry.get_job_ids() == []


def test_the_job_of_a_run_that_succeeded_is_kept_as_long_as_the_setting_says(make_env: MakeEnv) -> None:
    env = make_env(rq_result_ttl=60)
    run = env.fire_next(env.create())

    env.work()

    assert 0 < env.redis.ttl(f"rq:job:{run_job_id(run)}") <= 60


def test_an_armed_schedule_costs_no_more_memory_than_a_scheduled_job_of_rq(env: Env) -> None:
    links = [arm(env, n) for n in range(1, 2001)]
    put(env, arm(env, 9_999))
    before = env.redis.info("memory")["used_memory"]

    put(env, *links)

    assert (env.redis.info("memory")["used_memory"] - before) / len(links) <= 625


def listed(env: Env, link: Arm) -> None:
    """It waits on the list, behind an older one."""
    put(env, arm(env, 99, after=-MINUTE))
    env.clock.advance(SECOND)
    put(env, link._replace(due_at=env.clock.now()))


def head_of_list(env: Env, link: Arm) -> None:
    put(env, link._replace(due_at=env.clock.now()))


def in_the_set(env: Env, link: Arm) -> None:
    put(env, link)


def just_started(env: Env, link: Arm) -> None:
    head_of_list(env, link)
    env.redis.lpop(f"rq:queue:{LIST}")
    started_at = env.clock.now() - LINK_STARTED_GRACE + SECOND
    set_hash(env, link, status="started", started_at=rq_time(started_at))


def leased(env: Env, link: Arm) -> None:
    head_of_list(env, link)
    lease(env)


def late_within_the_grace(env: Env, link: Arm) -> None:
    put(env, link._replace(due_at=env.clock.now() + SECOND))
    env.clock.advance(5 * SECOND)


ALIVE = [in_the_set, head_of_list, listed, just_started, leased, late_within_the_grace]


@pytest.mark.parametrize("bring_to_life", ALIVE)
def test_a_live_link_is_left_alone(env: Env, bring_to_life: Callable[[Env, Arm], None]) -> None:
    link = arm(env)
    bring_to_life(env, link)
    before = (env.armed(), env.queued(LIST), env.redis.hgetall(f"rq:job:{link.id}"))

    env.clock.advance(timedelta(milliseconds=1))
    assert put(env, link) == 0

    assert (env.armed(), env.queued(LIST), env.redis.hgetall(f"rq:job:{link.id}")) == before


def test_a_link_that_is_due_and_put_off_is_left_alone(env: Env) -> None:
    """A plain worker postpones a link whose job raised by RQ's longest retry interval."""
    link = arm(env, after=SECOND)
    put(env, link)
    env.clock.advance(MINUTE)
    env.transport.put_back({str(link.id): env.clock.now() + LONGEST_RETRY})

    assert put(env, link) == 0
    assert env.transport.live_links([link], now=env.clock.now()) == [True]


def test_rq_puts_a_due_link_off_for_longer_than_we_do(env: Env) -> None:
    ours = (fire.LOCKED_AGAIN, fire.FAILED_AGAIN, fire.FOREIGN_AGAIN, env.runtime.settings.link_lease)
    assert max(ours) <= LONGEST_RETRY


def finished(env: Env, link: Arm) -> None:
    set_hash(env, link, data="x", status="finished", enqueued_at=rq_time(env.clock.now()))


def failed(env: Env, link: Arm) -> None:
    put(env, link)
    job = env.job(link.id)
    env.redis.zrem(env.transport.scheduled_key, str(link.id))
    job.set_status(JobStatus.FAILED)
    FailedJobRegistry(LIST, connection=env.redis).add(job, ttl=86_400)


def expired(env: Env, link: Arm) -> None:
    put(env, link)
    env.redis.delete(f"rq:job:{link.id}")
    env.redis.zrem(env.transport.scheduled_key, str(link.id))


def without_a_hash(env: Env, link: Arm) -> None:
    put(env, link)
    env.redis.delete(f"rq:job:{link.id}")


def without_data(env: Env, link: Arm) -> None:
    """RQ has set a status on a hash that was flushed meanwhile."""
    env.redis.zadd(env.transport.scheduled_key, {str(link.id): 1})
    set_hash(env, link, status="started", started_at=rq_time(env.clock.now()))


def popped_from_an_empty_list(env: Env, link: Arm) -> None:
    head_of_list(env, link)
    env.redis.lpop(f"rq:queue:{LIST}")


def popped_before_the_head(env: Env, link: Arm) -> None:
    popped_from_an_empty_list(env, link)
    env.clock.advance(SECOND)
    put(env, arm(env, 99, after=timedelta(0)))


def started_long_ago(env: Env, link: Arm) -> None:
    popped_from_an_empty_list(env, link)
    set_hash(env, link, status="started", started_at=rq_time(env.clock.now() - LINK_STARTED_GRACE))


def lost_from_the_set(env: Env, link: Arm) -> None:
    put(env, link)
    env.redis.zrem(env.transport.scheduled_key, str(link.id))


def late_beyond_the_grace(env: Env, link: Arm) -> None:
    """The link stays in the set: RQ's scheduler lost its process, and no dispatcher runs."""
    put(env, link._replace(due_at=env.clock.now() + SECOND))
    env.clock.advance(SECOND + env.runtime.settings.repair_grace + timedelta(milliseconds=1))


def armed_before_sql_went_back(env: Env, link: Arm) -> None:
    """Redis holds it for a time that SQL, which is older now, does not know."""
    put(env, link._replace(due_at=link.due_at + 365 * DAY))


DEAD = [
    late_beyond_the_grace,
    armed_before_sql_went_back,
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
def test_a_dead_link_under_the_same_id_is_replaced(env: Env, kill: Callable[[Env, Arm], None]) -> None:
    link = arm(env, after=10 * MINUTE)
    kill(env, link)

    assert put(env, link) == 1

    assert env.armed()[str(link.id)] == link.due_at.timestamp()
    job = env.job(link.id)
    assert job.get_status() is JobStatus.SCHEDULED
    assert job.started_at is None
    assert job.func is jobs.fire


@pytest.mark.parametrize("kill", DEAD)
def test_a_dead_link_that_is_due_is_on_the_list_and_nowhere_else(env: Env, kill: Callable[[Env, Arm], None]) -> None:
    link = arm(env, after=10 * MINUTE)
    kill(env, link)

    assert put(env, link._replace(due_at=env.clock.now())) == 1

    assert str(link.id) in env.queued(LIST)
    assert str(link.id) not in env.armed()


def test_a_run_job_pushed_in_front_does_not_make_the_others_look_dead(env: Env) -> None:
    """The head of a run queue may be younger than the jobs behind it."""
    waiting = env.fire_next(env.create("waiting", queue="high"))
    env.clock.advance(SECOND)
    env.fire_next(env.create("urgent", queue="high", priority=5))
    assert env.queued("high")[1] == run_job_id(waiting)

    live = env.transport.live_deliveries([waiting.state], now=env.clock.now())

    assert live == [True]
    env.redis.lrem("rq:queue:high", 1, run_job_id(waiting))
    assert env.transport.live_deliveries([waiting.state], now=env.clock.now()) == [False]


def wakes(env: Env) -> int:
    return int(env.redis.llen(env.transport.wake_key))


def test_a_link_earlier_than_the_head_wakes_a_dispatcher(env: Env) -> None:
    put(env, arm(env, 1, after=10 * MINUTE))
    env.redis.delete(env.transport.wake_key)

    put(env, arm(env, 2, after=20 * MINUTE))
    assert wakes(env) == 0

    put(env, arm(env, 3, after=5 * MINUTE))
    assert wakes(env) == 1


def test_a_due_link_wakes_a_dispatcher(env: Env) -> None:
    put(env, arm(env, 1, after=-MINUTE))

    assert wakes(env) == 1
    assert 0 < env.redis.ttl(env.transport.wake_key) <= 60, "nobody listening leaves nothing behind"


def test_a_live_link_wakes_no_dispatcher(env: Env) -> None:
    put(env, arm(env))
    env.redis.delete(env.transport.wake_key)

    put(env, arm(env))

    assert wakes(env) == 0


def test_waiting_ends_at_once_with_a_wake(env: Env) -> None:
    put(env, arm(env, after=-MINUTE))

    env.transport.wait_for_wake(60)  # a wait that is not woken runs into the test's own timeout

    assert wakes(env) == 0


def test_wake_within_the_last_tenth_before_a_due_time_is_heard(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rqsched.kernel.transport.transport.REDIS_TIMER", 60.0
    )  # so long a tenth that nobody is too late
    put(env, arm(env))
    env.redis.delete(env.transport.wake_key)
    waker = threading.Timer(0.05, lambda: put(env, arm(env, 2, after=SECOND)))
    waker.start()

    env.transport.wait_for_wake(60)  # a wait that is not woken runs into the test's own timeout

    waker.join()
    assert wakes(env) == 0
