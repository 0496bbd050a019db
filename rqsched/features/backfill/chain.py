"""Backfills: fire the occurrences of a past range on request, in chunks. Each chunk is one transaction.

The row of a backfill in `rqsched_backfills` holds its cursor and progress. The transaction that writes the runs of a
chunk also moves the cursor. So a process that continues after a crash starts where the last commit ended, and no
occurrence gets a second run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import NamedTuple

from rqsched.errors import (
    BackendUnavailableError,
    BackfillNotFoundError,
    InvalidInputError,
    InvalidLimitError,
    NewerReleaseError,
    ScheduleNotFoundError,
)
from rqsched.features.backfill import store as backfills
from rqsched.features.backfill.store import Backfill
from rqsched.features.retry_on_request.chain import prepare_again
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage
from rqsched.kernel.chain.reconcile.repair import pages_unfrozen, unless_all_frozen
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.model import Schedule, ScheduleStatus, unchanged
from rqsched.kernel.decide.overlap import for_backfill
from rqsched.kernel.decide.payload import MEMO_BYTES, json_text, loads
from rqsched.kernel.decide.policy import OverlapPolicy, Rerun
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.kernel.decide.results import BackfillRow, Recovered
from rqsched.kernel.decide.runs_on_request import decide_backfill, decide_stop_backfill, preview_backfill
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.when.moved import REACH
from rqsched.when.steps import Steps, bounded, spend

_log = logging.getLogger(__name__)
CHUNK = 500
"""The maximum number of occurrences of one transaction."""
DEFAULT_BOUND = 10_000
"""The maximum number of occurrences of one backfill by default."""
PAUSE = timedelta(milliseconds=110)
"""The pause between two chunks, in which other processes can take the lock of the schedule.

Without the pause, a backfill could delay live fires until its end. The pause is longer than the time between two tries
of a waiting process: 100 ms in SQLite's busy handler, 50 ms in a dispatcher that skipped the locked schedule."""
Pause = Callable[[], object]
"""A function that is called between two chunks, while no row is locked."""
_CONTINUING = threading.BoundedSemaphore(2)
"""The maximum number of backfills that this process continues at once in the background; further backfills wait."""
_TICK = timedelta(microseconds=1)
_PREVIEWED = 5_000
"""The occurrences of one chunk of a dry run."""


class Backfills(Feature):
    """Continue interrupted backfills in each pass of reconcile."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def sections(self, begun: Pass) -> Sequence[Section]:
        """Continue the backfills whose process has died."""
        pause = no_pause if begun.fires_between else pause_between_chunks
        return [Section(Stage.REST, unless_all_frozen(self._runtime, resume_backfills(self._runtime, pause)))]


class BackfillRange(NamedTuple):
    """The request of a backfill: its range and its options."""

    start_at: datetime
    """The start of the range, inclusive."""
    end_at: datetime
    """The end of the range, exclusive. An end in the future is replaced by now."""
    overlap: OverlapPolicy | None = None
    """The overlap policy of the backfill; None means the schedule's policy."""
    bound: int = DEFAULT_BOUND
    """The maximum number of occurrences that the range may have; a range with more is refused."""
    context: CommandContext | None = None
    """The actor and the reason, for the audit events; None without both."""
    rerun: Rerun | None = None
    """Selects occurrences that already have a run and are run again; None selects none."""


def open_backfill(runtime: Runtime, schedule: Schedule, wanted: BackfillRange, uid: str) -> Backfill:
    """Check a range and write the backfill's row.

    Raises InvalidInputError or InvalidLimitError for the range, ScheduleNotFoundError if the schedule is deleted,
    WrongDatabaseError if Redis belongs to another database, and FrozenError while everything or the namespace is
    frozen. Then nothing is written.
    """
    runtime.ownership.require_own_redis()
    runtime.freezes.require_none(schedule.namespace)
    now = runtime.now()
    start_at, end_at = _require_range(wanted, now)
    _require_bound(schedule, start_at, end_at, wanted.bound)
    context = None if wanted.context is None else json_text("context", wanted.context.to_json(), MEMO_BYTES)
    backfill = Backfill(
        uid=uid,
        schedule_uid=schedule.uid,
        start_at=start_at,
        end_at=end_at,
        overlap=wanted.overlap.value if wanted.overlap else "",
        bound=wanted.bound,
        cursor=start_at,
        status="running",
        created_at=now,
        updated_at=now,
        context=context,
        rerun=wanted.rerun.value if wanted.rerun else None,
    )

    def decide(connection: Connection, _: Decided[Backfill] | None) -> Decided[Backfill]:
        locked = changes.lock_one(connection, schedule.uid)
        if (known := backfills.find(connection, uid)) is not None:
            return Decided([], known)
        if locked is None or locked.status is ScheduleStatus.DELETED:
            raise ScheduleNotFoundError(schedule.schedule_id, schedule.namespace)
        begun_at = runtime.now()
        opened = replace(backfill, created_at=begun_at, updated_at=begun_at)
        return Decided([], opened, also=partial(backfills.add, backfill=opened))

    return change(runtime, decide)


def _require_range(wanted: BackfillRange, now: datetime) -> tuple[datetime, datetime]:
    for name, instant in (("start", wanted.start_at), ("end", wanted.end_at)):
        if instant.tzinfo is None:
            raise InvalidInputError(name, "is naive; give an aware datetime, such as one with tzinfo=UTC")
    if wanted.end_at <= wanted.start_at:
        raise InvalidInputError("end", "must be after start")
    if wanted.start_at >= now:
        raise InvalidInputError("start", "is not in the past; name an instant that has passed")
    return wanted.start_at, min(wanted.end_at, now)


def _require_bound(schedule: Schedule, start_at: datetime, end_at: datetime, bound: int) -> None:
    if schedule.spec.is_from_completion:
        raise InvalidInputError("spec", "a from_completion interval has no past occurrences; trigger it instead")
    if schedule.spec.after is not None:
        raise InvalidInputError(
            "spec", "has no past occurrences, because it comes after another schedule; trigger it instead"
        )
    with bounded(Steps(field="end")):
        count = schedule.declared.count_between(start_at - _TICK, end_at - _TICK, cap=bound + 1).total
    if count > bound:
        raise InvalidLimitError("end", f"the range holds more than {bound} occurrences; shorten it or raise the bound")


def pause_between_chunks() -> None:
    """Sleep for PAUSE, so that other processes can take the lock of the schedule."""
    time.sleep(PAUSE.total_seconds())


def no_pause() -> None:
    """Do nothing. A dispatcher uses this as the pause, because it fires due schedules itself between two chunks."""


def iterate(
    runtime: Runtime, backfill: Backfill, *, pause: Pause = pause_between_chunks, skip_locked: bool = False
) -> Iterator[tuple[Backfill, list[BackfillRow]]]:
    """Fire the rest of a backfill, chunk by chunk. Yield the progress and the rows of a chunk after each commit.

    With `skip_locked`, stop if another process has locked the schedule; a later pass of reconcile continues then.
    """
    while not backfill.is_done:
        fired = change(runtime, partial(_chunk, runtime, backfill.uid, skip_locked=skip_locked))
        if fired is None:
            return
        backfill, rows = fired
        yield backfill, rows
        if not backfill.is_done:
            pause()


_Fired = tuple[Backfill, list[BackfillRow]]
"""The progress of a backfill, and the rows of a chunk."""


def _chunk(
    runtime: Runtime, uid: str, connection: Connection, tried: Decided[_Fired | None] | None, *, skip_locked: bool
) -> Decided[_Fired | None]:
    """Decide about the next chunk. Return None if another transaction holds the schedule or one of its runs."""
    known = backfills.find(connection, uid)
    schedule = None
    if known is not None:
        schedule = changes.lock_one(connection, known.schedule_uid, skip_locked=skip_locked)
        if schedule is None and changes.find(connection, known.schedule_uid) is not None:
            return Decided([], None)
    backfill = backfills.find(connection, uid)  # read again under the lock
    if backfill is None or schedule is None:
        raise BackfillNotFoundError(uid)
    if tried is not None and tried.result is not None and tried.result[0] == backfill:
        return tried
    if backfill.is_done:
        return Decided([unchanged(schedule)], (backfill, []))
    if schedule.status is ScheduleStatus.DELETED:
        stopped = replace(backfill, status="stopped", reason="deleted", updated_at=runtime.now())
        return Decided([unchanged(schedule)], (stopped, []), also=partial(backfills.save, backfill=stopped))
    return _fire_chunk(runtime, connection, backfill, schedule, skip_locked=skip_locked)


def _fire_chunk(
    runtime: Runtime, connection: Connection, backfill: Backfill, schedule: Schedule, *, skip_locked: bool
) -> Decided[_Fired | None]:
    spec = schedule.declared
    nominals = list(islice(spec.between(backfill.cursor, backfill.end_at), CHUNK))
    overlap = OverlapPolicy(backfill.overlap) if backfill.overlap else None
    # Read only the runs and occurrences of this chunk. Otherwise each chunk would take longer than the one before.
    policy = for_backfill(overlap or schedule.policies.overlap)
    sees_backfill = policy is not OverlapPolicy.ALLOW_ALL
    until = nominals[-1] + _TICK if nominals else backfill.cursor
    ran = changes.occurrences_run(connection, {schedule.uid: backfill.cursor}, until).get(schedule.uid)
    found = changes.open_runs_for_start(
        connection, [schedule], overlap=policy, with_backfill=sees_backfill, skip_locked=skip_locked
    )
    if schedule.uid not in found:
        return Decided([], None)
    is_asked = backfill.rerun is not None
    failed = changes.failed_occurrences(connection, schedule.uid, backfill.cursor, until) if is_asked else []
    decided, rows = decide_backfill(
        schedule,
        found[schedule.uid],
        nominals,
        now=runtime.now(),
        backfill_uid=backfill.uid,
        ran=ran or frozenset(),
        stood_for=_stood_for(connection, schedule, backfill.cursor, until),
        failed=failed,
        pruned_to=_pruned_to(connection, schedule, backfill.rerun),
        overlap=overlap,
        context=None if backfill.context is None else CommandContext.from_json(loads(backfill.context)),
    )
    moved = _advanced(backfill, rows, len(nominals), runtime.now())

    def save(connection: Connection) -> None:
        if failed:
            prepare_again(connection, [run.uid for run in failed])
        backfills.save(connection, moved)

    return Decided([decided], (moved, rows), also=save)


def _stood_for(connection: Connection, schedule: Schedule, start_at: datetime, end_at: datetime) -> frozenset[datetime]:
    """Return the nominal instants of the range that have a run, even a run on another day.

    They are needed only for a spec that moves excluded occurrences to other days. For other specs, return none.
    """
    if not schedule.declared.can_move:
        return frozenset()
    return changes.nominals_run(connection, schedule, start_at - REACH, end_at + REACH)


def _pruned_to(connection: Connection, schedule: Schedule, rerun: str | None) -> datetime | None:
    """Return the newest pruned occurrence. All occurrences up to this one are assumed to have run.

    Return None if no history was pruned, or if such occurrences are to run again.
    """
    return None if rerun == Rerun.ALL else changes.read_pruned_to(connection, schedule.uid)


def _advanced(backfill: Backfill, rows: list[BackfillRow], wanted: int, now: datetime) -> Backfill:
    outcomes = [row.outcome for row in rows]
    is_stopped = len(rows) < wanted or bool(rows and rows[-1].reason == SkipReason.MAX_RUNS)
    return replace(
        backfill,
        cursor=rows[-1].occurrence_at + _TICK if rows else backfill.end_at,
        attempted=backfill.attempted + len(rows),
        started=backfill.started + outcomes.count("started"),
        buffered=backfill.buffered + outcomes.count("buffered"),
        skipped=backfill.skipped + outcomes.count("skipped"),
        already_run=backfill.already_run + outcomes.count("already_run"),
        status="stopped" if is_stopped else "running" if wanted == CHUNK else "done",
        reason=SkipReason.MAX_RUNS.value if is_stopped else None,
        updated_at=now,
    )


def preview(runtime: Runtime, schedule: Schedule, wanted: BackfillRange) -> Iterator[list[BackfillRow]]:
    """Yield the rows that a backfill would have, chunk by chunk, and write nothing (`dry_run`)."""
    start_at, end_at = _require_range(wanted, runtime.now())
    _require_bound(schedule, start_at, end_at, wanted.bound)
    nominals = schedule.declared.between(start_at, end_at)
    return _preview_chunks(runtime, schedule, nominals, wanted.rerun)


def _preview_chunks(
    runtime: Runtime, schedule: Schedule, nominals: Iterator[datetime], rerun: Rerun | None
) -> Iterator[list[BackfillRow]]:
    room, is_over = schedule.remaining, False
    while chunk := list(islice(nominals, _PREVIEWED)):
        spend(len(chunk))
        rows = runtime.database.read(partial(_preview, schedule, chunk, rerun, room, is_over))
        yield rows
        is_over = is_over or any(row.outcome == "skipped" for row in rows)
        if room is not None:
            room -= sum(row.outcome == "would_start" and row.reason is None for row in rows)


def _preview(
    schedule: Schedule,
    chunk: list[datetime],
    rerun: Rerun | None,
    room: int | None,
    is_over: bool,
    connection: Connection,
) -> list[BackfillRow]:
    start_at, end_at = chunk[0], chunk[-1] + _TICK
    return preview_backfill(
        schedule,
        chunk,
        ran=changes.occurrences_run(connection, {schedule.uid: start_at}, end_at).get(schedule.uid, frozenset()),
        stood_for=_stood_for(connection, schedule, start_at, end_at),
        failed=[] if rerun is None else changes.failed_occurrences(connection, schedule.uid, start_at, end_at),
        pruned_to=_pruned_to(connection, schedule, rerun),
        room=room,
        is_over=is_over,
    )


def cancel(runtime: Runtime, uid: str, *, reason: str | None = None, context: CommandContext | None = None) -> Backfill:
    """Stop a backfill between two chunks. A backfill that has ended does not change. Raises BackfillNotFoundError.

    The event BackfillStopped records the `context` and the `reason`.
    """

    def decide(connection: Connection, tried: Decided[Backfill] | None) -> Decided[Backfill]:
        known = backfills.find(connection, uid)
        schedule = None if known is None else changes.lock_one(connection, known.schedule_uid)
        found = backfills.find(connection, uid)  # read again under the lock
        if found is None or schedule is None:
            raise BackfillNotFoundError(uid)
        if tried is not None and tried.result == found:
            return tried
        if found.is_done:
            return Decided([], found)
        now = runtime.now()
        stopped = replace(found, status="stopped", reason="cancelled", updated_at=now)
        decided = decide_stop_backfill(
            schedule,
            now=now,
            backfill_uid=uid,
            start_at=found.start_at,
            end_at=found.end_at,
            attempted=found.attempted,
            reason=reason,
            context=context,
        )
        return Decided([decided], stopped, also=partial(backfills.save, backfill=stopped))

    return change(runtime, decide)


def get_backfill(runtime: Runtime, uid: str) -> Backfill:
    """Read a backfill; raises BackfillNotFoundError."""
    found = runtime.database.read(lambda connection: backfills.find(connection, uid))
    if found is None:
        raise BackfillNotFoundError(uid)
    return found


def resume(
    runtime: Runtime, uid: str, *, pause: Pause = pause_between_chunks, skip_locked: bool = False
) -> Iterator[tuple[Backfill, list[BackfillRow]]]:
    """Continue an interrupted backfill. Yield the same values as `iterate`.

    Raises BackfillNotFoundError or ScheduleNotFoundError if the backfill or its schedule does not exist any more.
    """
    backfill = get_backfill(runtime, uid)
    if runtime.database.read(lambda connection: changes.find(connection, backfill.schedule_uid)) is None:
        raise ScheduleNotFoundError(backfill.schedule_uid)
    return iterate(runtime, backfill, pause=pause, skip_locked=skip_locked)


def resume_backfills(runtime: Runtime, pause: Pause) -> Iterator[Recovered]:
    """Continue backfills whose process died.

    Each chunk is a step of the pass; between two steps, due schedules fire.
    """
    before = runtime.now() - runtime.settings.repair_grace
    for uids in pages_unfrozen(runtime, partial(backfills.interrupted, before=before)):
        for uid in uids:
            yield from _resume_one(runtime, uid, pause)


def _resume_one(runtime: Runtime, uid: str, pause: Pause) -> Iterator[Recovered]:
    try:
        yield Recovered(backfills=1)
        for _, rows in resume(runtime, uid, pause=pause, skip_locked=True):
            yield Recovered(checked=len(rows))
    except BackendUnavailableError:
        raise
    except NewerReleaseError as error:
        _log.info("backfill %s is left to another process: %s", uid, error, extra={"action": "newer_release"})
    except Exception:  # noqa: BLE001 - one failing backfill must not stop the others
        _log.exception("backfill %s cannot be resumed now", uid, extra={"action": "repair_failed"})
        yield Recovered(failed=1)


def continue_later(runtime: Runtime, uid: str) -> None:
    """Fire the rest of a backfill in a new thread, so that an HTTP response need not wait for it."""
    threading.Thread(target=_continue, args=(runtime, uid), name=f"backfill-{uid}", daemon=True).start()


def _continue(runtime: Runtime, uid: str) -> None:
    """Fire the rest of a backfill. If this fails, reconcile continues the backfill from its row."""
    try:
        with _CONTINUING:
            for _ in resume(runtime, uid):
                pass
    except BackendUnavailableError as error:
        _log.warning("backfill %s continues later: %s", uid, error, extra={"action": "backfill_interrupted"})
    except Exception:  # noqa: BLE001 - a thread's boundary
        _log.exception("backfill %s continues later", uid, extra={"action": "backfill_interrupted"})
