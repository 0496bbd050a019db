"""Hold and release: what an operator does with a whole installation, before and after SQL was restored."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from rqsched.core.audit import CommandContext
from rqsched.core.hold import Hold, Released, ReleasePreview
from rqsched.core.option_table import require_note
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
        found: list[Hold] = self.runtime.database.read(metadata.find_holds)
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


def _context(reason: str | None, context: CommandContext | None) -> CommandContext:
    given = context or CommandContext(source="python")
    return given if reason is None else replace(given, reason=reason)
