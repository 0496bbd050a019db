"""The tally: what the reconcile passes of all processes did, added up in Redis for metrics alone.

A hash for each control queue; a flush of Redis starts it anew. The format is API: metrics read it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from redis import Redis
from redis.exceptions import RedisError

_log = logging.getLogger(__name__)

PASSES, SECONDS, LAST_SECONDS = "passes", "seconds", "last_seconds"
"""How many passes were made, how long they took in all, and how long the last one took."""


def record(redis: Redis, queue: str, counts: Mapping[str, int], seconds: float) -> None:
    """Add a finished pass; Redis being away loses it, which harms nothing."""
    key = _key(queue)
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
        _log.debug("a pass is not tallied: %s", error, extra={"action": "tally_failed"})


def read(redis: Redis, queue: str) -> dict[str, float]:
    """Read the sums, by the names of `Recovered` and the three above."""
    found = redis.hgetall(_key(queue))
    return {name.decode() if isinstance(name, bytes) else name: float(value) for name, value in found.items()}


def _key(queue: str) -> str:
    return f"rqsched:tally:{queue}"
