"""URLs of Redis: the servers they lead to, and refusals before any connection."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, SSLConnection
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.kernel.transport.breaker import Breaker
from rqsched.kernel.transport.client import ANSWER_SECONDS, CONNECT_SECONDS, connect, limit_waiting
from rqsched.kernel.transport.redis_url import parse_sentinel, url_of

SECRET = "hunter2"
URLS = [
    "redis://127.0.0.1:6379/0",
    "redis://:secret@[::1]:6390/3",
    "redis://ada:p%40ss%2F@redis.example:6379/1",
    "rediss://ada:secret@redis.example:6380/0",
    "rediss://redis.example:6380/0?ssl_cert_reqs=none&ssl_check_hostname=False",
    "unix:///tmp/valkey.sock?db=2",
    "unix://:secret@/tmp/valkey.sock?db=0",
]
SENTINELS = [
    "redis+sentinel://one:26379,two:26380/mymaster/0",
    "redis+sentinel://ada:p%40ss%2F@[::1]:26379/my%20master/3",
    "redis+sentinel://:secret@one:26379/m/0?sentinel_username=s&sentinel_password=p%26",
    "rediss+sentinel://one:26379/m/0?ssl_cert_reqs=none&ssl_check_hostname=False",
]
SAME = ("host", "port", "path", "db", "username", "password", "ssl_cert_reqs", "ssl_check_hostname")


def address(redis: Redis) -> dict[str, Any]:
    options = redis.connection_pool.connection_kwargs
    return {name: options.get(name) for name in SAME} | {"class": redis.connection_pool.connection_class}


def sentinels(redis: Redis) -> tuple[str, list[dict[str, Any]]]:
    pool = redis.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    return pool.service_name, [address(one) for one in pool.sentinel_manager.sentinels]


def test_the_url_of_a_client_leads_to_the_same_server() -> None:
    for url in URLS:
        first = Redis.from_url(url)
        second = connect(url_of(first))
        assert address(second) == address(first), url


def test_the_url_of_a_client_behind_sentinels_leads_to_the_same_sentinels() -> None:
    for url in SENTINELS:
        assert url_of(connect(url)) == url
        assert sentinels(connect(url_of(connect(url)))) == sentinels(connect(url))


def test_the_url_of_a_client_that_the_application_made_of_sentinels_is_known_too() -> None:
    """RQ makes such a client from the dictionary SENTINEL of its settings."""
    made = Sentinel([("one", 26379)], sentinel_kwargs={"password": "p"}, password="secret", ssl=True, db=2)
    client = made.master_for("mymaster")
    assert url_of(client) == "rediss+sentinel://:secret@one:26379/mymaster/2?sentinel_password=p"


def test_sentinels_and_servers_have_logins_of_their_own() -> None:
    client = connect("rediss+sentinel://ada:secret@one,[::1]:26380/m/1?sentinel_password=p&sentinel_username=s")

    service, asked = sentinels(client)

    assert service == "m"
    assert [(one["host"], one["port"]) for one in asked] == [("one", 26379), ("::1", 26380)]
    assert {(one["username"], one["password"], one["class"]) for one in asked} == {("s", "p", SSLConnection)}
    own = client.connection_pool.connection_kwargs
    assert (own["username"], own["password"], own["db"]) == ("ada", "secret", 1)
    assert issubclass(client.connection_pool.connection_class, SSLConnection)


def test_no_sentinel_is_waited_for_longer_than_a_server() -> None:
    by_url = connect(SENTINELS[0])
    made = Sentinel([("one", 26379)]).master_for("mymaster")
    limit_waiting(made)
    for client in (by_url, made):
        pool = client.connection_pool
        assert isinstance(pool, SentinelConnectionPool)
        for redis in (client, *pool.sentinel_manager.sentinels):
            options = redis.connection_pool.connection_kwargs
            assert (options["socket_timeout"], options["socket_connect_timeout"]) == (ANSWER_SECONDS, CONNECT_SECONDS)


def test_a_breaker_guards_a_client_behind_sentinels() -> None:
    breaker = Breaker("redis+sentinel://127.0.0.1:1/m/0", timedelta(seconds=1), lambda: None)
    with breaker.client() as redis, pytest.raises(MasterNotFoundError):
        redis.ping()
    assert breaker.is_open
    breaker.stop()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:26379",
        "redis+sentinel://one:26379/",
        "redis+sentinel:///mymaster",
        "redis+sentinel://one:port/mymaster",
        "redis+sentinel://one:26379,/mymaster",
        "redis+sentinel://one:26379/mymaster/zero",
    ],
)
def test_a_malformed_url_of_sentinels_is_refused_with_its_form(url: str) -> None:
    with pytest.raises(ConfigError, match="HOST:26379,HOST:26379/SERVICE/DB"):
        parse_sentinel(url)


@pytest.mark.parametrize("scheme", ["redis://h", "unix:///s", "redis+sentinel://h/m"])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("retires=3", "option that is not known: retires"),
        ("db=zero", "Invalid value for 'db'"),
        ("ssl_ca_certs=/etc/ssl/certs", "does not speak TLS; write rediss://"),
    ],
)
def test_an_option_that_can_never_work_is_refused(scheme: str, option: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        connect(f"{scheme}?{option}")


@pytest.mark.parametrize("scheme", ["rediss://h", "rediss+sentinel://h/m"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_of_tls_that_is_not_there_is_refused_instead_of_waited_for(
    scheme: str, option: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"missing as {option}, which does not exist"):
        connect(f"{scheme}?{option}={tmp_path}/missing")


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster", "redis-cluster", "valkey+cluster"])
def test_the_url_of_a_cluster_is_refused_with_the_reason(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"RQSCHED_REDIS_URL.*Redis Cluster.*allow no hash tags") as refused:
        Settings(database_url="sqlite:///x.db", redis_url=f"{scheme}://:{SECRET}@h:6379")
    assert SECRET not in str(refused.value)


def test_valkeys_schemes_are_those_of_redis() -> None:
    for scheme in ("valkey", "valkeys", "valkey+sentinel", "valkeys+sentinel"):
        settings = Settings(database_url="sqlite:///x.db", redis_url=f"{scheme}://h/m")
        assert settings.redis_url == f"{scheme.replace('valkeys', 'rediss').replace('valkey', 'redis')}://h/m"


def test_a_client_without_an_address_has_no_url_and_says_what_to_set() -> None:
    client = Redis(host="h")
    client.connection_pool.connection_kwargs.pop("host")
    with pytest.raises(ConfigError, match="RQSCHED_REDIS_URL is unset"):
        url_of(client)
