"""One operation on many schedules: those that match a filter, each in a transaction of its own, with a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Unpack

from rqsched.api.list_filters import ListFilters, to_filters
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain.runtime import Runtime
from rqsched.config import Settings
from rqsched.core.audit import CommandContext
from rqsched.core.option_table import require_note
from rqsched.core.policy import CatchUp, OverlapPolicy
from rqsched.core.results import BulkRow
from rqsched.errors import ConflictError, InvalidInputError, InvalidLimitError, NotFoundError
from rqsched.store import schedule_queries

DEFAULT_BOUND = 500
"""The most schedules of one bulk operation, unless the caller raises it."""
OPERATIONS = {"pause": "active", "resume": "paused", "trigger": "active"}
"""What can be done to many schedules, and the status of those it is done to when a filter names none."""
_MOST = 100_000


class Bulk(NamedTuple):
    """What is done to each schedule."""

    operation: str
    """`pause`, `resume` or `trigger`."""
    reason: str | None = None
    """Why, for the audit events of a pause; None says nothing."""
    note: str | None = None
    """A note for the next operator, left by pause and resume."""
    catch_up: CatchUp | None = None
    """Where resume continues; None keeps each schedule's own."""
    overlap: OverlapPolicy | None = None
    """The policy of a trigger; None keeps each schedule's own."""
    idempotency_key: str | None = None
    """With the same key a trigger starts a run of each schedule once, however often it is sent."""
    context: CommandContext | None = None
    """Who asks, for the audit events."""

    def apply(self, handle: ScheduleHandle) -> BulkRow:
        """Do it to one schedule, which may have changed since it was found."""
        try:
            if self.operation == "pause":
                handle.pause(self.note, reason=self.reason, context=self.context)
                return BulkRow(handle.schedule_id, "paused")
            if self.operation == "resume":
                handle.resume(self.catch_up, note=self.note, context=self.context)
                return BulkRow(handle.schedule_id, "resumed")
            result = handle.trigger(self.overlap, idempotency_key=self.idempotency_key, context=self.context)
        except (ConflictError, NotFoundError) as error:
            return BulkRow(handle.schedule_id, "skipped", str(error))
        if not result:
            return BulkRow(handle.schedule_id, "skipped", result.reason)
        return BulkRow(handle.schedule_id, result.outcome)


class Listing(Protocol):
    """What holds the schedules: a Scheduler."""

    settings: Settings
    """Where the default namespace is."""
    runtime: Runtime
    """Where they are counted."""

    def iter(self, *, namespace: str | None, **filters: Unpack[ListFilters]) -> Iterator[ScheduleHandle]:
        """Read all that match."""
        ...


def run_bulk(
    scheduler: Listing,
    bulk: Bulk,
    *,
    dry_run: bool,
    bound: int,
    progress: Callable[[BulkRow], None] | None,
    namespace: str | None,
    **filters: Unpack[ListFilters],
) -> Sequence[BulkRow]:
    """Do it to every schedule that matches; raises InvalidLimitError, with nothing done, when there are too many."""
    if bulk.operation not in OPERATIONS:
        raise InvalidInputError("operation", f"{bulk.operation!r} is not one of {', '.join(OPERATIONS)}")
    require_note(bulk.reason, "reason")
    require_note(bulk.note)
    if isinstance(bound, bool) or not isinstance(bound, int) or not 1 <= bound <= _MOST:
        raise InvalidLimitError("bound", f"must be a whole number from 1 to {_MOST}")
    if not filters.get("status"):
        filters["status"] = OPERATIONS[bulk.operation]
    where = namespace or scheduler.settings.namespace
    wanted = to_filters(where, **filters)
    count = scheduler.runtime.database.read(lambda connection: schedule_queries.count_schedules(connection, wanted))
    if count > bound:
        raise InvalidLimitError("bound", f"{count} schedules match, more than {bound}; name fewer, or raise it")
    # All are found before any is changed: what is paused matches no more.
    found = list(scheduler.iter(namespace=where, **filters))[:bound]
    if dry_run:
        return [BulkRow(handle.schedule_id, f"would_{bulk.operation}") for handle in found]
    rows = []
    for handle in found:
        rows.append(row := bulk.apply(handle))
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
        overlap: OverlapPolicy | str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        bound: int = DEFAULT_BOUND,
        progress: Callable[[BulkRow], None] | None = None,
        context: CommandContext | None = None,
        **filters: Unpack[ListFilters],
    ) -> Sequence[BulkRow]:
        """Pause, resume or trigger every schedule that `list` shows with these filters; returns a row for each.

        >>> scheduler.bulk("pause", labels={"team": "billing"}, reason="the bank is away", dry_run=True)
        []

        Without `status` it is those that are active (pause, trigger) or paused (resume). Each is one transaction; what
        changed meanwhile is `skipped`. Raises InvalidLimitError, with nothing done, when more than `bound` match.
        Interrupted, call it again: what was paused is not active any more; a trigger needs an `idempotency_key`.
        """
        wanted = Bulk(
            operation,
            reason,
            note,
            None if catch_up is None else CatchUp.of(catch_up),
            None if overlap is None else OverlapPolicy.of(overlap),
            idempotency_key,
            context,
        )
        return run_bulk(self, wanted, dry_run=dry_run, bound=bound, progress=progress, namespace=namespace, **filters)
