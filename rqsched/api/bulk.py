"""One operation on the many schedules that match a filter, each in a separate transaction, with a dry run.

The set is fixed first, then worked off in batches. A schedule that matches only later is not changed, nor one that no
longer matches when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Unpack

from rqsched.api.list_filters import ListFilters, to_filters
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import CommandContext
from rqsched.core.chunks import chunks
from rqsched.core.ids import iso_utc
from rqsched.core.lifecycle import require_skips
from rqsched.core.option_table import require_note
from rqsched.core.policy import CatchUp, OverlapPolicy
from rqsched.core.results import BulkRow
from rqsched.errors import (
    ConflictError,
    InvalidInputError,
    InvalidLimitError,
    InvalidSpecError,
    NotFoundError,
    QuotaExceededError,
)
from rqsched.spec.timeline import require_utc
from rqsched.store import schedule_queries
from rqsched.store.schedule_queries import Filters

DEFAULT_BOUND = 500
"""The most schedules of one bulk operation, unless the caller raises it."""
OPERATIONS = {"pause": "active", "resume": "paused", "trigger": "active", "skip_next": "active"}
"""The operations of `Scheduler.bulk`, and the status that each applies to by default."""
MOST = 100_000
"""The most schedules of one bulk operation, the limit of `bound`."""
BATCH = 50
"""Schedules that are looked at together before they are changed one by one."""


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
    """With the same key, a repeated trigger starts no second run of a schedule."""
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


def fix(runtime: Runtime, filters: Filters, bound: int) -> dict[str, str]:
    """Find the schedules that match now: their ids by uid, in the order in which they were created.

    Raises InvalidLimitError when there are more than `bound`.
    """
    found = runtime.database.read(partial(schedule_queries.matching, filters=filters, limit=bound + 1))
    if len(found) > bound:
        count = runtime.database.read(partial(schedule_queries.count_schedules, filters=filters))
        raise InvalidLimitError("bound", f"{count} schedules match, more than {bound}; name fewer, or raise it")
    return found


def carry_out(runtime: Runtime, bulk: Bulk, fixed: Mapping[str, str], filters: Filters) -> Iterator[BulkRow]:
    """Apply an operation to the schedules of a fixed set that still match; yields a row for each, in their order."""
    for batch in chunks([*fixed], BATCH):
        found = runtime.database.read(partial(schedule_queries.find_matching, uids=batch, filters=filters))
        for uid in batch:
            if uid in found:
                yield bulk.apply(ScheduleHandle(runtime, found[uid]))
            else:
                yield BulkRow(fixed[uid], "skipped", "it does not match any more")


def run_bulk(
    runtime: Runtime,
    bulk: Bulk,
    *,
    dry_run: bool,
    bound: int,
    progress: Callable[[BulkRow], None] | None,
    namespace: str | None,
    **filters: Unpack[ListFilters],
) -> Sequence[BulkRow]:
    """Apply an operation to every schedule that matches; raises InvalidLimitError, with nothing done, for too many."""
    if bulk.operation not in OPERATIONS:
        raise InvalidInputError("operation", f"{bulk.operation!r} is not one of {', '.join(OPERATIONS)}")
    require_note(bulk.reason, "reason")
    require_note(bulk.note)
    bulk.require(runtime.now())
    if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= MOST:
        raise InvalidLimitError("bound", f"must be a whole number from 1 to {MOST}")
    if not filters.get("status"):
        filters["status"] = OPERATIONS[bulk.operation]
    wanted = to_filters(namespace or runtime.settings.namespace, **filters)
    fixed = fix(runtime, wanted, bound)
    if dry_run:
        return [BulkRow(schedule_id, f"would_{bulk.operation}") for schedule_id in fixed.values()]
    rows = []
    for row in carry_out(runtime, bulk, fixed, wanted):
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


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
        progress: Callable[[BulkRow], None] | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Sequence[BulkRow]:
        """Pause, resume, trigger or skip the next of every schedule that `list` shows with these filters.

        >>> scheduler.bulk("pause", labels={"team": "billing"}, reason="the bank is away", dry_run=True)
        []

        Returns a row for each schedule. `until` ends the pauses by themselves, see `ScheduleHandle.pause`; `count` is
        the parameter of `skip_next`. Without `status`, active schedules match, for resume paused ones. Each schedule is
        one transaction; a schedule that changed meanwhile is `skipped`. Raises InvalidLimitError, with nothing done,
        when more than `bound` match. After an interruption, call it again: a paused schedule is no longer active; a
        trigger needs an `idempotency_key`.
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
        return run_bulk(
            self.runtime, wanted, dry_run=dry_run, bound=bound, progress=progress, namespace=namespace, **filters
        )
