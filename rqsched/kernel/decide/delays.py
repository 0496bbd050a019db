"""Compute delays: jitter and spread of occurrences, backoff after failures, and the wait of a blocked run.

The retry policies of a schedule set the backoff of its runs and targets. The constants here set the backoff of
rqsched's own retries. The random part of a delay is computed from a hash, so that every process gets the same value.
Pure.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import tenacity

from rqsched.errors import InvalidDurationError
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.when.spec import After, Once, Spec

MAX_BASE = timedelta(minutes=5)
"""The maximum of a first delay that the interval sets. For example, a daily job waits 5, 10 and 20 minutes."""
CRON_BASE = timedelta(seconds=60)
"""The first delay for a schedule that has no interval."""
CAP_FACTOR = 10
"""The cap as a multiple of the base, unless a cap is given (Pipelit document)."""
FIRE_BACKOFF = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(minutes=5))
"""The backoff after a fire has failed."""
DELIVERY_BACKOFF = RetryPolicy(
    base=timedelta(seconds=15), factor=3.0, cap=timedelta(hours=1), jitter=timedelta(seconds=5), max_retries=9
)
"""How a failed delivery is repeated: after 15 s, 45 s, 135 s ... and then each hour, ten attempts in all."""
PING_BACKOFF = replace(DELIVERY_BACKOFF, max_retries=3)
"""How a failed heartbeat or check-in is repeated: only 3 times, because a late one would report an old state."""
FIRST_OFFER, LONGEST_OFFER = timedelta(seconds=5), timedelta(seconds=60)
"""The shortest and the longest wait before a blocked run is offered to workers again."""

_RESOLUTION = 1 << 64
_LAST = datetime.max.replace(tzinfo=UTC)


def jittered(uid: str, nominal_at: datetime, jitter: timedelta, gap: timedelta | None) -> datetime:
    """Return the instant in [nominal_at, nominal_at + min(jitter, gap)) at which the occurrence is due.

    `uid` is the uid of the schedule. `gap` is the time to its next nominal occurrence; None if there is none. The delay
    is scaled to the smaller of jitter and gap. If longer delays were cut instead, many fires would come at the end of
    the gap. Raises InvalidDurationError for a negative jitter.
    """
    if jitter < timedelta(0):
        raise InvalidDurationError("jitter", f"{jitter} is negative; jitter only delays, write a positive length")
    return later(nominal_at, _share(f"{uid}:{nominal_at.timestamp():.6f}", jitter, gap))


def later(instant: datetime, length: timedelta) -> datetime:
    """Return the instant that is `length` later, or the last instant that exists."""
    return instant + length if length < _LAST - instant else _LAST


def spread_out(named: tuple[str, str], spread: timedelta, gap: timedelta | None) -> timedelta:
    """Return by how much a fire is delayed: a part of min(spread, gap). `gap` is as in `jittered`.

    The part is computed from `named`, the namespace and id of the schedule. It is the same for all occurrences of the
    schedule, even if the schedule is deleted and created again.
    """
    return _share(f"{'/'.join(named)}:spread", spread, gap)


def _share(key: str, length: timedelta, gap: timedelta | None) -> timedelta:
    if not length:
        return length
    width = length if gap is None else min(length, max(gap, timedelta(0)))
    # Compute whole microseconds in integers, because a rounded float could reach the next nominal time.
    return timedelta(microseconds=(width // timedelta(microseconds=1)) * _drawn(key) // _RESOLUTION)


def retry_at(
    retry: RetryPolicy, attempt: int, *, now: datetime, interval: timedelta, salt: str, spread: float = 0.0
) -> datetime | None:
    """Return when the next attempt is due after attempt number `attempt` failed; None if no attempt is left.

    The other parameters are those of `backoff`.
    """
    if attempt > retry.max_retries:
        return None
    return later(now, backoff(retry, attempt, interval=interval, salt=salt, spread=spread))


def backoff(retry: RetryPolicy, attempt: int, *, interval: timedelta, salt: str = "", spread: float = 0.0) -> timedelta:
    """Compute the wait after attempt number `attempt` failed (1 is the first). It grows exponentially.

    If the policy has no base, `interval` is the base. The policy's jitter makes the wait longer. `spread` is a
    fraction: the wait changes by up to this part of its length, but never exceeds the cap of the policy. The same
    `salt` gives the same wait in every process.
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
    """Return the base of retry delays: the shortest interval of the spec. Members without an interval count as 60 s."""
    bases = (CRON_BASE if isinstance(m, Once | After) else m.every or CRON_BASE for m in spec.members)
    return min(bases, default=CRON_BASE)


def offer_delay(blocked_for: timedelta) -> timedelta:
    """Return the wait before a blocked run is offered again. The waits double: 5 s at first, then 10 s, 20 s, ..."""
    return min(FIRST_OFFER + blocked_for, LONGEST_OFFER)


def fraction(*parts: object) -> float:
    """Compute a number in [0, 1) from `parts`. Equal parts give the same number in every process."""
    return _drawn(":".join(map(str, parts))) / _RESOLUTION


def _drawn(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
