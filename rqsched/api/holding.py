"""Hold and release: what an operator does with a whole installation, before and after SQL was restored.

Freeze and thaw are the same of one namespace.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from rqsched.core.audit import CommandContext
from rqsched.core.hold import Hold, Released, ReleasePreview
from rqsched.core.option_table import require_id, require_note
from rqsched.store import metadata


class Holding:
    """The part of a Scheduler that holds everything and releases it."""

    def hold(self: Any, reason: str | None = None, *, context: CommandContext | None = None) -> Hold:
        """Let nothing begin from now on, in any process and namespace, until `release`. Idempotent.

        >>> scheduler.hold("restoring the database").reason
        'restoring the database'

        No link fires and no first attempt, retry, backfill or claim of an external worker begins; what is started by
        hand raises HeldError. Attempts that have begun go on, and so do their targets; nobody is told that something is
        overdue. Schedules can be changed meanwhile. It is kept in Redis and in SQL, and either one is enough: raises
        DatabaseUnavailableError only when neither answers. Dispatchers and claims see it at once; processes to which it
        has to be told by a server that was away follow within 15 s.
        """
        from rqsched.chain import holding  # noqa: PLC0415 - most commands and requests need none of it

        require_note(reason, "reason")
        return holding.hold(self.runtime, _context(reason, context))

    def held(self: Any) -> Hold | None:
        """Return the hold, with who set it, why and since when; None when nothing is held."""
        self.runtime.hold.look(is_fresh=True)
        found: Hold | None = self.runtime.hold.known
        return found

    def holds(self: Any) -> list[Hold]:
        """Return the hold and those that were released, the newest first: set and released when, by whom and why.

        The last 100 are kept, in SQL: a restored backup has not seen what was released after it.
        """
        held = self.held()
        found: list[Hold] = self.runtime.database.read(lambda connection: metadata.find_holds(connection, None))
        return found if held is None else [held, *(one for one in found if one.uid != held.uid)]

    def preview_release(self: Any, *, since: datetime | None = None, missed: bool = False) -> ReleasePreview:
        """Return what `release` with the same arguments would do now: what fires, and which runs wait to begin.

        At most 500 schedules and as many runs are listed. Nothing is written. It needs no hold: then it tells what is
        due and waits anyway.
        """
        from rqsched.chain import holding  # noqa: PLC0415 - as above

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
        """Let everything begin again. What is due fires by each schedule's `missed` policy; paused ones stay paused.

        With `missed`, occurrences that are due are recorded as missed instead, or only those `since` an instant: what
        ran already in the time that a restored database does not know of. With `cancel_pending`, every run that waits
        for an attempt to begin is cancelled. Both are done before anything can begin. Raises DatabaseUnavailableError
        or RedisUnavailableError, with everything still held, when one of them does not answer: call it again.
        """
        from rqsched.chain import holding  # noqa: PLC0415 - as above

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

        An outage on purpose: no fire, first attempt, retry, backfill or claim of an external worker begins, also of
        schedules that are created meanwhile, and what is started by hand raises FrozenError. Attempts that have begun
        go on, and so do their targets; nobody is told that something is overdue. Schedules can be changed meanwhile.
        SQL keeps it: fires and claims see it at once, whatever Redis has; what is started by hand is refused within a
        second elsewhere, and within 15 s by a process that Redis could not tell. Raises DatabaseUnavailableError.
        """
        from rqsched.chain import holding  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        return holding.freeze(self.runtime, self._here(namespace), _context(reason, context))

    def frozen(self: Any) -> list[Hold]:
        """Return the freeze of each namespace that is frozen, with who set it, why and since when; the newest first."""
        texts: dict[str, str] = self.runtime.database.read(metadata.find_lasting)
        found = [Hold.from_text(text, "sql") for text in texts.values()]
        return sorted((one for one in found if one.namespace), key=lambda one: one.uid, reverse=True)

    def freezes(self: Any, *, namespace: str | None = None) -> list[Hold]:
        """Return the freeze of a namespace and those that ended, as `holds` does, the newest first."""
        where = self._here(namespace)
        found: list[Hold] = self.runtime.database.read(lambda connection: metadata.find_holds(connection, where))
        return found

    def preview_thaw(
        self: Any, *, missed: Literal["one", "all", "none"] | None = None, namespace: str | None = None
    ) -> ReleasePreview:
        """Return what `thaw` with the same arguments would do now; see `preview_release`."""
        from rqsched.chain import holding  # noqa: PLC0415 - as above

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
        """Let everything of a namespace begin again. Without a freeze it does nothing.

        What is due fires by each schedule's `missed` policy, or of each schedule with due occurrences, however late:

        - `one`: the oldest one; the others are recorded as missed;
        - `all`: the newest, up to its `catch_up_limit`; as `one` where `overlap` would not let each of them run;
        - `none`: none, all are recorded as missed.

        What is paused stays paused. With `cancel_pending`, every run that waits for an attempt to begin is cancelled.
        Both are done before anything can begin, in a transaction of each schedule: interrupted, everything is still
        frozen, and `thaw` is called again. What is due and what waits begins within 20 s. Raises InvalidInputError, and
        DatabaseUnavailableError with everything still frozen.
        """
        from rqsched.chain import holding  # noqa: PLC0415 - as above

        require_note(reason, "reason")
        where, by = self._here(namespace), _context(reason, context)
        return holding.thaw(self.runtime, where, by, missed=missed, cancels_waiting=cancel_pending)

    def _here(self: Any, namespace: str | None) -> str:
        return require_id(self._namespace(namespace), "namespace")


def _context(reason: str | None, context: CommandContext | None) -> CommandContext:
    given = context or CommandContext(source="python")
    return given if reason is None else replace(given, reason=reason)
