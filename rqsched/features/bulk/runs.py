"""Cancel or retry all runs that match filters, in chunks, each run in a separate transaction.

The count fixes the set: the cursor holds the instant of the count, and the lowest and the highest uid of the runs. A
run that is created later, or that ends or is retried later, is not in the set. If a run of the set no longer matches
when its turn comes, it is left as it is. As in `api`, the caller drives the chunks, and nothing is stored between them.

Runs are cancelled from the newest to the oldest: a cancelled run lets the next buffered run start, which would
otherwise start before its own turn. Runs are retried in the order in which they ended or were created.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from rqsched.api.list_filters import to_run_filters
from rqsched.errors import (
    BackendUnavailableError,
    ConfigError,
    FrozenError,
    InvalidInputError,
    InvalidLimitError,
    RunStateError,
    SchemaError,
)
from rqsched.features.retry_on_request.chain import retry_run
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import reason_of, settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import is_uid
from rqsched.kernel.decide.limit_options import key_of
from rqsched.kernel.decide.model import BLOCKED, ENDED_IN_VAIN, EXPIRED, FAILURES, OPEN, Run, RunStatus
from rqsched.kernel.decide.options import require_note
from rqsched.kernel.decide.results import MAX_PAGE, BulkProgress, BulkRow
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.queries import events as event_queries
from rqsched.kernel.queries.pages import bind_cursor, malformed_cursor, read_instant, read_number, unbind_cursor
from rqsched.kernel.queries.run_pages import OLDEST_END, RunFilters, count_runs, cursor_after, search_runs
from rqsched.kernel.store import changes

_log = logging.getLogger(__name__)

CHUNK = 100
"""The maximum number of runs that one chunk changes. A dry run changes none, and examines `MAX_PAGE` at once."""
CHUNK_TIME = timedelta(seconds=2)
"""A chunk that takes longer ends after its current run."""
POSSIBLE: Mapping[str, tuple[str, ...]] = {
    "cancel": (*sorted(OPEN), BLOCKED),
    "retry": (*sorted(ENDED_IN_VAIN), BLOCKED, EXPIRED),
}
"""The operations on runs, each with the statuses to which it applies."""
DEFAULTS: Mapping[str, tuple[str, ...]] = {"cancel": tuple(sorted(OPEN)), "retry": tuple(sorted(FAILURES))}
"""The statuses of an operation whose filters name no status."""
_OF_ALL = (BackendUnavailableError, ConfigError, FrozenError, RedisError, SchemaError)
"""The errors that do not concern a single run. The next run would raise the same error."""
_OTHER = (
    "is of another bulk operation; send the operation, namespace, filters and dry_run that were counted, or leave the "
    "cursor out to count again"
)


class BulkRuns(NamedTuple):
    """An operation on the runs that match filters."""

    operation: str
    """`cancel` or `retry`."""
    filters: RunFilters
    """The filters, which name at least one status."""
    reason: str | None = None
    """Why; recorded in the audit event of each run. None without a reason."""
    context: CommandContext | None = None
    """The caller, for the audit events."""
    is_dry: bool = False
    """Whether the runs are only named."""

    @classmethod
    def of(
        cls,
        operation: str,
        namespace: str,
        filters: Mapping[str, Any],
        *,
        reason: str | None = None,
        context: CommandContext | None = None,
        dry_run: bool = False,
    ) -> BulkRuns:
        """Return an operation with filters as in `RunListFilters`; raises InvalidInputError."""
        asked = dict(filters)
        status, limit, in_line = (asked.pop(name, None) for name in ("status", "limit", "in_line"))
        found = to_run_filters(namespace, status, **asked)._replace(
            limit_group=None if limit is None else key_of(namespace, limit), is_in_line=in_line
        )
        return cls.among(operation, found, reason=reason, context=context, dry_run=dry_run)

    @classmethod
    def among(
        cls,
        operation: str,
        filters: RunFilters,
        *,
        reason: str | None = None,
        context: CommandContext | None = None,
        dry_run: bool = False,
    ) -> BulkRuns:
        """Return an operation; raises InvalidInputError if it is impossible for runs of a status."""
        possible = POSSIBLE[operation]
        if filters.is_in_line is not None and not filters.statuses:
            filters = filters._replace(statuses=("pending",))
        for status in filters.statuses:
            if status not in possible:
                raise InvalidInputError(
                    "status", f"{status!r} is not one of {', '.join(possible)}, whose runs one can {operation}"
                )
        return cls(
            operation,
            filters if filters.statuses else filters._replace(statuses=DEFAULTS[operation]),
            require_note(reason, "reason"),
            context,
            dry_run,
        )

    @property
    def sort(self) -> str:
        """The order in which the runs are handled."""
        by_end = self.filters.error is not None or {*self.filters.statuses} <= FAILURES
        return "-created" if self.operation == "cancel" else OLDEST_END if by_end else "created"

    @property
    def identity(self) -> tuple[object, ...]:
        """The values that are equal in all requests of one operation.

        The caller and the reason may differ, and so may the instants of `since` and `until`, because the cursor holds
        those of the count. For example, a command that continues with `--since 1h` gives a later instant.
        """
        filters = self.filters._replace(statuses=sorted({*self.filters.statuses}), as_of=None, uids=None)
        has_times = filters.since is not None, filters.until is not None
        return "runs", self.operation, tuple(filters._replace(since=None, until=None)), has_times, self.is_dry


class _Place(NamedTuple):
    """The progress of an operation, which its cursor holds."""

    as_of: datetime
    """The instant just after the count."""
    lowest: str
    """The lowest uid of the set."""
    highest: str
    """The highest uid of the set."""
    matched: int
    """How many runs matched at the count."""
    since: datetime | None = None
    """The filter `since` at the count."""
    until: datetime | None = None
    """The filter `until` at the count."""
    done: int = 0
    """How many runs are done."""
    after: str = ""
    """The cursor of the last run that is done; empty before the first."""

    def write(self, *of: object) -> str:
        """Return the cursor. `read` accepts it only with the same `of`."""
        instants = ("" if at is None else at.isoformat() for at in (self.since, self.until))
        parts = (self.as_of.isoformat(), self.lowest, self.highest, self.matched, *instants, self.done, self.after)
        return bind_cursor("~".join(map(str, parts)), "bulk", *of)

    @classmethod
    def read(cls, cursor: str, *of: object) -> _Place:
        """Read a cursor back; raises InvalidLimitError."""
        parts = unbind_cursor(cursor, "bulk", *of, other=_OTHER).split("~")
        if len(parts) != len(cls._fields) or not (is_uid(parts[1]) and is_uid(parts[2])):
            raise malformed_cursor()
        as_of, lowest, highest, matched, *instants, done, after = parts
        since, until = (read_instant(at) if at else None for at in instants)
        return cls(read_instant(as_of), lowest, highest, read_number(matched), since, until, read_number(done), after)


def count_matching(runtime: Runtime, asked: BulkRuns, *, bound: int) -> BulkProgress:
    """Count the runs that match, which fixes the set; raises InvalidLimitError for more than `bound`.

    The cursor of the result is for the first chunk. It is None if no run matches.
    """
    as_of = runtime.now() + timedelta(microseconds=1)
    found = count_runs(runtime.database, asked.filters._replace(as_of=as_of), sort=asked.sort, most=bound)
    if found.number > bound:
        raise InvalidLimitError("bound", f"more than {bound} runs match; name fewer, or raise it")
    if found.uids is None:
        return BulkProgress([], 0, 0, None)
    place = _Place(as_of, *found.uids, found.number, asked.filters.since, asked.filters.until)
    return BulkProgress([], 0, found.number, place.write(*asked.identity))


def do_chunk(runtime: Runtime, asked: BulkRuns, cursor: str) -> BulkProgress:
    """Do the next runs of the set: at most `CHUNK`, for about `CHUNK_TIME`. A chunk may have no run.

    A chunk may be sent again: runs that are done do not match any more. If the database or Redis fails, a chunk ends
    with the runs that are done, and the next chunk raises the error. Raises InvalidLimitError for the cursor of another
    operation. A retry raises FrozenError while everything or the namespace is frozen; after the thaw, the same cursor
    continues.
    """
    place = _Place.read(cursor, *asked.identity)
    filters = asked.filters._replace(
        as_of=place.as_of, uids=(place.lowest, place.highest), since=place.since, until=place.until
    )
    if asked.operation == "retry" and not asked.is_dry:
        runtime.freezes.require_none(filters.namespace)
    most, until = MAX_PAGE if asked.is_dry else CHUNK, runtime.now() + CHUNK_TIME
    search = partial(search_runs, filters=filters, sort=asked.sort, limit=most, is_slim=True)
    rows, after, is_over = list[BulkRow](), place.after or None, False
    while not is_over and not rows and runtime.now() < until:
        found = runtime.database.read(partial(search, cursor=after))
        retried = _retried_since(runtime, [run for _, run in found.items], place.as_of)
        after, is_over = found.following, found.following is None
        for number, (schedule_id, run) in enumerate(found.items, start=1):
            if run.uid in retried:
                continue
            try:
                rows.append(_do(runtime, asked, filters, schedule_id, run))
            except Exception as error:  # the outcomes of the runs that are done must not be lost; the next chunk raises
                if not rows:
                    raise
                _log.warning("a chunk ends before run %s: %s", run.uid, error, extra={"action": "bulk_chunk_cut"})
                after, is_over = cursor_after(filters, asked.sort, found.items[number - 2][1]), False
                break
            if runtime.now() >= until and number < len(found.items):
                after, is_over = cursor_after(filters, asked.sort, run), False
                break
    done = place.done + len(rows)
    following = None if is_over else place._replace(done=done, after=after or "").write(*asked.identity)
    return BulkProgress(rows, done, place.matched, following)


def _retried_since(runtime: Runtime, found: list[Run], start: datetime) -> set[str]:
    """Return the uids of the open runs that had ended at `start`, because somebody has requested a retry since."""
    open_again = [run for run in found if run.is_asked and run.status in OPEN]
    if not open_again:
        return set()
    return runtime.database.read(partial(event_queries.retried_since, found=open_again, start=start))


def _do(runtime: Runtime, asked: BulkRuns, filters: RunFilters, schedule_id: str, run: Run) -> BulkRow:
    """Do the operation to one run, if the run still matches under the lock of its schedule."""
    row = partial(BulkRow, schedule_id, run_uid=run.uid)
    if asked.is_dry:
        return row(f"would_{asked.operation}")
    is_meant = partial(_is_meant, filters)
    if asked.operation == "cancel":
        end = AttemptResult(AttemptOutcome.CANCELLED, reason=asked.reason, context=asked.context)
        try:
            if settle_run(runtime, run.uid, end, fence=is_meant) is not None:
                return row("cancelled")
        except _OF_ALL:
            raise
        except Exception as error:  # noqa: BLE001 - one unreadable row must not keep the other runs from their turn
            return row("skipped", reason_of(error, run.uid))
        now = runtime.database.read(lambda connection: changes.find_run(connection, run.uid))
        return row("skipped", "it was deleted meanwhile" if now is None else f"it is {now.shown_status} meanwhile")
    try:
        again = retry_run(runtime, run.uid, reason=asked.reason, context=asked.context, fence=is_meant)
    except _OF_ALL:
        raise
    except RunStateError as error:
        return row("skipped", f"it is {error.status}: {error.hint}" if error.hint else f"it is {error.status}")
    except Exception as error:  # noqa: BLE001 - as above
        return row("skipped", reason_of(error, run.uid))
    return row("buffered" if again.status is RunStatus.BUFFERED else "started")


def _is_meant(filters: RunFilters, run: Run) -> bool:
    """Return whether a run still has a status of the filters, and had it at the count if it has ended."""
    names = {run.status.value, run.shown_status}
    has_place = filters.is_in_line is not None and filters.is_in_line != run.is_in_line
    is_later = run.ended_at is not None and filters.as_of is not None and run.ended_at >= filters.as_of
    return bool(names & {*filters.statuses}) and not has_place and not is_later
