"""The pages about a whole namespace: the page that stops it in three steps, and the page that deletes it."""

from __future__ import annotations

import json
from typing import NamedTuple

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, command, flag, in_namespace, line, loop
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.features.bulk.page import MOST_MATCHING, progress_loop
from rqsched.features.namespaces.api import delete_some
from rqsched.features.namespaces.chain import count_open, end_some, preview
from rqsched.features.namespaces.store import RUNNING, WAITING
from rqsched.http.auth import Role
from rqsched.kernel.decide.ids import is_uid
from rqsched.kernel.decide.results import MOST_COUNTED, MOST_EXECUTING

_STOP = "/namespace/stop"
_NAMED = 50
"""The maximum number of runs that are named because they could not be ended. The others are only counted."""


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
        chunks = call("scheduler.bulk.cancel_runs", status=sorted(WAITING), bound=MOST_MATCHING, **named)
        text = command(visit, "bulk", "cancel", status=sorted(WAITING), bound=MOST_MATCHING)
        return Equivalent(text, progress_loop(chunks))
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
    before = _before(visit)
    part = end_some(
        visit.scheduler.runtime, name, context, terminates=step == "terminate", most=MOST_COUNTED, below=before.below
    )
    failed, below = [*before.failed, *part.failed], part.failed[-1][0] if part.failed else before.below
    so_far = _SoFar(before.done + part.ended, below, before.failures + len(part.failed), failed[:_NAMED])
    following = {
        "step": step, "reason": context.reason, "confirm": visit.form.get("confirm", ""), "so_far": json.dumps(so_far)
    }  # fmt: skip
    return visit.page(
        "namespaces/stopping.html", step=step, left=part.left, so_far=so_far, most=MOST_COUNTED, following=following
    )


class _SoFar(NamedTuple):
    """The outcome of the parts of a step that are done. The form of the next part contains it."""

    done: int
    """How many runs have ended."""
    below: str | None
    """The next part ends only runs with a lower uid; None for any uid. It is the uid of the last failed run."""
    failures: int
    """How many runs could not be ended."""
    failed: list[tuple[str, str]]
    """The first of these runs, each with its uid and the reason."""


def _before(visit: Visit) -> _SoFar:
    """Read what the earlier parts have done; raises InvalidInputError."""
    try:
        done, below, failures, failed = json.loads(visit.form.get("so_far") or "[0, null, 0, []]")
        found = _SoFar(
            int(done),
            None if below is None else str(below),
            int(failures),
            [(str(uid), str(reason)) for uid, reason in failed][:_NAMED],
        )
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = None
    if found is None or not (found.below is None or is_uid(found.below)):
        raise InvalidInputError("so_far", "cannot be read; go back to the page that stops the namespace")
    return found


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
