"""The transport: scripts that Redis forgot, named connections, and queues that take nothing."""

from __future__ import annotations

from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from rqsched import jobs
from rqsched.kernel.decide.ids import RetryLinkId, derived_uid
from rqsched.kernel.decide.model import RunStatus
from rqsched.kernel.transport.refusal import is_transient
from rqsched.kernel.transport.transport import Arm, NextLook, Transport
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, newest, run_job_id
from tests.support.links import arm, put
from tests.support.rights import RIGHTS
from tests.support.servers import ValkeyServer


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


@pytest.mark.parametrize("count", [1, 2])
def test_a_redis_that_is_full_is_waited_for_also_where_a_pipeline_met_it(own_valkey: ValkeyServer, count: int) -> None:
    """Otherwise RQ's worker would end at a heartbeat, which it sends in a pipeline."""
    with Redis.from_url(own_valkey.url) as redis, redis.pipeline() as pipe:
        redis.config_set("maxmemory", "1")
        for number in range(count):
            pipe.set(f"key-{number}", 1)
        with pytest.raises(ResponseError) as told:
            pipe.execute()
    assert is_transient(told.value)


@pytest.fixture
def first_look_life(monkeypatch: pytest.MonkeyPatch) -> int:
    """Milliseconds of a first look, so many that a test is never too slow for it."""
    monkeypatch.setattr("rqsched.kernel.transport.transport.FIRST_LOOK_LIFE", 60_000)
    return 60_000


@pytest.mark.usefixtures("first_look_life")
def test_the_earliest_link_and_who_looks_first_are_told_together(env: Env) -> None:
    assert env.transport.next_look("one") == NextLook(None, is_first=True)
    put(env, arm(env, 1, after=2 * MINUTE), arm(env, 2))

    due_at = (env.clock.now() + MINUTE).timestamp()
    assert env.transport.next_look("one") == NextLook(due_at, is_first=True)
    assert env.transport.next_look("two") == NextLook(due_at, is_first=False)
    assert env.transport.next_look("one") == NextLook(due_at, is_first=True)


def test_another_looks_first_when_the_first_is_silent(env: Env, first_look_life: int) -> None:
    """Redis measures the time, so the hosts' clocks do not matter."""
    env.transport.next_look("one")
    assert 0 < env.redis.pttl(env.transport.first_look_key) <= first_look_life
    env.redis.persist(env.transport.first_look_key)
    env.transport.next_look("two")
    assert env.redis.pttl(env.transport.first_look_key) == -1, "only the first renews it"
    env.transport.next_look("one")
    assert 0 < env.redis.pttl(env.transport.first_look_key) <= first_look_life

    env.redis.delete(env.transport.first_look_key)  # as its expiry does

    assert env.transport.next_look("two").is_first
    assert not env.transport.next_look("one").is_first


@pytest.mark.usefixtures("first_look_life")
def test_who_is_woken_looks_first(env: Env) -> None:
    """The dispatcher that looked first may sleep until a later due time, unaware of an earlier link."""
    env.transport.next_look("one")
    put(env, arm(env))

    assert env.transport.wait_for_wake(60)

    assert env.transport.next_look("two", is_woken=True).is_first
    assert not env.transport.next_look("one").is_first
    assert not env.transport.wait_for_wake(0)


@pytest.mark.usefixtures("first_look_life")
def test_a_dispatcher_with_the_documented_rights_learns_who_looks_first(env: Env, redis_url: str) -> None:
    user = f"dispatcher-{uuid4().hex}"
    env.redis.execute_command("ACL", "SETUSER", user, "on", ">secret", *RIGHTS)
    try:
        with Redis.from_url(redis_url.replace("redis://", f"redis://{user}:secret@")) as redis:
            transport = Transport(env.runtime.settings, redis)
            assert transport.next_look("one").is_first
            assert not transport.next_look("two").is_first
    finally:
        env.redis.execute_command("ACL", "DELUSER", user)
