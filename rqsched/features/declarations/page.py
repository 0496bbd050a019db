"""The page that shows a schedule's definition as a command and in Python."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, creation
from rqsched.dashboard.frame import page
from rqsched.dashboard.visit import Visit
from rqsched.features.declarations import schedule_file
from rqsched.kernel.decide.model import Schedule

_URLS = ("webhook", "heartbeat")
"""The destinations of notifications whose URL may be a secret."""


def show(visit: Visit) -> Response:
    """Show the call and the command that create the schedule as it is now."""
    schedule = visit.schedule().state
    return visit.page("declarations/definition.html", schedule=schedule, same=_equivalent(visit, schedule))


def _equivalent(visit: Visit, schedule: Schedule) -> Equivalent:
    settings = visit.scheduler.settings
    declared: Any = schedule_file.declaration_of(schedule_file.entry_of(schedule, settings))
    options: dict[str, Any] = dict(declared.options)
    told = dict(options.pop("notifications", None) or {})
    kept = {name: value for name, value in told.items() if name not in _URLS}
    lacks = [
        *schedule_file.untold(schedule.definition, settings),
        *(f"the URL of its {one}" for one in _URLS if one in told),
    ]
    same = creation(
        visit, declared.schedule_id, declared.workflow, declared.spec,
        {**options, **({"notifications": kept} if kept else {})}, paused=bool(declared.paused), note=declared.note,
    )  # fmt: skip
    return same._replace(remark=f"It lacks: {', '.join(lacks)}." if lacks else "")


ROUTES = (page("/schedules/{schedule_id}/definition", show),)
"""The addresses of this page in the dashboard."""
