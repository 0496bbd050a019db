"""The client of Redis: its waits, and the servers that it refuses."""

from __future__ import annotations

from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.connection import AbstractConnection

from rqsched.errors import ConfigError
from rqsched.kernel.transport.client import ANSWER_SECONDS, connect, limit_waiting, require_no_cluster
from tests.support.proxy import proxy_to
from tests.support.servers import ValkeyServer, free_port


def test_a_call_over_a_silent_connection_is_made_again_and_no_other_old_one_is_trusted(redis_url: str) -> None:
    with proxy_to(redis_url) as proxy, connect(proxy.url(redis_url)) as redis:
        redis.connection_pool.connection_kwargs["socket_timeout"] = 1.0  # the real one is longer
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


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "of the application"])
def test_connections_share_what_they_say_of_their_library(redis_url: str, is_own: bool) -> None:
    """A lookup per connection took every forked work horse some milliseconds."""
    client = connect(redis_url) if is_own else Redis.from_url(redis_url)
    with client as redis:
        limit_waiting(redis)
        pool = redis.connection_pool
        opened: list[Any] = [pool.get_connection() for _ in range(2)]

        told = [
            (one["lib-name"], one["lib-ver"]) for one in redis.client_list(client_id=[_id_of(one) for one in opened])
        ]

        for connection in opened:
            pool.release(connection)
    assert told == [("redis-py", version("redis"))] * 2
    if "driver_info" in signature(AbstractConnection.__init__).parameters:  # before 7.2 redis-py itself shares it
        assert opened[0].driver_info is opened[1].driver_info


@pytest.mark.filterwarnings("ignore:Call to '__init__':DeprecationWarning")
def test_what_an_application_says_of_its_library_stays_as_it_is(redis_url: str) -> None:
    with Redis.from_url(redis_url, lib_name="shop", lib_version="7") as redis:
        limit_waiting(redis)

        own = redis.client_info()

    assert (own["lib-name"], own["lib-ver"]) == ("shop", "7")


def _id_of(connection: Any) -> str:
    connection.send_command("CLIENT", "ID")
    return str(connection.read_response())


def test_a_node_of_a_cluster_is_refused_with_the_reason_and_what_to_do(tmp_path: Path) -> None:
    # By default its bus has the port 10 000 above, which any connection of this machine may hold.
    bus = ("--cluster-port", str(free_port()))
    server = ValkeyServer(tmp_path, options=("--cluster-enabled", "yes", "--save", "", *bus))
    server.start()
    try:
        with connect(server.url) as redis, pytest.raises(ConfigError, match=r"allow no hash tags.*Sentinel"):
            require_no_cluster(redis)
    finally:
        server.kill()


def test_one_server_is_accepted_and_so_is_a_user_who_may_not_ask(redis_url: str) -> None:
    with Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info")
        try:
            for url in (redis_url, redis_url.replace("redis://", "redis://app:secret@")):
                with connect(url) as redis:
                    require_no_cluster(redis)
        finally:
            admin.execute_command("ACL", "DELUSER", "app")
