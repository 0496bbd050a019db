"""Telemetry: the state of processes in Redis, only for operators. Nothing else depends on it.

A worker adds our version to its RQ hash. A set names the dispatchers of a control queue, and one key per dispatcher
expires soon after its last heartbeat. A hash per control queue has the sums over the reconcile passes and prunings of
all processes. After a flush of Redis the sums begin again at zero. The formats are API: metrics, dashboards and
`rqsched doctor` read them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, cast

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.defaults import DEFAULT_WORKER_TTL
from rq.utils import utcparse

from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.transport import redis_keys

_log = logging.getLogger(__name__)

INTERVAL = timedelta(seconds=5)
"""How often a dispatcher sends a heartbeat."""
EXPIRY = timedelta(seconds=15)
"""How long a dispatcher counts as alive after its last heartbeat."""
FOREIGN_FOR = timedelta(minutes=5)
"""How long a worker with another database is shown after its last job of this database."""
_RQ_WORKERS = "rq:workers"
"""RQ's set of the keys of its workers."""
WORKER_VERSION = "rqsched_version"
"""The field with our version in RQ's hash of a worker."""
_EVERY = timedelta(seconds=15)
"""The longest time between two signs of life of a worker of ours, except while it executes a job in its own process."""
_RQ_SPARE, _RQ_LIFE = timedelta(seconds=60), timedelta(seconds=DEFAULT_WORKER_TTL + 60)
"""RQ lets the key of a worker expire this long after the worker's next sign of life is due. The second value is the
whole life of the key while the worker executes no job."""
_OVERDUE = timedelta(seconds=15)
"""How late a worker's sign of life may come."""
DAMAGED_FOR = timedelta(hours=1)
"""How long doctor names a damaged runner."""
PASSES, SECONDS, LAST_SECONDS = "passes", "seconds", "last_seconds"
"""The number of reconcile passes, the seconds of all passes, and the seconds of the last pass."""
PRUNED = "pruned_"
"""Each sum of pruned rows is named by this prefix and the name of the table."""


@dataclass(frozen=True, slots=True)
class LiveDispatcher:
    """A dispatcher whose heartbeat has not expired."""

    name: str
    """`host:pid`."""
    started_at: str
    """ISO 8601 UTC."""
    version: str = ""
    """The version of rqsched; empty for a copy of the sources."""
    silent_for: timedelta = timedelta(0)
    """How long ago the dispatcher sent its last heartbeat."""
    environment: str = ""
    """RQSCHED_ENVIRONMENT of its process; empty if it is not set."""
    waits_for: str = ""
    """The error of SQL when the dispatcher could not write; empty while it fires."""


class DispatcherHeartbeat:
    """Shows in Redis that one dispatcher is alive."""

    def __init__(
        self, redis: Redis, queue: str, now: Callable[[], datetime], *, environment: str | None = None
    ) -> None:
        """Take the Redis, the control queue and the clock; `environment` is RQSCHED_ENVIRONMENT of this process."""
        self._redis = redis
        self._now = now
        self._environment = environment or ""
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._name, self._names_key, self._key = name, redis_keys.dispatchers(queue), redis_keys.dispatcher(queue, name)
        self._waits_key = redis_keys.dispatcher_waits(queue, name)
        self.waits_for = self._told = ""
        """The error of SQL when the dispatcher could not write; empty while it fires. The next `send` shows it."""
        self._started_at: datetime | None = None
        self._sent_at: datetime | None = None

    @property
    def was_sent(self) -> bool:
        """Whether a heartbeat was sent since the last `stop`."""
        return self._sent_at is not None

    def send(self) -> None:
        """Send a heartbeat, which is valid for `EXPIRY`; within `INTERVAL` only if `waits_for` has changed."""
        now, waits_for = self._now(), self.waits_for
        if self._sent_at is not None and abs(now - self._sent_at) < INTERVAL and waits_for == self._told:
            return
        self._started_at = self._started_at or now
        with self._redis.pipeline() as pipe:
            pipe.sadd(self._names_key, self._name)
            pipe.set(self._key, f"{iso_utc(self._started_at)} {_version()} {self._environment}", ex=EXPIRY)
            if waits_for:
                pipe.set(self._waits_key, waits_for, ex=EXPIRY)
            elif self._told:
                pipe.delete(self._waits_key)
            pipe.execute()
        self._sent_at, self._told = now, waits_for

    def stop(self) -> None:
        """Remove the heartbeat, so that the dispatcher counts as gone until `send` is called again."""
        with self._redis.pipeline() as pipe:
            pipe.srem(self._names_key, self._name)
            pipe.delete(self._key, self._waits_key)
            pipe.execute()
        self._sent_at = None


@cache
def _version() -> str:
    try:
        return version("rqsched")
    except PackageNotFoundError:  # a copy of the sources
        return ""


def show_worker_version(redis: Redis, key: str) -> None:
    """Add our version to the hash `key` of RQ's worker. RQ removes the hash with the worker.

    While Redis is away nothing is added, which does no harm.
    """
    try:
        redis.hset(key, WORKER_VERSION, _version())
    except RedisError as error:
        _log.debug("the version of a worker is not shown: %s", error, extra={"action": "telemetry_failed"})


class LiveRqWorker(NamedTuple):
    """The state of an RQ worker in Redis, with the additions of rqsched's own workers."""

    key: str
    """The key of its hash."""
    queues: list[str]
    """The queues that the worker listens on, in the worker's order."""
    version: str
    """The version of rqsched; empty for a worker of plain RQ."""
    is_silent: bool
    """Whether the next sign of life is overdue: the worker was killed, is stopped, or does not reach Redis."""


def registered_workers(redis: Redis) -> list[LiveRqWorker]:
    """Return RQ's workers whose keys have not expired, in two requests; `Worker.all` sends two for each worker.

    The key of a killed worker expires minutes later. Silence is measured by the clock of Redis, because RQ writes the
    wall clock of the worker's machine.
    """
    keys = sorted(_text(key) for key in cast("Iterable[bytes | str]", redis.smembers(_RQ_WORKERS)))
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for key in keys:
            pipe.hmget(key, "queues", WORKER_VERSION, "last_heartbeat")
            pipe.pttl(key)
        (seconds, _), *found = pipe.execute()
    now = datetime.fromtimestamp(seconds, UTC)
    return [
        LiveRqWorker(
            key, _text(queues).split(","), _text(version or ""),
            _is_silent(now, _text(beat or ""), timedelta(milliseconds=left), is_ours=bool(version)),
        )
        for key, (queues, version, beat), left in zip(keys, found[::2], found[1::2], strict=True)
        if queues is not None
    ]  # fmt: skip


def _is_silent(now: datetime, beat: str, left: timedelta, *, is_ours: bool) -> bool:
    """Return whether a sign of life is overdue.

    RQ lets the key of a worker live a minute longer than the next sign may take: up to 405 seconds while the worker
    waits for a job. A worker of ours sends signs of life more often, although its key lives as long.
    """
    if left < timedelta(0) or not beat:
        return False
    at = utcparse(beat)
    silent_for = now - (at if at.tzinfo else at.replace(tzinfo=UTC))
    if is_ours and abs(silent_for + left - _RQ_LIFE) < _OVERDUE:
        return silent_for > _EVERY + _OVERDUE
    return left < _RQ_SPARE - _OVERDUE


def live_workers(redis: Redis) -> list[LiveRqWorker]:
    """Return the registered workers that are not silent."""
    return [one for one in registered_workers(redis) if not one.is_silent]


def live_dispatchers(redis: Redis, queue: str) -> list[LiveDispatcher]:
    """Return the live dispatchers of a control queue, by name; remove dispatchers whose heartbeat expired."""
    names = sorted(_text(name) for name in cast("Iterable[bytes | str]", redis.smembers(redis_keys.dispatchers(queue))))
    if not names:
        return []
    keys = [redis_keys.dispatcher(queue, name) for name in names]
    with redis.pipeline() as pipe:
        pipe.mget(keys)
        pipe.mget([redis_keys.dispatcher_waits(queue, name) for name in names])
        for key in keys:
            pipe.pttl(key)
        values, waits, *left = pipe.execute()
    silent = [name for name, value in zip(names, values, strict=True) if value is None]
    if silent:
        with suppress(ResponseError):  # a Redis that takes no writes still answers this read
            redis.srem(redis_keys.dispatchers(queue), *silent)
    return [
        _live(name, _text(value), timedelta(milliseconds=milliseconds), _text(waits_for or ""))
        for name, value, milliseconds, waits_for in zip(names, values, left, waits, strict=True)
        if value is not None
    ]


def _live(name: str, value: str, left: timedelta, waits_for: str) -> LiveDispatcher:
    started_at, _, rest = value.partition(" ")
    number, _, environment = rest.partition(" ")
    silent_for = max(EXPIRY - left, timedelta(0))
    return LiveDispatcher(name, started_at, number, silent_for, environment, waits_for)


def record_pass(redis: Redis, queue: str, counts: Mapping[str, int], seconds: float) -> None:
    """Add a finished reconcile pass to the sums; while Redis is away it is not counted, which does no harm."""
    key = redis_keys.passes(queue)
    try:
        with redis.pipeline() as pipe:
            for name, count in counts.items():
                if count:
                    pipe.hincrby(key, name, count)
            pipe.hincrby(key, PASSES, 1)
            pipe.hincrbyfloat(key, SECONDS, seconds)
            pipe.hset(key, LAST_SECONDS, repr(seconds))
            pipe.execute()
    except RedisError as error:
        _log.debug("a reconcile pass is not counted: %s", error, extra={"action": "telemetry_failed"})


def record_pruned(redis: Redis, queue: str, counts: Mapping[str, int]) -> bool:
    """Add the numbers of pruned rows to the sums, by table; returns False while Redis is away, which does no harm."""
    key = redis_keys.passes(queue)
    try:
        with redis.pipeline() as pipe:
            for name, count in counts.items():
                if count:
                    pipe.hincrby(key, f"{PRUNED}{name}", count)
            pipe.execute()
    except RedisError as error:
        _log.debug("a pruning is not counted: %s", error, extra={"action": "telemetry_failed"})
        return False
    return True


def read_passes(redis: Redis, queue: str) -> dict[str, float]:
    """Return the sums over all reconcile passes and all prunings.

    The names for passes are the fields of `Recovered`, PASSES, SECONDS and LAST_SECONDS. The names for prunings are
    PRUNED followed by the table.
    """
    return {_text(name): float(value) for name, value in redis.hgetall(redis_keys.passes(queue)).items()}


class Memory(NamedTuple):
    """How full Redis is."""

    used: int
    """The bytes in use."""
    limit: int
    """The maximum number of bytes that may be in use (`maxmemory`); 0 for no limit."""
    policy: str
    """The behaviour at the limit (`maxmemory-policy`); noeviction refuses writes."""


def read_memory(redis: Redis) -> Memory:
    """Ask Redis how full it is."""
    memory: Any = redis.info("memory")
    return Memory(memory["used_memory"], memory["maxmemory"], memory["maxmemory_policy"])


def record_foreign_worker(redis: Redis, owner: str, worker: str, *, now: datetime) -> None:
    """Show that a worker with another database got a job of the database `owner`."""
    key, moment = redis_keys.foreign_workers(owner), now.timestamp()
    try:
        with redis.pipeline() as pipe:
            pipe.zadd(key, {worker: moment})
            pipe.zremrangebyscore(key, "-inf", moment - FOREIGN_FOR.total_seconds())
            pipe.expire(key, FOREIGN_FOR)
            pipe.execute()
    except RedisError as error:
        _log.debug("a worker with another database is not shown: %s", error, extra={"action": "telemetry_failed"})


def foreign_workers(redis: Redis, owner: str, *, now: datetime) -> list[str]:
    """Return the workers with another database that lately got jobs of the database `owner`, by name."""
    found = redis.zrangebyscore(redis_keys.foreign_workers(owner), (now - FOREIGN_FOR).timestamp(), "+inf")
    return sorted(_text(name) for name in cast("Iterable[bytes | str]", found))


def record_damage(redis: Redis, runner: str, pid: int, why: str, *, now: datetime) -> None:
    """Show that a runner was damaged and was replaced."""
    key = redis_keys.damaged_runners()
    try:
        found = redis.hget(key, runner)
        count = 1 + (json.loads(found)["count"] if found else 0)
        with redis.pipeline() as pipe:
            told = {"at": now.timestamp(), "count": count, "host": socket.gethostname(), "pid": pid, "why": why}
            pipe.hset(key, runner, json.dumps(told))
            pipe.expire(key, DAMAGED_FOR)
            pipe.execute()
    except RedisError as error:
        _log.debug("a damaged runner is not shown: %s", error, extra={"action": "telemetry_failed"})


def damaged_runners(redis: Redis, *, now: datetime) -> list[str]:
    """Return a text for each runner that was damaged lately: its process, the last reason, and how often."""
    since = (now - DAMAGED_FOR).timestamp()
    told = []
    for name, text in sorted(cast("dict[bytes | str, bytes]", redis.hgetall(redis_keys.damaged_runners())).items()):
        found = json.loads(text)
        if found["at"] >= since:
            process = f"{_text(name)} on {found['host']}, pid {found['pid']}"
            told.append(f"{process} ({found['why']}; {found['count']} in all)")
    return told


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
