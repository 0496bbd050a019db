"""Repeat a call after failures that may be temporary."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import tenacity

T = TypeVar("T")


def call_patiently(retrying: tenacity.Retrying, call: Callable[[], T], again: Callable[[], T] | None = None) -> T:
    """Make a call; if it fails, repeat it in a tenacity loop, where the failure counts as the first attempt.

    The loop calls `again`, which is `call` by default. The loop is entered only after a failure, because its
    bookkeeping costs as much as a short statement. The time limit of the loop counts from the first call.
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
                raise failures.pop()  # removed from the list, because the error's frames hold open connections
            return (again or call)()
    raise AssertionError("the loop raises the last error")  # pragma: no cover
