"""The first page: what is wrong now and what to do about it, what failed, and what fires next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.responses import Response

from rqsched.chain import health
from rqsched.dashboard import problems
from rqsched.dashboard.visit import Visit
from rqsched.store import run_queries, schedule_queries
from rqsched.store.database import Connection

MOST_COUNTED = 1_000
"""A count above this is shown as `1000+`: counting all of 100 000 schedules would cost more than the page."""
_SHOWN = 8
_DAY = timedelta(days=1)


def show(visit: Visit) -> Response:
    """Show the overview."""
    namespace, now = visit.namespace, visit.now

    def read(connection: Connection) -> dict[str, Any]:
        soonest = schedule_queries.soonest(connection, namespace, _SHOWN)
        return {
            "problems": health.examine_work(visit.scheduler.runtime, connection, namespace),
            "counts": schedule_queries.count_by_status(connection, namespace, MOST_COUNTED),
            "failed": run_queries.failed_since(connection, namespace, now - _DAY, _SHOWN),
            "soonest": soonest,
            "recent": run_queries.recent_runs(connection, namespace, _SHOWN),
        }

    values = visit.read(read)
    values["problems"] = problems.show(visit, values["problems"])
    return visit.page("overview.html", most=MOST_COUNTED, **values)
