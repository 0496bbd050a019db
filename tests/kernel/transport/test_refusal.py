"""A refusal of a real server is distinguished from an outage, however redis-py and scripts reword it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from redis import Redis
from redis._parsers import BaseParser
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from rqsched.kernel.transport import refusal
from rqsched.kernel.transport.breaker import RedisAwayError
from tests.support.processes import wait_until
from tests.support.refusals import WAYS, refusing
from tests.support.servers import ValkeyServer

ONCE = Retry(NoBackoff(), 0)


def errors_of(redis: Any) -> list[RedisError]:
    """Return the errors of a command, a script and a pipeline."""
    script = redis.register_script("return redis.call('ZADD', KEYS[1], 1, 'a')")
    pipeline = redis.pipeline().zadd("set", {"a": 1})
    calls = [lambda: redis.zadd("set", {"a": 1}), lambda: script(keys=["set"]), pipeline.execute]
    found = []
    for call in calls:
        with pytest.raises(RedisError) as told:
            call()
        found.append(told.value)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_refusal_is_told_by_its_word_wherever_it_was_met(way: str, own_valkey: ValkeyServer) -> None:
    with refusing(own_valkey, way) as word, Redis.from_url(own_valkey.url, retry=ONCE) as redis:
        if way == "NOPERM for scripts":
            script = redis.register_script("return 1")
            with pytest.raises(RedisError) as told:
                script()
            errors = [told.value]
        else:
            errors = errors_of(redis)
    for error in errors:
        text = refusal.told(error)
        assert text.startswith("Redis refuses: ")
        assert "user_script" not in text
        assert refusal.is_transient(error) is (word != "NOPERM"), text
    # A replica that lost its primary refuses what writes as any replica does.
    words = {refusal.word_of(error) for error in errors}
    assert words <= {word, "READONLY"} if word == "MASTERDOWN" else words == {word}


def test_key_of_another_type_and_a_wrong_password_are_refusals(own_valkey: ValkeyServer) -> None:
    with Redis.from_url(own_valkey.url) as redis:
        redis.set("set", "text")
        assert {refusal.word_of(error) for error in errors_of(redis)} == {"WRONGTYPE"}
    url = f"redis://somebody:wrong@127.0.0.1:{own_valkey.port}"
    with Redis.from_url(url, retry=ONCE) as redis, pytest.raises(RedisError) as told:
        redis.ping()
    assert refusal.word_of(told.value) == "WRONGPASS"
    assert refusal.is_transient(told.value), "a password that changes everywhere at once is waited for"


def test_redis_that_is_not_there_is_no_refusal(own_valkey: ValkeyServer) -> None:
    own_valkey.stop()
    with Redis.from_url(own_valkey.url, retry=ONCE) as redis, pytest.raises(RedisError) as told:
        redis.ping()
    assert not refusal.is_refusal(told.value)
    assert refusal.told(told.value).startswith("Redis does not answer: ")
    assert refusal.advice_for(told.value, "Start it.") == "Start it."


def test_script_error_of_an_older_redis_names_its_word() -> None:
    text = "ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed when used"
    error = BaseParser.parse_error(text)
    assert refusal.word_of(error) == "OOM"
    assert refusal.is_transient(error)


def test_breaker_says_what_it_was_refused_with() -> None:
    refused = RedisAwayError("Redis refuses: NOAUTH Authentication required; it is asked again in the background")
    refused.__cause__ = RedisConnectionError("Error 111 connecting")
    assert refusal.told(refused) == str(refused)


def test_wait_for_a_job_that_ends_because_the_server_becomes_a_replica_is_made_again(own_valkey: ValkeyServer) -> None:
    """Without the retry, RQ's worker ended."""
    with Redis.from_url(own_valkey.url, retry=ONCE) as redis, ThreadPoolExecutor(1) as waiting:
        wait = waiting.submit(redis.blpop, ["empty"], 60)
        with Redis.from_url(own_valkey.url) as other:
            wait_until(lambda: cast(Any, other.info("clients"))["blocked_clients"] == 1, what="a client that waits")
            other.execute_command("REPLICAOF 127.0.0.1 1")
        error = wait.exception(60)
    assert isinstance(error, RedisError)
    assert refusal.word_of(error) == "UNBLOCKED"
    assert refusal.is_transient(error)
