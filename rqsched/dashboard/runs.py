"""The runs of all schedules: by outcome, schedule, workflow and time, and failures by the text of their error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from starlette.responses import Response

from rqsched.api import runs as run_queries
from rqsched.api.cursors import bind_cursor, unbind_cursor
from rqsched.api.runs import RunFilters
from rqsched.api.states import FAILURES, RUN_FILTERS
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError

PAGE = 50
"""Runs on one page."""
FAILED = "failures"
"""The filter for failed and lost runs."""
STATUSES = (FAILED, *RUN_FILTERS)
"""The choices of the filter by status."""
WITHIN: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""The spans up to now that the filter by time offers."""


def show(visit: Visit) -> Response:
    """Show a page of runs."""
    filters = _filters_of(visit)
    sort = "-ended" if filters.error is not None or {*filters.statuses} & FAILURES else "-created"
    of = "page of runs", visit.namespace, filters.schedule_id, sort
    cursor = unbind_cursor(visit.query("after") or None, *of)
    found = visit.read(
        lambda c: run_queries.search_runs(c, filters, sort=sort, cursor=cursor, limit=PAGE, is_slim=True)
    )
    names = ("q", "status", "schedule", "workflow", "within", "since", "until")
    return visit.page(
        "runs.html", runs=found.items, following=bind_cursor(found.following, *of), is_cut=found.is_cut,
        statuses=STATUSES, spans=list(WITHIN), filters=filters, looked_at=run_queries.MOST_LOOKED_AT,
        is_by_end=sort == "-ended",
        is_filtered=any(visit.query(name) for name in names),
    )  # fmt: skip


def _filters_of(visit: Visit) -> RunFilters:
    """Read the filters from the page's address; raises InvalidInputError."""
    status = visit.query("status")
    if status and status not in STATUSES:
        raise InvalidInputError("status", f"{status!r} is not a status; write one of {', '.join(STATUSES)}")
    since, until = times_of(visit)
    return RunFilters(
        visit.namespace,
        tuple(sorted(FAILURES)) if status == FAILED else (status,) if status else (),
        visit.query("schedule") or None,
        visit.query("workflow") or None,
        since,
        until,
        visit.query("q") or None,
    )


def times_of(visit: Visit) -> tuple[datetime | None, datetime | None]:
    """Return the start and end of the chosen time, None for any; raises InvalidInputError."""
    within = visit.query("within")
    if within and within not in WITHIN:
        raise InvalidInputError("within", f"{within!r} is not offered; choose one of {', '.join(WITHIN)}")
    since, until = (visit.instant(name, text) if (text := visit.query(name)) else None for name in ("since", "until"))
    return since or (visit.now - WITHIN[within] if within else None), until
