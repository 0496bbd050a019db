"""The values that lists and bulk operations return: a scheduler and a client of its HTTP API return the same ones."""

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
"""The most items of one page."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    """In the order of the list."""
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
    """The rows of a namespace that are stored, or that were deleted."""

    namespace: str
    """Its name."""
    is_frozen: bool
    """Whether it is frozen; it must be, from before its deletion until the deletion is over."""
    executing: int
    """How many runs execute now, up to 500, or how many a deletion terminated."""
    rows: dict[str, int]
    """How many rows there are, or were deleted since the deletion began, by what they are: `schedules`, `runs`."""
    is_over: bool
    """Whether everything is deleted."""


@dataclass(frozen=True, slots=True)
class LimitDescription:
    """A group of which only so many runs, and targets of runs, run at once or start in a time, whichever schedules they
    are of.

    A run that waits for its targets does not run: they do.
    """

    namespace: str
    """The namespace that the group belongs to."""
    name: str
    """The name, as the `limit` of a schedule has it."""
    number: int | None
    """How many of them may run at once; None is any."""
    rate: str | None
    """How many of their attempts may start in any window of a length, such as `100/min`; None is any."""
    started: int | None
    """How many started in the last such window; None without a rate."""
    running: int
    """How many run."""
    starting: int
    """How many more have a place, and have not begun."""
    waiting: int
    """How many wait for a place."""
    waiting_since: datetime | None
    """Since when the first of them is in line; None when nobody waits."""
    changes: list[Any] = field(default_factory=list)
    """The newest 20 changes of its number and rate, the newest first.

    Each has `at`, `by`, `reason`, `was` and `number`, and where the rate changed `was_rate` and `rate`.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-native values."""
        return asdict(self) | {"waiting_since": self.waiting_since and iso_utc(self.waiting_since)}


@dataclass(frozen=True, slots=True)
class BulkRow:
    """The outcome of a bulk operation for one schedule."""

    schedule_id: str
    """The schedule."""
    outcome: str
    """`paused`, `resumed`, `triggered`, `buffered`, `skips_next`, `skipped`; `would_pause` and so on in a dry run."""
    reason: str | None = None
    """Why it was skipped; None otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The count of a bulk operation, or one of its chunks, and how far the operation is."""

    items: list[BulkRow]
    """The outcome of each schedule of the chunk, in the order in which they were created; none for the count."""
    done: int
    """How many schedules are done, including this chunk. More than `matched` if more schedules match by now."""
    matched: int
    """How many matched when they were counted."""
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
    """Why it was skipped: it was retried or deleted meanwhile."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """The outcome of a backfill for one occurrence."""

    occurrence_at: datetime
    """Its nominal time."""
    instance_id: str | None
    """The instance id of its run; None when this backfill made none."""
    outcome: str
    """`started`, `buffered` (it waits its turn), `skipped`, `already_run`; `would_start` in a dry run."""
    reason: str | None = None
    """Why it was skipped; `pruned` when it counts as run because history up to there is gone; `rerun` when its run had
    failed and is run again."""
    run_uid: str | None = None
    """The uid of its run; None when this backfill made none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-native values, in the durable-workflow document's words."""
        return {
            "occurrence_time": iso_utc(self.occurrence_at),
            "instance_id": self.instance_id,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Why:
    """Why a schedule ran or did not run at an instant, from what is recorded: never a guess."""

    at: datetime
    """The instant it is about; aware UTC."""
    answer: str
    """One of `Answer`."""
    text: str
    """The answer as sentences, with times in the schedule's zone."""
    occurrence_at: datetime | None = None
    """The occurrence of that minute (or second, when `at` has seconds); None when the timing names none there."""
    run_uid: str | None = None
    """The run of that occurrence, or the run that kept it from starting; None when there is none."""
    since: datetime | None = None
    """Since when the schedule has been so, or when what decided it was recorded; None when nothing did."""
    by: str | None = None
    """Who did that: the principal of the recorded operation; None when it is not known or nobody did."""
    reason: str | None = None
    """The recorded reason of that person or of rqsched; None when there is none."""
    event_sequence: int | None = None
    """The event of the schedule's history that says so; None when no event does, or one of an earlier schedule that had
    this id."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-native values."""
        return {name: iso_utc(value) if isinstance(value, datetime) else value for name, value in asdict(self).items()}


class Answer(StrEnum):
    """The answers of `why`."""

    RAN = "ran"
    """It has a run that started, whatever came of it."""
    WAITS = "waits"
    """Its run has not started yet: it waits for a worker, for its code, for a retry or for the run ahead of it."""
    NOT_STARTED = "not_started"
    """It has a run that ended before it started: cancelled, or dropped while it waited."""
    FIRES = "fires"
    """It is still to come, or inside its jitter or spread."""
    LATE = "late"
    """It is due, and nothing has fired it yet."""
    SKIPPED = "skipped"
    """It was skipped on purpose; `reason` says by which rule."""
    MISSED = "missed"
    """Nothing fired it in time."""
    NEWER_RELEASE = "newer_release"
    """Its timing says something that only a newer release of rqsched knows, whose processes fire it."""
    EXCLUDED = "excluded"
    """`exclude` of the schedule takes it out."""
    HELD = "held"
    """Everything was, or is, held then: it was not fired by its policies, or has not been yet."""
    FROZEN = "frozen"
    """The namespace was, or is, frozen then: the same."""
    PAUSED = "paused"
    """The schedule was, or is, paused then."""
    DEAD = "dead"
    """The schedule was, or is, dead then: too many runs had failed."""
    DONE = "done"
    """The schedule has no run left then."""
    DELETED = "deleted"
    """The schedule was deleted before."""
    NOT_CREATED = "not_created"
    """The schedule was created later."""
    OUTSIDE_WINDOW = "outside_window"
    """It lies before the schedule's `start_at`, or at or after its `end_at`."""
    CHANGED = "changed"
    """The current timing has an occurrence there; the timing of then had none."""
    NO_OCCURRENCE = "no_occurrence"
    """The timing has no occurrence there."""
    NOT_KEPT = "not_kept"
    """The history that would answer it has been pruned."""
    NOT_RECORDED = "not_recorded"
    """The history goes back so far and says nothing of it."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The changes of a sync, as schedule ids."""

    created: list[str]
    """New ones."""
    updated: list[str]
    """Existing ones whose declaration changed."""
    unchanged: list[str]
    """Known ones as declared."""
    removed: list[str]
    """Deleted by `prune`."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A minute in which more fires than in most others."""

    at: datetime
    """Its first second; aware UTC."""
    fires: int
    """How many fires it holds."""
    schedules: list[str]
    """The ids of some of its schedules, those with the most fires first; `namespace/id` where all namespaces are
    asked."""
    others: int
    """How many more schedules fire in it."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The fires onto one queue."""

    queue: str
    """Its name; `external` for what external workers pull, and `queue@connection` on a Redis of RQSCHED_CONNECTIONS."""
    fires: int
    """How many fires."""
    peak_at: datetime
    """The first of its minutes with the most fires; aware UTC."""
    peak_fires: int
    """How many it holds."""


@dataclass(frozen=True, slots=True)
class Load:
    """What fires when: what is known and computed now, of times that are still to come."""

    start: datetime
    """The whole minute at which it begins; aware UTC."""
    end: datetime
    """The first instant after it."""
    fires: int
    """How many fires."""
    schedules: int
    """How many schedules make them."""
    minutes: list[int]
    """The fires of each minute, from `start` on."""
    peaks: list[Peak]
    """The highest minutes, at most ten, those with the most fires first; none where no minute stands out."""
    queues: list[QueueLoad]
    """Each queue, the one with the most fires first."""
    assumed: list[str]
    """The assumptions behind the figures, as sentences."""


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
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)
