"""Following: start a run of a downstream schedule when a run of its upstream schedule ends.

The transaction that ends the upstream's run also writes a row for each downstream schedule (`features/after/store.py`).
An end is owed to a downstream schedule until this row has an outcome. To follow an end means to write its outcome:
usually, a run of the downstream schedule is started. The process that wrote the row follows the end at once. If that
process dies or fails, the next pass of reconcile follows the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol

from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError
from rqsched.features.after import store as upstream_ends
from rqsched.features.after import upstreams
from rqsched.features.after.decide import (
    MAX_ERROR,
    TOGETHER,
    Followed,
    Thaw,
    decide_after,
    ended_runs,
    next_try_at,
    owes,
)
from rqsched.kernel.chain import commit
from rqsched.kernel.chain.commit import publish, write
from rqsched.kernel.chain.error_text import name_error
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage
from rqsched.kernel.chain.freeze_gate import FreezeGate
from rqsched.kernel.chain.reconcile.repair import pages_unfrozen, repair_each, unless_all_frozen
from rqsched.kernel.chain.tracer import Tracer
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.model import Change
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import changes
from rqsched.kernel.store.changes import Seen
from rqsched.kernel.store.database import Connection, Database

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 100
"""The maximum number of ends that one transaction follows for a schedule."""
MOST_OF_A_FREEZE = 10_000
"""The maximum number of ends during a freeze that are followed as one end."""


class Parts(commit.Parts, Protocol):
    """The parts of a process's runtime that following uses."""

    settings: Settings
    """The settings, such as the environment of this process (`env`)."""
    database: Database
    """The database that holds the owed ends."""
    freezes: FreezeGate
    """Tells whether a freeze forbids new runs."""
    tracing: Tracer | None
    """The tracer of this process; None without tracing."""


class After(Feature):
    """Write the ends of upstream runs in the transaction that ends the run. After the commit, start downstream runs."""

    columns = tuple((attrgetter(name), None) for name in ("followed_at", "upstream_id", "missed_run_uid"))

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def require(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Refuse an upstream that does not exist, and a cycle of schedules that come after each other."""
        upstreams.require(connection, changes)

    def before_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write a row for each downstream schedule of the runs that end in Changes."""
        if any(owes(change) for change in changes):
            upstream_ends.record(connection, changes)

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Mark the rows of schedules that have become upstreams."""
        upstreams.tell(connection, changes)

    def follow(self, changes: Sequence[Change], *, seen: Seen, skip_locked: bool) -> None:  # noqa: ARG002
        """Start downstream runs for the runs that ended in committed Changes.

        If a start fails, the error is logged, and a later pass of reconcile starts the run.
        """
        committed, parts = [one for one in changes if owes(one)], self._parts
        # After an empty Change, look for owed ends, too. An earlier commit may have written them, but its answer was
        # lost or its process died.
        ended = {one.after.uid for one in committed if ended_runs(one) or one.drops_retries or one.before is one.after}
        resumed = [one.after.uid for one in committed if one.owed_again is not None]
        if not (ended or resumed) or parts.freezes.is_all_frozen:
            return
        try:
            read = partial(upstream_ends.owed_to, upstream_uids=sorted(ended))
            owed = parts.database.read(read) if ended else []
            for some in chunks([*resumed, *owed], TOGETHER):
                _follow_now(parts, some, skip_locked=skip_locked)
        except BackendUnavailableError as error:
            told = "the downstream schedules of %d schedules start their runs later: %s"
            _log.warning(told, len(ended), error, extra={"action": "follow_failed"})

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - every pass handles all ends that are due
        """Follow the ends that are still owed because a process died or failed."""
        return [Section(Stage.RUNS, unless_all_frozen(self._parts, start_owed(self._parts)))]


def _follow_now(parts: Parts, uids: Sequence[str], *, skip_locked: bool) -> None:
    """Follow the ends owed to several schedules in one transaction. If that fails, use one for each schedule.

    A schedule that another process has locked comes last, in a separate transaction. With `skip_locked` it is left to a
    pass of reconcile. So a schedule that is locked, or fails, does not delay the others.
    """
    try:
        _, written = _follow_some(parts, uids, skip_locked=True)
        followed = {one.after.uid for one in written}
        left = [] if skip_locked else [uid for uid in uids if uid not in followed]
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - the transaction of each schedule shows the error
        left = [*uids]
    for uid in left:
        try:
            follow_one(parts, uid, skip_locked=skip_locked)
        except BackendUnavailableError:
            raise
        except Exception:  # noqa: BLE001 - as above
            _log.exception(UNFOLLOWED, uid, extra={"action": "not_followed"})


UNFOLLOWED = "schedule %s comes after another schedule, and cannot start its run now"


def follow_one(parts: Parts, uid: str, *, skip_locked: bool = False) -> bool:
    """Follow each due end that is owed to a schedule. Return whether there was such an end.

    If this fails, the error is recorded and raised. The ends are tried again later, without a limit of tries.
    """
    done = 0
    try:
        while followed := _follow_some(parts, [uid], skip_locked=skip_locked)[0]:
            done += followed
            if followed < MOST_AT_ONCE:
                break
    except BackendUnavailableError:
        raise
    except Exception as error:
        text = name_error(error)[:MAX_ERROR]
        parts.database.transact(partial(_put_off, parts, uid, text))
        raise
    return done > 0


def _put_off(parts: Parts, uid: str, error: str, connection: Connection) -> None:
    changes.lock_one(connection, uid)
    now = parts.now()
    ends = upstream_ends.read_owed(connection, uid, now, MOST_AT_ONCE)
    upstream_ends.put_off(connection, [(end, next_try_at(end, now)) for end in ends], error)


def _follow_some(parts: Parts, uids: Sequence[str], *, skip_locked: bool) -> tuple[int, list[Change]]:
    """Follow the oldest due ends that are owed to these schedules, in one transaction; see `_follow`."""
    # In the process that ended the upstream's run, this is the span of the run's attempt.
    span = None if parts.tracing is None else parts.tracing.traceparent
    asked = None if span is None else CommandContext(traceparent=span)
    decide = partial(decide_after, env=parts.settings.environment, asked=asked)
    return _follow(parts, uids, decide, skip_locked=skip_locked)


def start_owed(parts: Parts) -> Iterator[Recovered]:
    """Follow the due ends that are owed to downstream schedules, except in frozen namespaces."""
    for uids in pages_unfrozen(parts, partial(upstream_ends.due, now=parts.now())):
        repairs = {uid: partial(follow_one, parts, uid, skip_locked=True) for uid in uids}
        followed, failed = repair_each(repairs, UNFOLLOWED)
        yield Recovered(len(uids), followed=followed, failed=failed)


def follow_frozen(parts: Parts, uid: str, thaw: Thaw, asked: CommandContext) -> Change | None:
    """At a thaw, follow all ends owed to a schedule as one end. Return the Change, or None without such ends."""
    decide = partial(decide_after, env=parts.settings.environment, asked=asked, thaw=thaw)
    _, written = _follow(parts, [uid], decide, is_frozen=True)
    return written[0] if written else None


def _follow(
    parts: Parts,
    uids: Sequence[str],
    decide_ends: Callable[..., tuple[Change, dict[str, Followed]]],
    *,
    skip_locked: bool = False,
    is_frozen: bool = False,
) -> tuple[int, list[Change]]:
    """Lock schedules and decide about the ends owed to them. Return the number of ends, and the Changes.

    A schedule with a spec of a newer release is left out. Without `is_frozen`, schedules of frozen namespaces are left
    out, too.
    """
    tried = dict[str, Change]()

    def work(connection: Connection) -> tuple[int, list[Change]]:
        locked, frozen = changes.lock_to_fire(connection, uids, skip_locked=skip_locked)
        if any(locked.get(uid) == one.after for uid, one in tried.items() if not one.is_empty):
            return len(tried), [*tried.values()]  # the earlier try was committed, but its answer was lost
        for uid in {*uids} - locked.keys():
            if changes.find(connection, uid) is None:  # the schedule was purged while an upstream's run ended
                upstream_ends.forget(connection, uid)
        until, most = (None, MOST_OF_A_FREEZE) if is_frozen else (parts.now(), MOST_AT_ONCE)
        may = [one for uid, one in locked.items() if (is_frozen or uid not in frozen) and not one.spec.newer]
        owed = {one.uid: upstream_ends.read_owed(connection, one.uid, until, most) for one in may}
        asking = [one for one in may if owed[one.uid]]
        runs = changes.open_runs_for_start(connection, asking, skip_locked=skip_locked) if asking else {}
        tried.clear()
        now = parts.now()  # read after the wait for the locks, so that no run starts before its upstream's run ended
        for one in asking:
            if one.uid in runs:
                tried[one.uid], outcomes = decide_ends(one, runs[one.uid], owed[one.uid], now=now)
                upstream_ends.write_outcomes(connection, one.uid, outcomes, now)
        written = [one for one in tried.values() if not one.is_empty]
        if written:
            write(parts, connection, written)
        return sum(len(owed[uid]) for uid in tried), [*tried.values()]

    followed, written = parts.database.transact(work)
    if written:
        publish(parts, written, skip_locked=skip_locked)
    return followed, written
