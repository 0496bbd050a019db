"""Clients of Redis that never wait for ever. A failed command is tried once more over a new connection.

A dead connection may take commands without an error, so that only the missing answer shows that it is dead. In this
case the idle connections are closed too, because they are as old and each of them would cost the same wait. A
subscriber only listens. Therefore a subscriber pings a server that has been quiet, and raises an error if no answer
comes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from rqsched.config import NO_CLUSTER
from rqsched.errors import ConfigError
from rqsched.kernel.transport.redis_url import name_library, open_client

T = TypeVar("T")

CONNECT_SECONDS = 3
"""How long a connection may take to be opened."""
ANSWER_SECONDS = 6
"""After this many seconds without an answer a connection is given up. No call blocks on purpose for longer.

A work horse (the process that RQ forks for a job) may wait this long, and after that its worker may wait this long.
Together this is less than the promised 15 s.
"""
TIMEOUTS = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": CONNECT_SECONDS}
"""Both limits, as options of redis-py."""
QUIET_SECONDS = 4.0
"""After this many seconds of silence a subscriber pings the server. After as many seconds without an answer it gives
up."""


def connect(url: str) -> Redis:
    """Open a client that never hangs. An unreachable Redis causes an error after some seconds."""
    redis = open_client(url, timeouts=TIMEOUTS)
    limit_waiting(redis)
    return redis


def own_client(redis: Redis) -> Redis:
    """Return a client of the same server that never hangs, with its own connections. The given client is not changed.

    The given client may be the client of RQ's worker, which sets a timeout of minutes in the client's pool.
    """
    own = _copy(redis)
    limit_waiting(own)
    return own


def _copy(redis: Redis) -> Redis:
    """Return the same client over a pool of its own, which has no connection yet."""
    own, pool = copy(redis), copy(redis.connection_pool)
    own.connection, own.connection_pool = None, pool
    pool.connection_kwargs = dict(pool.connection_kwargs)
    pool.reset()
    if isinstance(pool, SentinelConnectionPool):
        del pool.connection_kwargs["connection_pool"]
        manager = copy(pool.sentinel_manager)
        manager.sentinels = [_copy(sentinel) for sentinel in manager.sentinels]
        own.connection_pool = type(pool)(
            pool.service_name,
            manager,
            is_master=pool.is_master,
            check_connection=pool.check_connection,
            connection_class=pool.connection_class,
            max_connections=pool.max_connections,
            **pool.connection_kwargs,
        )
    return own


def limit_waiting(redis: Redis) -> None:
    """Let no call of this client wait for ever, and repeat a failed call once over a new connection."""
    pool = redis.connection_pool
    pool.connection_kwargs.update(TIMEOUTS, retry=_Retry(pool))
    name_library(pool)
    if isinstance(pool, SentinelConnectionPool):
        # Each Sentinel is asked once and with a timeout. If it does not answer, the next Sentinel is asked.
        for sentinel in pool.sentinel_manager.sentinels:
            sentinel.connection_pool.connection_kwargs.update(TIMEOUTS)
            sentinel.set_retry(Retry(NoBackoff(), 0))
    pool.disconnect()  # open connections keep their old timeouts
    pool.reset()


def for_rq(redis: Redis) -> Redis:
    """Return a client for RQ that shares the connections of the given client, but not the options of its pool.

    RQ's `Worker` sets a timeout of minutes in the pool that it is given. RQ also makes such a `Worker` for each worker
    that it lists.
    """
    return Redis(connection_pool=cast(ConnectionPool, _LentPool(redis.connection_pool)))


class _LentPool:
    """A pool with separate options that uses the connections of another pool."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self.connection_kwargs = dict(pool.connection_kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def require_no_cluster(redis: Redis) -> None:
    """Raise ConfigError if this is a node of a Redis Cluster. If the Redis user may not ask, assume no cluster."""
    try:
        answer: Any = redis.info("cluster")
    except NoPermissionError:
        return
    if answer.get("cluster_enabled"):
        raise ConfigError(f"this Redis is a node of a Redis Cluster; {NO_CLUSTER}.")


class _Retry(Retry):
    """Repeats a failed call once. If there was no answer, the idle connections are closed before the repetition."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(NoBackoff(), 1)
        self._pool = pool

    def __deepcopy__(self, _: object) -> _Retry:
        """Share the pool: redis-py copies the retry for every connection."""
        return self

    def call_with_retry(self, do: Callable[[], T], *rest: Any, **options: Any) -> T:
        """Make a call, and repeat it once if its connection failed."""
        return super().call_with_retry(partial(self._once, do), *rest, **options)

    def _once(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except RedisTimeoutError:
            self._pool.disconnect(inuse_connections=False)
            raise


class AskingPubSub(PubSub):
    """A subscription, such as RQ's to commands, that notices a dead connection within twice QUIET_SECONDS."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._heard_at = self._asked_at = monotonic()
        super().__init__(pool)

    def is_health_check_response(self, response: Any) -> bool:
        """Return whether a response answers a ping. redis-py calls this after each read, with None if nothing came."""
        if response is not None:
            self._heard_at = monotonic()
        return super().is_health_check_response(response)

    def get_message(self, ignore_subscribe_messages: bool = False, timeout: float | None = 0.0) -> Any:
        """Wait for a message; raises redis-py's ConnectionError when the server does not answer any more."""
        seconds = QUIET_SECONDS if timeout is None else min(timeout, QUIET_SECONDS)
        message = super().get_message(ignore_subscribe_messages, seconds)
        if message is None and monotonic() - self._heard_at >= QUIET_SECONDS:
            self._ask()
        return message

    def _ask(self) -> None:
        was_asked, self._asked_at = self._asked_at > self._heard_at, monotonic()
        if not was_asked:
            self.ping(self.HEALTH_CHECK_MESSAGE)
            return
        self._heard_at = self._asked_at
        connection: Any = self.connection
        connection.disconnect()
        raise RedisConnectionError(f"no answer for {QUIET_SECONDS:g} s: the connection is closed")
