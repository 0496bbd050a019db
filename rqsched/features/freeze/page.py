"""The pages that freeze the namespace, and that thaw it or everything."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, command, flag, in_namespace, line
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.visit import Visit
from rqsched.errors import RqschedError
from rqsched.http.auth import Role
from rqsched.http.errors import ForbiddenError
from rqsched.kernel.decide.results import number_of


def confirm_freeze(visit: Visit) -> Response:
    """Ask whether to freeze the namespace, and why."""
    return visit.page("freeze/freeze.html", same=equivalent_of_freeze(visit))


def freeze(visit: Visit) -> Response:
    """Freeze the namespace: no fire and no attempt begins in it until the thaw."""
    context = visit.context
    try:
        visit.scheduler.freeze(context.reason, namespace=visit.namespace, context=context)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", "/system")
    return visit.done(f"The namespace {visit.namespace} is frozen.", "/system")


def confirm_thaw(visit: Visit) -> Response:
    """Ask whether to thaw the namespace, or everything; list the due schedules and the waiting runs."""
    everything = visit.query("everything") == "yes"
    found = visit.scheduler.preview_thaw(**_thawed(visit, everything))
    return visit.page("freeze/thaw.html", everything=everything, found=found, same=equivalent_of_thaw(visit))


def thaw(visit: Visit) -> Response:
    """Thaw the namespace, or everything. Due occurrences are handled as chosen; waiting runs may be cancelled first."""
    cancels = "cancel_pending" in visit.form
    missed: Any = visit.form.get("missed") or None
    everything = visit.form.get("everything") == "yes"
    scope: dict[str, Any] = _thawed(visit, everything)
    try:
        done = visit.scheduler.thaw(missed=missed, cancel_pending=cancels, context=visit.context, **scope)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", "/")
    also = f" {number_of(done.fired, 'occurrence')} fired, {done.missed} recorded as missed." if missed else ""
    also += f" {number_of(done.cancelled, 'run')} cancelled." if cancels else ""
    what = "Everything" if everything else f"The namespace {visit.namespace}"
    return visit.done(f"{what} {'is thawed' if done.freeze else 'was not frozen'}.{also}", "/")


def _thawed(visit: Visit, everything: bool) -> dict[str, Any]:
    """Return the arguments that tell the scheduler what to thaw; raises ForbiddenError."""
    if everything:
        if not visit.sees_all:
            raise ForbiddenError("this concerns every namespace, and you see only some; use a token of all of them.")
        return {"everything": True}
    return {"namespace": visit.namespace}


def equivalent_of_freeze(visit: Visit) -> Equivalent:
    """Return the freeze as a command and in Python."""
    code = call("scheduler.freeze", reason=visit.context.reason, **in_namespace(visit))
    return Equivalent(command(visit, "freeze"), code)


def equivalent_of_thaw(visit: Visit) -> Equivalent:
    """Return the thaw as a command and in Python."""
    everything = "yes" in {visit.form.get("everything"), visit.query("everything")}
    reason, cancels, missed = visit.context.reason, "cancel_pending" in visit.form, visit.form.get("missed") or None
    _thawed(visit, everything)
    where = {"everything": True} if everything else in_namespace(visit)
    code = call("scheduler.thaw", **where, missed=missed, cancel_pending=cancels, reason=reason)
    if not everything:
        return Equivalent(command(visit, "thaw", missed=missed, cancel_pending=cancels), code)
    words = [*flag("--missed", missed), *flag("--cancel-pending", cancels), *flag("--reason", reason)]
    return Equivalent(line(["rqsched", "thaw", "--everything", *words]), code)


ROUTES = (
    page("/freeze", confirm_freeze, Role.ADMIN),
    form("/freeze", freeze, Role.ADMIN, equivalent=equivalent_of_freeze),
    page("/thaw", confirm_thaw, Role.ADMIN, is_heavy=True),
    form("/thaw", thaw, Role.ADMIN, equivalent=equivalent_of_thaw),
)
"""The addresses of these pages in the dashboard."""
