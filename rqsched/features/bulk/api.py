"""Apply one operation to all schedules that match a filter, in chunks, each schedule in a separate transaction.

`runs` does the same to runs.

The schedules are counted first. Each chunk then changes the next schedules, in the order of their creation, and returns
a cursor. The caller starts the next chunk with this cursor, so nothing is stored between chunks. A cursor is accepted
only with the operation, filters and parameters of the count.

If the answer of a chunk is lost, the caller may send the chunk again. A repeated trigger finds the run that it started.
The other operations change nothing the second time. There are three exceptions. A schedule that somebody has resumed
meanwhile is paused again, and a schedule that somebody has paused is resumed. `skip_next` counts from now: for each
skipped occurrence that has passed, it skips one more. A trigger that the overlap policy skipped is tried again, and may
start a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Unpack

from rqsched.api.groups import Group
from rqsched.api.list_filters import ListFilters, RunListFilters, to_filters
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    ConflictError,
    InvalidInputError,
    InvalidLimitError,
    InvalidSpecError,
    NotFoundError,
    QuotaExceededError,
)
from rqsched.features.bulk.runs import BulkRuns
from rqsched.features.bulk.runs import count_matching as count_matching_runs
from rqsched.features.bulk.runs import do_chunk as do_chunk_of_runs
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import is_uid, iso_utc, new_uid
from rqsched.kernel.decide.lifecycle import require_skips
from rqsched.kernel.decide.options import require_note
from rqsched.kernel.decide.policy import OnResume, OverlapPolicy
from rqsched.kernel.decide.results import MAX_PAGE, BulkProgress, BulkRow
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.pages import (
    PAGE_CHARACTERS,
    bind_cursor,
    malformed_cursor,
    read_cursor,
    read_instant,
    read_number,
    unbind_cursor,
    write_cursor,
)
from rqsched.kernel.queries.schedules import Filters, Position, place_of
from rqsched.when.timeline import require_utc

DEFAULT_BOUND = 500
"""The maximum number of schedules of one bulk operation, unless the caller raises the bound."""
OPERATIONS = {"pause": "active", "resume": "paused", "trigger": "active", "skip_next": "active"}
"""The operations of `scheduler.bulk`, each with the status of the schedules to which it applies by default."""
CHUNK = 100
"""The maximum number of schedules that one chunk changes. A dry run changes none, and examines `MAX_PAGE` at once."""
CHUNK_TIME = timedelta(seconds=2)
"""A chunk that takes longer ends after its current schedule."""


class Bulk(NamedTuple):
    """A bulk operation with its parameters."""

    operation: str
    """`pause`, `resume`, `trigger` or `skip_next`; from the dashboard also `restart` and `delete`."""
    reason: str | None = None
    """The reason in the audit events of a pause, a delete or a skip; None without a reason."""
    note: str | None = None
    """A note for the next operator, left by pause and resume."""
    on_resume: OnResume | None = None
    """Where schedules continue after a resume or after a pause with `until`; None means the policy of each schedule."""
    until: datetime | None = None
    """When a pause ends by itself; None if a person has to end it."""
    overlap: OverlapPolicy | None = None
    """The overlap policy of a trigger; None means the policy of each schedule."""
    idempotency_key: str | None = None
    """With the same key, a repeated trigger starts no second run of a schedule. None means a key of this bulk
    operation."""
    context: CommandContext | None = None
    """The caller, for the audit events."""
    force: bool = False
    """Whether a trigger starts runs of paused schedules, too."""
    skips: int = 1
    """How many of the next occurrences each schedule skips, for `skip_next`."""

    @classmethod
    def of(
        cls,
        operation: str,
        *,
        reason: str | None = None,
        note: str | None = None,
        on_resume: OnResume | str | None = None,
        until: datetime | None = None,
        overlap: OverlapPolicy | str | None = None,
        idempotency_key: str | None = None,
        count: int = 1,
        context: CommandContext | None = None,
    ) -> Bulk:
        """Return a bulk operation with the given parameters."""
        if operation not in OPERATIONS:
            raise InvalidInputError("operation", f"{operation!r} is not one of {', '.join(OPERATIONS)}")
        return cls(
            operation,
            require_note(reason, "reason"),
            require_note(note),
            None if on_resume is None else OnResume.of(on_resume),
            None if until is None else require_utc(until, "until"),
            None if overlap is None else OverlapPolicy.of(overlap),
            idempotency_key,
            context,
            skips=count,
        )

    def require(self, now: datetime) -> None:
        """Check the parameters before the first schedule is changed; raises InvalidInputError."""
        if self.until is not None and self.operation != "pause":
            raise InvalidInputError("until", f"says when a pause ends; leave it out of {self.operation}")
        if self.on_resume is not None and not (self.operation == "resume" or self.until is not None):
            raise InvalidInputError(
                "on_resume", "says where a resume, or a pause with `until`, continues; leave it out, or give `until`"
            )
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
                        on_resume=None if self.until is None else self.on_resume,
                        context=self.context,
                    )
                    return row("paused")
                case "resume":
                    handle.resume(self.on_resume, note=self.note, context=self.context)
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
    """The progress of a bulk operation, which its cursor holds."""

    uid: str
    """The identity of the operation, and the key of its triggers."""
    end_at: datetime
    """The instant just after the count. Schedules that were created then or later are left out."""
    matched: int
    """How many schedules matched at the count."""
    done: int = 0
    """How many schedules are done."""
    after: Position | None = None
    """The position of the last schedule that is done; None before the first."""

    def write(self, of: object) -> str:
        """Return the cursor. `read` accepts it only with the same `of`."""
        after = "" if self.after is None else write_cursor(*self.after)
        parts = (self.uid, self.end_at.isoformat(), self.matched, self.done, after)
        return bind_cursor("~".join(map(str, parts)), "bulk", of)

    @classmethod
    def read(cls, cursor: str, of: object) -> _Place:
        """Read a cursor back; raises InvalidLimitError."""
        parts = unbind_cursor(cursor, "bulk", of, other=_OTHER).split("~")
        if len(parts) != len(cls._fields) or not is_uid(parts[0]):
            raise malformed_cursor()
        uid, at, matched, done, after = parts
        position = read_cursor(after) if after else None
        return cls(uid, read_instant(at), read_number(matched), read_number(done), position)


_OTHER = (
    "is of another bulk operation; send the operation, namespace, filters, parameters and dry_run that were counted, "
    "or leave the cursor out to count again"
)


def identity_of(bulk: Bulk, filters: Filters, *, dry_run: bool) -> str:
    """Return the values that are equal in all requests of one bulk operation, for `count_matching` and `do_chunk`.

    The caller and the end of a pause are left out, because they may differ from chunk to chunk. For example, a
    command that continues with `--until 2h` gives a later end.
    """
    asked = {field.name: getattr(filters, field.name) for field in fields(filters)}
    asked |= {name: sorted({*asked[name]}) for name in ("statuses", "outcomes")}
    asked |= {name: dict(asked[name]) for name in ("labels", "search_attributes")}
    parameters = bulk._replace(context=None)._asdict() | {"until": bulk.until is not None}
    return json.dumps([asked, parameters, dry_run], sort_keys=True, default=iso_utc)


def _counted(filters: Filters, end_at: datetime) -> Filters:
    """Return the filters, restricted to schedules that were created before `end_at`."""
    return replace(filters, created_until=min(end_at, filters.created_until or end_at))


def count_matching(runtime: Runtime, filters: Filters, of: object, *, most: int) -> BulkProgress:
    """Count the schedules that match, up to `most`.

    The cursor of the result is for the first chunk. It is None if no schedule matches.

    `of` identifies the operation and must contain its filters. `do_chunk` accepts the cursor only with the same `of`.
    """
    now = runtime.now()
    end_at = now + timedelta(microseconds=1)
    count = partial(schedule_queries.count_up_to, filters=_counted(filters, end_at), most=most)
    matched = runtime.database.read(count)
    return BulkProgress([], 0, matched, _Place(new_uid(now), end_at, matched).write(of) if matched else None)


def do_chunk(
    runtime: Runtime, bulk: Bulk, filters: Filters, cursor: str, *, of: object, dry_run: bool = False
) -> BulkProgress:
    """Apply the operation to the next schedules that match: to at most `CHUNK`, and for about `CHUNK_TIME`.

    Raises InvalidLimitError for the cursor of an operation other than `of`.
    """
    place = _Place.read(cursor, of)
    if bulk.idempotency_key is None:
        bulk = bulk._replace(idempotency_key=f"bulk-{place.uid}")
    meant = _counted(filters, place.end_at)
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
    following = None if is_over else place._replace(done=done, after=after).write(of)
    return BulkProgress(rows, done, place.matched, following)


class BulkOperations(Group):
    """Operations on all schedules that `scheduler.list` returns for the same filters, or on all runs, in chunks.

    >>> for progress in scheduler.bulk.pause(labels={"team": "billing"}, reason="the bank is away"):
    ...     print(f"{progress.done} of {progress.matched}")
    0 of 0

    The first step of the iteration only counts. If it counts more than `bound` schedules, it raises InvalidLimitError.
    Each other step does one chunk: at most a hundred schedules in about two seconds, each schedule in a separate
    transaction. In a dry run, a chunk has at most 500 schedules. Schedules that are created after the count are left
    out. If a schedule refuses the operation or has changed meanwhile, its row has the outcome `skipped`.

    To stop early, leave the loop. To go on, in any process, pass the same arguments and the last `next_cursor` as
    `cursor`. Then the first step does the next chunk. Other filters or parameters are refused. After a failure, the
    same cursor may be passed again: triggers find the runs that they started. But a schedule that somebody resumed
    meanwhile is paused again, `skip_next` skips one more for each skipped occurrence that has passed, and a trigger
    that the overlap policy skipped may start a run now.

    `cancel_runs` and `retry_runs` work in the same way on runs. Their count fixes the set of runs: a run that is
    created, ends or is retried later is left out. A run that no longer matches when its turn comes is left as it is.
    So fewer runs than `matched` may be done, and a chunk may be empty. With a cursor, `since` and `until` are those of
    the count, so they may be given as other instants.
    """

    def pause(
        self,
        *,
        note: str | None = None,
        reason: str | None = None,
        until: datetime | None = None,
        on_resume: OnResume | str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Pause every schedule that matches; without `status`, the active ones. See `ScheduleHandle.pause`."""
        asked = Bulk.of("pause", note=note, reason=reason, until=until, on_resume=on_resume, context=context)
        return begin(self.runtime, asked, namespace, filters, dry_run=dry_run, bound=bound, cursor=cursor)

    def resume(
        self,
        on_resume: OnResume | str | None = None,
        *,
        note: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Resume every schedule that matches; without `status`, the paused ones. See `ScheduleHandle.resume`."""
        asked = Bulk.of("resume", note=note, on_resume=on_resume, context=context)
        return begin(self.runtime, asked, namespace, filters, dry_run=dry_run, bound=bound, cursor=cursor)

    def trigger(
        self,
        overlap: OverlapPolicy | str | None = None,
        *,
        idempotency_key: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Start a run of every schedule that matches; without `status`, of the active ones.

        With the same `idempotency_key`, a repeated call starts no second run of a schedule; the default is a key of
        this operation. See `ScheduleHandle.trigger`.
        """
        asked = Bulk.of("trigger", overlap=overlap, idempotency_key=idempotency_key, context=context)
        return begin(self.runtime, asked, namespace, filters, dry_run=dry_run, bound=bound, cursor=cursor)

    def skip_next(
        self,
        count: int = 1,
        *,
        reason: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Iterator[BulkProgress]:
        """Skip the next `count` occurrences of every schedule that matches; without `status`, of the active ones.

        See `ScheduleHandle.skip_next`.
        """
        asked = Bulk.of("skip_next", count=count, reason=reason, context=context)
        return begin(self.runtime, asked, namespace, filters, dry_run=dry_run, bound=bound, cursor=cursor)

    def cancel_runs(
        self,
        *,
        reason: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[RunListFilters],
    ) -> Iterator[BulkProgress]:
        """Cancel every run that matches, the newest first; without `status`, every run that has not ended.

        See `RunHandle.cancel`. A run that has ended meanwhile is left as it is, so a chunk may be sent again.

        >>> for progress in scheduler.bulk.cancel_runs(workflow="invoice-sync", reason="the bank is away"):
        ...     print(f"{progress.done} of {progress.matched}")
        0 of 0
        """
        where = self._namespace(namespace)
        asked = BulkRuns.of("cancel", where, filters, reason=reason, context=context, dry_run=dry_run)
        return begin_runs(self.runtime, asked, bound=bound, cursor=cursor)

    def retry_runs(
        self,
        *,
        reason: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        cursor: str | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[RunListFilters],
    ) -> Iterator[BulkProgress]:
        """Give every run that matches one more attempt, the oldest first; without `status`, failed and lost runs.

        See `RunHandle.retry`. A run that fails again is not retried a second time, even if a chunk is sent again.
        Raises FrozenError while everything or the namespace is frozen; the same cursor continues after the thaw.
        """
        where = self._namespace(namespace)
        asked = BulkRuns.of("retry", where, filters, reason=reason, context=context, dry_run=dry_run)
        return begin_runs(self.runtime, asked, bound=bound, cursor=cursor)


def begin(
    runtime: Runtime,
    bulk: Bulk,
    namespace: str | None,
    filters: Mapping[str, Any],
    *,
    dry_run: bool = False,
    bound: int = DEFAULT_BOUND,
    cursor: str | None = None,
) -> Iterator[BulkProgress]:
    """Begin a bulk operation, or continue one at its cursor; see `BulkOperations`. The filters are ListFilters."""
    bulk.require(runtime.now())
    _require_bound(bound)
    if not filters.get("status"):
        filters = {**filters, "status": OPERATIONS[bulk.operation]}
    meant = to_filters(namespace or runtime.settings.namespace, **filters)
    of = identity_of(bulk, meant, dry_run=dry_run)
    go_on = partial(_go_on, partial(do_chunk, runtime, bulk, meant, of=of, dry_run=dry_run))
    if cursor is not None:
        return go_on(cursor)
    counted = count_matching(runtime, meant, of, most=bound + 1)
    if counted.matched > bound:
        raise InvalidLimitError("bound", f"more than {bound} schedules match; name fewer, or raise it")
    return chain([counted], go_on(counted.next_cursor))


def _go_on(do: Callable[[str], BulkProgress], cursor: str | None) -> Iterator[BulkProgress]:
    while cursor is not None:
        progress = do(cursor)
        yield progress
        cursor = progress.next_cursor


def begin_runs(
    runtime: Runtime, asked: BulkRuns, *, bound: int = DEFAULT_BOUND, cursor: str | None = None
) -> Iterator[BulkProgress]:
    """Begin an operation on runs, or continue one at its cursor; see `BulkOperations`."""
    _require_bound(bound)
    go_on = partial(_go_on, partial(do_chunk_of_runs, runtime, asked))
    if cursor is not None:
        return go_on(cursor)
    counted = count_matching_runs(runtime, asked, bound=bound)
    return chain([counted], go_on(counted.next_cursor))


def _require_bound(bound: int) -> None:
    if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
        raise InvalidLimitError("bound", "must be a whole number from 1 on")
