"""The parts that all repairs share: counts, pages of rows, and a loop in which a row that fails starves no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from rqsched.chain.changing import change
from rqsched.chain.commit import Decided
from rqsched.chain.runtime import Runtime
from rqsched.core.model import Change, Schedule
from rqsched.errors import BackendUnavailableError
from rqsched.store import changes
from rqsched.store.database import Connection

_log = logging.getLogger(__name__)

BATCH = 500
"""The most rows a page holds."""
SOON = timedelta(seconds=30)
"""Links due within this long must be in Redis by now."""


@dataclass(slots=True)
class Recovered:
    """Counts of the rows that a pass found and repaired."""

    checked: int = 0
    """Rows compared."""
    links: int = 0
    """Main links armed because none was live."""
    next_times: int = 0
    """Schedules that had no next time and got one, or were over."""
    retimed: int = 0
    """Next times recomputed for a new timezone database, or a calendar that was changed."""
    deliveries: int = 0
    """Pending runs enqueued again."""
    retries: int = 0
    """Retry links armed."""
    lost: int = 0
    """Runs without a sign of life, settled."""
    blocked: int = 0
    """Blocked runs that no worker took for too long, failed."""
    expired: int = 0
    """Pending runs that were not started in time, ended."""
    granted: int = 0
    """Runs that got a place in their group, which nobody had given them."""
    drained: int = 0
    """Waiting runs started because nothing was ahead of them."""
    backfills: int = 0
    """Interrupted backfills that were continued."""
    targets: int = 0
    """Jobs of fan-outs enqueued again, and targets failed whose process vanished."""
    overdue: int = 0
    """Schedules found to be without a success for as long as they allow."""
    long: int = 0
    """Runs found to take longer than their schedules expect."""
    notifications: int = 0
    """Notifications enqueued again, and attempts failed whose process vanished."""
    resumed: int = 0
    """Schedules that fire again because their pause was to end by itself."""
    followed: int = 0
    """Downstream schedules to which an end was owed."""
    failed: int = 0
    """Rows that could not be repaired now; the log says why."""

    @property
    def repaired(self) -> int:
        """How many repairs were made in all."""
        return int(sum(asdict(self).values())) - self.checked - self.failed

    def add(self, other: Recovered) -> None:
        """Add another pass's counts."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def pages_unfrozen(runtime: Runtime, page: Callable[..., tuple[list[Any], Any]]) -> Iterator[list[Any]]:
    """Yield pages of rows without those of frozen namespaces: nothing begins there, and waiting is not reported."""
    return pages(runtime, partial(page, frozen=[*runtime.hold.frozen]))


def pages(
    runtime: Runtime, page: Callable[..., tuple[list[Any], Any]], *, is_writing: bool = False
) -> Iterator[list[Any]]:
    """Yield pages of rows; `page` reads up to `limit` rows after a cursor and returns where the next page starts."""
    process = runtime.database.transact if is_writing else runtime.database.read
    cursor: Any = None
    while True:
        rows, cursor = process(partial(page, after=cursor, limit=BATCH))
        if rows:
            yield rows
        if cursor is None:
            return


def repair_each(repairs: Mapping[str, Callable[[], object]], complaint: str) -> tuple[int, int]:
    """Make each repair of a row, named by its uid; returns how many did something and how many cannot be made now.

    A repair that fails is logged with `complaint` and starves no other. Raises BackendUnavailableError.
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

    `decide` gets the clock, and reads it once it has locked what else it needs.

    A schedule that another process holds is left to the next pass.
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
