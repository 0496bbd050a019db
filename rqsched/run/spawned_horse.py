"""The Redis connection of a work horse that RQ's SpawnWorker starts in a new Python.

RQ writes the options of its connection into the source code that the horse executes. A pool behind Sentinels has no
address in its options, and RQ 2.6 loses the options of TLS and UNIX sockets. So RQ gets a client whose only option is
written as an expression, which opens a pool of the same URL. A client with a plain address keeps its options, except an
option whose text is not valid source (RQ 3 leaves that option out itself).
"""

from __future__ import annotations

import os
from typing import Any, cast

from redis import Connection, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool

from rqsched.kernel.transport.client import connect
from rqsched.kernel.transport.redis_url import url_of, without_library

_URL = "RQ_HORSE_REDIS_URL"
"""The environment variable with the URL. If the URL were in the horse's source, `ps` would show its password."""


def client_for_horse(redis: Redis) -> Redis:
    """Return the client with which RQ's SpawnWorker starts a horse: the same pool, with options that RQ can write."""
    pool = redis.connection_pool
    is_plain = not issubclass(pool.connection_class, (SSLConnection, UnixDomainSocketConnection))
    if is_plain and not isinstance(pool, SentinelConnectionPool):
        described = without_library(pool.connection_kwargs)
    else:
        os.environ[_URL] = url_of(redis)
        protocol = {name: value for name, value in pool.connection_kwargs.items() if name == "protocol"}
        described = {**protocol, "connection_pool": _OpenedThere()}
    return Redis(connection_pool=cast("ConnectionPool", _Described(pool, described)))


def open_pool() -> ConnectionPool:
    """Open the pool of this horse, without connecting."""
    return connect(os.environ[_URL]).connection_pool


class _OpenedThere:
    """Stands for the pool of the horse. Its `repr` is the expression that opens this pool in the horse."""

    def __repr__(self) -> str:
        return f"__import__({__name__!r}, fromlist=[{open_pool.__name__!r}]).{open_pool.__name__}()"


class _Described:
    """Wraps a pool and its connections, with other options, which are written into the horse's source."""

    connection_class = Connection

    def __init__(self, pool: ConnectionPool, described: dict[str, Any]) -> None:
        self._pool = pool
        self.connection_kwargs = described

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
