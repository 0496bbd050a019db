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
    """The largest body that is read before its sender is authenticated: the form of a login. The APIs read none."""
    strangers: int = 50
    """How many bodies of unauthenticated senders are read at once from one address. A further body ends the oldest."""
    failures: int = 20
    """Unknown tokens that one address may send at once."""
    failure_rate: float = 0.5
    """Unknown tokens per second of one address in the long run; 0 means no limit."""
    rate: float = 500.0
    """Requests per second of each principal in the long run; 0 means no limit."""
    burst: int = 2_000
    """Requests that a principal may send at once after a pause."""
    streams: int = 1_000
    """Streams of events that are open at once."""
    stream_seconds: float = 3_600.0
    """Seconds after which a stream is ended; its reader reconnects at its position."""
    stream_poll: float = 1.0
    """Seconds between two polls for new events, while there are streams."""
    heartbeat: float = 15.0
    """The longest silence of a stream, in seconds."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A principal's remaining requests."""

    limit: int
    """Requests at once after a pause."""
    remaining: int
    """Requests that the principal may send now."""
    full_in: int
    """Seconds until its bucket is full again."""

    @property
    def headers(self) -> dict[str, str]:
        """The allowance as headers of a response (RateLimit header fields for HTTP)."""
        counts = {"Limit": self.limit, "Remaining": self.remaining, "Reset": self.full_in}
        return {f"RateLimit-{name}": str(count) for name, count in counts.items()}


class TokenBuckets:
    """A token bucket for each principal. If there are too many, the least recently used bucket is dropped."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> Allowance | None:
        """Take one request from the principal's bucket. Raises RateLimitedError if the bucket is empty.

        Returns the remaining requests; None without a limit.
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
