"""The values that lists and bulk operations return. Scheduler and the HTTP client return the same classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from rqsched.kernel.decide.ids import iso_utc

T = TypeVar("T")
R = TypeVar("R")
MAX_PAGE = 500
"""The maximum number of items of one page."""
MOST_EXECUTING = 500
"""The maximum number of executing runs of a namespace that are counted, or terminated, at once."""
MOST_COUNTED = 1_000
"""Totals that a page shows are counted up to this number, because counting 100 000 rows takes longer than the page."""


def counted(total: int) -> str:
    """Return a total that was counted up to `MOST_COUNTED` as text: `12`, or `1000+` if there may be more."""
    return str(total) if total < MOST_COUNTED else f"{MOST_COUNTED}+"


def number_of(count: int, noun: str, more: str = "") -> str:
    """Return a number of things in words: `1 run`, `3 runs`, or `3+ runs` with `more="+"`."""
    return f"{count}{more} {noun}{'' if count == 1 and not more else 's'}"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    """The items of the page, in the order of the list."""
    next_cursor: str | None = None
    """Pass this opaque text to read the next page; None on the last page."""

    def map(self, convert: Callable[[T], R]) -> Page[R]:
        """Return the same page with converted items."""
        return Page([convert(item) for item in self.items], self.next_cursor)


def pages(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """Read page after page; yields their items."""
    cursor: str | None = None
    while True:
        page = read(cursor)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


@dataclass(frozen=True, slots=True)
class NamespaceData:
    """How many rows a namespace has, or how many of its rows a deletion has removed so far."""

    namespace: str
    """The name of the namespace."""
    is_frozen: bool
    """Whether the namespace is frozen. It must be frozen during its whole deletion."""
    executing: int
    """The number of runs that execute now, up to 500; during a deletion, the number of runs that it terminated."""
    rows: dict[str, int]
    """The number of rows by kind (`schedules`, `runs`, ...); during a deletion, the number of rows deleted so far."""
    is_over: bool
    """Whether every row is deleted."""


@dataclass(frozen=True, slots=True)
class LimitDescription:
    """A group of runs and targets. It limits how many of them run at once or start in a window of time.

    The runs may belong to any schedules. A run that waits for its targets does not count as running, but its targets
    do.
    """

    namespace: str
    """The namespace that the group belongs to."""
    name: str
    """The name of the group, which schedules give as their `limit`."""
    number: int | None
    """How many of the group's runs and targets may run at once; None is unlimited."""
    rate: str | None
    """How many of the group's attempts may start in a window of time, such as `100/min`; None is unlimited."""
    started: int | None
    """How many attempts started in the last window of this length; None without a rate."""
    running: int
    """How many attempts run now."""
    starting: int
    """How many further attempts have a place and have not begun."""
    waiting: int
    """How many attempts wait for a place."""
    waiting_since: datetime | None
    """When the first attempt in line began to wait; None if no attempt waits."""
    changes: list[Any] = field(default_factory=list)
    """The newest 20 changes of the group's number and rate, the newest first.

    Each has `at`, `by`, `reason`, `was` and `number`. A change of the rate also has `was_rate` and `rate`.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-native values."""
        return asdict(self) | {"waiting_since": self.waiting_since and iso_utc(self.waiting_since)}


@dataclass(frozen=True, slots=True)
class BulkRow:
    """The outcome of a bulk operation for one schedule or one run."""

    schedule_id: str
    """The schedule, or the schedule of the run."""
    outcome: str
    """`paused`, `resumed`, `triggered`, `buffered`, `skips_next`, `skipped`; `would_pause` and so on in a dry run.

    Of runs: `cancelled`, `started`, `buffered` (it waits for the run ahead of it), `skipped`."""
    reason: str | None = None
    """Why it was skipped; None otherwise."""
    run_uid: str | None = None
    """The run; None for an operation on schedules."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The result of one call of a bulk operation. A call counts schedules or runs, or handles a chunk of them."""

    items: list[BulkRow]
    """The outcome of each schedule or run of the chunk, in the order in which they were handled; empty for the
    count."""
    done: int
    """How many are done, including this chunk. It exceeds `matched` if more schedules match after the count. It remains
    below `matched` if schedules or runs no longer match when their turn comes."""
    matched: int
    """How many schedules or runs matched when they were counted."""
    next_cursor: str | None
    """Pass this opaque text to do the next chunk; None if the operation is done."""


@dataclass(frozen=True, slots=True)
class RetryRow:
    """The outcome of a bulk retry for one run."""

    run_uid: str
    """The run."""
    schedule_id: str
    """Its schedule."""
    instance_id: str
    """Its instance id."""
    outcome: str
    """`started`, `buffered` (it waits for the run ahead of it) or `skipped`; `would_retry` in a dry run."""
    reason: str | None = None
    """Why the run was skipped: it was retried or deleted meanwhile."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """The outcome of a backfill for one occurrence."""

    occurrence_at: datetime
    """The nominal time of the occurrence."""
    instance_id: str | None
    """The instance id of the occurrence's run; None if this backfill created no run."""
    outcome: str
    """`started`, `buffered` (it waits for an earlier run), `skipped`, `already_run`; `would_start` in a dry run."""
    reason: str | None = None
    """Why the occurrence has this outcome. `pruned`: its history was pruned, so it is assumed to have run. `rerun`: its
    run had failed and runs again."""
    run_uid: str | None = None
    """The uid of the occurrence's run; None if this backfill created no run."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values, with the key names of the Durable Workflow document."""
        return {
            "occurrence_time": iso_utc(self.occurrence_at),
            "instance_id": self.instance_id,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Why:
    """Why a schedule ran or did not run at an instant. The answer comes from records only."""

    at: datetime
    """The instant in question; aware UTC."""
    answer: str
    """One of `Answer`."""
    text: str
    """The answer as sentences, with times in the schedule's zone."""
    occurrence_at: datetime | None = None
    """The occurrence in that minute (or second, if `at` has seconds); None if the timing has no occurrence there."""
    run_uid: str | None = None
    """The run of that occurrence, or the run that prevented its start; None when there is neither."""
    since: datetime | None = None
    """When the cause of the answer began or was recorded; None without a recorded cause."""
    by: str | None = None
    """The principal of the operation that caused the answer; None if no operation caused the answer, or if the
    principal is not known."""
    reason: str | None = None
    """The reason recorded with the cause, by a person or by rqsched; None when there is none."""
    event_sequence: int | None = None
    """The sequence of the event that recorded the cause; None if no event recorded it, or if the event is of an earlier
    schedule with this id."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-native values."""
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in asdict(self).items()}


class Answer(StrEnum):
    """The answers of `why`."""

    RAN = "ran"
    """The occurrence has a run that started, whatever its result."""
    WAITS = "waits"
    """Its run has not started yet. It waits for a worker, for its code, for a retry or for the run ahead of it."""
    NOT_STARTED = "not_started"
    """It has a run that ended before it started: cancelled, or dropped while it waited."""
    FIRES = "fires"
    """The occurrence is in the future, or inside its jitter or spread."""
    LATE = "late"
    """The occurrence is due and has not fired yet."""
    SKIPPED = "skipped"
    """The occurrence was skipped on purpose; `reason` names the rule."""
    MISSED = "missed"
    """The occurrence did not fire in time."""
    NEWER_RELEASE = "newer_release"
    """The timing uses a feature of a newer release of rqsched; only processes of that release fire the schedule."""
    EXCLUDED = "excluded"
    """The `exclude` option of the schedule removes the occurrence."""
    FROZEN = "frozen"
    """At that instant everything or the namespace was frozen, so the occurrence did not fire or has not fired yet."""
    PAUSED = "paused"
    """The schedule was paused at that instant."""
    DEAD = "dead"
    """The schedule was dead at that instant, because too many runs had failed."""
    DONE = "done"
    """The schedule was done at that instant: it had no run or no occurrence left."""
    DELETED = "deleted"
    """The schedule was deleted before that instant."""
    NOT_CREATED = "not_created"
    """The schedule was created after that instant."""
    OUTSIDE_WINDOW = "outside_window"
    """The instant is before the schedule's `start_at`, or at or after its `end_at`."""
    CHANGED = "changed"
    """The current timing has an occurrence at that instant, but the timing of that time had none."""
    NO_OCCURRENCE = "no_occurrence"
    """The timing has no occurrence at that instant."""
    NOT_KEPT = "not_kept"
    """The history of that instant has been pruned."""
    NOT_RECORDED = "not_recorded"
    """The history covers that instant, but has no event about it."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The changes of a sync, as schedule ids."""

    created: list[str]
    """The schedules that the sync created."""
    updated: list[str]
    """The existing schedules whose declaration changed."""
    unchanged: list[str]
    """The existing schedules whose declaration is the same."""
    removed: list[str]
    """The schedules that `delete_removed` deleted."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A minute with more fires than most other minutes."""

    at: datetime
    """The first second of the minute; aware UTC."""
    fires: int
    """The number of fires in the minute."""
    schedules: list[str]
    """The ids of some schedules that fire in the minute, those with the most fires first; `namespace/id` if the load
    covers all namespaces."""
    others: int
    """How many further schedules fire in the minute."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The fires whose runs go to one queue."""

    queue: str
    """The name; `external` for runs of external workers, and `queue@connection` on a Redis of RQSCHED_CONNECTIONS."""
    fires: int
    """The number of fires."""
    peak_at: datetime
    """The first of the minutes with the most fires; aware UTC."""
    peak_fires: int
    """The number of fires in that minute."""


@dataclass(frozen=True, slots=True)
class Load:
    """The fires expected in a future span of time, computed from the current schedules."""

    start: datetime
    """The first minute of the span; aware UTC."""
    end: datetime
    """The first instant after the span; aware UTC."""
    fires: int
    """The number of fires."""
    schedules: int
    """The number of schedules that fire."""
    minutes: list[int]
    """The number of fires in each minute, from `start` on."""
    peaks: list[Peak]
    """At most ten minutes with the most fires, the highest first; empty if no minute stands out."""
    queues: list[QueueLoad]
    """The queues, sorted by their fires; the queue with the most fires is first."""
    assumed: list[str]
    """The assumptions behind the figures, as sentences."""


@dataclass(slots=True)
class Recovered:
    """Counts of the rows that a repair pass found and repaired."""

    checked: int = 0
    """Rows compared."""
    links: int = 0
    """Main links that were armed because none was live. A main link is the delayed job that fires a schedule."""
    next_times: int = 0
    """Schedules that had no next time, and now have one or became `done`."""
    retimed: int = 0
    """Next times computed again because the timezone database or a calendar changed."""
    deliveries: int = 0
    """Pending runs enqueued again."""
    retries: int = 0
    """Retry links armed."""
    lost: int = 0
    """Runs that were settled because their process gave no sign of life."""
    blocked: int = 0
    """Blocked runs that failed because no worker took them for too long."""
    expired: int = 0
    """Pending runs that ended because they were not started in time."""
    granted: int = 0
    """Runs that got a free place in their group, because no other process had given it to them."""
    drained: int = 0
    """Waiting runs that were started because no run was ahead of them."""
    backfills: int = 0
    """Interrupted backfills that were continued."""
    targets: int = 0
    """Jobs of fan-outs enqueued again, and targets marked as failed because their process vanished."""
    overdue: int = 0
    """Schedules found overdue: no success within `expect_success_within`."""
    long: int = 0
    """Runs found to take longer than `expect_duration`."""
    notifications: int = 0
    """Notifications enqueued again, and attempts marked as failed because their process vanished."""
    resumed: int = 0
    """Schedules resumed because the end of their pause had come."""
    followed: int = 0
    """Downstream schedules for which the end of an upstream run was handled late."""
    failed: int = 0
    """Rows that could not be repaired now; the log has the errors."""

    @property
    def repaired(self) -> int:
        """How many repairs were made in all."""
        return int(sum(asdict(self).values())) - self.checked - self.failed

    def add(self, other: Recovered) -> None:
        """Add another pass's counts."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)
