"""Create and edit a schedule in one form. The form checks values as they are typed, and shows the next fires.

The fields of the form are made from the table of options. A field that is not edited changes nothing. Only the host of
a URL is shown, because the rest may contain a secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched import MissedPolicy, OverlapPolicy
from rqsched.api import schedules as schedule_queries
from rqsched.api import workflows
from rqsched.api.definitions import value_of, with_clocks
from rqsched.api.options import (
    EXPECTATIONS,
    METADATA,
    OPTIONS,
    PARTS,
    POLICY,
    TARGETS,
    WHAT,
    Kind,
    hidden,
    require_id,
)
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.dashboard.rendering import lines
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError, UnknownWorkflowError
from rqsched.http.dependencies import require_allowed_hosts
from rqsched.types import Notifications, Schedule
from rqsched.when.duration import in_one_unit
from rqsched.when.exclusion import require_exclusions
from rqsched.when.moved import ON_EXCLUDED
from rqsched.when.spec import After, Cron, Every, Once, Spec
from rqsched.when.steps import Steps, bounded
from rqsched.when.words import after_in_words, clock_warnings, in_words
from rqsched.when.zones import FOLDS, GAPS, known_timezones

KINDS = {
    "cron": "Cron expression", "every": "Interval", "once": "Once", "after-success": "After each success of",
    "after-failure": "After each failure of", "after-end": "After each end of", "keep": "As it is",
}  # fmt: skip
"""The kinds of timing, and their names in the form."""
_CLOCKS = ("dst_gap", "dst_fold")
_FIRES = 5
_LAID_OUT = {
    "exclude", "on_excluded", "dst_gap", "dst_fold", "jitter", "spread", "args", "kwargs", "labels", "overlap",
    "missed", "queue", "timeout", "max_runs", "description", "owner",
}  # fmt: skip
"""The options that the form's template places itself. The other options are listed in groups."""
_WORKFLOWS, _URLS = ("on_failure", "on_recovery"), ("webhook", "heartbeat")
_TOLD = {*_WORKFLOWS, *EXPECTATIONS, "notifications"}
_TOLD_FIELDS = (*_WORKFLOWS, *EXPECTATIONS, *_URLS, "sentry")
_OBJECTS = frozenset({Kind.OBJECT, Kind.ATTRIBUTES})
_FORMS = {Kind.NAMES: " Separated by commas."} | dict.fromkeys(_OBJECTS, " A JSON object.")
"""For some kinds of values, a hint on how to write them."""


class Field(NamedTuple):
    """One field of the form."""

    name: str
    """The name of the option. For a field of a retry policy: the option, a dot, and the field's name."""
    label: str
    """Its label in the form."""
    hint: str
    """Its effect."""
    choices: tuple[str, ...] = ()
    """The values to choose from; empty if the value is typed."""


def new(visit: Visit) -> Response:
    """Show an empty form."""
    values = {"kind": "cron", "timing": "0 2 * * *", "timezone": visit.zone.key, **_shown(None)}
    return _form(visit, values, None)


def edit(visit: Visit) -> Response:
    """Show the form with a schedule's values."""
    schedule = visit.schedule().state
    own = {"workflow": schedule.definition.workflow, **_shown(schedule), **_shown_told(schedule)}
    return _form(visit, {**_timing(schedule.spec), **own}, schedule)


def create(visit: Visit) -> Response:
    """Create the schedule that the form describes. If it is refused, show the form again with the problem."""
    form = visit.form
    try:
        workflow = _registered(visit, form.get("workflow", ""))
        handle = visit.scheduler.create(
            form.get("schedule_id", "").strip(), workflow, _spec(visit, form), namespace=visit.namespace,
            paused="paused" in form, context=visit.context, **_options(visit, None),
        )  # fmt: skip
    except RqschedError as error:
        return _form(visit, form, None, error)
    return visit.done(_said(handle, "created"), f"/schedules/{handle.schedule_id}")


def update(visit: Visit) -> Response:
    """Save a schedule's form, unless somebody has changed the schedule meanwhile."""
    form, handle = visit.form, visit.schedule()
    try:
        version = form.get("version", "")
        spec = None if form.get("kind") == "keep" else _spec(visit, form)
        handle.update(
            _registered(visit, form.get("workflow", "")), spec, context=visit.context,
            if_version=int(version) if version.isdigit() else None, **_options(visit, handle.state),
        )  # fmt: skip
    except RqschedError as error:
        return _form(visit, form, handle.state, error)
    return visit.done(_said(handle, "saved"), f"/schedules/{handle.schedule_id}")


def _said(handle: ScheduleHandle, outcome: str) -> str:
    return " ".join(
        [
            f"{handle.schedule_id} is {outcome}.",
            *(f"{one}." for one in clock_warnings(handle.state.spec, handle.state.updated_at)),
        ]
    )


def preview(visit: Visit) -> Response:
    """Return a timing in words with its next fires, which the form shows while it is filled in."""
    given = {name: visit.query(name) for name in ("kind", "timing", "timezone", "exclude", "on_excluded", *_CLOCKS)}
    try:
        exclude, clocks = require_exclusions(lines(given["exclude"])), [given[name] or None for name in _CLOCKS]
        said = replace(_spec(visit, given), exclude=exclude, on_excluded=given["on_excluded"] or ON_EXCLUDED[0])
        if said.after is not None:
            return _preview_after(visit, said.after)
        spec = with_clocks(replace(said, dst_gap=clocks[0], dst_fold=clocks[1]), None)
        if spec.has_places:
            if not (named := visit.query("schedule_id")):
                raise InvalidInputError("schedule_id", "gives H its numbers; write it first")
            spec = spec.placed_for(visit.namespace, require_id(named))
        spec = spec.with_calendars(visit.scheduler.calendars.named(spec.calendars, namespace=visit.namespace))
        spec = spec.anchored_at(visit.now)
        with bounded(Steps()):
            fires = [(at, spec.moved_from(at)) for at in islice(_fires(spec, visit.now), _FIRES)]
            is_excluded = not fires and spec.is_all_excluded_after(visit.now)
    except RqschedError as error:
        return visit.page("preview.html", problem=str(error), words="", fires=[], zone=visit.zone)
    return visit.page(
        "preview.html", problem="", words=in_words(spec), fires=fires, zone=ZoneInfo(spec.timezone), is_after=False,
        is_excluded=is_excluded, warnings=clock_warnings(spec, visit.now),
    )  # fmt: skip


def _preview_after(visit: Visit, after: After) -> Response:
    is_there = visit.read(
        lambda connection: schedule_queries.find_named(connection, visit.namespace, after.schedule_id)
    )
    problem = "" if is_there else f"there is no schedule {after.schedule_id[:64]!r} here to come after"
    return visit.page(
        "preview.html", problem=problem, words=after_in_words(after), fires=[], zone=visit.zone, is_after=True,
        warnings=[],
    )  # fmt: skip


def _fires(spec: Spec, after: datetime) -> Iterator[datetime]:
    at = spec.next_after(after)
    while at is not None:
        yield at
        at = spec.next_after(at)


def _form(
    visit: Visit, values: Mapping[str, str], schedule: Schedule | None, error: RqschedError | None = None
) -> Response:
    refused = error.field if isinstance(error, InvalidInputError) else ""
    groups = _groups(is_new=schedule is None)
    return visit.page(
        "editor.html", 200 if error is None else 422, values=values, schedule=schedule, problem=str(error or ""),
        refused=refused, kinds=KINDS, workflows=_workflows(visit), overlaps=list(OverlapPolicy),
        missed=list(MissedPolicy), on_excluded=ON_EXCLUDED, gaps=GAPS, folds=FOLDS, zones=sorted(known_timezones()),
        groups=groups, declared=None if schedule is None else overwritten_by(visit, schedule),
        more={field.name for fields in groups.values() for field in fields},
    )  # fmt: skip


def overwritten_by(visit: Visit, schedule: Schedule) -> str | None:
    """Return a warning if a sync overwrites the schedule; else None. The warning says where the schedule is declared.

    If a file declares it, the warning lacks the file's name, because a sync does not store this name.
    """
    scheduler = visit.scheduler
    is_here = schedule.namespace == scheduler.settings.namespace and any(
        one.schedule_id == schedule.schedule_id for one in scheduler.declarations.all()
    )
    if schedule.definition.managed_by != "sync" and not is_here:
        return None
    where = "elsewhere, and a sync made it"
    if is_here:
        known = scheduler.runtime.imports.find(schedule.definition.workflow)
        code = getattr(known.target if known else None, "__code__", None)
        where = f"in {Path(code.co_filename).name}" if code is not None else "in the code of the application"
    return f"It is declared {where}: the next sync overwrites what is edited here."


def _groups(*, is_new: bool) -> dict[str, list[Field]]:
    """Return the listed fields by their group. Fixed options are listed only for a new schedule."""
    found: dict[str, list[Field]] = {group: [] for group in (POLICY, TARGETS, WHAT, METADATA)}
    for name, option in OPTIONS.items():
        if name in {"timezone"} | _LAID_OUT | _TOLD or (option.is_fixed and not is_new):
            continue
        label = name.replace("_", " ").capitalize()
        if option.kind is Kind.RETRY:
            found[option.group] += [
                Field(f"{name}.{field}", f"{label}: {field.replace('_', ' ')}", part.help, part.choices)
                for field, part in PARTS[name].items()
            ]
        else:
            found[option.group].append(Field(name, label, option.help + _FORMS.get(option.kind, ""), option.choices))
    return found


def _shown(schedule: Schedule | None) -> dict[str, str]:
    """Return the text of every option's field: for a schedule, or for a new schedule if `schedule` is None."""
    found: dict[str, str] = {}
    for name, option in OPTIONS.items():
        if name == "timezone" or name in _TOLD:
            continue
        value = option.default if schedule is None else value_of(name, schedule.definition)
        if value == timedelta(0) == option.default:
            value = None  # no delay
        if option.kind is Kind.RETRY:
            found |= {
                f"{name}.{field}": _text(part.kind, value and getattr(value, field))
                for field, part in PARTS[name].items()
            }
        else:
            found[name] = _text(option.kind, value)
    return found


def _text(kind: Kind, value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, timedelta):
        return in_one_unit(value)
    if kind is Kind.LABELS:
        return "\n".join(f"{name}:{text}" for name, text in value.items())
    if kind is Kind.ARGUMENTS or kind in _OBJECTS:
        return json.dumps(value)
    if kind is Kind.NAMES:
        return ", ".join(value)
    if kind is Kind.TEXTS:
        return "\n".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _timing(spec: Spec) -> dict[str, str]:
    """Return a spec as fields of the form. If the form cannot show the spec, return the choice that keeps it."""
    keep = {"kind": "keep", "timing": replace(spec, exclude=()).describe(), "timezone": spec.timezone}
    if len(spec.members) != 1 or spec.start_at or spec.end_at or spec.newer:  # its exclusions have a separate field
        return keep
    member = spec.members[0]
    if isinstance(member, Cron) and member.timezone is None:
        return keep | {"kind": "cron", "timing": member.expression}
    if isinstance(member, After):
        return keep | {"kind": f"after-{member.on}", "timing": member.schedule_id}
    return keep


def _spec(visit: Visit, given: Mapping[str, str]) -> Spec:
    kind, text, timezone = given.get("kind", ""), given.get("timing", "").strip(), given.get("timezone", "").strip()
    if kind == "cron":
        return Spec(Cron(text, seconds="first"), timezone or None)
    if kind == "every":
        return Spec(Every(text), timezone or None)
    if kind == "once":
        return Spec(Once(_moment(visit, text, timezone)), timezone or None)
    if kind.startswith("after-"):
        return Spec(After(text, on=kind.removeprefix("after-")))
    raise InvalidInputError("kind", f"{kind[:32]!r} is not one of {', '.join(KINDS)}")


def _moment(visit: Visit, text: str, timezone: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        zone = ZoneInfo(timezone) if timezone in known_timezones() else visit.zone
        return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInputError("timing", f"{text[:64]!r} is not a time; write one such as 2026-12-24 18:00") from None


def _options(visit: Visit, schedule: Schedule | None) -> Any:
    """Return the options whose fields were edited; raises InvalidInputError, which names the field."""
    form, found = visit.form, dict[str, Any]()
    for field, stored in _shown(schedule).items():
        text = form.get(field, stored).replace("\r\n", "\n").strip()
        if text == stored:
            continue
        name, _, inner = field.partition(".")
        if inner:
            found.setdefault(name, {})[inner] = _read(field, PARTS[name][inner].kind, text) if text else None
        else:
            found[name] = _read(name, OPTIONS[name].kind, text) if text else OPTIONS[name].default
    if targets := found.get("targets"):
        _require_registered(visit, "targets", targets)
    return {**found, **_told_options(visit, schedule)}


def _read(field: str, kind: Kind, text: str) -> Any:
    match kind:
        case Kind.COUNT:
            return _whole(field, text)
        case Kind.NUMBER:
            try:
                return float(text)
            except ValueError:
                raise InvalidInputError(field, f"{text[:32]!r} is not a number; write one, such as 1.5") from None
        case Kind.LENGTH:  # a bare number is seconds, else text such as 2h
            return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else text
        case Kind.NAMES:
            return [one.strip() for one in text.split(",") if one.strip()]
        case Kind.TEXTS:
            return lines(text)
        case Kind.LABELS:
            return _labels(text)
        case Kind.ARGUMENTS:
            return _json(field, text, list, 'list, such as ["eu", 2]')
        case Kind.OBJECT | Kind.ATTRIBUTES:
            return _json(field, text, dict, 'object, such as {"tier": 3}')
        case _:
            return text


def _whole(field: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16:
        raise InvalidInputError(field, f"{text[:32]!r} is not a whole number; write one, such as 3")
    return int(text)


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for line in lines(text):
        name, separator, value = line.partition(":")
        if not (name and separator):
            raise InvalidInputError("labels", f"{line[:64]!r} is refused; write name:value, one a line")
        labels[name.strip()] = value.strip()
    return labels


def _json(field: str, text: str, kind: type, form: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInputError(field, f"is not JSON; write a JSON {form}") from None
    if not isinstance(found, kind):
        raise InvalidInputError(field, f"must be a JSON {form}")
    return found


def _shown_told(schedule: Schedule | None) -> dict[str, str]:
    """Return the text of the fields of notifications."""
    told = Notifications() if schedule is None else schedule.definition.parsed_notifications
    urls = {name: hidden(url) if (url := getattr(told, name)) else "" for name in _URLS}
    others = {name: getattr(told, name) or "" for name in (*_WORKFLOWS, "sentry")}
    return {**others, **urls, **{name: _text(Kind.LENGTH, getattr(told, name)) for name in EXPECTATIONS}}


def _told_options(visit: Visit, schedule: Schedule | None) -> dict[str, Any]:
    """Return the options that the fields of notifications change.

    If a URL's field was not edited, neither the URL nor the webhook's events change.
    """
    before = _shown_told(schedule)
    given = {name: visit.form[name].strip() for name in _TOLD_FIELDS if name in visit.form}
    changed = {name: value for name, value in given.items() if value != before[name]}
    for name in _WORKFLOWS:
        if wanted := changed.get(name):
            _require_registered(visit, name, wanted)
    options: dict[str, Any] = {name: changed[name] or None for name in _TOLD_FIELDS[:4] if name in changed}
    targets = {name: value or None for name, value in changed.items() if name not in options}
    if not targets:
        return options
    require_allowed_hosts(visit.scheduler, targets)
    told = Notifications() if schedule is None else schedule.definition.parsed_notifications
    kept = {"webhook": told.webhook, "heartbeat": told.heartbeat, "sentry": told.sentry}
    return options | {"notifications": kept | {"events": list(told.events) or None} | targets}


def _require_registered(visit: Visit, field: str, name: str) -> None:
    if not workflows.is_registered(visit.scheduler.runtime, name):
        raise InvalidInputError(field, f"no workflow named {name[:64]!r} is registered; choose one of the list")


def _workflows(visit: Visit) -> list[str]:
    """Return the proposed workflows: all for a viewer of every namespace, else those that this namespace uses."""
    known = {*visit.read(workflows.read_all), *(one.name for one in visit.scheduler.runtime.imports.all())}
    if visit.principal.namespaces is None:
        return sorted(known)
    return sorted(known & visit.read(lambda connection: workflows.names_in_use(connection, visit.namespace)))


def _registered(visit: Visit, name: str) -> str:
    """Refuse a workflow that is not registered, because HTTP requests must not import code."""
    if not workflows.is_registered(visit.scheduler.runtime, name):
        raise UnknownWorkflowError(name, f"no workflow named {name[:64]!r} is registered; choose one of the list.")
    return name
