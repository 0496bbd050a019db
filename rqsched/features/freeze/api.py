"""Hold and release a whole installation, as an operator does before and after a restore of SQL.

Freeze and thaw do the same for one namespace.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.hold import Hold, Released, ReleasePreview
from rqsched.kernel.decide.option_table import require_id, require_note
from rqsched.kernel.store import metadata


class Holding:
    """The part of a Scheduler that holds everything and releases it."""

    def hold(self: Any, reason: str | None = None, *, context: CommandContext | None = None) -> Hold:
        """Let nothing begin from now on, in any process and namespace, until `release`. Idempotent.

        >>> scheduler.hold("restoring the database").reason
        'restoring the database'

        No link fires and no first attempt, retry, backfill or claim of an external worker begins; a start by hand
        raises HeldError. Attempts that have begun continue, and so do their targets; no overdue notification is made.
        Schedules can be changed meanwhile. The hold is stored in Redis and in SQL, and either one is enough: raises
        DatabaseUnavailableError only when neither answers. Dispatchers and claims see it at once; processes that learn
        it from a server that was down follow within 15 s.
        """
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - most commands and requests need none of it

        require_note(reason, "reason")
        return holding.hold(self.runtime, _context(reason, context))

    def held(self: Any) -> Hold | None:
        """Return the current hold: by whom, why and since when; None without a hold."""
        self.runtime.hold.look(is_fresh=True)
        found: Hold | None = self.runtime.hold.known
        return found

    def holds(self: Any) -> list[Hold]:
        """Return the current and past holds, newest first: when, by whom and why each was set and released.

        SQL stores the last 100. A restored backup lacks the releases that were made after the backup.
        """
        held = self.held()
        found: list[Hold] = self.runtime.database.read(lambda connection: metadata.find_holds(connection, None))
        return found if held is None else [held, *(one for one in found if one.uid != held.uid)]

    def preview_release(self: Any, *, since: datetime | None = None, missed: bool = False) -> ReleasePreview:
        """Return the effect of `release` with the same arguments: the due schedules, and the runs that wait to begin.

        At most 500 schedules and 500 runs are listed. Nothing is written. It also works without a hold.
        """
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - as above

        return holding.preview(self.runtime, since=since, is_missed=missed)

    def release(
        self: Any,
        *,
        since: datetime | None = None,
        missed: bool = False,
        cancel_pending: bool = False,
        reason: str | None = None,
        context: CommandContext | None = None,
    ) -> Released:
        """Let everything begin again. Due schedules fire by their `missed` policy; paused ones stay paused.

        With `missed`, due occurrences are recorded as missed instead: all of them, or only those `since` an instant.
        They may have run already, in the time that a restored database has lost. With `cancel_pending`, every run that
        waits for an attempt to begin is cancelled. Both happen before anything can begin. If SQL or Redis does not
        answer, raises DatabaseUnavailableError or RedisUnavailableError, and everything stays on hold: call it again.
        """
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        return holding.release(
            self.runtime,
            _context(reason, context),
            since=since,
            is_missed=missed,
            cancels_waiting=cancel_pending,
        )

    def freeze(
        self: Any,
        reason: str | None = None,
        *,
        namespace: str | None = None,
        context: CommandContext | None = None,
    ) -> Hold:
        """Let nothing begin in a namespace from now on, in any process, until `thaw`. Idempotent.

        >>> scheduler.freeze("the tenant's database moves").namespace
        'default'

        No fire, first attempt, retry, backfill or claim of an external worker begins, also of schedules that are
        created meanwhile, and a start by hand raises FrozenError. Attempts that have begun continue, and so do their
        targets; no overdue notification is made. Schedules can be changed meanwhile. The freeze is stored in SQL: fires
        and claims see it at once, even without Redis. Other processes refuse a start by hand within a second, or within
        15 s if Redis does not answer. Raises DatabaseUnavailableError.
        """
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        return holding.freeze(self.runtime, self._here(namespace), _context(reason, context))

    def frozen(self: Any) -> list[Hold]:
        """Return the freeze of each frozen namespace, the newest first: by whom, why and since when."""
        texts: dict[str, str] = self.runtime.database.read(metadata.find_lasting)
        found = [Hold.from_text(text, "sql") for text in texts.values()]
        return sorted((one for one in found if one.namespace), key=lambda one: one.uid, reverse=True)

    def freezes(self: Any, *, namespace: str | None = None) -> list[Hold]:
        """Return the current and past freezes of a namespace, as `holds` does, newest first."""
        where = self._here(namespace)
        found: list[Hold] = self.runtime.database.read(lambda connection: metadata.find_holds(connection, where))
        return found

    def preview_thaw(
        self: Any, *, missed: Literal["one", "all", "none"] | None = None, namespace: str | None = None
    ) -> ReleasePreview:
        """Return the effect of `thaw` with the same arguments; see `preview_release`."""
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - as above

        return holding.preview_thaw(self.runtime, self._here(namespace), missed=missed)

    def thaw(
        self: Any,
        *,
        missed: Literal["one", "all", "none"] | None = None,
        cancel_pending: bool = False,
        namespace: str | None = None,
        reason: str | None = None,
        context: CommandContext | None = None,
    ) -> Released:
        """Let everything in a namespace begin again. Without a freeze it does nothing.

        Due schedules fire by their `missed` policy, or as `missed` says for all of them, however late:

        - `one`: the oldest occurrence fires; the others are recorded as missed;
        - `all`: the newest fire, up to its `missed_limit`; as `one` if `overlap` would not let each of them run;
        - `none`: none fires; all are recorded as missed.

        Paused schedules stay paused. With `cancel_pending`, every run that waits for an attempt to begin is cancelled.
        Both happen before anything can begin, in one transaction per schedule. After an interruption everything is
        still frozen: call `thaw` again. Due occurrences and waiting runs begin within 20 s. Raises InvalidInputError,
        and DatabaseUnavailableError with everything still frozen.
        """
        from rqsched.features.freeze import chain as holding  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        where, by = self._here(namespace), _context(reason, context)
        return holding.thaw(self.runtime, where, by, missed=missed, cancels_waiting=cancel_pending)

    def _here(self: Any, namespace: str | None) -> str:
        return require_id(self._namespace(namespace), "namespace")


def _context(reason: str | None, context: CommandContext | None) -> CommandContext:
    given = context or CommandContext(source="python")
    return given if reason is None else replace(given, reason=reason)
