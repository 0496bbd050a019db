"""Calls that are made again while what failed may pass."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import tenacity

T = TypeVar("T")


def call_patiently(retrying: tenacity.Retrying, call: Callable[[], T], again: Callable[[], T] | None = None) -> T:
    """Call; a failure is the first attempt of a tenacity loop, and `again`, by default the call itself, the others.

    The loop is entered only then: what it keeps for each attempt costs as much as a short statement. Its time has run
    since the call began.
    """
    started_at = monotonic()
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the loop decides about it
        failures = [error]
    for attempt in retrying:
        with attempt:
            if failures:
                attempt.retry_state.start_time = started_at
                raise failures.pop()  # kept no longer: its frames hold what was open
            return (again or call)()
    raise AssertionError("the loop raises the last error")  # pragma: no cover
