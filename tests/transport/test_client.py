"""The client of Redis: what it waits for, and which server it talks to."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.sentinel import Sentinel

from rqsched.errors import ConfigError
from rqsched.transport.client import ANSWER_SECONDS, connect, limit_waiting, url_of
from tests.support.proxy import proxy_to

URLS = [
    "redis://127.0.0.1:6379/0",
    "redis://:secret@[::1]:6390/3",
    "redis://ada:p%40ss%2F@redis.example:6379/1",
    "rediss://ada:secret@redis.example:6380/0",
    "unix:///tmp/valkey.sock?db=2",
    "unix://:secret@/tmp/valkey.sock?db=0",
]
SAME = ("host", "port", "path", "db", "username", "password")


def test_the_url_of_a_client_leads_to_the_same_server() -> None:
    for url in URLS:
        first, second = Redis.from_url(url), Redis.from_url(url_of(Redis.from_url(url)))
        assert second.connection_pool.connection_class is first.connection_pool.connection_class
        options = first.connection_pool.connection_kwargs, second.connection_pool.connection_kwargs
        for name in SAME:
            assert options[0].get(name) == options[1].get(name), f"{name} of {url}"


def test_a_client_of_a_sentinel_has_no_url_and_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="RQSCHED_REDIS_URL is unset"):
        url_of(Sentinel([("127.0.0.1", 1)]).master_for("mymaster"))


def test_a_call_over_a_silent_connection_is_made_again_and_no_other_old_one_is_trusted(redis_url: str) -> None:
    with proxy_to(redis_url) as proxy, connect(proxy.url(redis_url)) as redis:
        redis.connection_pool.connection_kwargs["socket_timeout"] = 0.2  # the real one is a matter of seconds
        pool = redis.connection_pool
        for connection in [pool.get_connection() for _ in range(3)]:
            pool.release(connection)
        assert proxy.swallow() == 3

        assert redis.ping()
        assert redis.ping()

        assert proxy.swallow() == 1, "one is open, and that one is new"


def test_connections_that_a_client_opened_before_it_was_limited_are_not_used_again(redis_url: str) -> None:
    with proxy_to(redis_url) as proxy, Redis.from_url(proxy.url(redis_url), socket_timeout=None) as redis:
        redis.ping()

        limit_waiting(redis)

        assert redis.connection_pool.connection_kwargs["socket_timeout"] == ANSWER_SECONDS
        assert redis.ping()
        connection = redis.connection_pool.get_connection()
        assert connection.socket_timeout == ANSWER_SECONDS
        redis.connection_pool.release(connection)
