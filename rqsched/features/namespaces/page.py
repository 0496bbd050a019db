"""The page that deletes a namespace: it counts what there is, and asks for the name of the namespace."""

from __future__ import annotations

from starlette.responses import Response

from rqsched.dashboard.frame import form, page
from rqsched.dashboard.visit import Visit
from rqsched.errors import RqschedError
from rqsched.features.namespaces.api import delete_some
from rqsched.http.auth import Role


def confirm_delete_namespace(visit: Visit) -> Response:
    """Ask whether to delete everything in the namespace. Show how much there is to delete."""
    return visit.page("namespaces/delete.html", found=visit.scheduler.namespaces.preview_delete(visit.namespace))


def delete_namespace(visit: Visit) -> Response:
    """Delete some thousand rows of the namespace, if its name was typed. Then ask again, until no rows are left."""
    name, where = visit.namespace, "/namespace/delete"
    if visit.form.get("confirm", "").strip() != name:
        return visit.done(f"Not done: type {name}, the name of the namespace.", where)
    try:
        done = delete_some(visit.scheduler.runtime, name, visit.context, terminates="terminate" in visit.form)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", where)
    told = ", ".join(f"{count} {what}" for what, count in sorted(done.rows.items())) or "nothing"
    if not done.is_over:
        return visit.done(f"Deleted so far: {told}. There is more: repeat it.", where)
    return visit.done(f"The namespace {name} is deleted: {told}.", "/audit")


ROUTES = (
    page("/namespace/delete", confirm_delete_namespace, Role.ADMIN, is_heavy=True),
    form("/namespace/delete", delete_namespace, Role.ADMIN),
)
"""The addresses of this page in the dashboard."""
