"""A Redis that hangs or is away: a process with a breaker waits for it once, and Redis follows when it is back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from redis.exceptions import RedisError

from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.store import changes
from rqsched.kernel.transport.breaker import RedisAwayError
from rqsched.kernel.transport.transport import job_id_of
from tests.support.children import FORK
from tests.support.env import Env, MakeEnv
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.proxy import proxy_to
from tests.support.servers import ValkeyServer


@pytest.fixture
def web_rig(make_env: MakeEnv, own_valkey: ValkeyServer) -> Env:
    """An environment with the breaker that every Scheduler has, over a Redis of its own."""
    return make_env(redis_url=own_valkey.url, redis_timeout=1)


def away(env: Env) -> bool:
    try:
        env.redis.ping()
    except RedisAwayError:
        return True
    return False


def wait_for_redis(env: Env) -> None:
    wait_until(lambda: not away(env), what="Redis to count as back")


def test_operation_on_hanging_redis_is_stored_and_redis_follows_by_itself(
    web_rig: Env, own_valkey: ValkeyServer
) -> None:
    schedule = web_rig.create("before")
    with own_valkey.hanging():
        created = web_rig.create("during", "0 4 * * *")
        run = present(schedule.trigger().run)
        assert away(web_rig)
    wait_for_redis(web_rig)
    wait_until(lambda: not web_rig.runtime.out_of_sync, what="Redis to follow")
    wait_until(lambda: any(created.uid in link for link in web_rig.armed()), what="the link")
    stored = web_rig.runtime.database.read(lambda c: present(changes.find_run(c, run.uid)))
    wait_until(lambda: web_rig.queued() == [str(job_id_of(stored))], what="the run's job")
    check_invariants(web_rig.runtime)


def test_while_redis_hangs_only_the_first_call_waits(web_rig: Env, own_valkey: ValkeyServer) -> None:
    web_rig.create("before")
    with own_valkey.hanging():
        began = time.monotonic()
        for number in range(60):
            web_rig.create(f"s{number}")
        assert time.monotonic() - began < 30, "each would wait a second by itself"
    wait_for_redis(web_rig)
    wait_until(lambda: len(web_rig.armed()) == 61, what="every link")


def test_redis_that_is_gone_and_comes_back_is_followed_without_a_pass(web_rig: Env, own_valkey: ValkeyServer) -> None:
    own_valkey.stop()
    created = web_rig.create()
    assert away(web_rig)
    own_valkey.start()
    wait_for_redis(web_rig)
    wait_until(lambda: any(created.uid in link for link in web_rig.armed()), what="the link")


def test_redis_that_is_back_is_followed_by_a_pass_at_once(web_rig: Env, own_valkey: ValkeyServer) -> None:
    assert web_rig.transport.acquire_interval(web_rig.scheduler.settings.reconcile_interval * 1000)
    with own_valkey.hanging():
        web_rig.create()
    wait_for_redis(web_rig)
    wait_until(lambda: not web_rig.redis.exists(web_rig.transport.interval_key), what="a free interval")


def test_worker_has_no_breaker(own_valkey: ValkeyServer, sqlite_url: str) -> None:
    runtime = make_runtime(Settings(database_url=sqlite_url, redis_url=own_valkey.url))
    own_valkey.stop()
    with pytest.raises(RedisError, match="connecting"):
        runtime.transport.database_id()
    own_valkey.start()
    assert runtime.transport.database_id() is None  # at once, and not when a thread has asked
    runtime.close()


def test_fork_asks_redis_itself(web_rig: Env, own_valkey: ValkeyServer) -> None:
    with own_valkey.hanging():
        web_rig.create()
        child = FORK.Process(target=_exit_unless_away_again, args=(lambda: away(web_rig), web_rig))
        child.start()
        child.join(60)
    assert child.exitcode == 0


def _exit_unless_away_again(is_away: Callable[[], bool], env: Env) -> None:
    is_closed = not env.runtime.breakers.is_any_open
    try:
        env.transport.count_armed()
    except RedisError:  # the first call of the child waits itself
        os._exit(0 if is_closed and is_away() else 1)
    os._exit(2)


def test_connections_that_swallow_everything_cost_one_wait_and_are_opened_anew(
    make_env: MakeEnv, own_valkey: ValkeyServer
) -> None:
    with proxy_to(own_valkey.url) as proxy:
        env = make_env(redis_url=proxy.url(own_valkey.url), redis_timeout=1)
        env.create("before")
        proxy.is_silent = True
        assert proxy.swallow()
        env.create("during")
        assert away(env)
        proxy.is_silent = False
        wait_for_redis(env)
        wait_until(lambda: len(env.armed()) == 2, what="both links")
        env.create("after")
        assert len(env.armed()) == 3
        env.scheduler.close()
