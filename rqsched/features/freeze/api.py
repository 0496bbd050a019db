"""Freeze and thaw a namespace or everything, as an operator does before and after a restore of SQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.freeze import Freeze, Thawed, ThawPreview
from rqsched.kernel.decide.options import require_id, require_note
from rqsched.kernel.store import metadata


class Freezing:
    """The part of a Scheduler that freezes a namespace or everything, and thaws it."""

    def freeze(
        self: Any,
        reason: str | None = None,
        *,
        everything: bool = False,
        namespace: str | None = None,
        context: CommandContext | None = None,
    ) -> Freeze:
        """Let nothing begin in a namespace, or in all namespaces (`everything`), until `thaw`. Idempotent.

        >>> scheduler.freeze("the tenant's database moves").namespace
        'default'
        >>> scheduler.freeze("restoring the database", everything=True).reason
        'restoring the database'

        No fire, first attempt, retry, backfill or claim of an external worker begins, and a start by hand raises
        FrozenError. This includes schedules that are created meanwhile. Attempts that have begun continue, and their
        targets, too. No notification about an overdue schedule is made. Schedules can be changed.

        SQL stores the freeze of a namespace: fires and claims see it at once, even without Redis. Other processes
        refuse a start by hand within a second, or within 15 s if Redis does not answer. A freeze of everything is
        stored in Redis and in SQL, and either one is enough. Dispatchers and claims see it at once. If one of the two
        was down, processes that read only that one follow within 15 s. Raises DatabaseUnavailableError if SQL does not
        answer; for everything, only if Redis does not answer, either.

        Args:
            reason: Shown with the freeze.
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
            namespace: The namespace; default that of the scheduler.
            context: The caller, for the audit events.
        """
        from rqsched.features.freeze import chain  # noqa: PLC0415 - most commands and requests need none of it

        require_note(reason, "reason")
        return chain.freeze(self.runtime, self._scope(namespace, everything=everything), _context(reason, context))

    def frozen(self: Any) -> list[Freeze]:
        """Return the current freezes: first the freeze of everything, then the newest. Each says who, why and when.

        Over HTTP, it leaves out the freezes of namespaces that the token does not see.

        Raises DatabaseUnavailableError if SQL does not answer, unless everything is known to be frozen.
        """
        found: list[Freeze] = self.runtime.freezes.find_all()
        return found

    def freezes(self: Any, *, everything: bool = False, namespace: str | None = None) -> list[Freeze]:
        """Return the current and past freezes of a namespace, or of `everything`, the newest first.

        Each says when, by whom and why it began and ended. SQL stores the last 100 freezes of each namespace and of
        everything. A restored backup lacks the thaws that were made after the backup.

        Args:
            everything: The freezes of everything, instead of the freezes of one namespace.
            namespace: The namespace; default that of the scheduler.
        """
        where = self._scope(namespace, everything=everything)
        found: list[Freeze] = self.runtime.database.read(lambda connection: metadata.find_freezes(connection, where))
        lasting = self.frozen()[:1] if everything else []
        now = [one for one in lasting if one.namespace is None]
        return now + [one for one in found if all(one.uid != other.uid for other in now)]

    def preview_thaw(
        self: Any,
        *,
        everything: bool = False,
        namespace: str | None = None,
        missed: Literal["one", "all", "none"] | None = None,
        since: datetime | None = None,
    ) -> ThawPreview:
        """Return the effect of `thaw` with the same arguments: the due schedules, and the runs that wait to begin.

        At most 500 schedules and 500 runs are listed. Nothing is written. It also works without a freeze.

        Args:
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
            namespace: The namespace; default that of the scheduler.
            missed: The occurrences that each due schedule fires: the oldest occurrence (`one`), all up to its
                `missed_limit`, or none; the rest is recorded as missed. Default: each schedule's own policy.
            since: With `missed="none"`: only what is due since then is recorded as missed.
        """
        from rqsched.features.freeze import chain  # noqa: PLC0415 - as above

        where = self._scope(namespace, everything=everything)
        return chain.preview(self.runtime, where, missed=missed, since=since)

    def thaw(
        self: Any,
        *,
        everything: bool = False,
        namespace: str | None = None,
        missed: Literal["one", "all", "none"] | None = None,
        since: datetime | None = None,
        cancel_pending: bool = False,
        reason: str | None = None,
        context: CommandContext | None = None,
    ) -> Thawed:
        """End the freeze of a namespace or of `everything`. Paused schedules and frozen namespaces stay as they are.

        Due schedules fire by their own `missed` policy. The argument `missed` replaces this policy for all of them, and
        then occurrences fire however late they are:

        - `one`: the oldest occurrence fires; the others are recorded as missed;
        - `all`: the newest occurrences fire, up to the schedule's `missed_limit`. If `overlap` would not let each of
          them run, `all` is the same as `one`;
        - `none`: no occurrence fires; all are recorded as missed. With `since`, occurrences before that instant still
          fire by the policy, because after a restore only later occurrences may have run already.

        With `cancel_pending`, every run that waits for an attempt to begin is cancelled. All this is written before
        anything can begin, in one transaction per schedule. If the thaw is interrupted, the freeze continues: call
        `thaw` again. Due occurrences and waiting runs begin within 20 s. If there is no freeze, nothing is done. Raises
        InvalidInputError, DatabaseUnavailableError, and for everything RedisUnavailableError.

        Args:
            everything: Every namespace at once, instead of one; over HTTP the token must see all of them.
            namespace: The namespace; default that of the scheduler.
            missed: The occurrences that each due schedule fires: the oldest occurrence (`one`), all up to its
                `missed_limit`, or none; the rest is recorded as missed. Default: each schedule's own policy.
            since: With `missed="none"`: only what is due since then is recorded as missed.
            cancel_pending: Cancel every run that waits to begin.
            reason: Why; recorded with the audit events.
            context: The caller, for the audit events.
        """
        from rqsched.features.freeze import chain  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        where, by = self._scope(namespace, everything=everything), _context(reason, context)
        return chain.thaw(self.runtime, where, by, missed=missed, since=since, cancels_waiting=cancel_pending)

    def _scope(self: Any, namespace: str | None, *, everything: bool) -> str | None:
        """Return the namespace that is meant; None for everything."""
        if everything and namespace is not None:
            raise InvalidInputError("namespace", "and everything were both given; give one of them")
        return None if everything else require_id(self._namespace(namespace), "namespace")


def _context(reason: str | None, context: CommandContext | None) -> CommandContext:
    given = context or CommandContext(source="python")
    return given if reason is None else replace(given, reason=reason)
