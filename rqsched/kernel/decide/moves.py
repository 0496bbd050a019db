"""The record of nominal instants whose occurrence was moved to another day. Pure.

A nominal instant never gets a second outcome, even if exclusions or timing change. For example, an occurrence is moved
to the day before and fires there. If its own day is no longer excluded after that, it does not fire again on its own
day. For most instants, `evaluated_to` shows whether they have their outcome. For the others, the schedule's row has
this record. The record is carried over to a new timing, and stays when the runs are pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.model import Moves, Occurrence, Schedule, dump_moves
from rqsched.when.moved import REACH

_TICK = timedelta(microseconds=1)
RanOf = Callable[[Schedule, datetime, datetime], Collection[datetime]]
"""Read which nominal instants between two instants have a run. It is called only if a change of the timing moves some
of these instants."""


def evaluate_to(builder: ChangeBuilder, instant: datetime) -> None:
    """Record that every occurrence up to an instant has its outcome.

    Record also which later nominal instants have their outcome already, because they were moved to an earlier time.
    """
    builder.set(evaluated_to=instant)
    if builder.schedule.moves is not None or builder.schedule.spec.is_moving:
        note_early(builder)


def note_early(builder: ChangeBuilder) -> None:
    """Record which nominal instants have their outcome although they are after `evaluated_to`."""
    spec, moves, instant = builder.schedule.spec, builder.schedule.parsed_moves, builder.schedule.evaluated_to
    least = instant - REACH if spec.is_moving else instant
    early = {at for at in moves.early if at > instant}
    if spec.is_known:
        early |= spec.early(instant)
    elif (stored := builder.schedule.next_run_at) is not None and stored <= instant:  # use the instants in the row
        early |= {at for at in moves.nominals if at > instant}
    settled = tuple(at for at in moves.settled if at > least)
    builder.set(moves=dump_moves(moves._replace(early=tuple(sorted(early)), settled=settled)))


def carry_over(
    builder: ChangeBuilder, before: Schedule, *, at: datetime, keep_next: bool, ran_of: RanOf | None = None
) -> Occurrence | None:
    """Record for a new timing which nominal instants have their outcome. Return an occurrence to fire at once, or None.

    The old timing is in `before`. The new timing and the due occurrence that is kept are in the builder. If an instant
    was ahead in the old timing, but is past in the new timing, it is due at once. Such instants become one occurrence,
    or they are added to the occurrence that is due already. With `keep_next`, such instants do not become due.
    """
    schedule, old = builder.schedule, before.spec
    new, moves = schedule.declared, schedule.parsed_moves
    if schedule.moves is None and not (old.is_moving or new.is_moving):
        return None
    stored = schedule.next_run_at
    due = set() if stored is None or stored > at else {*moves.nominals} or {stored}
    # The old contents of a calendar may not be known any more. Then only the row shows which instants are due.
    is_same = (before.definition.spec, before.contents) == (schedule.definition.spec, schedule.contents)
    is_known = old.is_known and not is_same
    had, to_come = {*moves.early, *moves.settled}, old.late(at) if is_known else set[datetime]()
    if due:
        had |= due
    else:
        to_come |= {*moves.nominals}
    if schedule.is_active and is_known:
        had |= old.early(at)
    delayed = new.late(at)
    ahead = to_come | {one for one in new.early(at) if old.is_known and old.is_nominal(one)}
    ran = {*ran_of(before, at - REACH, at + REACH)} if (delayed or ahead) and ran_of is not None else set[datetime]()

    def had_passed(one: datetime) -> bool:
        is_due = schedule.is_active and is_known and one > before.timing_changed_at
        return one <= before.evaluated_to or (is_due and old.moved_to(one) is not None)

    again = {one for one in delayed if one in had | ran or (one not in to_come and had_passed(one))}
    ahead = ahead - had - ran if schedule.is_active and not keep_next else set()
    past = {one: then for one in ahead if (then := new.moved_to(one)) is not None and then <= at}
    settled = again | {one for one in had if one > schedule.evaluated_to} | past.keys()
    nominals = tuple(sorted(due | past.keys())) if due and past else moves.nominals
    builder.set(moves=dump_moves(Moves(nominals, (), tuple(sorted(one for one in settled if one > at - REACH)))))
    if due or not past:
        return None
    due_at = max(past.values())
    # If later occurrences have their outcome already, give this one a time after them.
    nominal = due_at if due_at > schedule.evaluated_to else max(at, schedule.evaluated_to + _TICK)
    return Occurrence(nominal, due_at, () if past.keys() == {nominal} else tuple(sorted(past)))
