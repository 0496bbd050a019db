"""Limits on the size of bodies and the rate of requests. They are counted in memory, separately in each process."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from rqsched.http.errors import RateLimitedError

_MOST_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one process."""

    body_bytes: int = 1024 * 1024
    """The largest request body."""
    body_seconds: float = 20.0
    """Seconds that a body may take to arrive before it is refused."""
    stranger_bytes: int = 16 * 1024
    """The largest body that is read before its sender is authenticated. The dashboard's login form is such a body."""
    strangers: int = 50
    """How many bodies of unauthenticated senders are read at once per address. A further body displaces the oldest."""
    failures: int = 20
    """How many unknown tokens one address may send at once."""
    failure_rate: float = 0.5
    """How many unknown tokens per second one address may send in the long run; 0 means no limit."""
    rate: float = 500.0
    """How many requests per second each principal may send in the long run; 0 means no limit."""
    burst: int = 2_000
    """How many requests a principal may send at once after a pause."""
    streams: int = 1_000
    """How many streams of events may be open at once."""
    stream_seconds: float = 3_600.0
    """Seconds after which a stream is ended. Its client then reconnects and continues at its position."""
    stream_poll: float = 1.0
    """Seconds between two polls for new events, while there are streams."""
    heartbeat: float = 15.0
    """The longest silence of a stream, in seconds."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A principal's remaining requests."""

    limit: int
    """How many requests the principal may send at once after a pause."""
    remaining: int
    """How many requests the principal may send now."""
    full_in: int
    """Seconds until its bucket is full again."""

    @property
    def headers(self) -> dict[str, str]:
        """The allowance as headers of a response (RateLimit header fields for HTTP)."""
        counts = {"Limit": self.limit, "Remaining": self.remaining, "Reset": self.full_in}
        return {f"RateLimit-{name}": str(count) for name, count in counts.items()}


class TokenBuckets:
    """A token bucket for each principal. If there are too many buckets, the least recently used bucket is dropped."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> Allowance | None:
        """Take one request from the principal's bucket. Raises RateLimitedError if the bucket is empty.

        Returns the remaining requests, or None if there is no limit.
        """
        if not self._rate:
            return None
        now = monotonic()
        with self._lock:
            left, seen_at = self._buckets.pop(name, (float(self._burst), now))
            left = min(self._burst, left + (now - seen_at) * self._rate)
            self._buckets[name] = (max(left - 1, 0.0) if left >= 1 else left, now)
            if len(self._buckets) > _MOST_BUCKETS:
                self._buckets.popitem(last=False)
        if left < 1:
            raise RateLimitedError(max(1, math.ceil((1 - left) / self._rate)))
        return Allowance(self._burst, int(left - 1), math.ceil((self._burst - left + 1) / self._rate))
