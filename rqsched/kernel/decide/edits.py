"""Edits of a schedule: the values that an edit changed, for its audit event, and the update that undoes the edit.

Pure functions. A field is `workflow`, `spec`, `note`, an option, or a part of an option, such as `retry.max_retries`.
Values are JSON-native, in a form that `ScheduleHandle.update` takes. An event has only scheme and host of the URL of a
notification, because the rest may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, NamedTuple

from rqsched.kernel.decide.audit import UPDATED, AuditRecord
from rqsched.kernel.decide.define import value_of
from rqsched.kernel.decide.model import Definition, Schedule
from rqsched.kernel.decide.notifications import OPTIONS as TOLD_BY
from rqsched.kernel.decide.notifications import hidden
from rqsched.kernel.decide.options import OPTIONS, PARTS
from rqsched.kernel.decide.payload import dumps
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.when.duration import in_one_unit
from rqsched.when.moved import ON_EXCLUDED
from rqsched.when.spec import Spec

MAX_RECORDED = 4 * 1024
"""The maximum length of a recorded value, in characters of JSON. An event says of a longer value only that it changed.
"""
_COLUMNS = {
    "timezone": "",  # recorded with the spec
    **dict.fromkeys(("exclude", "on_excluded", "dst_gap", "dst_fold"), "spec"),
    **dict.fromkeys(("args", "kwargs"), "action"),
    **dict.fromkeys(TOLD_BY, "notifications"),
}
"""The column of some options, if it has not the name of the option and is not `policies`."""
_URLS = ("notifications.webhook", "notifications.heartbeat")


def changes(before: Definition, after: Definition, notes: tuple[str | None, str | None]) -> dict[str, Any]:
    """Return the fields in which two definitions differ, each with its value before and after.

    `notes` is the note before and after. A value that is too long is left out: then the field has null instead of both
    values.
    """
    columns = {name for name in Definition.__dataclass_fields__ if getattr(before, name) != getattr(after, name)}
    old, new = (_values(definition, columns, is_shown=False) for definition in (before, after))
    shown_old, shown_new = (_values(definition, columns, is_shown=True) for definition in (before, after))
    found = {name: [shown_old[name], shown_new[name]] for name in old if old[name] != new[name]}
    if notes[0] != notes[1]:
        found["note"] = [*notes]
    return {name: None if len(dumps(pair)) > MAX_RECORDED else pair for name, pair in found.items()}


def _values(definition: Definition, columns: set[str], *, is_shown: bool) -> dict[str, Any]:
    """Return the fields that some columns store. If they are shown, URLs lack their paths."""
    found: dict[str, Any] = {}
    if "workflow" in columns:
        found["workflow"] = definition.workflow
    if "spec" in columns:
        plain: dict[str, Any] = {"exclude": (), "on_excluded": ON_EXCLUDED[0], "dst_gap": None, "dst_fold": None}
        found["spec"] = replace(definition.parsed_spec, **plain).to_json()
    for name, option in OPTIONS.items():
        if _COLUMNS.get(name, "policies" if option.policy is not None else name) not in columns:
            continue
        value = value_of(name, definition)
        if name in PARTS:
            given = asdict(value) if isinstance(value, RetryPolicy) else value or {}
            found |= {f"{name}.{field}": _plain(given.get(field)) for field in PARTS[name]}
        else:
            found[name] = _plain(value)
    if is_shown:
        found |= {name: hidden(url) for name in _URLS if (url := found.get(name))}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return in_one_unit(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value  # an enum is a str, too


class FieldUndo(NamedTuple):
    """One field of an undo."""

    name: str
    """The field."""
    present: Any
    """Its present value."""
    before: Any
    """Its value before the edit, to which it is set back; None if it is not known."""
    problem: str
    """Why it is not set back, as the end of a sentence; empty if it is."""
    is_changed_since: bool = False
    """Whether a later edit changed it, so that it has neither the value before nor the value after the edit."""


class Undo(NamedTuple):
    """The update that sets back what an edit changed."""

    fields: tuple[FieldUndo, ...]
    """The fields that the edit changed, and whose value differs from the value before."""
    workflow: str | None
    """The argument of `update`; None leaves the workflow as it is."""
    spec: Spec | None
    """The argument of `update`; None leaves the timing as it is."""
    note: str | None
    """The argument of `update`; None leaves the note as it is."""
    options: Mapping[str, Any]
    """The options of `update`."""

    @property
    def conflicts(self) -> list[FieldUndo]:
        """The fields that a later edit changed. If there are any, nothing may be set back."""
        return [one for one in self.fields if one.is_changed_since]

    @property
    def is_possible(self) -> bool:
        """Whether there is a field to set back, and no conflict."""
        return not self.conflicts and any(not one.problem for one in self.fields)


def can_undo(event: AuditRecord) -> bool:
    """Return whether an event records an edit with its values."""
    return event.event_type == UPDATED and bool(event.payload.get("changes"))


def undo(schedule: Schedule, event: AuditRecord) -> Undo:
    """Return the update that sets back what the edit of an event changed. Nothing is checked against later events.

    A field that has the value before the edit already is left out.
    """
    definition = schedule.definition
    present = _values(definition, {*Definition.__dataclass_fields__}, is_shown=True) | {"note": schedule.note}
    found: list[FieldUndo] = []
    wanted: dict[str, Any] = {}
    for name, pair in event.payload.get("changes", {}).items():
        if name not in present:  # an option of another release
            found.append(FieldUndo(name, None, None, "is not known to this release"))
        elif pair is None:
            found.append(FieldUndo(name, present[name], None, "was too long to be recorded"))
        elif present[name] == pair[0] and not (name in _URLS and pair[0]):
            continue
        elif present[name] != pair[1]:
            found.append(FieldUndo(name, present[name], pair[0], "was changed by a later edit", is_changed_since=True))
        elif name in _URLS and pair[0] is not None:
            found.append(FieldUndo(name, present[name], pair[0], "is a URL, of which only the host is recorded"))
        else:
            found.append(FieldUndo(name, present[name], pair[0], ""))
            wanted[name] = pair[0]
    options: dict[str, Any] = {name: value for name, value in wanted.items() if name in OPTIONS}
    for name in PARTS:
        parts = {field: wanted[f"{name}.{field}"] for field in PARTS[name] if f"{name}.{field}" in wanted}
        if parts and name == "notifications":  # `update` replaces this option as a whole
            parts = dict(value_of(name, definition) or {}) | parts
        options |= {name: parts} if parts else {}
    note = wanted.get("note") or "" if "note" in wanted else None
    spec = Spec.coerce(wanted["spec"]) if "spec" in wanted else None
    return Undo(tuple(found), wanted.get("workflow"), spec, note, options)
