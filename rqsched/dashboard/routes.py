"""The addresses of the dashboard. The pages of a feature have theirs in `ROUTES` of its `page.py`."""

from __future__ import annotations

from starlette.routing import Route

from rqsched.dashboard import (
    actions,
    audit,
    editor,
    find,
    overview,
    runs,
    schedule,
    schedules,
    session,
    system,
    timeline,
    undo,
)
from rqsched.dashboard.frame import form, page, public, stream
from rqsched.dashboard.rendering import static
from rqsched.features.list import parts_of
from rqsched.http.auth import Role


def routes() -> list[Route]:
    """Return the routes of every page, form and static file."""
    one, run = "/schedules/{schedule_id}", "/runs/{uid}"
    return [
        page("/", overview.show),
        page("/why", overview.ask_why),
        page("/find", find.show),
        page("/schedules", schedules.show),
        page("/schedules/new", editor.new, Role.ADMIN),
        page(one, schedule.show, is_heavy=True),
        page(f"{one}/edit", editor.edit, Role.ADMIN),
        page(f"{one}/undo/{{sequence}}", undo.confirm, Role.ADMIN),
        page(f"{one}/confirm", actions.confirm),
        page("/runs", runs.show),
        page("/audit", audit.show),
        page(run, schedule.show_run),
        page("/timeline", timeline.show, is_heavy=True),
        page("/system", system.show),
        page("/preview", editor.preview, Role.ADMIN, is_heavy=True),
        Route("/stream", stream, methods=["GET"], include_in_schema=False),
        form("/schedules", editor.create, Role.ADMIN, again=editor.show_again, equivalent=editor.equivalent_of_new),
        form(f"{one}/edit", editor.update, Role.ADMIN, again=editor.show_again, equivalent=editor.equivalent_of_edit),
        form(f"{one}/undo/{{sequence}}", undo.do, Role.ADMIN, equivalent=undo.equivalent),
        form(f"{one}/do", actions.act_on_schedule, again=actions.show_again, equivalent=actions.equivalent),
        form(f"{run}/do", actions.act_on_run, equivalent=actions.equivalent_on_run),
        public("/login", session.show_login, "GET"),
        public("/login", session.log_in),
        public("/logout", session.log_out),
        public("/theme", session.choose_theme),
        public("/static/{name}", lambda request, _: static(request, request.path_params["name"]), "GET"),
        *(route for part in parts_of("page") for route in part.ROUTES),
    ]
