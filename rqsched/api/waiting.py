"""Decide when to read a run again while waiting for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

FIRST_LOOK, LONGEST_LOOK = 0.1, 2.0
"""Seconds between two reads of a run; they double from the first to the longest."""


def looks(timeout: float | None, now: Callable[[], float]) -> Iterator[float]:
    """Yield the seconds to sleep before each further read of a run; raises TimeoutError after `timeout` seconds."""
    until, pause = None if timeout is None else now() + timeout, FIRST_LOOK
    while True:
        left = pause if until is None else until - now()
        if left <= 0:
            raise TimeoutError(f"the run has not ended within {timeout} s; it continues.")
        yield min(pause, left)
        pause = min(2 * pause, LONGEST_LOOK)
