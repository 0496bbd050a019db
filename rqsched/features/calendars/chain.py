"""Change calendars, and then give new next times to the schedules that name a changed calendar.

To plan a schedule means to compute its next time. The change of a calendar is one transaction. After it, the schedules
are planned in batches. Planning may take long, so nothing is locked meanwhile, and a plan is written only if the
schedule has not changed since it was read.

If a process dies after the change of a calendar, a schedule still does not fire on an excluded day. Each fire and each
operation compares the calendars with the calendars of the schedule's last plan. If they differ, it first plans the
schedule again. A pass of reconcile plans the schedules that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from rqsched.errors import (
    BackendUnavailableError,
    CalendarChangedError,
    CalendarInUseError,
    CalendarNotFoundError,
    InvalidIdError,
    InvalidLimitError,
    InvalidSpecError,
    TooMuchWorkError,
)
from rqsched.features.calendars import store as calendars
from rqsched.kernel.chain.change import change
from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage
from rqsched.kernel.chain.plans import MOST_TRIES, CalendarsMoved, read_ran, while_calendars_move
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.lifecycle import decide_apply_calendars
from rqsched.kernel.decide.model import Change, Schedule, changed
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import changes, metadata
from rqsched.kernel.store.database import Connection
from rqsched.when.calendars import Calendar
from rqsched.when.moved import require_whole_days
from rqsched.when.steps import MOST_STEPS, Steps, bounded

_log = logging.getLogger(__name__)

BATCH = 100
"""The maximum number of schedules that one transaction plans again."""
PAGE = 1_000
"""The maximum number of schedules that are read at once to find those that must be planned again."""
MAX_CALENDARS = 500
"""The maximum number of calendars of a namespace, and of shared calendars."""
MOVES = '"on_excluded":'
"""A text that is in the JSON of a spec only if the spec moves its excluded occurrences."""
MAX_TOLD = 20
"""The maximum number of schedules that the error of a refused deletion names."""


class Planned(NamedTuple):
    """One batch of schedules that were planned again."""

    checked: int
    """The number of schedules that were checked."""
    moved: int
    """The number of schedules whose next time changed."""
    failed: int = 0
    """The number of schedules that could not be planned now. The log has the errors."""


class Calendars(Feature):
    """Calendars, which schedules name in `exclude`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - every pass looks at all changed calendars
        """Plan the schedules that a process has left unplanned because it died."""
        return [Section(Stage.TIMES, apply_changed_calendars(self._runtime))]


def set_calendar(
    runtime: Runtime, wanted: Calendar, context: CommandContext, *, revision: int | None = None
) -> tuple[Calendar, str]:
    """Create or replace a calendar, and plan its schedules again. Return it with `created`, `updated` or `unchanged`.

    With `revision`, only that revision is replaced; 0 means that the calendar must not exist. Raises
    CalendarChangedError if the revision differs, TooMuchWorkError if planning a schedule with the calendar takes too
    many steps, and CalendarBusyError if other processes change the calendar again and again.
    """
    runtime.ownership.require_own_redis()
    attempt = partial(_set, runtime, wanted, context, new_uid(runtime.now()), revision)
    before, after, outcome = while_calendars_move(attempt)
    if outcome != "unchanged":
        _log.info(
            "calendar %s is at revision %d", after.name, after.revision,
            extra={"action": "calendar_changed", "principal": context.principal},
        )  # fmt: skip
        for _ in plan_again(runtime, after, before=before):
            pass
    return after, outcome


def _set(
    runtime: Runtime, wanted: Calendar, context: CommandContext, edit: str, revision: int | None
) -> tuple[Calendar | None, Calendar, str]:
    """Check that schedules can be planned with a calendar, and write it. Raises CalendarsMoved if it changed meanwhile.

    Returns the calendar before and after, and `created`, `updated` or `unchanged`.
    """
    checked = runtime.database.read(partial(calendars.find, namespace=wanted.namespace, name=wanted.name))
    if checked is not None and _holds(checked) != _holds(wanted):
        _require_plannable(runtime, _next(wanted, checked, edit, context, runtime.now()), checked)

    def work(connection: Connection) -> tuple[Calendar | None, Calendar, str]:
        before = calendars.find(connection, wanted.namespace, wanted.name, locks=True)
        if before is not None and before.edit == edit:  # the answer to the commit was lost
            return None, before, "updated" if before.revision > 1 else "created"
        _require_revision(wanted.name, before, revision)
        if (before and before.edit) != (checked and checked.edit):
            raise CalendarsMoved([wanted.name])
        if before is None:
            calendars.lock_calendars(connection)
            _require_room(connection, wanted)
        new = _next(wanted, before, edit, context, runtime.now())
        if before is not None and _holds(before) == _holds(new):
            return before, before, "unchanged"
        _require_movable(connection, new)
        if not calendars.write(connection, new, before, calendars.change_of(new, before, context.reason)):
            raise CalendarChangedError(wanted.name, "was created by somebody else at the same moment")
        metadata.record_altered(connection, _told(new, before), runtime.now, context, new.namespace)
        return before, new, "updated" if before else "created"

    return runtime.database.transact(work)


def _require_plannable(runtime: Runtime, new: Calendar, before: Calendar) -> None:
    """Refuse a calendar with which planning one of its schedules takes too many steps. Raises TooMuchWorkError.

    Not all schedules are tried. The trial ends when the tried schedules together have taken as many steps as one
    schedule may take.
    """

    def check(connection: Connection) -> None:
        uids, _ = calendars.to_plan(connection, new, None, BATCH)
        taken = 0
        for schedule in changes.find_all(connection, uids):
            contents = tuple(new if one.name == new.name else one for one in schedule.contents)
            with bounded(Steps(MOST_STEPS, field="exclude")) as steps:
                try:
                    decide_apply_calendars(changed(schedule, contents=contents), now=runtime.now(), before=[before])
                except TooMuchWorkError as error:
                    error.add_note(f"for schedule {schedule.schedule_id!r} of namespace {schedule.namespace!r}")
                    raise
                except Exception:  # noqa: BLE001 - an error of one row must not prevent the change of a calendar
                    _log.debug("schedule %s cannot be planned", schedule.uid, exc_info=True)
            taken += steps.taken
            if taken > MOST_STEPS:
                return

    runtime.database.read(check)


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
    """Return the effect of a change in words: `calendar holidays: revision 3, 2 added, 1 removed`."""
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
    """Refuse a calendar beyond MAX_CALENDARS, and a name by which a schedule could mean two calendars."""
    if calendars.count(connection, wanted.namespace) >= MAX_CALENDARS:
        raise InvalidLimitError("name", f"there are {MAX_CALENDARS} calendars already; delete one that nothing names")
    twin = calendars.find_twin(connection, wanted.namespace, wanted.name)
    if twin is not None:
        where = "shared by all namespaces" if twin.is_shared else f"of namespace {twin.namespace!r}"
        raise InvalidIdError("name", f"is that of a calendar {where}, and schedules could mean either; choose another")


def _require_movable(connection: Connection, wanted: Calendar) -> None:
    """Refuse a calendar with parts of days if one of its schedules has `on_excluded`, which needs whole days."""
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
    """Delete a calendar that no schedule names. Raises CalendarInUseError with some names, or CalendarNotFoundError."""

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
        metadata.record_altered(connection, what, runtime.now, context, namespace)
        return before

    gone = runtime.database.transact(work)
    _log.info("calendar %s is deleted", name, extra={"action": "calendar_deleted", "principal": context.principal})
    return gone


def apply_changed_calendars(runtime: Runtime) -> Iterator[Recovered]:
    """Plan schedules again if a process changed their calendar and died before it had planned them."""
    before = runtime.now() - runtime.settings.repair_grace
    for calendar in runtime.database.read(partial(calendars.unplanned, before=before)):
        for batch in plan_again(runtime, calendar):
            yield Recovered(batch.checked, retimed=batch.moved, failed=batch.failed)


def plan_again(runtime: Runtime, calendar: Calendar, before: Calendar | None = None) -> Iterator[Planned]:
    """Plan again every schedule that names a calendar and was planned before the calendar's change, batch by batch.

    Each batch is one transaction. `before` is the calendar before its change, if known. If all schedules are planned,
    this is recorded in the calendar. If a schedule could not be planned, or is of a newer release, nothing is recorded,
    and passes of reconcile try again.
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
            except Exception:  # noqa: BLE001 - an error of one row must not stop the others
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
    """Return whether some schedules are still unplanned, such as schedules of a newer release."""
    uids, cursor = _page(runtime, calendar, None)
    while not uids and cursor is not None:
        uids, cursor = _page(runtime, calendar, cursor)
    return bool(uids)


def _plan_batch(runtime: Runtime, uids: Sequence[str], before: Sequence[Calendar]) -> Planned:
    """Plan schedules without a lock, and write the plans in one transaction. Repeat this for schedules that changed."""
    moved, left = 0, [*uids]
    for _ in range(MOST_TRIES):
        written = _write_plans(runtime, _plans_of(runtime, left, before))
        moved += sum(
            one.before is not None and one.before.next_run_at != one.after.next_run_at for one in written.values()
        )
        left = [uid for uid in left if uid not in written]
        if not left:
            break
    if left:
        told = "%d schedules changed while they were planned again; a pass plans them"
        _log.info(told, len(left), extra={"action": "planned_later"})
    return Planned(len(uids), moved, len(left))


_Plans = dict[str, tuple[Schedule, Change]]
"""Schedules as they were read, and the Changes with their plans, by uid."""


def _plans_of(runtime: Runtime, uids: Sequence[str], before: Sequence[Calendar]) -> _Plans:
    operation, now = new_uid(runtime.now()), runtime.now()

    # Plan outside of a transaction, because the server ends a transaction that is idle for some seconds.
    decide = partial(
        decide_apply_calendars, now=now, before=before, operation=operation, ran_of=partial(read_ran, runtime)
    )
    found = runtime.database.read(partial(changes.find_all, uids=uids))
    return {one.uid: (one, decide(one)) for one in found}


def _write_plans(runtime: Runtime, plans: _Plans) -> dict[str, Change]:
    """Write the plan of each schedule that has not changed since it was read. Return these Changes by uid."""

    def decide(connection: Connection, tried: Decided[dict[str, Change]] | None) -> Decided[dict[str, Change]]:
        locked = changes.lock(connection, plans)
        if tried is not None and any(map(tried.is_written, locked)):
            return tried
        same = {one.uid: plans[one.uid][1] for one in locked if one == plans[one.uid][0]}
        return Decided([one for one in same.values() if not one.is_empty], same)

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
