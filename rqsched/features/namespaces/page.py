"""The pages about a whole namespace: the page that stops it in three steps, and the page that deletes it."""

from __future__ import annotations

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, command, flag, in_namespace, line, loop
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.features.namespaces.api import delete_some
from rqsched.features.namespaces.chain import MOST_EXECUTING, count_open, end_some, preview
from rqsched.features.namespaces.store import RUNNING, WAITING
from rqsched.http.auth import Role
from rqsched.kernel.queries.pages import MOST_COUNTED

_STOP = "/namespace/stop"


def show_stop(visit: Visit) -> Response:
    """Show the steps that stop a namespace: freeze it, cancel its waiting runs, and terminate its running runs.

    If the address names no namespace, and the viewer sees several, ask which one.
    """
    if not visit.query("namespace") and len(visit.namespaces) > 1:
        return visit.page("namespaces/choose.html")
    found = count_open(visit.scheduler.runtime, visit.namespace, MOST_COUNTED)
    same = {step: _equivalent_of(visit, step) for step in ("freeze", "cancel", "terminate")}
    return visit.page("namespaces/stop.html", found=found, most=MOST_COUNTED, same=same)


def equivalent_of_stop(visit: Visit) -> Equivalent:
    """Return one step as a command and in Python."""
    return _equivalent_of(visit, visit.form.get("step", ""))


def _equivalent_of(visit: Visit, step: str) -> Equivalent:
    named = {"reason": visit.context.reason, **in_namespace(visit)}
    if step == "freeze":
        return Equivalent(command(visit, "freeze"), call("scheduler.freeze", **named))
    if step == "cancel":
        chunks = call("scheduler.bulk.cancel_runs", status=sorted(WAITING), **named)
        code = loop(f"for progress in {chunks}", "print(progress.done, progress.matched)")
        return Equivalent(command(visit, "bulk", "cancel", status=sorted(WAITING)), code)
    runs = call("scheduler.runs.iter", status=sorted(RUNNING), **in_namespace(visit))
    return Equivalent("", loop(f"for _, run in {runs}", call("run.terminate", reason=visit.context.reason)))


def stop(visit: Visit) -> Response:
    """Do one step. A step that ends runs ends some of them, shows the progress, and asks for the next part."""
    step, name, context = visit.form.get("step", ""), visit.namespace, visit.context
    if step not in {"freeze", "cancel", "terminate"}:
        raise InvalidInputError("step", f"{step[:32]!r} is not one of freeze, cancel, terminate")
    if context.reason is None:
        return visit.done("Not done: write a reason.", _STOP, namespace=name)
    if step == "freeze":
        visit.require(Role.ADMIN)
        visit.scheduler.freeze(context.reason, namespace=name, context=context)
        return visit.done(f"The namespace {name} is frozen.", _STOP, namespace=name)
    if step == "terminate" and visit.form.get("confirm", "").strip() != name:
        return visit.done(f"Not done: type {name}, the name of the namespace.", _STOP, namespace=name)
    part = end_some(visit.scheduler.runtime, name, context, terminates=step == "terminate", most=MOST_COUNTED)
    done = _count(visit.form.get("done", "0")) + part.ended
    following = {"step": step, "reason": context.reason, "confirm": visit.form.get("confirm", ""), "done": done}
    return visit.page(
        "namespaces/stopping.html", step=step, part=part, done=done, most=MOST_COUNTED, following=following
    )


def _count(text: str) -> int:
    """Read the number of runs that earlier parts have ended, which the form contains; raises InvalidInputError."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidInputError("done", "is not a number; go back to the page that stops the namespace")
    return int(text[:9])


def confirm_delete_namespace(visit: Visit) -> Response:
    """Ask whether to delete everything in the namespace. Show how much there is to delete."""
    found = preview(visit.scheduler.runtime, visit.namespace, MOST_COUNTED)
    return visit.page("namespaces/delete.html", found=found, most_executing=MOST_EXECUTING, same=equivalent(visit))


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


def equivalent(visit: Visit) -> Equivalent:
    """Return the deletion as a command, which asks for the name of the namespace, and in Python."""
    terminates, reason = "terminate" in visit.form, visit.context.reason
    words = ["--terminate"] * terminates + flag("--reason", reason)
    code = call("scheduler.namespaces.delete", visit.namespace, reason=reason, terminate=terminates)
    return Equivalent(line(["rqsched", "namespace", "delete", visit.namespace, *words]), code)


ROUTES = (
    page(_STOP, show_stop, Role.OPERATE),
    form(_STOP, stop, equivalent=equivalent_of_stop),
    page("/namespace/delete", confirm_delete_namespace, Role.ADMIN, is_heavy=True),
    form("/namespace/delete", delete_namespace, Role.ADMIN, equivalent=equivalent),
)
"""The addresses of these pages in the dashboard."""
