"""Presence: dispatchers show in Redis that they live, for operators alone. Nothing else depends on it.

A set names the dispatchers of a control queue, and a key each expires soon after its dispatcher falls silent. The
formats are API: dashboards and `rqsched doctor` read them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from redis import Redis

from rqsched.core.ids import iso_utc

INTERVAL = timedelta(seconds=5)
"""How often a dispatcher shows itself."""
EXPIRY = timedelta(seconds=15)
"""How long it counts as alive after that."""


@dataclass(frozen=True, slots=True)
class Present:
    """A dispatcher that lives."""

    name: str
    """`host:pid`."""
    started_at: str
    """ISO 8601 UTC."""


class Presence:
    """One dispatcher's sign of life."""

    def __init__(self, redis: Redis, queue: str, now: Callable[[], datetime]) -> None:
        self._redis = redis
        self._queue = queue
        self._now = now
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._started_at: datetime | None = None
        self._shown_at: datetime | None = None

    def show(self) -> None:
        """Be seen as alive for another `EXPIRY`; costs nothing within `INTERVAL` of the last time."""
        now = self._now()
        if self._shown_at is not None and abs(now - self._shown_at) < INTERVAL:
            return
        self._started_at = self._started_at or now
        with self._redis.pipeline() as pipe:
            pipe.sadd(_everyone(self._queue), self._name)
            pipe.set(_key(self._queue, self._name), iso_utc(self._started_at), ex=EXPIRY)
            pipe.execute()
        self._shown_at = now

    def leave(self) -> None:
        """Be gone at once."""
        with self._redis.pipeline() as pipe:
            pipe.srem(_everyone(self._queue), self._name)
            pipe.delete(_key(self._queue, self._name))
            pipe.execute()


def dispatchers(redis: Redis, queue: str) -> list[Present]:
    """Read the living dispatchers of a control queue, by name; those that fell silent are forgotten."""
    names = sorted(_text(name) for name in cast("Iterable[bytes | str]", redis.smembers(_everyone(queue))))
    if not names:
        return []
    values = redis.mget([_key(queue, name) for name in names])
    silent = [name for name, value in zip(names, values, strict=True) if value is None]
    if silent:
        redis.srem(_everyone(queue), *silent)
    return [Present(name, _text(value)) for name, value in zip(names, values, strict=True) if value is not None]


def _everyone(queue: str) -> str:
    return f"rqsched:dispatchers:{queue}"


def _key(queue: str, name: str) -> str:
    return f"rqsched:dispatcher:{queue}:{name}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
