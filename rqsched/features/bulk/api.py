"""One operation on the many schedules that match a filter, each in a separate transaction, in chunks.

The caller drives the chunks. The schedules are counted first. Each chunk then does the next of them, in the order in
which they were created, and returns a cursor for the chunk after it. The cursor holds all that the next chunk must
know, so nothing is stored between chunks. A chunk that is sent again does no schedule twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Unpack

from rqsched.api.list_filters import ListFilters, to_filters
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    ConflictError,
    InvalidInputError,
    InvalidLimitError,
    InvalidSpecError,
    NotFoundError,
    QuotaExceededError,
)
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import is_uid, iso_utc, new_uid
from rqsched.kernel.decide.lifecycle import require_skips
from rqsched.kernel.decide.option_table import require_note
from rqsched.kernel.decide.policy import CatchUp, OverlapPolicy
from rqsched.kernel.decide.results import MAX_PAGE, BulkProgress, BulkRow
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.pages import (
    PAGE_CHARACTERS,
    bind_cursor,
    malformed_cursor,
    read_cursor,
    unbind_cursor,
    write_cursor,
)
from rqsched.kernel.queries.schedules import Filters, Position, place_of
from rqsched.when.timeline import require_utc

DEFAULT_BOUND = 500
"""The most schedules of one bulk operation, unless the caller raises it."""
OPERATIONS = {"pause": "active", "resume": "paused", "trigger": "active", "skip_next": "active"}
"""The operations of `Scheduler.bulk`, and the status that each applies to by default."""
CHUNK = 100
"""The most schedules that one chunk changes. A dry run changes none, and looks at `MAX_PAGE` at once."""
CHUNK_TIME = timedelta(seconds=2)
"""A chunk that takes longer ends with the schedule that it is doing."""


class Bulk(NamedTuple):
    """A bulk operation with its parameters."""

    operation: str
    """`pause`, `resume`, `trigger` or `skip_next`; from the dashboard also `restart` and `delete`."""
    reason: str | None = None
    """The reason in the audit events of a pause, a delete or a skip; None for none."""
    note: str | None = None
    """A note for the next operator, left by pause and resume."""
    catch_up: CatchUp | None = None
    """Where resume, or a pause with `until`, continues; None keeps each schedule's own."""
    until: datetime | None = None
    """When a pause ends by itself; None for by hand."""
    overlap: OverlapPolicy | None = None
    """The policy of a trigger; None keeps each schedule's own."""
    idempotency_key: str | None = None
    """With the same key, a repeated trigger starts no second run of a schedule; None takes the operation's own."""
    context: CommandContext | None = None
    """The caller, for the audit events."""
    force: bool = False
    """Whether a trigger starts runs of paused schedules, too."""
    skips: int = 1
    """How many of the next occurrences of each `skip_next` skips."""

    def require(self, now: datetime) -> None:
        """Check the parameters before the first schedule is changed; raises InvalidInputError."""
        if self.until is not None and self.operation != "pause":
            raise InvalidInputError("until", f"says when a pause ends; leave it out of {self.operation}")
        if self.until is not None and self.until <= now:
            raise InvalidInputError("until", f"{iso_utc(self.until)} has passed; name a later time")
        if self.skips != 1 and self.operation != "skip_next":
            raise InvalidInputError("count", f"says how many occurrences are skipped; leave it out of {self.operation}")
        require_skips(self.skips)

    def apply(self, handle: ScheduleHandle) -> BulkRow:
        """Apply the operation to one schedule, which may have changed since it was found."""
        row = partial(BulkRow, handle.schedule_id)
        try:
            match self.operation:
                case "pause":
                    handle.pause(
                        self.note,
                        reason=self.reason,
                        until=self.until,
                        catch_up=None if self.until is None else self.catch_up,
                        context=self.context,
                    )
                    return row("paused")
                case "resume":
                    handle.resume(self.catch_up, note=self.note, context=self.context)
                    return row("resumed")
                case "skip_next":
                    handle.skip_next(self.skips, reason=self.reason, context=self.context)
                    return row("skips_next")
                case "restart":
                    handle.restart(note=self.note, context=self.context)
                    return row("restarted")
                case "delete":
                    handle.delete(reason=self.reason, context=self.context)
                    return row("deleted")
            result = handle.trigger(
                self.overlap, force=self.force, idempotency_key=self.idempotency_key, context=self.context
            )
        except (ConflictError, NotFoundError, QuotaExceededError, InvalidSpecError) as error:
            return row("skipped", str(error))
        except InvalidInputError as error:  # no occurrence is ahead, or the end of the pause has passed meanwhile
            if self.operation not in {"skip_next", "pause"}:
                raise
            return row("skipped", str(error))
        return row(result.outcome) if result else row("skipped", result.reason)


class _Place(NamedTuple):
    """How far a bulk operation is; its cursor holds this."""

    uid: str
    """The identity of the operation, and the key of its triggers."""
    end_at: datetime
    """Just after the count; schedules that were created then or later are left out."""
    matched: int
    """How many there were."""
    done: int = 0
    """How many schedules are done."""
    after: Position | None = None
    """The place of the last of them; None before the first."""

    def write(self, operation: str, namespace: str | None) -> str:
        """Return the cursor, which only the same operation in the same namespace accepts."""
        after = "" if self.after is None else write_cursor(*self.after)
        parts = (self.uid, self.end_at.isoformat(), self.matched, self.done, after)
        return f"{bind_cursor('~'.join(map(str, parts)), 'bulk', operation, namespace)}"

    @classmethod
    def read(cls, cursor: str, operation: str, namespace: str | None) -> _Place:
        """Read a cursor back; raises InvalidLimitError."""
        parts = (unbind_cursor(cursor, "bulk", operation, namespace) or "").split("~")
        try:
            uid, at, matched, done, after = parts
            place = cls(uid, datetime.fromisoformat(at), int(matched), int(done), read_cursor(after) if after else None)
        except ValueError:
            raise malformed_cursor() from None
        if not is_uid(uid) or place.end_at.tzinfo is None:
            raise malformed_cursor()
        return place


def count_matching(runtime: Runtime, bulk: Bulk, filters: Filters) -> BulkProgress:
    """Count the schedules that match. The cursor of the result does the first chunk; it is None when none match."""
    matched = runtime.database.read(partial(schedule_queries.count_schedules, filters=filters))
    now = runtime.now()
    place = _Place(new_uid(now), now + timedelta(microseconds=1), matched)
    return BulkProgress([], 0, matched, place.write(bulk.operation, filters.namespace) if matched else None)


def do_chunk(runtime: Runtime, bulk: Bulk, filters: Filters, cursor: str, *, dry_run: bool = False) -> BulkProgress:
    """Do the operation to the next schedules that match, at most `CHUNK` of them and for about `CHUNK_TIME`.

    Raises InvalidLimitError for a cursor of something else.
    """
    of = bulk.operation, filters.namespace
    place = _Place.read(cursor, *of)
    if bulk.idempotency_key is None:
        bulk = bulk._replace(idempotency_key=f"bulk-{place.uid}")
    meant = replace(filters, created_until=min(place.end_at, filters.created_until or place.end_at))
    most, size = (MAX_PAGE, None) if dry_run else (CHUNK, PAGE_CHARACTERS)
    search = partial(schedule_queries.search_schedules, filters=meant, sort="created", most=size, is_slim=dry_run)
    rows, after, is_over, until = list[BulkRow](), place.after, False, runtime.now() + CHUNK_TIME
    while not is_over and len(rows) < most and runtime.now() < until:
        found = runtime.database.read(partial(search, after=after, limit=most - len(rows)))
        after, is_over = found.following, found.following is None
        for schedule in found.items:
            planned = BulkRow(schedule.schedule_id, f"would_{bulk.operation}")
            rows.append(planned if dry_run else bulk.apply(ScheduleHandle(runtime, schedule)))
            if runtime.now() >= until:
                after, is_over = place_of(schedule, "created"), False
                break
    done = place.done + len(rows)
    following = None if is_over else place._replace(done=done, after=after).write(*of)
    return BulkProgress(rows, done, place.matched, following)


class BulkOperations:
    """The part of a Scheduler that changes many schedules at once."""

    def bulk(
        self: Any,
        operation: str,
        *,
        namespace: str | None = None,
        reason: str | None = None,
        note: str | None = None,
        catch_up: CatchUp | str | None = None,
        until: datetime | None = None,
        overlap: OverlapPolicy | str | None = None,
        idempotency_key: str | None = None,
        count: int = 1,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Pause, resume, trigger or skip the next of every schedule that `list` shows with these filters, in chunks.

        >>> for progress in scheduler.bulk("pause", labels={"team": "billing"}, reason="the bank is away"):
        ...     print(f"{progress.done} of {progress.matched}")
        0 of 0

        The first step of the iteration is the count, with nothing done. Each other step does one chunk: at most a
        hundred schedules in about two seconds, each schedule in a separate transaction. Leave the loop to stop. To go
        on, in any process, pass the same arguments and the last `next_cursor` as `cursor`: the next chunk is done at
        once. A cursor that is passed again does no schedule twice. Schedules that are created after the count are left
        out. A schedule that refuses, or that changed meanwhile, has a row with the outcome `skipped`.

        `until` ends the pauses by themselves, see `ScheduleHandle.pause`; `count` is the parameter of `skip_next`.
        Without `status`, active schedules match, for resume paused ones. Raises InvalidLimitError, with nothing done,
        when more than `bound` match.
        """
        wanted = Bulk(
            operation,
            reason,
            note,
            None if catch_up is None else CatchUp.of(catch_up),
            None if until is None else require_utc(until, "until"),
            None if overlap is None else OverlapPolicy.of(overlap),
            idempotency_key,
            context,
            skips=count,
        )
        if operation not in OPERATIONS:
            raise InvalidInputError("operation", f"{operation!r} is not one of {', '.join(OPERATIONS)}")
        require_note(reason, "reason")
        require_note(note)
        wanted.require(self.runtime.now())
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise InvalidLimitError("bound", "must be a whole number from 1 on")
        if not filters.get("status"):
            filters["status"] = OPERATIONS[operation]
        meant = to_filters(namespace or self.runtime.settings.namespace, **filters)
        if cursor is not None:
            return _do(self.runtime, wanted, meant, cursor, dry_run=dry_run)
        counted = count_matching(self.runtime, wanted, meant)
        if counted.matched > bound:
            told = f"{counted.matched} schedules match, more than {bound}; name fewer, or raise it"
            raise InvalidLimitError("bound", told)
        return chain([counted], _do(self.runtime, wanted, meant, counted.next_cursor, dry_run=dry_run))


def _do(runtime: Runtime, bulk: Bulk, filters: Filters, cursor: str | None, *, dry_run: bool) -> Iterator[BulkProgress]:
    while cursor is not None:
        progress = do_chunk(runtime, bulk, filters, cursor, dry_run=dry_run)
        yield progress
        cursor = progress.next_cursor
