"""`scheduler.calendars`: read and change calendars."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Sequence
from datetime import date
from functools import partial
from typing import Any

from rqsched.api.groups import Group
from rqsched.errors import CalendarNotFoundError, InvalidInputError
from rqsched.features.calendars import chain, store
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.options import require_id, require_note
from rqsched.kernel.store import named_calendars
from rqsched.when.calendars import Calendar, require_entries, require_name
from rqsched.when.exclusion import ExcludeLike, is_name

MAX_USERS = 1_000
"""The maximum number of schedules that `used_by` returns."""


class Calendars(Group):
    """Named exclusions that many schedules use. A calendar belongs to one namespace, or all namespaces share it.

    >>> calendar = scheduler.calendars.set("holidays", ["2026-12-25/2026-12-26", "2027-01-01"])
    >>> scheduler.create("report", "invoice-sync", Cron("0 6 * * *"), exclude=["holidays", "Sat, Sun"]).schedule_id
    'report'
    """

    def set(
        self,
        name: str,
        exclude: ExcludeLike,
        *,
        shared: bool = False,
        namespace: str | None = None,
        description: str | None = None,
        source: str | None = None,
        reaches: date | None = None,
        revision: int | None = None,
        context: CommandContext | None = None,
    ) -> Calendar:
        """Create a calendar, or replace what it holds; idempotent.

        `exclude` are dates, ranges of dates and weekly windows, at most 5 000, in the form of the option `exclude`;
        each schedule reads them in its own time zone. Before this returns, every schedule that names the calendar gets
        a new next time. If this process dies meanwhile, the other schedules get a new next time before they fire.
        Occurrences that are due already still fire. `reaches` is the last day that the calendar covers: doctor warns
        before that day. With `revision`, only this revision is replaced; 0 means that the calendar must not exist.
        Raises CalendarChangedError, InvalidSpecError and InvalidIdError.
        """
        of = self._of(namespace, shared=shared)
        require_note(description, "description")
        require_note(source, "source")
        if reaches is not None and (not isinstance(reaches, date) or hasattr(reaches, "hour")):
            raise InvalidInputError("reaches", f"{reaches!r} is not a date; give datetime.date(2027, 12, 31)")
        entries = require_entries(exclude)
        wanted = Calendar(require_name(name), entries, of, reaches=reaches, source=source, description=description)
        return chain.set_calendar(self.runtime, wanted, _context(context), revision=revision)[0]

    def get(self, name: str, *, shared: bool | None = None, namespace: str | None = None) -> Calendar:
        """Return the calendar that a schedule of the namespace means by a name; raises CalendarNotFoundError.

        Args:
            name: The name that schedules give in `exclude`.
            shared: True finds only a calendar that all namespaces share, False only a calendar of the namespace.
            namespace: The namespace; default that of the scheduler.
        """
        where = self._of(namespace, shared=False)
        if not is_name(name):
            raise CalendarNotFoundError(str(name)[:64], None if shared else where)
        places = {None: (where, None), True: (None,), False: (where,)}[shared]

        def read(connection: Any) -> Calendar | None:
            found = (store.find(connection, place, name) for place in places)
            return next((one for one in found if one is not None), None)

        found: Calendar | None = self.runtime.database.read(read)
        if found is None:
            raise CalendarNotFoundError(name, None if shared else where)
        return found

    def named(self, names: Sequence[str], *, namespace: str | None = None) -> tuple[Calendar, ...]:
        """Return the calendars that a spec names, for `Spec.with_calendars`; raises UnknownCalendarError."""
        where = require_id(self._namespace(namespace), "namespace")
        if not names:
            return ()
        found: tuple[Calendar, ...] = self.runtime.database.read(
            lambda connection: named_calendars.require(connection, where, names)
        )
        return found

    def list(self, *, namespace: str | None = None) -> builtins.list[Calendar]:
        """Return the calendars that schedules of the namespace may name, with shared calendars, sorted by name."""
        where = self._of(namespace, shared=False)
        found: builtins.list[Calendar] = self.runtime.database.read(
            lambda connection: store.find_all(connection, where, 2 * chain.MAX_CALENDARS)
        )
        return found

    def delete(
        self,
        name: str,
        *,
        shared: bool = False,
        namespace: str | None = None,
        revision: int | None = None,
        context: CommandContext | None = None,
    ) -> None:
        """Delete a calendar that no schedule names.

        Raises CalendarInUseError with the first schedules that name it, CalendarNotFoundError and CalendarChangedError.

        Args:
            name: The name that schedules give in `exclude`.
            shared: Delete the calendar that all namespaces share; over HTTP the token must see all namespaces.
            namespace: The namespace; default that of the scheduler.
            revision: Refuse to delete another revision.
            context: The caller, for the log.
        """
        of = self._of(namespace, shared=shared)
        if not is_name(name):
            raise CalendarNotFoundError(str(name)[:64], of)
        chain.delete_calendar(self.runtime, of, name, _context(context), revision=revision)

    def used_by(
        self, calendar: Calendar, *, namespaces: Collection[str] | None = None
    ) -> builtins.list[tuple[str, str]]:
        """Return the namespace and id of each schedule that names a calendar; at most a thousand.

        Deleted schedules are left out. `namespaces` restricts the schedules; None means all namespaces.
        """
        find = partial(store.users, namespace=calendar.namespace, name=calendar.name, limit=MAX_USERS, among=namespaces)
        found: builtins.list[tuple[str, str]] = self.runtime.database.read(find)
        return found

    def history(self, calendar: Calendar) -> builtins.list[dict[str, Any]]:
        """Return the last 50 changes of a calendar, the newest first.

        Each has `revision`, `at`, `by`, `reason`, `added` and `removed`.
        """
        found: builtins.list[dict[str, Any]] = self.runtime.database.read(
            lambda connection: store.changes_of(connection, calendar.namespace, calendar.name)
        )
        return found

    def _of(self, namespace: str | None, *, shared: bool) -> str | None:
        if not shared:
            return require_id(self._namespace(namespace), "namespace")
        if namespace is not None:
            raise InvalidInputError("namespace", "a shared calendar belongs to none; leave it out")
        return None


def _context(context: CommandContext | None) -> CommandContext:
    return context or CommandContext(source="python")
