"""The targets of a run as people ask for them: how far they are, and page by page."""

from __future__ import annotations

from functools import partial

from rqsched.chain.runtime import Runtime
from rqsched.core.model import Run, TargetStatus
from rqsched.core.page import MAX_PAGE, Page
from rqsched.core.target_progress import WINDOW, TargetDescription, TargetProgress, progress_of
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.store import fan_out_targets


def read_progress(runtime: Runtime, run: Run) -> TargetProgress | None:
    """Return how far the targets of a run are; None when it has none."""
    now = runtime.now()
    count = partial(fan_out_targets.count_lately, run_uid=run.uid, since=now - WINDOW)
    counts, lately = runtime.database.read(count)
    return progress_of(counts, lately, run.dispatched_at or run.started_at, now) if counts else None


def read_targets(
    runtime: Runtime, run: Run, limit: int = 100, cursor: str | None = None, status: str | None = None
) -> Page[TargetDescription]:
    """Read a page of a run's targets, in the order in which they were named."""
    if status is not None and status not in list(TargetStatus):
        raise InvalidInputError("status", f"{status!r} is not one of {', '.join(TargetStatus)}")
    if isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidLimitError("limit", f"must be from 1 to {MAX_PAGE}")
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidInputError("cursor", "is not the next_cursor of a page of targets")
    after = 0 if cursor is None else int(cursor)
    page = partial(fan_out_targets.describe_page, run_uid=run.uid, status=status, after=after, limit=limit)
    items = runtime.database.read(page)
    return Page(items, str(items[-1].number) if len(items) == limit else None)
