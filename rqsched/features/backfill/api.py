"""`scheduler.backfills` lists and stops the backfills of all schedules. The handle of a schedule starts a backfill."""

from __future__ import annotations

from collections.abc import Iterator

from rqsched.api.build_description import describe_backfill
from rqsched.api.description import BackfillProgress
from rqsched.api.groups import Group
from rqsched.errors import BackfillNotFoundError
from rqsched.features.backfill import chain, store
from rqsched.features.backfill.store import Backfill
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.options import require_note
from rqsched.kernel.decide.results import MAX_PAGE, Page, pages
from rqsched.kernel.queries.schedules import require_limit
from rqsched.kernel.store import changes


class Backfills(Group):
    """The backfills of all schedules; `ScheduleHandle.backfill` begins one.

    >>> scheduler.backfills.list(status="running").items
    []
    """

    def get(self, uid: str, *, namespace: str | None = None) -> BackfillProgress:
        """Read the progress of a backfill; raises BackfillNotFoundError.

        Args:
            uid: The uid of the backfill.
            namespace: The namespace; default that of the scheduler.
        """
        return describe_backfill(self._find(uid, namespace))

    def list(
        self,
        *,
        schedule_id: str | None = None,
        status: str | None = None,
        namespace: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[BackfillProgress]:
        """Read a page of backfills, newest first.

        Args:
            schedule_id: Of this schedule only.
            status: In this status only: `running`, `done` or `stopped`.
            namespace: The namespace; default that of the scheduler.
            limit: The size of the page, 1 to 500; large items make shorter ones.
            cursor: The next_cursor of the previous page.
        """
        require_limit(limit)
        where = self._namespace(namespace)
        page = self.runtime.database.read(
            lambda c: store.page(c, where, schedule_id=schedule_id, status=status, limit=limit, cursor=cursor)
        )
        return page.map(describe_backfill)

    def iter(
        self, *, schedule_id: str | None = None, status: str | None = None, namespace: str | None = None
    ) -> Iterator[BackfillProgress]:
        """Read all backfills that `list` shows with these arguments, page by page."""
        asked = {"schedule_id": schedule_id, "status": status, "namespace": namespace}
        return pages(lambda cursor: self.list(**asked, limit=MAX_PAGE, cursor=cursor))

    def cancel(
        self,
        uid: str,
        reason: str | None = None,
        *,
        namespace: str | None = None,
        context: CommandContext | None = None,
    ) -> BackfillProgress:
        """Stop a backfill. Its started runs continue; the rest of its range does not fire. Idempotent.

        Args:
            uid: The uid of the backfill.
            reason: Why; recorded with the caller.
            namespace: The namespace; default that of the scheduler.
            context: The caller, for the audit events.
        """
        require_note(reason, "reason")
        found = self._find(uid, namespace)
        return describe_backfill(chain.cancel(self.runtime, found.uid, reason=reason, context=context))

    def _find(self, uid: str, namespace: str | None) -> Backfill:
        found = chain.get_backfill(self.runtime, uid.upper())
        schedule = self.runtime.database.read(lambda connection: changes.find(connection, found.schedule_uid))
        if schedule is None or schedule.namespace != self._namespace(namespace):
            raise BackfillNotFoundError(uid)
        return found
