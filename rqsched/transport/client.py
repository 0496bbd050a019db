"""How long a client of Redis waits: never for ever, and what failed is tried once more over a new connection.

A connection may swallow what is sent without an error: only a missing answer shows it. Then the others that are open
are as old, and are closed too, or each of them would cost the same wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

from redis import ConnectionPool, Redis, SSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from rqsched.errors import ConfigError

T = TypeVar("T")

CONNECT_SECONDS = 3
"""How long a connection may take to be opened."""
ANSWER_SECONDS = 6
"""After so long without an answer a connection is given up; longer than anybody blocks on purpose.

Of a horse and its parent first the one waits and then the other: twice this is below the promised 15 s.
"""


def connect(url: str) -> Redis:
    """Open a client that never hangs: an unreachable Redis is an error after seconds."""
    redis = Redis.from_url(url)
    limit_waiting(redis)
    return redis


def limit_waiting(redis: Redis) -> None:
    """Let no call of this client wait for ever, and repeat one that failed once over a new connection."""
    pool = redis.connection_pool
    pool.connection_kwargs.update(socket_timeout=ANSWER_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    redis.set_retry(_Retry(pool))
    pool.disconnect()  # what is open keeps the timeouts it was opened with
    pool.reset()


def url_of(redis: Redis) -> str:
    """Return a URL of the server that a client talks to; raises ConfigError when one URL cannot say it (Sentinel)."""
    pool = redis.connection_pool
    options = pool.connection_kwargs
    path, host = options.get("path"), options.get("host")
    if path is None and host is None:
        raise ConfigError("RQSCHED_REDIS_URL is unset, and RQ's connection has no address to take for it; set it.")
    login = ""
    if options.get("password"):
        login = f"{quote(options.get('username') or '', safe='')}:{quote(str(options['password']), safe='')}@"
    number = options.get("db") or 0
    if path is not None:
        return f"unix://{login}{quote(path)}?db={number}"
    scheme = "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    address = f"[{host}]" if ":" in str(host) else host
    return f"{scheme}://{login}{address}:{options.get('port') or 6379}/{number}"


class _Retry(Retry):
    """Makes a call again once; after one without an answer, over a connection opened since."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(NoBackoff(), 1)
        self._pool = pool

    def __deepcopy__(self, _: object) -> _Retry:
        """Share the pool: redis-py copies the retry for every connection."""
        return self

    def call_with_retry(self, do: Callable[[], T], *rest: Any, **options: Any) -> T:
        """Make a call, and once again when its connection failed."""
        return super().call_with_retry(lambda: self._once(do), *rest, **options)

    def _once(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except RedisTimeoutError:
            self._pool.disconnect(inuse_connections=False)
            raise
