"""The page of all runs, with filters: outcome, schedule, workflow, time, and for failures the text of the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from starlette.responses import Response

from rqsched.api import runs as run_queries
from rqsched.api.cursors import bind_cursor, unbind_cursor
from rqsched.api.limits import key_of
from rqsched.api.runs import RunFilters
from rqsched.api.states import BLOCKED, ENDED_IN_VAIN, EXPIRED, FAILURES, OPEN, RUN_FILTERS
from rqsched.dashboard.recent import numberless
from rqsched.dashboard.rendering import filters_in_words
from rqsched.dashboard.visit import Visit
from rqsched.dashboard.waits import waits_of
from rqsched.errors import InvalidInputError, error_line
from rqsched.types import Run

PAGE = 50
"""How many runs one page shows."""
FAILED = "failures"
"""The choice of the status filter that means failed and lost runs."""
_WAITS = {"in_line": True, "queued": False}
"""The choices of the status filter that divide pending runs. The value says whether a run waits for its limit."""
STATUSES = (FAILED, *RUN_FILTERS, *_WAITS)
"""The choices of the status filter."""
IN_WORDS: Mapping[str, str] = {
    FAILED: "failed or lost",
    "buffered": "buffered: behind another run",
    "blocked": "blocked: no worker has its code",
    "in_line": "pending: in line for a limit",
    "queued": "pending: waits for a worker",
}
"""The texts of the choices whose text differs from the stored value."""
TIMES: Mapping[str, str] = {"within": "last", "since": "from", "until": "until"}
"""The fields of the time filter, with their words in titles."""
FILTERS: Mapping[str, str] = {
    "q": "error contains",
    "status": "status",
    "schedule": "schedule",
    "workflow": "workflow",
    "limit": "limit",
    **TIMES,
}
"""The fields by which runs are filtered, with their words in titles."""
WITHIN: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""The lengths of time that the time filter offers. Each of them ends now."""


def show(visit: Visit) -> Response:
    """Show a page of runs."""
    filters = filters_of(visit, visit.query)
    sort = "-ended" if filters.error is not None or {*filters.statuses} & FAILURES else "-created"
    of = "page of runs", visit.namespace, filters.schedule_id, sort
    cursor = unbind_cursor(visit.query("after") or None, *of)
    found = visit.read(
        lambda c: run_queries.search_runs(c, filters, sort=sort, cursor=cursor, limit=PAGE, is_slim=True)
    )
    waits = waits_of(visit, [run for _, run in found.items])
    given = {**visit.request.query_params, "status": IN_WORDS.get(visit.query("status"), visit.query("status"))}
    rows, alike = _one_of_each(found.items) if sort == "-ended" else (found.items, {})
    return visit.page(
        "runs.html", runs=rows, alike=alike, waits=waits, in_words=IN_WORDS,
        following=bind_cursor(found.following, *of), is_cut=found.is_cut,
        statuses=STATUSES, spans=list(WITHIN), filters=filters, looked_at=run_queries.MOST_LOOKED_AT,
        is_by_end=sort == "-ended",
        filtered_by=filters_in_words(given, FILTERS), kept=kept_of(visit, visit.query),
        offered=[] if not visit.may("operate") else offered_for_all(visit.query("status"), visit.query("q")),
    )  # fmt: skip


def _one_of_each(found: Sequence[tuple[str, Run]]) -> tuple[list[tuple[str, Run]], dict[str, list[Run]]]:
    """Group the runs that failed alike. Return the newest run of each group.

    Also return the other runs of each group, by the uid of the newest run.
    """
    groups: dict[tuple[str, str], list[tuple[str, Run]]] = {}
    for schedule_id, run in found:
        groups.setdefault((schedule_id, numberless(error_line(run.error)) or run.uid), []).append((schedule_id, run))
    rows = [alike[0] for alike in groups.values()]
    return rows, {alike[0][1].uid: [run for _, run in alike[1:]] for alike in groups.values() if len(alike) > 1}


def offered_for_all(status: str, error: str) -> list[str]:
    """Return the operations that are possible for all runs that match: of `cancel` and `retry`."""
    is_open = not error and status in {"", *OPEN, BLOCKED, *_WAITS}
    is_ended = (bool(error) and not status) or status in {FAILED, *ENDED_IN_VAIN, BLOCKED, EXPIRED}
    return ["cancel"] * is_open + ["retry"] * is_ended


def kept_of(visit: Visit, read: Callable[[str], str]) -> dict[str, str]:
    """Return the filters of the page, for a form. Times are exact instants, so they do not move from page to page."""
    since, until = times_of(visit, read)
    times = {"since": since, "until": until}
    kept = {name: read(name) for name in FILTERS if name not in {"within", *times}}
    kept |= {name: at.isoformat() for name, at in times.items() if at is not None}
    return {name: text for name, text in kept.items() if text}


def filters_of(visit: Visit, read: Callable[[str], str]) -> RunFilters:
    """Read the filters from the page's address or a form, whose fields `read` returns; raises InvalidInputError."""
    status = read("status")
    if status and status not in STATUSES:
        raise InvalidInputError("status", f"{status!r} is not a status; write one of {', '.join(STATUSES)}")
    since, until = times_of(visit, read)
    statuses = {FAILED: tuple(sorted(FAILURES)), "": ()} | dict.fromkeys(_WAITS, ("pending",))
    return RunFilters(
        visit.namespace,
        statuses.get(status, (status,)),
        read("schedule") or None,
        read("workflow") or None,
        since,
        until,
        key_of(visit.namespace, limit) if (limit := read("limit")) else None,
        _WAITS.get(status),
        read("q") or None,
    )


def times_of(visit: Visit, read: Callable[[str], str] | None = None) -> tuple[datetime | None, datetime | None]:
    """Return the start and end of the chosen time. None means no limit. Raises InvalidInputError."""
    read = read or visit.query
    within = read("within")
    if within and within not in WITHIN:
        raise InvalidInputError("within", f"{within!r} is not offered; choose one of {', '.join(WITHIN)}")
    since, until = (visit.instant(name, text) if (text := read(name)) else None for name in ("since", "until"))
    return since or (visit.now - WITHIN[within] if within else None), until
