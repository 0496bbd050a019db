"""Create and edit a schedule in one form. It shows the next fires as they are and as they would be.

The fields of the form are made from the table of options. A field that is not edited changes nothing. Only the host of
a URL is shown, because the rest may contain a secret. If fields are refused, the form shows every problem at its field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched import MissedPolicy, OverlapPolicy
from rqsched.api import schedules as schedule_queries
from rqsched.api import workflows
from rqsched.api.definitions import new_definition, redefine, registered, value_of
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
from rqsched.dashboard.edits import Changed, merge, seen
from rqsched.dashboard.equivalent import Equivalent, change, creation
from rqsched.dashboard.rendering import lines
from rqsched.dashboard.visit import Visit
from rqsched.errors import (
    InvalidInputError,
    InvalidSpecError,
    RqschedError,
    ScheduleExistsError,
    UnknownWorkflowError,
    VersionConflictError,
)
from rqsched.http.dependencies import require_allowed_hosts
from rqsched.types import Notifications, Schedule
from rqsched.when.duration import in_one_unit
from rqsched.when.exclusion import require_exclusions
from rqsched.when.moved import ON_EXCLUDED
from rqsched.when.spec import After, Cron, Every, Once, Spec
from rqsched.when.steps import Steps, bounded
from rqsched.when.words import after_in_words, clock_warnings, in_words
from rqsched.when.zones import FOLDS, GAPS, known_timezones, require_timezone

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
_TIMING = ("kind", "timing", "timezone")
_ANY_TIME = Cron("0 0 * * *")
"""The timing with which the other fields are checked while the form's own timing is refused."""
LABELS = {
    "schedule_id": "Id", "workflow": "Workflow", "kwargs": "Keyword arguments", "args": "Positional arguments",
    "description": "Description", "kind": "Kind", "timing": "Timing", "timezone": "Time zone",
    "exclude": "Not at these times", "on_excluded": "An occurrence on an excluded day",
    "dst_gap": "Local times that the clock leaves out", "dst_fold": "Local times that the clock shows twice",
    "jitter": "Jitter", "spread": "Spread", "overlap": "While an earlier run is unfinished",
    "missed": "Missed occurrences", "queue": "Queue", "timeout": "Timeout", "max_runs": "Most runs",
    "owner": "Owner", "labels": "Labels", "reason": "Reason, for the history",
    "on_failure": "Workflow to run after a failure", "on_recovery": "Workflow to run after the next success",
    "expect_success_within": "A success is expected within",
    "expect_duration": "A run is expected to take at most",
    "webhook": "Webhook", "heartbeat": "Heartbeat", "sentry": "Monitor in Sentry",
}  # fmt: skip
"""The labels of the fields that the form's template places itself."""
_OBJECTS = frozenset({Kind.OBJECT, Kind.ATTRIBUTES})
_FORMS = {Kind.NAMES: " Separated by commas."} | dict.fromkeys(_OBJECTS, " A JSON object.")
"""For some kinds of values, a hint on how to write them."""


_Reader = Callable[[Callable[[], Any]], Any]
"""Calls a function and returns its value. If the function refuses a field, it notes the problem and returns None."""


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


class Typed(NamedTuple):
    """The values of a form that can be read, and the problem of each field that cannot be read."""

    schedule_id: str
    """The id of a new schedule; empty if it is refused."""
    workflow: str | None
    """The workflow; None if it is refused."""
    spec: Spec | None
    """The timing; None if the form keeps the stored timing, or if the typed timing is refused."""
    options: dict[str, Any]
    """The options whose fields were edited."""
    problems: dict[str, str]
    """The reason of each refused field, by its name. An empty name stands for the whole form."""


class Fire(NamedTuple):
    """One line of a preview: a fire, or a local time that does not fire because the clocks skip it."""

    at: datetime
    """The instant."""
    skipped: str = ""
    """The local time that the clocks skip; empty for a fire."""
    moved_from: tuple[datetime, ...] = ()
    """The excluded occurrences that were moved to this instant."""
    clocks: str = ""
    """The effect of a change of clocks on this fire; empty if there is none."""


class Plan(NamedTuple):
    """The preview of one timing."""

    words: str = ""
    """The timing in words."""
    fires: Sequence[Fire] = ()
    """The next fires."""
    zone: ZoneInfo | None = None
    """The time zone of the timing."""
    nothing: str = ""
    """The reason why nothing fires, as a sentence."""
    warnings: Sequence[str] = ()
    """The effects of clock changes within a year."""
    problem: str = ""
    """The reason why the timing is refused; empty if it is valid."""


def new(visit: Visit) -> Response:
    """Show an empty form."""
    values = {"kind": "cron", "timing": "0 2 * * *", "timezone": visit.zone.key, **_shown(None)}
    return _form(visit, values, None)


def edit(visit: Visit) -> Response:
    """Show the form with a schedule's values."""
    schedule = visit.schedule().state
    return _form(visit, _values(schedule), schedule)


def show_again(visit: Visit) -> Response:
    """Show the form as it was filled in, after a login has interrupted it."""
    is_new = "schedule_id" not in visit.request.path_params
    return _form(visit, visit.form, None if is_new else visit.schedule().state, is_unsaved=True)


def _values(schedule: Schedule) -> dict[str, str]:
    """Return the values of a schedule's form, with its version and their digests."""
    own = {"workflow": schedule.definition.workflow, **_shown(schedule), **_shown_told(schedule)}
    values = {**_timing(schedule.spec), **own}
    return {**values, "version": str(schedule.version), "was": seen(values)}


def create(visit: Visit) -> Response:
    """Create the schedule that the form describes. If it is refused, show the form again with all problems."""
    form = visit.form
    if "dry_run" in form:
        return _form(visit, form, None, plans=_plans(visit, form, None), is_unsaved=True)
    typed = _typed(visit, None)
    if typed.problems or typed.workflow is None or typed.spec is None:
        return _refused(visit, None, typed)
    try:
        handle = visit.scheduler.create(
            typed.schedule_id, typed.workflow, typed.spec, namespace=visit.namespace, paused="paused" in form,
            context=visit.context, **typed.options,
        )  # fmt: skip
    except RqschedError as error:
        return _refused(visit, None, typed, error)
    return visit.done(_said(handle, "created"), f"/schedules/{handle.schedule_id}")


def update(visit: Visit) -> Response:
    """Save a schedule's form. If somebody has changed the schedule meanwhile, show the form with both changes."""
    handle = visit.schedule()
    schedule, version = handle.state, visit.form.get("version", "")
    if version.isascii() and version.isdigit() and version != str(schedule.version):
        now = _values(schedule)
        stored = {name: text for name, text in now.items() if name not in {"version", "was"}}
        merged, changed = merge(visit.form, stored, visit.form.get("was", ""), together=_TIMING)
        visit = replace(visit, form=merged | {name: now[name] for name in ("version", "was")})
        if changed:
            return _form(visit, visit.form, schedule, status=409, changed=changed, is_unsaved=True)
    if "dry_run" in visit.form:
        return _form(visit, visit.form, schedule, plans=_plans(visit, visit.form, schedule), is_unsaved=True)
    typed = _typed(visit, schedule)
    if typed.problems:
        return _refused(visit, schedule, typed)
    try:
        handle.update(
            typed.workflow, typed.spec, context=visit.context, if_version=schedule.version if version else None,
            **typed.options,
        )  # fmt: skip
    except VersionConflictError:
        return update(visit)
    except RqschedError as error:
        return _refused(visit, schedule, typed, error)
    return visit.done(_said(handle, "saved"), f"/schedules/{handle.schedule_id}")


def equivalent_of_new(visit: Visit) -> Equivalent:
    """Return the schedule of the form as a command that creates it, and in Python; raises InvalidInputError."""
    typed = _readable(visit, None)
    if typed.workflow is None or typed.spec is None:
        return Equivalent(remark="Fill in the form first.")
    is_paused = "paused" in visit.form
    return creation(visit, typed.schedule_id, typed.workflow, typed.spec, typed.options, paused=is_paused)


def equivalent_of_edit(visit: Visit) -> Equivalent:
    """Return what was edited in the form as a command and in Python; raises InvalidInputError."""
    schedule = visit.schedule().state
    typed = _readable(visit, schedule)
    is_kept = all(visit.form.get(name, "").strip() == text for name, text in _timing(schedule.spec).items())
    return change(
        visit, schedule, typed.options,
        workflow=None if typed.workflow == schedule.definition.workflow else typed.workflow,
        spec=None if is_kept else typed.spec,
    )  # fmt: skip


def _readable(visit: Visit, schedule: Schedule | None) -> Typed:
    """Return the values of the form; raises InvalidInputError, which names the first field that is refused."""
    typed = _typed(visit, schedule)
    for field, reason in typed.problems.items():
        raise InvalidInputError(field or "form", reason)
    return typed


def _said(handle: ScheduleHandle, outcome: str) -> str:
    return " ".join(
        [
            f"{handle.schedule_id} is {outcome}.",
            *(f"{one}." for one in clock_warnings(handle.state.spec, handle.state.updated_at)),
        ]
    )


def _typed(visit: Visit, schedule: Schedule | None) -> Typed:
    """Read every field of the form, also after the first that cannot be read."""
    form, problems = visit.form, dict[str, str]()

    def read(one: Callable[[], Any]) -> Any:
        try:
            return one()
        except InvalidInputError as error:
            problems.setdefault(_field_of(error), error.reason)
            return None

    schedule_id = None
    if schedule is None:
        schedule_id = read(lambda: require_id(form.get("schedule_id", "").strip(), "schedule_id"))
    workflow = read(lambda: registered_workflow(visit, form.get("workflow", "")))
    spec = None
    if schedule is not None and form.get("kind") == "keep":
        read(lambda: _require_kept(form, schedule))
    else:
        timezone = form.get("timezone", "").strip()
        is_after = form.get("kind", "").startswith("after-")
        if timezone and not is_after and read(lambda: require_timezone(timezone)) is None:
            timezone = ""
        spec = read(lambda: _spec(visit, {**form, "timezone": timezone}))
    options = {**_edited(visit, schedule, read), **_told_options(visit, schedule, read)}
    return Typed(schedule_id or "", workflow, spec, options, problems)


def _edited(visit: Visit, schedule: Schedule | None, read: _Reader) -> dict[str, Any]:
    """Return the options whose fields were edited and can be read. Fields of notifications are not among them."""
    found = dict[str, Any]()
    for field, stored in _shown(schedule).items():
        text = visit.form.get(field, stored).replace("\r\n", "\n").strip()
        if text == stored:
            continue
        name, _, inner = field.partition(".")
        if not text:
            value = None if inner else OPTIONS[name].default
        elif (
            value := read(partial(_read, field, PARTS[name][inner].kind if inner else OPTIONS[name].kind, text))
        ) is None:
            continue
        if inner:
            found.setdefault(name, {})[inner] = value
        else:
            found[name] = value
    if targets := found.get("targets"):
        read(lambda: require_registered(visit, "targets", targets))
    return found


def _field_of(error: InvalidInputError) -> str:
    """Return the field of the form that an error is about; empty if it is about none."""
    name = error.field.removeprefix("notifications.")
    name = {"args and kwargs": "kwargs"}.get(name, name)
    if name in LABELS or name.partition(".")[0] in OPTIONS:
        return name
    return "timing" if isinstance(error, InvalidSpecError) else ""


def _refused(visit: Visit, schedule: Schedule | None, typed: Typed, error: RqschedError | None = None) -> Response:
    """Show the form with the problem of each field.

    A check stops at its first problem. So each refused field is left out, and the rest is checked again.
    """
    problems = dict(typed.problems)
    if isinstance(error, ScheduleExistsError):
        problems["schedule_id"] = str(error)
    elif error is not None and not isinstance(error, InvalidInputError):
        problems[""] = str(error)
    left = typed
    for field in problems:
        left = _without(left, field)
    found = error if isinstance(error, InvalidInputError) else None
    if error is None:
        found = _problem_of(visit, schedule, left)
    while found is not None:
        if (field := _field_of(found)) not in problems:
            problems[field] = found.reason
            left = _without(left, field)
        elif left.spec is not None:  # the stored value of the field contradicts the typed timing
            left = left._replace(spec=None)
        else:
            break
        found = _problem_of(visit, schedule, left)
    return _form(visit, visit.form, schedule, status=422, problems=problems, is_unsaved=True)


def _problem_of(visit: Visit, schedule: Schedule | None, typed: Typed) -> InvalidInputError | None:
    """Return the first problem of the fields that can be read; None if there is none. Nothing is written."""
    runtime = visit.scheduler.runtime
    try:
        if schedule is None:
            is_external = typed.workflow is None or typed.options.get("executor") == "external"
            spec = typed.spec or Spec(_ANY_TIME)
            wanted = new_definition(runtime, typed.workflow or "", spec, typed.options, is_external=is_external)
        else:
            wanted = redefine(runtime, schedule.definition, typed.workflow, typed.spec, typed.options).of(
                schedule.definition
            )
        visit.scheduler.calendars.named(wanted.parsed_spec.calendars, namespace=visit.namespace)
    except InvalidInputError as error:
        return error
    return None


def _without(typed: Typed, field: str) -> Typed:
    """Return the values of a form without one field."""
    if field in _TIMING:
        return typed._replace(spec=None)
    if field == "workflow":
        return typed._replace(workflow=None)
    name, _, inner = field.partition(".")
    options = {key: dict(value) if isinstance(value, dict) else value for key, value in typed.options.items()}
    if inner:
        options.get(name, {}).pop(inner, None)
    elif field in (*_URLS, "sentry"):
        options.get("notifications", {}).pop(field, None)
    else:
        options.pop(name, None)
    return typed._replace(options=options)


def preview(visit: Visit) -> Response:
    """Return a timing in words with its next fires, which the form shows while it is filled in.

    For a schedule that is edited, also return its present timing.
    """
    given = {name: visit.query(name) for name in (*_TIMING, "exclude", "on_excluded", *_CLOCKS, "schedule_id")}
    named = given["schedule_id"]
    schedule = visit.scheduler.newest(named, namespace=visit.namespace).state if visit.query("edited") else None
    return visit.page("preview.html", plans=_plans(visit, given, schedule))


def _plans(visit: Visit, given: Mapping[str, str], schedule: Schedule | None) -> tuple[Plan, Plan | None]:
    """Return the preview of the timing in a form, and of the stored timing if there is one."""
    wanted = _plan(visit, lambda: _planned(visit, given, schedule))
    if schedule is None:
        return wanted, None
    return wanted, _plan(visit, lambda: schedule.spec)


def _planned(visit: Visit, given: Mapping[str, str], schedule: Schedule | None) -> Spec:
    """Return the timing in a form as the schedule would store it; raises InvalidInputError."""
    exclude, moving = require_exclusions(lines(given.get("exclude", ""))), given.get("on_excluded") or ON_EXCLUDED[0]
    if schedule is not None and given.get("kind") == "keep":
        _require_kept(given, schedule)
        said = replace(schedule.definition.parsed_spec, exclude=exclude, on_excluded=moving)
    else:
        said = replace(_spec(visit, given), exclude=exclude, on_excluded=moving)
    if said.after is not None:
        return said
    said = replace(
        said, dst_gap=given.get("dst_gap") or said.dst_gap, dst_fold=given.get("dst_fold") or said.dst_fold
    )  # fmt: skip
    named = given.get("schedule_id", "").strip() if schedule is None else schedule.schedule_id
    if said.has_places and not named:
        raise InvalidInputError("schedule_id", "gives H its numbers; write it first")
    if said.has_places:
        require_id(named)
    like = None if schedule is None else schedule.definition.parsed_spec
    spec = registered(said, (visit.namespace, named), visit.now, like)
    return spec.with_calendars(visit.scheduler.calendars.named(spec.calendars, namespace=visit.namespace))


def _plan(visit: Visit, timing: Callable[[], Spec]) -> Plan:
    try:
        spec = timing()
        if spec.after is not None:
            return _plan_after(visit, spec.after)
        zone = ZoneInfo(spec.timezone)
        with bounded(Steps()):
            fires = _next_fires(spec, visit.now, zone)
            is_excluded = not fires and spec.is_all_excluded_after(visit.now)
        nothing = "Every occurrence of the next ten years is excluded." if is_excluded else "It never fires."
        return Plan(in_words(spec), fires, zone, "" if fires else nothing, clock_warnings(spec, visit.now))
    except RqschedError as error:
        return Plan(problem=str(error))


def _plan_after(visit: Visit, after: After) -> Plan:
    is_there = visit.read(
        lambda connection: schedule_queries.find_named(connection, visit.namespace, after.schedule_id)
    )
    if not is_there:
        return Plan(problem=f"there is no schedule {after.schedule_id[:64]!r} here to come after")
    return Plan(after_in_words(after), nothing="It has no times of its own.")


def _next_fires(spec: Spec, now: datetime, zone: ZoneInfo) -> list[Fire]:
    """Return the next fires, and between them the local times that the clocks skip."""
    instants = [*islice(_fires(spec, now), _FIRES)]
    gaps = {gap.occurrence_at: gap for gap in (spec.gaps_between(now, instants[-1]) if instants else ())}
    found = []
    for at in instants:
        clocks = ""
        if at in gaps and spec.is_shifting:
            clocks = f"moved from {gaps[at].reading:%H:%M}, which the clocks skip"
        elif _is_twice(shown := at.astimezone(zone)):
            clocks = f"the {'second' if shown.fold else 'first'} {shown:%H:%M} of this night"
        found.append(Fire(at, moved_from=spec.moved_from(at), clocks=clocks))
    if not spec.is_shifting:
        found += [Fire(at, skipped=f"{gap.reading:%a %d %b %Y %H:%M}") for at, gap in gaps.items()]
    return sorted(found, key=lambda one: one.at)


def _is_twice(shown: datetime) -> bool:
    """Return whether the clocks show a local time twice, because they went back."""
    return shown.replace(fold=0).utcoffset() != shown.replace(fold=1).utcoffset()


def _fires(spec: Spec, after: datetime) -> Iterator[datetime]:
    at = spec.next_after(after)
    while at is not None:
        yield at
        at = spec.next_after(at)


def _form(
    visit: Visit,
    values: Mapping[str, str],
    schedule: Schedule | None,
    *,
    status: int = 200,
    problems: Mapping[str, str] | None = None,
    changed: Sequence[Changed] = (),
    plans: tuple[Plan, Plan | None] | None = None,
    is_unsaved: bool = False,
) -> Response:
    """Show the form with values. `is_unsaved` says that they were typed, so the browser warns before it loses them."""
    groups = _groups(is_new=schedule is None)
    listed = {field.name: field.label for fields in groups.values() for field in fields}
    return visit.page(
        "editor.html", status, values=values, schedule=schedule, problems=problems or {}, changed=changed, plans=plans,
        is_unsaved=is_unsaved, kinds=KINDS, workflows=_workflows(visit), overlaps=list(OverlapPolicy),
        missed=list(MissedPolicy), on_excluded=ON_EXCLUDED, gaps=GAPS, folds=FOLDS, zones=sorted(known_timezones()),
        groups=groups, declared=None if schedule is None else overwritten_by(visit, schedule), more=listed.keys(),
        labels=LABELS | listed, options=OPTIONS, same=Equivalent(),
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


def _require_kept(given: Mapping[str, str], schedule: Schedule) -> None:
    """Refuse a timing that was typed although the kind keeps the stored one; it would be lost without a word."""
    stored = _timing(schedule.spec)
    for name in ("timing", "timezone"):
        if given.get(name, "").strip() not in {"", stored[name]}:
            reason = f"{KINDS['keep']!r} keeps the stored timing; choose the kind of what you typed in {LABELS[name]}"
            raise InvalidInputError("kind", reason)


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


def _told_options(visit: Visit, schedule: Schedule | None, read: _Reader) -> dict[str, Any]:
    """Return the options that the fields of notifications change.

    If a URL's field was not edited, neither the URL nor the webhook's events change.
    """
    before = _shown_told(schedule)
    given = {name: visit.form[name].strip() for name in _TOLD_FIELDS if name in visit.form}
    changed = {name: value for name, value in given.items() if value != before[name]}
    for name in _WORKFLOWS:
        if wanted := changed.get(name):
            read(partial(require_registered, visit, name, wanted))
    options: dict[str, Any] = {name: changed[name] or None for name in _TOLD_FIELDS[:4] if name in changed}
    targets = {name: value or None for name, value in changed.items() if name not in options}
    if not targets:
        return options
    for name, value in targets.items():
        read(partial(require_allowed_hosts, visit.scheduler, {name: value}))
    told = Notifications() if schedule is None else schedule.definition.parsed_notifications
    kept = {"webhook": told.webhook, "heartbeat": told.heartbeat, "sentry": told.sentry}
    return options | {"notifications": kept | {"events": list(told.events) or None} | targets}


def require_registered(visit: Visit, field: str, name: str) -> None:
    """Refuse the name of a workflow that is not registered; raises InvalidInputError, which names the field."""
    if not workflows.is_registered(visit.scheduler.runtime, name):
        raise InvalidInputError(field, f"no workflow named {name[:64]!r} is registered; choose one of the list")


def _workflows(visit: Visit) -> list[str]:
    """Return the proposed workflows: all for a viewer of every namespace, else those that this namespace uses."""
    known = {*visit.read(workflows.read_all), *(one.name for one in visit.scheduler.runtime.imports.all())}
    if visit.principal.namespaces is None:
        return sorted(known)
    return sorted(known & visit.read(lambda connection: workflows.names_in_use(connection, visit.namespace)))


def registered_workflow(visit: Visit, name: str) -> str:
    """Refuse a workflow that is not registered, because HTTP requests must not import code."""
    if not workflows.is_registered(visit.scheduler.runtime, name):
        raise UnknownWorkflowError(name, f"no workflow named {name[:64]!r} is registered; choose one of the list.")
    return name
