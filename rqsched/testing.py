"""What tests of rqsched, and of applications that use it, need: a clock that moves only when told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rqsched.clock import Clock


class ManualClock(Clock):
    """A clock that stands still until a test moves it.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance(timedelta(minutes=5))
    datetime.datetime(2026, 1, 1, 0, 5, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime) -> None:
        self._now = _as_utc(start)

    def now(self) -> datetime:
        """Return the instant the clock stands at."""
        return self._now

    def advance(self, span: timedelta) -> datetime:
        """Move the clock by `span`, a negative one moves it back; return where it stands now."""
        self._now += span
        return self._now

    def set(self, instant: datetime) -> None:
        """Stand at `instant`, earlier or later than before. A naive datetime is refused with ValueError."""
        self._now = _as_utc(instant)


def _as_utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} is naive; give an aware datetime, such as one with tzinfo=UTC.")
    return instant.astimezone(UTC)
