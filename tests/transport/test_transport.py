"""The transport: scripts that Redis forgot, named connections, and queues that take nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis import Redis
from redis.exceptions import RedisError

from rqsched import jobs
from rqsched.core.ids import LinkId, RetryLinkId, derived_uid
from rqsched.core.model import RunStatus
from rqsched.transport.transport import Arm, Transport
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, newest, run_job_id
from tests.support.servers import ValkeyServer

LIST = "rqsched"


def arm(env: Env, n: int = 1, *, after: timedelta = MINUTE) -> Arm:
    """A link of some schedule, due so long after now."""
    now = env.clock.now()
    return Arm(LinkId(derived_uid(now, "some schedule"), n), now + after)


def put(env: Env, *arms: Arm) -> int:
    return env.transport.arm(arms, now=env.clock.now())


def set_hash(env: Env, link: Arm, **fields: str) -> None:
    for name, value in fields.items():
        env.redis.hset(f"rq:job:{link.id}", name, value)


def test_scripts_that_redis_forgot_are_sent_again(env: Env) -> None:
    put(env, arm(env, 1))
    assert env.transport.lease(now=env.clock.now(), lease=SECOND, limit=1) == []
    env.redis.script_flush()

    assert put(env, arm(env, 2)) == 1
    env.redis.script_flush()
    assert env.transport.lease(now=env.clock.now() + MINUTE, lease=SECOND, limit=1) == [str(arm(env, 1).id)]


def test_scripts_work_after_a_restart_of_valkey(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    put(env, arm(env, 1))
    own_valkey.kill()
    with pytest.raises(RedisError):
        put(env, arm(env, 2))
    own_valkey.start()

    assert put(env, arm(env, 2)) == 1
    assert list(env.armed()) == [str(arm(env, 2).id)]


def test_scripts_reach_a_named_connection_that_never_saw_them(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(connections={"eu": own_valkey.url})
    schedule = env.create(connection="eu")

    run = env.fire_next(schedule)

    with Redis.from_url(own_valkey.url) as eu:
        assert [entry.decode() for entry in eu.lrange("rq:queue:default", 0, -1)] == [run_job_id(run)]
        eu.script_flush()
        assert eu.exists("rq:scheduled:rqsched") == 0
    assert env.queued() == [], "named connections carry run jobs only"
    assert env.transport.live_deliveries([run.state], now=env.clock.now()) == [True]
    assert link_id(schedule.refresh()) in env.armed(), "and no links"


def test_a_named_connection_that_is_down_delays_no_other_queue(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(connections={"eu": own_valkey.url})
    own_valkey.kill()
    there, here = env.create("there", connection="eu"), env.create("here")
    env.advance()

    env.deliver(there, here)

    assert env.queued() == [run_job_id(newest(here))]
    assert set(env.armed()) >= {link_id(there.refresh()), link_id(here.refresh())}
    env.redis.delete("rq:queue:default")
    env.advance(6 * SECOND)
    assert env.recover().deliveries == 1
    own_valkey.start()
    assert env.recover().deliveries == 1
    env.redis.flushall()
    with Redis.from_url(own_valkey.url) as eu:
        assert eu.llen("rq:queue:default") == 1


def test_a_run_on_an_unknown_connection_stays_pending_and_is_not_redelivered(env: Env, make_env: MakeEnv) -> None:
    with_eu = make_env(connections={"eu": "redis://127.0.0.1:1/0"})
    with_eu.create(connection="eu")
    env.advance(MINUTE)

    env.dispatch()

    run = newest(env.scheduler.get("report"))
    assert run.status == RunStatus.PENDING.value
    env.advance(MINUTE)
    assert env.recover().deliveries == 0


def test_a_queue_that_takes_no_job_delays_no_other_queue(env: Env) -> None:
    env.redis.set("rq:queue:broken", "a foreign text")
    broken, sound = env.create("broken", queue="broken"), env.create("sound")
    env.advance()

    assert [result.outcome for result in env.deliver(broken, sound)] == ["fired", "fired"]

    assert env.queued() == [run_job_id(newest(sound))]
    assert broken.refresh().state.fire_failures == 0, "the fire was sound"
    env.redis.delete("rq:queue:broken")
    env.advance(6 * SECOND)
    assert env.recover().deliveries == 1
    assert env.queued("broken") == [run_job_id(newest(broken))]


def test_links_and_retry_links_share_the_control_queue(env: Env) -> None:
    now = env.clock.now()
    retry = Arm(RetryLinkId(derived_uid(now, "x"), 3, 2), now + MINUTE)

    put(env, retry)

    assert env.job(retry.id).func is jobs.fire
    assert isinstance(env.transport, Transport)
