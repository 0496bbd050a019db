"""Plans: decisions made before anything is locked, because it may take long to find times around excluded days.

Under the lock a plan is used if its schedule and its calendars have not changed since the plan was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rqsched.errors import CalendarBusyError, RqschedError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Change, Schedule
from rqsched.kernel.store import changes
from rqsched.when.calendars import Calendar

T = TypeVar("T")
CalendarsOf: TypeAlias = Callable[[tuple[str, ...]], tuple[Calendar, ...]]
"""Reads the calendars with these names, and locks them until the transaction ends."""

MOST_TRIES = 3
"""How many times a plan is made, if its rows change each time before the plan is written."""


class Plan(NamedTuple):
    """A decision that was made without a lock."""

    known: Schedule | None
    """The schedule as it was read; None for a new schedule."""
    names: tuple[str, ...]
    """The names of the calendars on which the decision depends."""
    calendars: tuple[Calendar, ...]
    """The calendars as they were read."""
    outcome: Change | RqschedError
    """The Change, or the error that refuses it."""

    def taken(self, known: Schedule | None, calendars_of: CalendarsOf) -> Change | None:
        """Return the Change if the locked schedule has not changed; None if the decision must be made now.

        Raises CalendarsMoved if the calendars have changed, and the planned error if the Change is refused.
        """
        if self.known != known:
            return None
        if self.names and calendars_of(self.names) != self.calendars:
            raise CalendarsMoved(self.names)
        if isinstance(self.outcome, RqschedError):
            raise self.outcome
        return self.outcome


def outcome_of(decide: Callable[[], Change]) -> Change | RqschedError:
    """Return the Change that is decided, or the error that refuses it."""
    try:
        return decide()
    except RqschedError as error:
        return error


def read_ran(runtime: Runtime, *asked: Any) -> frozenset[datetime]:
    """Return the result of `changes.nominals_run`, read in a separate transaction."""
    return runtime.database.read(lambda connection: changes.nominals_run(connection, *asked))


class CalendarsMoved(Exception):  # noqa: N818 - never leaves this package
    """A calendar has changed since a plan that depends on it was made."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(*names)
        self.names = names


def while_calendars_move(attempt: Callable[[], T]) -> T:
    """Plan and write. If calendars change in between, repeat both; raise CalendarBusyError after MOST_TRIES."""
    for left in range(MOST_TRIES - 1, -1, -1):
        try:
            return attempt()
        except CalendarsMoved as moved:
            if not left:
                raise CalendarBusyError(moved.names, MOST_TRIES) from None
    raise AssertionError("unreachable")
