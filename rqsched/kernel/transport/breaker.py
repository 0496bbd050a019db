"""The breaker: while Redis does not answer, each call fails at once. This is for processes that must not wait.

A web process stores an operation in SQL and answers, even if Redis gets the links later. So the first call that gets no
connection, or no answer in time, opens the breaker. While the breaker is open, all calls fail without waiting, and a
thread asks Redis until it answers again. Workers have no breaker, because they can do nothing but wait.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from rqsched.kernel.transport.client import connect
from rqsched.kernel.transport.redis_url import open_client
from rqsched.kernel.transport.refusal import told

_log = logging.getLogger(__name__)
T = TypeVar("T")

_ASK_AGAIN = 0.25
"""Seconds between two pings while the breaker is open."""


class RedisAwayError(RedisConnectionError):
    """The call was not made: Redis did not answer an earlier call, and has not answered since."""


class Breaker:
    """The breaker of one Redis. It is closed until a call gets no answer. In a forked process it begins closed."""

    def __init__(self, url: str, timeout: timedelta, on_close: Callable[[], None]) -> None:
        """Take the longest wait of a call, and a function that the breaker's thread calls when Redis answers again."""
        self._timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), timeout.total_seconds())
        self._url = url
        self._on_close = on_close
        self._stopped = threading.Event()
        self._pool: ConnectionPool | None = None
        self._outage: RedisError | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def client(self) -> Redis:
        """Open a client whose calls this breaker guards."""
        redis = open_client(
            self._url,
            pool=_Pool,
            sentinel_pool=_SentinelPool,
            timeouts=self._timeouts,
            retry=_Retry(self),
            breaker=self,
        )
        self._pool = redis.connection_pool
        return redis

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return self._outage is not None and self._pid == os.getpid()

    def require_closed(self) -> None:
        """Raise RedisAwayError while Redis does not answer."""
        outage = self._outage
        if outage is not None and self.is_open:
            raise RedisAwayError(f"{told(outage)}; it is asked again in the background") from outage

    def open(self, error: RedisError) -> None:
        """Let calls fail at once from now on, and ask Redis in the background until it answers."""
        if self._pid != os.getpid():  # a fork has no thread, and its copy of the lock may be locked
            self._pid, self._lock, self._outage = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._outage is not None or self._stopped.is_set():
                return
            self._outage = error
        _log.warning("Redis is away: %s", told(error), extra={"action": "redis_away"})
        threading.Thread(target=self._ask, name="rqsched-redis-breaker", daemon=True).start()

    def stop(self) -> None:
        """End the breaker's thread, because the client is closed."""
        self._stopped.set()

    def _ask(self) -> None:
        with open_client(self._url, retry=Retry(NoBackoff(), 0), timeouts=self._timeouts) as redis:
            while not self._stopped.is_set() and (outage := _outage_of(redis)):
                self._outage = outage
                self._stopped.wait(_ASK_AGAIN)
        if self._pool is not None:
            self._pool.disconnect(inuse_connections=False)  # old connections may be half-dead
        self._outage = None
        if self._stopped.is_set():
            return
        _log.info("Redis answers again", extra={"action": "redis_back"})
        try:
            self._on_close()
        except Exception:  # noqa: BLE001 - a thread's boundary; reconcile does what is left
            _log.exception("Redis was not updated; reconcile does it", extra={"action": "follow_failed"})


class Breakers:
    """Opens the Redis clients of one process. With a `timeout`, each client has a breaker. Otherwise, clients wait."""

    def __init__(self, timeout: timedelta | None) -> None:
        self.on_back: Callable[[], None] = lambda: None
        """Called from a thread when a Redis that was away answers again."""
        self._timeout = timeout
        self._all: list[Breaker] = []

    def __bool__(self) -> bool:
        """Return whether any client has a breaker."""
        return bool(self._all)

    def connect(self, url: str) -> Redis:
        """Open a client."""
        if not self._timeout:
            return connect(url)
        self._all.append(Breaker(url, self._timeout, self._notice))
        return self._all[-1].client()

    def _notice(self) -> None:
        self.on_back()

    @property
    def is_any_open(self) -> bool:
        """Whether the breaker of any client is open."""
        return any(breaker.is_open for breaker in self._all)

    def stop(self) -> None:
        """End the threads of all breakers, because the clients are closed."""
        for breaker in self._all:
            breaker.stop()


def _outage_of(redis: Redis) -> RedisError | None:
    """Return the error if Redis does not answer a ping, else None. A Redis that refuses the ping has answered."""
    try:
        redis.ping()
    except ResponseError:
        return None
    except RedisError as error:
        return error
    return None


class _Pool(ConnectionPool):
    """A connection pool that gives no connection while the breaker is open."""

    def __init__(self, *places: Any, breaker: Breaker, **options: Any) -> None:
        self._breaker = breaker
        super().__init__(*places, **options)

    def get_connection(self, *names: Any, **options: Any) -> Any:
        """Return a connection of the pool; raises RedisAwayError at once while the breaker is open."""
        self._breaker.require_closed()
        try:
            return super().get_connection(*names, **options)
        except RedisAwayError:
            raise
        except (RedisConnectionError, RedisTimeoutError) as error:  # redis-py 6: the first calls have no retry
            self._breaker.open(error)
            raise


class _SentinelPool(_Pool, SentinelConnectionPool):
    """The same pool, for the server that Sentinels name as the master."""


class _Retry(Retry):
    """Repeats a call once if its connection was lost. A call that times out opens the breaker."""

    def __init__(self, breaker: Breaker) -> None:
        super().__init__(NoBackoff(), 1)
        self._breaker = breaker

    def __deepcopy__(self, _: object) -> _Retry:
        """Share the breaker: redis-py copies the retry for every connection."""
        return self

    def call_with_retry(self, do: Callable[[], T], *rest: Any, **options: Any) -> T:
        """Make a call unless the breaker is open. Open the breaker if there is no answer."""
        try:
            return super().call_with_retry(lambda: self._once(do), *rest, **options)
        except RedisAwayError:
            raise
        except (RedisConnectionError, RedisTimeoutError) as error:
            self._breaker.open(error)
            raise

    def _once(self, do: Callable[[], T]) -> T:
        self._breaker.require_closed()
        try:
            return do()
        except RedisTimeoutError as error:
            self._breaker.open(error)
            raise
