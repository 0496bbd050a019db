"""The parts that all repairs share: pages of rows, and a loop that goes on after the repair of a row has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.freeze_gate import FreezeGate
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Change, Schedule
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection, Database

_log = logging.getLogger(__name__)

BATCH = 500
"""The maximum number of rows in a page."""
SOON = timedelta(seconds=30)
"""Links that are due within this time must already be in Redis."""


class Parts(Protocol):
    """The parts of a process's runtime that pages of rows use."""

    database: Database
    """The database of the rows."""
    freezes: FreezeGate
    """Knows whether everything is frozen, and which namespaces are."""


def unless_all_frozen(parts: Parts, section: Iterator[Recovered]) -> Iterator[Recovered]:
    """Skip a section while everything is frozen, because it would begin work, or report that work waits long."""
    if not parts.freezes.is_all_frozen:
        yield from section


def pages_unfrozen(parts: Parts, page: Callable[..., tuple[list[Any], Any]]) -> Iterator[list[Any]]:
    """Yield pages of rows, except the rows of frozen namespaces, because nothing begins there."""
    return pages(parts, partial(page, frozen=[*parts.freezes.frozen]))


def pages(parts: Parts, page: Callable[..., tuple[list[Any], Any]], *, is_writing: bool = False) -> Iterator[list[Any]]:
    """Yield pages of rows; `page` reads up to `limit` rows after a cursor and returns where the next page starts."""
    process = parts.database.transact if is_writing else parts.database.read
    cursor: Any = None
    while True:
        rows, cursor = process(partial(page, after=cursor, limit=BATCH))
        if rows:
            yield rows
        if cursor is None:
            return


def repair_each(repairs: Mapping[str, Callable[[], object]], complaint: str) -> tuple[int, int]:
    """Make the repair of each row, by uid; returns how many repairs did something and how many failed.

    A failure is logged with `complaint`, and the next repair is made. Raises BackendUnavailableError.
    """
    done = failed = 0
    for uid, repair in repairs.items():
        try:
            done += bool(repair())
        except BackendUnavailableError:
            raise
        except Exception:  # noqa: BLE001
            _log.exception(complaint, uid, extra={"action": "repair_failed"})
            failed += 1
    return done, failed


def repair_schedules(
    runtime: Runtime, uids: Sequence[str], decide: Callable[[Connection, Schedule, Callable[[], datetime]], Change]
) -> tuple[int, int]:
    """Decide about each schedule under its lock, write, publish; returns how many changed and how many failed.

    `decide` gets the clock, and reads the clock only after it has locked all rows that it needs.

    If another process has locked a schedule, the schedule is left to the next pass.
    """
    repairs = {uid: partial(_repair_schedule, runtime, uid, decide) for uid in uids}
    return repair_each(repairs, "schedule %s cannot be repaired now")


def _repair_schedule(
    runtime: Runtime, uid: str, decide: Callable[[Connection, Schedule, Callable[[], datetime]], Change]
) -> bool:
    def decide_one(connection: Connection, tried: Decided[bool] | None) -> Decided[bool]:
        schedule = changes.lock_one(connection, uid, skip_locked=True)
        if tried is not None and tried.is_written(schedule):
            return tried
        decided = None if schedule is None else decide(connection, schedule, runtime.now)
        return Decided([], False) if decided is None or decided.is_empty else Decided([decided], True)

    return change(runtime, decide_one)
