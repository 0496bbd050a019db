"""Calendars: changing one is a transaction of its own; then every schedule that names it is planned again, in batches.

A process that dies between the two leaves nothing that fires on an excluded day: a fire, and every operation, compares
the calendars with those that the schedule was planned with, and plans first. A pass of reconcile ends what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from rqsched.chain.changing import Decided, change
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import CommandContext
from rqsched.core.ids import new_uid
from rqsched.core.lifecycle import decide_apply_calendars
from rqsched.core.model import Change
from rqsched.errors import (
    BackendUnavailableError,
    CalendarChangedError,
    CalendarInUseError,
    CalendarNotFoundError,
    InvalidIdError,
    InvalidLimitError,
    InvalidSpecError,
    UnknownCalendarError,
)
from rqsched.spec.calendars import Calendar
from rqsched.spec.moved import require_whole_days
from rqsched.store import calendars, changes, metadata, system_queries
from rqsched.store.database import Connection

_log = logging.getLogger(__name__)

BATCH = 100
"""The most schedules that one transaction plans again."""
MOST_SECONDS = 0.1
"""How long it plans: what is left then is planned by the next one, so that other writers need not wait."""
PAGE = 1_000
"""The most schedules that are read at once to find those."""
MAX_CALENDARS = 500
"""The most calendars of a namespace, and of those that are shared."""
MOVES = '"on_excluded":'
"""What the text of a spec holds that moves what is excluded."""
MAX_TOLD = 20
"""The most schedules that a refused deletion names."""


class Planned(NamedTuple):
    """One batch of schedules that were planned again."""

    checked: int
    """Schedules that were looked at."""
    moved: int
    """Those whose next time moved."""
    failed: int = 0
    """Those that could not be planned now; the log says why."""


def require_named(
    connection: Connection, namespace: str, names: Sequence[str], *, locks: bool = False
) -> tuple[Calendar, ...]:
    """Return the calendars that a spec names, for a namespace; with `locks` as they are until the transaction ends.

    Raises UnknownCalendarError for the first one that there is not.
    """
    found = calendars.named(connection, namespace, names, locks=locks)
    if len(found) < len(names):
        missing = next(name for name in names if name not in {one.name for one in found})
        known = [one.name for one in calendars.find_all(connection, namespace, MAX_CALENDARS)]
        raise UnknownCalendarError(missing, namespace, known)
    return found


def set_calendar(
    runtime: Runtime, wanted: Calendar, context: CommandContext, *, revision: int | None = None
) -> tuple[Calendar, str]:
    """Create or replace a calendar, and plan again what names it; returns it, and `created`, `updated` or `unchanged`.

    With `revision` only that one is replaced; 0 is none. Raises CalendarChangedError.
    """
    runtime.ownership.require_own_redis()
    edit = new_uid(runtime.now())

    def work(connection: Connection) -> tuple[Calendar | None, Calendar, str]:
        before = calendars.find(connection, wanted.namespace, wanted.name, locks=True)
        if before is not None and before.edit == edit:  # the answer to the commit was lost
            return None, before, "updated" if before.revision > 1 else "created"
        _require_revision(wanted.name, before, revision)
        new = _next(wanted, before, edit, context, runtime.now())
        if before is not None and _holds(before) == _holds(new):
            return before, before, "unchanged"
        if before is None:
            system_queries.lock_calendars(connection)
            _require_room(connection, wanted)
        _require_movable(connection, new)
        if not calendars.write(connection, new, before, calendars.change_of(new, before, context.reason)):
            raise CalendarChangedError(wanted.name, "was created by somebody else at the same moment")
        metadata.record_altered(connection, _told(new, before), runtime.now(), context, new.namespace)
        return before, new, "updated" if before else "created"

    before, after, outcome = runtime.database.transact(work)
    if outcome != "unchanged":
        _log.info(
            "calendar %s is at revision %d", after.name, after.revision,
            extra={"action": "calendar_changed", "principal": context.principal},
        )  # fmt: skip
        for _ in plan_again(runtime, after, before=before):
            pass
    return after, outcome


def _next(wanted: Calendar, before: Calendar | None, edit: str, context: CommandContext, now: datetime) -> Calendar:
    return replace(
        wanted,
        revision=1 if before is None else before.revision + 1,
        edit=edit,
        since=now,
        created_at=now if before is None else before.created_at,
        changed_at=now,
        changed_by=context.principal,
    )


def _told(new: Calendar, before: Calendar | None) -> str:
    """Return what a change did, in words: `calendar holidays: revision 3, 2 added, 1 removed`."""
    said = ["created" if before is None else f"revision {new.revision}"]
    counts = {"added": len(new.without(before)), "removed": 0 if before is None else len(before.without(new))}
    return (
        f"{_kind(new)} {new.name}: {', '.join([*said, *(f'{count} {did}' for did, count in counts.items() if count)])}"
    )


def _kind(calendar: Calendar) -> str:
    return "shared calendar" if calendar.is_shared else "calendar"


def _holds(calendar: Calendar) -> tuple[object, ...]:
    return calendar.exclude, calendar.reaches, calendar.source, calendar.description


def _require_revision(name: str, before: Calendar | None, revision: int | None) -> None:
    have = 0 if before is None else before.revision
    if revision is not None and revision != have:
        raise CalendarChangedError(name, f"is at revision {have}, not {revision}" if have else "is not there")


def _require_room(connection: Connection, wanted: Calendar) -> None:
    """Refuse one more than there may be, and a name that means two calendars to the same schedule."""
    if calendars.count(connection, wanted.namespace) >= MAX_CALENDARS:
        raise InvalidLimitError("name", f"there are {MAX_CALENDARS} calendars already; delete one that nothing names")
    twin = calendars.find_twin(connection, wanted.namespace, wanted.name)
    if twin is not None:
        where = "shared by all namespaces" if twin.is_shared else f"of namespace {twin.namespace!r}"
        raise InvalidIdError("name", f"is that of a calendar {where}, and schedules could mean either; choose another")


def _require_movable(connection: Connection, wanted: Calendar) -> None:
    """Refuse parts of days where a schedule that names it moves what is excluded: it moves over whole days."""
    try:
        require_whole_days(wanted.exclude, "on_excluded")
    except InvalidSpecError:
        moving = calendars.users(connection, wanted.namespace, wanted.name, 1, only=MOVES)
        if moving:
            told = f"holds a part of a day, and {moving[0][1]!r} moves what is excluded over whole days (on_excluded)"
            raise InvalidSpecError("exclude", f"{told}; write whole days, or another calendar for those") from None


def delete_calendar(
    runtime: Runtime, namespace: str | None, name: str, context: CommandContext, *, revision: int | None = None
) -> Calendar:
    """Delete a calendar that no schedule names. Raises CalendarInUseError with the names, CalendarNotFoundError."""

    def work(connection: Connection) -> Calendar:
        before = calendars.find(connection, namespace, name, locks=True)
        if before is None:
            raise CalendarNotFoundError(name, namespace)
        _require_revision(name, before, revision)
        if found := calendars.users(connection, namespace, name, MAX_TOLD):
            told = [one if namespace else f"{of}/{one}" for of, one in found]
            more = calendars.count_users(connection, namespace, name) - len(found)
            raise CalendarInUseError(name, told, more)
        calendars.remove(connection, namespace, name)
        what = f"{_kind(before)} {name}: deleted"
        metadata.record_altered(connection, what, runtime.now(), context, namespace)
        return before

    gone = runtime.database.transact(work)
    _log.info("calendar %s is deleted", name, extra={"action": "calendar_deleted", "principal": context.principal})
    return gone


def plan_again(runtime: Runtime, calendar: Calendar, before: Calendar | None = None) -> Iterator[Planned]:
    """Plan every schedule again that names a calendar and was planned before its change, a batch a transaction.

    `before` is the calendar as it was, where that is known. Once all are planned this is noted, unless one of them
    could not be or is of a newer release: then passes of reconcile try again.
    """
    was = () if before is None else (before,)
    is_whole = True
    uids, cursor = _page(runtime, calendar, None)
    while uids or cursor is not None:
        while uids:
            batch = uids[:BATCH]
            try:
                planned = _plan_batch(runtime, batch, was)
            except BackendUnavailableError:
                raise
            except Exception:  # noqa: BLE001 - one row never starves the others
                planned = _plan_each(runtime, batch, was)
            uids = uids[planned.checked :]
            is_whole = is_whole and not planned.failed
            yield planned
        uids, cursor = ([], None) if cursor is None else _page(runtime, calendar, cursor)
    if is_whole and not _left(runtime, calendar):
        runtime.database.transact(partial(calendars.set_planned, calendar=calendar))


def _page(runtime: Runtime, calendar: Calendar, after: str | None) -> tuple[list[str], str | None]:
    return runtime.database.read(partial(calendars.to_plan, calendar=calendar, after=after, limit=PAGE))


def _left(runtime: Runtime, calendar: Calendar) -> bool:
    """Return whether some are left: those of a newer release, which its processes plan."""
    uids, cursor = _page(runtime, calendar, None)
    while not uids and cursor is not None:
        uids, cursor = _page(runtime, calendar, cursor)
    return bool(uids)


def _plan_batch(runtime: Runtime, uids: Sequence[str], before: Sequence[Calendar]) -> Planned:
    """Plan some schedules, at least the first; as many as there is time for (`MOST_SECONDS`)."""
    operation = new_uid(runtime.now())

    def decide(connection: Connection, tried: Decided[Planned] | None) -> Decided[Planned]:
        locked = changes.lock(connection, uids)
        if tried is not None and any(map(tried.is_written, locked)):
            return tried
        now = runtime.now()
        ran_of = partial(changes.nominals_run, connection)
        plan = partial(decide_apply_calendars, now=now, before=before, operation=operation, ran_of=ran_of)
        ends_at, decided, checked = time.monotonic() + MOST_SECONDS, list[Change](), len(uids)
        for one in locked:
            decided.append(plan(one))
            if time.monotonic() >= ends_at:
                checked = uids.index(one.uid) + 1
                break
        moved = sum(one.before is not None and one.before.next_run_at != one.after.next_run_at for one in decided)
        return Decided([one for one in decided if not one.is_empty], Planned(checked, moved))

    return change(runtime, decide)


def _plan_each(runtime: Runtime, uids: Sequence[str], before: Sequence[Calendar]) -> Planned:
    total = Planned(len(uids), 0)
    for uid in uids:
        try:
            total = total._replace(moved=total.moved + _plan_batch(runtime, [uid], before).moved)
        except BackendUnavailableError:
            raise
        except Exception:  # noqa: BLE001
            _log.exception("schedule %s cannot be planned again now", uid, extra={"action": "repair_failed"})
            total = total._replace(failed=total.failed + 1)
    return total
