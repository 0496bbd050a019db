"""The undo of an edit: the page that shows what would be set back, and the update that sets it back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.responses import Response

from rqsched.api import edits
from rqsched.api import events as event_queries
from rqsched.api.edits import FieldUndo, Undo
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.dashboard.editor import registered_workflow, require_registered
from rqsched.dashboard.equivalent import Equivalent, change
from rqsched.dashboard.rendering import NOTHING
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.types import AuditRecord
from rqsched.when.spec import Spec
from rqsched.when.words import in_words

_MOST_LOOKED_AT = 2_000
"""How many later events are searched for the edits that changed the same fields."""
_MOST_SHOWN = 300
"""The maximum number of characters of a value on the page."""
_REGISTERED = ("on_failure", "on_recovery", "targets")
"""The options that name a workflow or a function."""


class Row(NamedTuple):
    """One field on the page."""

    label: str
    """Its name."""
    present: str
    """Its present value."""
    before: str
    """Its value before the edit."""
    problem: str
    """Why it is not set back, as the end of a sentence; empty if it is."""
    later: AuditRecord | None
    """The newest later edit that changed it, if it has neither the value before nor the value after the edit."""


def confirm(visit: Visit) -> Response:
    """Ask whether to undo an edit. Show the present value of each field, and its value before the edit."""
    return _ask(visit, *_found(visit))


def do(visit: Visit) -> Response:
    """Set back what an edit changed, unless somebody has changed the schedule since the page was shown."""
    handle, event = _found(visit)
    try:
        planned = _planned(visit, handle, event)
        text = visit.form.get("version", "")
        handle.update(
            planned.workflow, planned.spec, note=planned.note,
            context=replace(visit.context, context={"undoes": event.sequence}),
            if_version=int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0,
            **planned.options,
        )  # fmt: skip
    except RqschedError as error:
        return _ask(visit, handle.refresh(), event, error)
    told = f"The edit of {handle.schedule_id} is undone: event {event.sequence}."
    return visit.done(told, f"/schedules/{handle.schedule_id}")


def equivalent(visit: Visit) -> Equivalent:
    """Return the undo as a command and in Python: an update with the values before the edit."""
    handle, event = _found(visit)
    return _equivalent(visit, handle, edits.undo(handle.state, event))


def _equivalent(visit: Visit, handle: ScheduleHandle, planned: Undo) -> Equivalent:
    return change(visit, handle.state, planned.options, workflow=planned.workflow, spec=planned.spec, note=planned.note)


def _found(visit: Visit) -> tuple[ScheduleHandle, AuditRecord]:
    """Find the schedule and the event in the path; raises InvalidInputError if the event cannot be undone."""
    handle, text = visit.schedule(), str(visit.request.path_params["sequence"])
    is_number = text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0
    found = handle.history(1, int(text) - 1) if is_number else []
    if not found or found[0].sequence != int(text) or not edits.can_undo(found[0]):
        raise InvalidInputError("event", f"{text[:16]} is no edit of this schedule; take one with Undo in its history")
    of = visit.form.get("of") or visit.query("of")
    if of and of != handle.uid:
        raise InvalidInputError(
            "event", "is of a deleted schedule with the same id; only edits of the present are undone"
        )
    return handle, found[0]


def _planned(visit: Visit, handle: ScheduleHandle, event: AuditRecord) -> Undo:
    """Return the update; raises InvalidInputError if a later edit forbids it, or if a workflow is not registered."""
    planned = edits.undo(handle.state, event)
    if planned.conflicts:
        named = ", ".join(_label(one.name) for one in planned.conflicts)
        raise InvalidInputError("undo", f"would overwrite a later edit of {named}; write the values you want with Edit")
    if not planned.is_possible:
        raise InvalidInputError("undo", "has nothing to set back")
    if planned.workflow is not None:
        registered_workflow(visit, planned.workflow)
    for name in _REGISTERED:
        if wanted := planned.options.get(name):
            require_registered(visit, name, wanted)
    return planned


def _ask(visit: Visit, handle: ScheduleHandle, event: AuditRecord, error: RqschedError | None = None) -> Response:
    planned = edits.undo(handle.state, event)
    later: dict[str, AuditRecord] = {}
    if planned.conflicts:
        since = visit.read(lambda c: event_queries.edits_after(c, handle.uid, event.sequence, _MOST_LOOKED_AT))
        later = {name: one for one in since for name in one.payload.get("changes", {})}
    return visit.page(
        "undo.html", 200 if error is None else error.http_status, schedule=handle.state, event=event,
        rows=[_row(one, later.get(one.name)) for one in planned.fields], planned=planned, problem=str(error or ""),
        same=_equivalent(visit, handle, planned),
    )  # fmt: skip


def _row(one: FieldUndo, later: AuditRecord | None) -> Row:
    before = "" if one.problem and one.before is None else _text(one.name, one.before)
    return Row(_label(one.name), _text(one.name, one.present), before, one.problem, later)


def _label(name: str) -> str:
    return "timing" if name == "spec" else name.replace(".", ": ").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if value is None or value in ({}, [], ""):
        return NOTHING
    text = in_words(Spec.coerce(value)) if name == "spec" else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"
