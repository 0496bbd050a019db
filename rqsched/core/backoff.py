"""Backoff: how long what failed waits before it is tried again. Pure.

Runs and targets wait by the retry policies of their schedule, what rqsched itself repeats by the constants here.
"""

from __future__ import annotations

from datetime import timedelta

import tenacity

from rqsched.core.jitter import fraction
from rqsched.core.policy import RetryPolicy
from rqsched.spec.spec import Once, Spec

MAX_BASE = timedelta(hours=1)
"""An interval longer than this does not stretch the first retry (Pipelit document)."""
CRON_BASE = timedelta(seconds=60)
"""The first delay of what has no interval."""
CAP_FACTOR = 10
"""The cap as a multiple of the base, unless a cap is given (Pipelit document)."""
FIRE_BACKOFF = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(minutes=5))
"""How a schedule whose fire itself fails is kept from being tried in a tight loop."""
DELIVERY_BACKOFF = RetryPolicy(
    base=timedelta(seconds=15), factor=3.0, cap=timedelta(hours=1), jitter=timedelta(seconds=5), max_retries=9
)
"""How a delivery that failed is repeated: after 15 s, 45 s, 135 s ... and then each hour, ten attempts in all."""
FIRST_OFFER, LONGEST_OFFER = timedelta(seconds=5), timedelta(seconds=60)
"""After how long a blocked run is offered to workers again, at first and at most."""


def backoff(retry: RetryPolicy, attempt: int, *, interval: timedelta, salt: str = "", spread: float = 0.0) -> timedelta:
    """Compute the wait after failed attempt `attempt` (1 is the first): exponential, jittered, spread.

    `interval` is the base of a policy that has none. `spread` is how far the wait lies from that, as a part of it; a
    cap that was given holds all the same. The same `salt` gives the same wait in every process.
    """
    base = retry.base or min(interval, MAX_BASE)
    cap = retry.cap or CAP_FACTOR * base
    wait = tenacity.wait_exponential(multiplier=base.total_seconds(), exp_base=retry.factor, max=cap.total_seconds())
    state = tenacity.RetryCallState(retry_object=tenacity.Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    delay = timedelta(seconds=wait(state)) + retry.jitter * fraction("retry", salt, attempt)
    if not spread:
        return delay
    delay *= 1 + spread * (2 * fraction("spread", salt, attempt) - 1)
    return delay if retry.cap is None else min(delay, retry.cap)


def base_of(spec: Spec) -> timedelta:
    """Return the interval that a schedule's retries start from: its smallest, 60 s for crons and instants."""
    return min(CRON_BASE if isinstance(m, Once) else m.every or CRON_BASE for m in spec.members)


def offer_delay(blocked_for: timedelta) -> timedelta:
    """Return the wait before the next offer, which doubles: 5 s after 0 s blocked, 10 s after 5 s, 20 s after 15 s."""
    return min(FIRST_OFFER + blocked_for, LONGEST_OFFER)
