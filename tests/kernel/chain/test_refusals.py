"""A permanent refusal of Redis is remembered for all callers with a remedy, until Redis accepts commands again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from rqsched.api.health import Level, examine
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.refusals import STANDS
from rqsched.kernel.chain.runtime import Runtime
from tests.support.env import HOUR, MINUTE, Env, MakeEnv
from tests.support.invariants import check_invariants
from tests.support.servers import ValkeyServer


@pytest.fixture
def env(make_env: MakeEnv, own_valkey: ValkeyServer) -> Env:
    """An environment over a Redis of its own."""
    return make_env(redis_url=own_valkey.url)


@pytest.fixture
def asked(env: Env) -> Iterator[Runtime]:
    """Another process over the same servers, which has met nothing itself."""
    runtime = make_runtime(env.runtime.settings, clock=env.clock)
    yield runtime
    runtime.close()


@pytest.fixture
def admin(own_valkey: ValkeyServer) -> Iterator[Any]:
    """A client that is logged in with every right. Later clients have only the rights that the test leaves."""
    with Redis.from_url(own_valkey.url) as redis:
        redis.execute_command("ACL SETUSER admin on >secret allkeys allchannels +@all")
        redis.execute_command("AUTH admin secret")
        yield redis


def problems(runtime: Runtime) -> dict[str, Any]:
    return {one.check: one for one in examine(runtime) if one.level is Level.PROBLEM}


def of_wrong_type(redis: Any) -> Callable[[], object]:
    redis.set("rq:queue:default", "somebody's")
    return lambda: redis.delete("rq:queue:default")


def without_command(redis: Any) -> Callable[[], object]:
    """The write that doctor tries does without this one."""
    redis.execute_command("ACL SETUSER default -zrem")
    return lambda: redis.execute_command("ACL SETUSER default +zrem")


def without_key(redis: Any) -> Callable[[], object]:
    redis.execute_command("ACL SETUSER default resetkeys ~rqsched:* ~rq:job:* ~rq:queues ~rq:queue:rqsched ~rq:[fsw]*")
    return lambda: redis.execute_command("ACL SETUSER default allkeys")


@pytest.mark.parametrize(
    ("spoil", "words", "remedy"),
    [
        pytest.param(of_wrong_type, ("WRONGTYPE", "rq:queue:default is a string, not a list"), "Rename", id="type"),
        pytest.param(without_command, ("NOPERM", "'zrem' command"), "ACL SETUSER", id="command"),
        pytest.param(without_key, ("NOPERM", "rq:queue:default"), "ACL SETUSER", id="key"),
    ],
)
def test_queue_that_redis_refuses_is_named_by_another_process_until_it_is_taken_again(
    spoil: Callable[[Any], Callable[[], object]],
    words: tuple[str, ...],
    remedy: str,
    env: Env,
    asked: Runtime,
    admin: Any,
) -> None:
    env.recover()
    schedule = env.create("nightly")
    restore = spoil(admin)
    env.advance(MINUTE)
    with suppress(NoPermissionError):  # a dispatcher goes on
        env.dispatch()
    found = problems(asked)
    assert set(found) == {"publishing"}, "no worker is to be started for it"
    told = found["publishing"]
    assert all(word in told.told for word in ("queue 'default'", *words)), told.told
    assert remedy in str(told.advice)
    why = schedule.why().text
    assert words[0] in why
    assert remedy in why

    restore()
    env.advance(env.runtime.settings.repair_grace * 2)
    env.recover()

    assert "publishing" not in problems(asked)
    assert words[0] not in schedule.why().text
    assert asked.database.read(asked.refusals.count) >= 1
    check_invariants(env.runtime)


def test_refusal_that_nobody_meets_any_more_is_forgotten(env: Env, asked: Runtime) -> None:
    env.redis.set("rq:queue:default", "somebody's")
    run = env.create("nightly").trigger().run
    assert run is not None
    assert "publishing" in problems(asked)
    env.advance(STANDS)
    assert "publishing" not in problems(asked)


def test_refusal_is_kept_while_passes_meet_it(env: Env, asked: Runtime) -> None:
    env.recover()
    env.redis.set("rq:queue:default", "somebody's")
    env.create("nightly").trigger()
    asked_again = make_runtime(env.runtime.settings, clock=env.clock)  # as a process that was started since
    env.advance(STANDS)
    asked_again.refusals.look()
    env.advance(HOUR)
    recover(asked_again)
    assert "queue 'default'" in problems(asked)["publishing"].told
    asked_again.close()


def test_dispatcher_that_redis_refuses_says_so_and_forgets_it(env: Env, asked: Runtime) -> None:
    control = env.transport.control.name
    env.recover()
    env.create("nightly")
    env.redis.set(f"rqsched:wake:{control}", "somebody's")
    env.redis.set(f"rq:queue:{control}", "somebody's")
    turn(env)
    told = problems(asked)["publishing"]
    assert f"dispatchers of control queue '{control}'" in told.told
    assert f"rq:queue:{control} is a string, not a list" in told.told
    assert f"rqsched:wake:{control} is a string" in told.told
    env.redis.delete(f"rqsched:wake:{control}", f"rq:queue:{control}")
    turn(env)
    assert "publishing" not in problems(asked)


def turn(env: Env) -> None:
    """A dispatcher makes one turn of its loop."""
    dispatcher = Dispatcher(env.runtime, on_turn=lambda: dispatcher.stop())
    dispatcher.run()


def test_refusal_that_passes_is_not_kept(env: Env, asked: Runtime) -> None:
    env.redis.execute_command("REPLICAOF 127.0.0.1 1")
    env.create("nightly").trigger()
    assert asked.database.read(partial(asked.refusals.find, now=asked.now())) == []
    assert set(problems(asked)) == {"redis"}


def test_most_that_is_kept_is_bounded(env: Env) -> None:
    refusals = env.runtime.refusals
    for number in range(150):
        refusals.note(f"queue '{number}'", ResponseError("WRONGTYPE Operation against a key"))
    assert len(env.runtime.database.read(partial(refusals.find, now=env.runtime.now()))) == 100
    assert env.runtime.database.read(refusals.count) == 150
