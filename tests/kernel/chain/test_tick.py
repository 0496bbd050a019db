"""Ticks: firing in this process, for set-ups where nothing else promotes links."""

from __future__ import annotations

from tests.support.env import MINUTE, Env, MakeEnv, link_id, newest, run_job_id, statuses
from tests.support.narrow import present
from tests.support.servers import ValkeyServer


def test_a_tick_fires_what_is_due_by_sql_alone(any_env: Env) -> None:
    """No link is needed: Redis may have forgotten all of them."""
    schedule = any_env.create()
    any_env.redis.flushall()
    any_env.advance()

    (row,) = any_env.scheduler.tick()

    assert (row["schedule_id"], row["outcome"]) == ("report", "triggered")
    assert any_env.queued() == [run_job_id(newest(schedule))]


def test_a_tick_heals_a_flushed_redis(env: Env) -> None:
    later = env.create(spec=60 * MINUTE)
    env.redis.flushall()

    env.scheduler.tick()

    assert list(env.armed()) == [link_id(later)]


def test_a_tick_at_a_given_time_fires_without_reconciling(env: Env) -> None:
    later = env.create("later", spec=60 * MINUTE)
    schedule = env.create()
    env.redis.flushall()

    rows = env.scheduler.tick(now=env.clock.now() + MINUTE)

    assert [row["outcome"] for row in rows] == ["triggered"]
    assert statuses(schedule) == ["pending"]
    assert link_id(later) not in env.armed()


def test_a_tick_fires_while_redis_is_away(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    schedule = env.create()
    env.advance()
    own_valkey.kill()

    rows = env.scheduler.tick()

    assert [row["outcome"] for row in rows] == ["triggered"]
    own_valkey.start()
    env.recover()
    assert env.queued() == [run_job_id(newest(schedule))]


def test_a_tick_fires_due_retry_links(env: Env) -> None:
    env.register("fail", lambda: 1 / 0)
    schedule = env.create(workflow="fail", spec=60 * MINUTE)
    run = env.run_next(schedule, 60 * MINUTE)
    env.clock.set(present(run.retry_at))

    env.scheduler.tick()

    assert (run.refresh().status, run.attempt) == ("pending", 2)
